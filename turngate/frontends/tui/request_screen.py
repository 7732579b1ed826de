"""One request: the exact call, everything beside it, and the keys that decide it.

A key decides the request that is on screen, by the digest that came with what is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from time import monotonic
from typing import ClassVar, Final

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Static

from turngate.client.requests import Where
from turngate.domain.errors import NotFoundError, TurngateError, UnavailableError
from turngate.domain.policy.terms import same_person
from turngate.domain.requests import Verb
from turngate.domain.runs.groups import Grouping, groups_of
from turngate.frontends.tui.answers import AnswerDialogs, answer_of, edit_key, edit_lines, edit_words, kept_edit
from turngate.frontends.tui.bulk_screen import BulkScreen
from turngate.frontends.tui.dialogs import AskDialog, TextDialog
from turngate.frontends.tui.double_press import DoublePress
from turngate.frontends.tui.form_dialog import FormDialog
from turngate.frontends.tui.problems import problem_words
from turngate.frontends.tui.request_text import (
    call_text,
    comments_text,
    conversation_text,
    ended_words,
    facts_text,
    has_approved,
    heading,
    holder_of,
    state_text,
)
from turngate.frontends.tui.screens import LiveScreen
from turngate.frontends.tui.session import Sent, Session, needs_word
from turngate.frontends.tui.texts import FoldedCall, block, fold_call, folded, json_problem, plain_line, until
from turngate.frontends.tui.widgets import ScrolledText
from turngate.text.run_words import revealed_lines
from turngate.wire.events import EventView
from turngate.wire.orders import MAX_LOOKED_MS, DecisionOrder, Look
from turngate.wire.requests import CommentView, RequestDetail, Viewer

PRESENCE_SECONDS: Final = 25.0
"""Between two signs that someone still looks; one counts for a minute."""
MAX_COMMENTS: Final = 200
MAX_AT_ONCE: Final = 100
"""Most requests that are decided together."""
INERT_SECONDS: Final = 0.3
"""After another request, or another state of it, came on screen: keys typed before were not meant for it."""
KEYS_OF: Final[dict[Verb, str]] = {
    "approve": "a a approve",
    "reject": "r reject",
    "edit": "e edit",
    "respond": "s answer",
}
OUTCOME_KEYS: Final = "h it happened  d d did not, run it  t t unknown"


def confirmed(order: DecisionOrder, request: RequestDetail) -> DecisionOrder:
    """Return the decision of a person who has typed the tool's name."""
    return order.model_copy(update={"confirm": request.tool_name})


class RequestScreen(LiveScreen):
    """Shows and decides one request.

    ``order``, ``where``, ``group``: the inbox's, for the next one. ``wanted``: what the person came to do.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "approve", "Approve"),
        Binding("g", "grant", "Approve, and calls like it"),
        Binding("r", "ask('reject')", "Reject"),
        Binding("e", "ask('edit')", "Edit"),
        Binding("x", "drop_edit", "Drop the edit that isn't sent"),
        Binding("s", "ask('respond')", "Answer"),
        Binding("h", "ask('happened')", "It happened"),
        Binding("d", "did_not_happen", "It did not happen"),
        Binding("t", "tell_model", "Unknown"),
        Binding("b", "step", "Decide its step"),
        Binding("z", "withdraw", "Take your approval back"),
        Binding("c", "claim", "Claim"),
        Binding("w", "comment", "Comment"),
        Binding("f", "fold", "Unfold all of a long call, or fold it again"),
        Binding("v", "conversation", "What led to it"),
        Binding("m", "reveal", "Reveal its secrets"),
        Binding("n", "next", "Next"),
        Binding("o", "open_run", "Its run"),
    ]

    def __init__(
        self,
        session: Session,
        request_id: str,
        *,
        order: list[str],
        where: Where | None = None,
        group: Grouping | None = None,
        wanted: str = "",
    ) -> None:
        super().__init__(session)
        self.request_id = request_id
        self.request: RequestDetail | None = None
        self.comments: Sequence[CommentView] = ()
        self.others: Sequence[Viewer] = ()
        self._order = order
        self._where = where or Where()
        self._group = group
        self._wanted = wanted
        self._inert_until = 0.0
        self._call: FoldedCall | None = None
        self._whole = False
        self._double_press = DoublePress(self, self.say)
        self._dialog: AskDialog | FormDialog | None = None

    @property
    def _dialogs(self) -> AnswerDialogs:
        return AnswerDialogs(self.app, self.session)

    def middle(self) -> ComposeResult:
        """Draw the request."""
        yield Static(Text(), id="state")
        yield ScrolledText(Static(Text(), id="call"), Static(Text(), id="facts"), Static(Text(), id="comments"))

    def on_mount(self) -> None:
        """Let the keys scroll, and keep telling others that the user looks at this."""
        self.query_one(ScrolledText).focus()
        self.set_interval(PRESENCE_SECONDS, self._still_looking)
        self.set_interval(1.0, self._count_down)

    def take_event(self, event: EventView) -> None:
        """Look again when something was said of this request or its call."""
        payload = event.payload
        call_id = None if self.request is None else self.request.tool_call_id
        its_call = call_id is not None and payload.get("tool_call_id") == call_id
        if payload.get("request_id") == self.request_id or its_call or event.type == "run.ended":
            self.refresher.ask()

    async def look(self) -> None:
        """Read the request, and say so when it was decided meanwhile."""
        before = self.request
        try:
            request = await self.client.get_request(self.request_id)
        except NotFoundError as error:
            self.say(problem_words(error), is_bad=True)
            return
        if request.id != self.request_id:
            return  # Another one was asked for meanwhile.
        self.request = request
        if before is not None and before.id == request.id and before.status == "pending" != request.status:
            self._ended_meanwhile(request)
        if before != request:
            is_new = before is None or (before.id, before.digest) != (request.id, request.digest)
            if is_new or before is None or before.allowed_verbs != request.allowed_verbs:
                self._inert_until = monotonic() + INERT_SECONDS
            if is_new:
                self.session.looks[request.id] = partial(self._look_since, request.id, monotonic())
            self._draw(is_new=is_new)
        wanted, self._wanted = self._wanted, ""
        if wanted in {"reject", "edit"}:
            self.action_ask(wanted)
        elif wanted:
            self.say("This is the call. Press a to approve it.")
        await self.look_around()
        self.draw_around()

    async def look_around(self) -> None:
        """Read what others say of the request, and who else looks at it."""
        about = self.request_id
        comments = (await self.client.list_comments(about, limit=MAX_COMMENTS)).items
        others = (await self.client.get_presence(about)).looking
        if about == self.request_id:
            self.comments, self.others = comments, others

    async def _still_looking(self) -> None:
        if self.request is None or self.request.status != "pending" or self.session.away:
            return
        try:
            self.others = (await self.client.keep_presence(self.request_id)).looking
        except TurngateError:
            return  # who else looks is a courtesy; what matters reports itself that the API is away
        self.draw_around()

    def _count_down(self) -> None:
        if self.request is not None and self.request.waits_to_start:
            self.draw_around()

    def draw_around(self) -> None:
        """Draw who has it, who looks, and what was said."""
        request = self.request
        if request is None or not self.is_drawn:
            return
        state = state_text(request, self.others, self.session)
        self.show_part("#state", state, bool(state.lines))
        self.show_part("#comments", comments_text(self.comments))

    def _ended_meanwhile(self, request: RequestDetail) -> None:
        self._double_press.disarm()
        words = f"It was {ended_words(request)}"
        self.say(words)
        self.complain(f"{words}. What you typed stays here.")

    def _draw(self, *, is_new: bool) -> None:
        request = self.request
        if request is None:
            return
        self.title_line(heading(request))
        self._call = fold_call(request)
        self._whole = self._whole and not is_new
        self._draw_call(request, is_new=is_new)
        self.query_one("#facts", Static).update(facts_text(request))
        self.draw_around()
        self.keys_line(self._keys(request))

    def _draw_call(self, request: RequestDetail, *, is_new: bool) -> None:
        text, edited = call_text(request, whole=self._whole), kept_edit(self.session, request)
        if edited is not None:
            text = folded([*text.lines, *edit_lines(request, edited)])
        self.query_one("#call", Static).update(text)
        if is_new:
            reading = self.query_one(ScrolledText)
            reading.scroll_home(animate=False)
            reading.start_again()

    def _look_since(self, request_id: str, began: float) -> Look:
        """Return how a request was looked at: since it came on screen, and how much of its call is or was there."""
        looked_ms = min(round((monotonic() - began) * 1_000), MAX_LOOKED_MS)
        if self.request is None or self.request.id != request_id or not self.is_drawn:
            return Look(looked_ms=looked_ms)
        reading, height = self.query_one(ScrolledText), self.query_one("#call").size.height
        return Look(looked_ms=looked_ms, seen_percent=reading.seen_percent(height))

    def _keys(self, request: RequestDetail) -> str:
        edited = kept_edit(self.session, request)
        own = [KEYS_OF[verb] for verb in request.allowed_verbs if verb != "approve" or edited is None]
        if edited is not None:
            own = [f"a a {edit_words(request, edited)}", "x x drop the edit", *own]
        if request.kind == "outcome" and request.allowed_verbs:
            own = [OUTCOME_KEYS if not request.outlives_its_run else OUTCOME_KEYS.replace(", run it", "")]
        decided_alone = request.kind != "approval" or request.risk == "high" or request.quorum > 1
        grant = ["g grant"] if edited is None and "approve" in request.allowed_verbs and not decided_alone else []
        fold = ["f unfold"] if self._call is not None and self._call.is_folded else []
        return "  ".join([*own, *grant, *fold, "w comment", "n next", "? keys"])

    @property
    def is_inert(self) -> bool:
        """Whether what is on screen has just changed, so that no key decides yet."""
        return self.request is None or monotonic() < self._inert_until

    def deciding(self, verb: Verb) -> RequestDetail | None:
        """Return the request if this may be decided of it now; else say why not."""
        request = self.request
        if request is None or self.is_inert:
            self.say("The screen just changed. Look again, then press.")
            return None
        if verb not in request.allowed_verbs:
            ended = ended_words(request)
            self.say(f"It was {ended}" if ended else f"This kind of request takes: {', '.join(request.allowed_verbs)}.")
            return None
        return request

    def outcome_request(self) -> RequestDetail | None:
        """Return the request if it asks what happened to its call, and may be answered; else say why not."""
        request = self.deciding("respond")
        if request is not None and request.kind != "outcome":
            self.say("That is only for calls that may or may not have happened.")
            return None
        return request

    def is_call_on_screen(self) -> bool:
        """Tell whether the call is on screen and all of it has been; else bring it there and say so."""
        if not self._whole and self._call is not None and self._call.must_unfold:
            self.action_fold()
            return False
        reading, height = self.query_one(ScrolledText), self.query_one("#call").size.height
        if not reading.shows(0, height) and not reading.has_seen(height):
            reading.scroll_home(animate=False)
        elif not reading.has_seen(height):
            reading.scroll_page_down(animate=False)
        elif not reading.shows(0, height):
            reading.scroll_home(animate=False)
        else:
            return True
        self._double_press.disarm()
        more = "" if reading.has_seen(height) else " There is more below: look at all of it."
        self.say(f"This is the call.{more} Then press a key to decide it.")
        return False

    def action_fold(self) -> None:
        """Unfold all of a long call, or fold it again. Its lines move, so what was seen of them no longer counts."""
        request = self.request
        if request is None or self._call is None or not self._call.is_folded:
            self.say("Nothing of this call is folded.")
            return
        self._double_press.disarm()
        self._inert_until = monotonic() + INERT_SECONDS
        self._whole = not self._whole
        self._draw_call(request, is_new=True)
        self.say("This is the whole call. Look at all of it, then decide." if self._whole else "It is folded again.")

    def action_approve(self) -> None:
        """Approve what is on screen: by two presses, high risk by typing the tool's name."""
        edited = None if self.request is None else kept_edit(self.session, self.request)
        request = self.deciding("approve" if edited is None else "edit")
        if request is None or not self.is_call_on_screen():
            return
        order, words = DecisionOrder(verb="approve", digest=request.digest), "approve exactly this call"
        if edited is not None:
            if json_problem(edited) is not None:
                self.action_ask("edit")
                return
            order = DecisionOrder(verb="edit", digest=request.digest, args=edited)
            words = edit_words(request, edited)
        if request.risk == "high":
            send = partial(self.session.decide, request, confirmed(order, request))
            self.open_dialog(self._dialogs.typed_name(request, "approve", send))
        else:
            act = partial(self._run, request, order)
            self._double_press.press("a", f"Press a again to {words}.", act)

    def action_drop_edit(self) -> None:
        """Drop an edit that was typed and not sent (two presses)."""
        request = self.request
        if request is None or kept_edit(self.session, request) is None:
            self.say("There is no edit that isn't sent.")
            return
        self._double_press.press("x", "Press x again to drop your edit.", partial(self._drop_edit, request))

    def _drop_edit(self, request: RequestDetail) -> None:
        self.session.forms.pop(edit_key(request), None)
        self._draw(is_new=False)
        self.say("Your edit is dropped.")

    def action_did_not_happen(self) -> None:
        """Say that a call did not happen, so that it runs."""
        request = self.outcome_request()
        if request is None or not self.is_call_on_screen():
            return
        order = DecisionOrder(verb="respond", digest=request.digest, outcome="did_not_happen")
        if request.outlives_its_run:
            act = partial(self._run, request, order)
            self._double_press.press("d", "It did not happen: press d again to put that on record. Nothing runs.", act)
        elif request.risk == "high":
            send = partial(self.session.decide, request, confirmed(order, request))
            self.open_dialog(self._dialogs.typed_name(request, "run", send))
        else:
            act = partial(self._run, request, order)
            self._double_press.press("d", "It did not happen: press d again to run it, exactly as shown.", act)

    def action_tell_model(self) -> None:
        """Say that no one knows whether a call happened."""
        request = self.outcome_request()
        if request is not None:
            order = DecisionOrder(verb="respond", digest=request.digest, outcome="tell_model")
            act = partial(self._run, request, order)
            self._double_press.press("t", "Unknown: press t again to tell the agent so.", act)

    def _run(self, request: RequestDetail, order: DecisionOrder) -> None:
        async def send() -> None:
            sent = await self.session.decide(request, order)
            if not needs_word(sent):
                self.taken(sent)
                return
            self.say(sent.words)
            again = partial(self.session.decide, request, confirmed(order, request))
            self.open_dialog(self._dialogs.typed_name(request, "approve", again, title="Many in a short time"))

        self.say("Sending…")
        self.run_worker(send())

    def action_ask(self, what: str) -> None:
        """Ask for a text and decide with it."""
        self._double_press.disarm()
        verb: Verb
        match what:
            case "reject" | "edit":
                verb = what
            case _:
                verb = "respond"
        request = self.deciding(verb) if what != "happened" else self.outcome_request()
        if request is None or (what == "respond" and request.kind == "outcome"):
            return
        self.open_dialog(self._dialogs.answer(request, answer_of(request, what)))

    def action_grant(self) -> None:
        """Approve what is on screen, and calls like it from now on: the exact pattern is shown first."""
        self._double_press.disarm()
        request = self.deciding("approve")
        if request is None or not self.is_call_on_screen():
            return
        if kept_edit(self.session, request) is not None:
            self.say("Your edit is not sent. Send it, or press x x to drop it; then allow calls like this one.")
            return
        self.run_worker(self._grant(request))

    async def _grant(self, request: RequestDetail) -> None:
        try:
            preview = await self.client.preview_grant(request.id)
        except TurngateError as error:
            self.say(f"No grant. {problem_words(error)}", is_bad=True)
            return
        if preview.ungrantable is not None:
            self.say(f"No grant can answer calls like this: {preview.ungrantable}.")
            return
        self.open_dialog(self._dialogs.grant(request))

    def open_dialog(self, dialog: AskDialog | FormDialog) -> None:
        """Open a dialog, and say the result."""
        self._dialog = dialog
        self.app.push_screen(dialog, self.taken)

    def complain(self, words: str) -> None:
        """Say something in the dialog that is open, if one is."""
        if self._dialog is not None and self._dialog.is_attached:
            self._dialog.complain(words)

    def taken(self, sent: Sent | None) -> None:
        """Say the result of what was sent, and look again."""
        self._dialog = None
        if self.request is not None:
            if sent is not None and sent.taken:
                self.session.forms.pop(edit_key(self.request), None)
            self._draw(is_new=False)
        if sent is not None:
            self.say(sent.words, is_bad=not sent.taken)
            if sent.grant_id is not None and sent.reviews:
                self.run_worker(self._review(sent.grant_id))
        self.refresher.ask()

    async def _review(self, grant_id: str) -> None:
        """Show what waits and the grant covers: its arguments differ, so each call has to be seen before it is approved."""
        try:
            waiting = await self.client.list_waiting_for_grant(grant_id)
            items = [await self.client.get_request(each.request_id) for each in waiting.requests]
        except TurngateError as error:
            self.failed(error)
            return
        if items:
            self.app.push_screen(BulkScreen(self.session, items, waiting=waiting), lambda _: self.refresher.ask())

    def action_claim(self) -> None:
        """Claim the request, give one's own claim back, or take someone else's over (two presses)."""
        request = self.request
        if request is None or request.status != "pending":
            return
        holder = holder_of(request)
        if holder is None:
            self.run_worker(self._claim())
        elif same_person(holder, self.session.me):
            self.run_worker(self._claim(give_back=True))
        else:
            hint = f"{plain_line(holder, 60)} has claimed it: press c again to take it over."
            self._double_press.press("c", hint, lambda: self.run_worker(self._claim(take_over=True)))

    async def _claim(self, *, take_over: bool = False, give_back: bool = False) -> None:
        try:
            if give_back:
                await self.client.release_request(self.request_id)
                self.say("You gave it back.")
            else:
                claim = await self.client.claim_request(self.request_id, take_over=take_over)
                self.say(f"You have claimed it; that ends {until(claim.claimed_until)}.")
        except TurngateError as error:
            self.say(f"Not claimed. {problem_words(error)}", is_bad=True)
        self.refresher.ask()

    def action_withdraw(self) -> None:
        """Take one's own approval back: while others are still missing, or before the call starts (two presses)."""
        request = self.request
        if request is None or not (has_approved(request, self.session) or request.can_be_taken_back(self.session.me)):
            self.say("You have not approved this, or it has started.")
            return
        hint = "Press z again to take your approval back."
        self._double_press.press("z", hint, lambda: self.run_worker(self._withdraw(request.id)))

    async def _withdraw(self, request_id: str) -> None:
        try:
            await self.client.withdraw_approval(request_id)
            self.request_id = (await self.client.get_request(request_id)).replaced_by or request_id
        except TurngateError as error:
            self.say(f"Not taken back. {problem_words(error)}", is_bad=True)
        else:
            self.say("You took your approval back.")
        self.refresher.ask()

    def action_comment(self) -> None:
        """Say something about the request to other people."""
        request_id, drafts = self.request_id, self.session.drafts
        key = (request_id, "comment")

        def keep(text: str) -> None:
            drafts[key] = text

        async def send(text: str) -> Sent:
            keep(text)
            sent = self.session.id_of("comment", request_id, text)
            try:
                await self.client.add_comment(request_id, text, idempotency_key=sent)
            except UnavailableError as error:
                words = "It may not have arrived. Send it again: it is stored once."
                return Sent(taken=False, words=f"{words} ({problem_words(error)})")
            except TurngateError as error:
                return Sent(taken=False, words=f"Not sent. {problem_words(error)}")
            drafts.pop(key, None)
            return Sent(taken=True, words="Said to the others.")

        self.app.push_screen(
            AskDialog(
                "Comment",
                "To other people; no agent reads it.",
                send,
                text=drafts.get(key, ""),
                many=True,
                check=lambda text: None if text.strip() else "Say something, or leave with Escape.",
                on_leave=keep,
            ),
            self._commented,
        )

    def _commented(self, sent: Sent | None) -> None:
        if sent is not None:
            self.say(sent.words)
        self.refresher.ask()

    def action_step(self) -> None:
        """Decide all pending requests of this step together."""
        self._double_press.disarm()
        if self.request is not None:
            self.run_worker(self._step(self.request))

    async def _step(self, request: RequestDetail) -> None:
        if request.step is None:
            return
        try:
            page = await self.client.list_requests(limit=MAX_AT_ONCE, run_id=request.run_id, step=request.step)
        except TurngateError as error:
            self.failed(error)
            return
        if len(page.items) > 1:
            self.app.push_screen(BulkScreen(self.session, page.items), lambda _: self.refresher.ask())
        else:
            self.say("No other request of this step waits.")

    def action_conversation(self) -> None:
        """Show the conversation that led to the call."""
        if self.request is not None:
            title = "The conversation up to this call"
            self.app.push_screen(TextDialog(title, conversation_text(self.request.messages), at_end=True))

    def action_reveal(self) -> None:
        """Show the secrets of the call; the log says who looked."""
        if self.request is not None:
            hint = "Press m again to see its secrets; the log says that you looked."
            self._double_press.press("m", hint, lambda: self.run_worker(self._reveal()))

    async def _reveal(self) -> None:
        try:
            secrets = (await self.client.reveal_secrets(self.request_id)).secrets
        except TurngateError as error:
            self.say(f"Not revealed. {problem_words(error)}", is_bad=True)
            return
        pieces = [piece for label, value in revealed_lines(secrets) for piece in ((label, "dim"), value)]
        text = folded(list(block(pieces or ["It has none."], "")))
        self.app.push_screen(TextDialog("The secrets of this call", text))

    def action_open_run(self) -> None:
        """Open the run that asks."""
        if self.request is not None:
            self.session.navigator.open_run(self.request.run_id)

    def action_next(self) -> None:
        """Show the next request of the inbox that waits."""
        self._double_press.disarm()
        self.run_worker(self._next())

    async def _next(self) -> None:
        try:
            page = await self.client.list_requests(limit=200, **self._where)
        except TurngateError as error:
            self.failed(error)
            return
        waiting = [each.id for each in page.items]
        if self._group is not None:
            waiting = [each.id for group in groups_of(page.items, self._group) for each in group.items]
        if self.request_id in waiting:
            at = waiting.index(self.request_id)
            following = [*waiting[at + 1 :], *waiting[:at]]
        else:  # It was decided: continue from its place.
            passed = set(self._order[: self._order.index(self.request_id)] if self.request_id in self._order else [])
            following = [each for each in waiting if each not in passed] or waiting
        self._order = waiting
        if following:
            self.request_id = following[0]
            self.comments, self.others = (), ()
            self.say("")
            self.refresher.ask()
        else:
            self.say("Nothing else waits.")
