"""One request: the exact call, everything beside it, and the keys that decide it.

A key decides the request that is on screen, by the digest that came with what is shown.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from time import monotonic
from typing import ClassVar, Final

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Static

from turngate.domain.errors import NotFoundError
from turngate.domain.requests import Outcome, Verb
from turngate.tui.answering import Answer, answer_of
from turngate.tui.dialogs import AskDialog
from turngate.tui.reading import Reading
from turngate.tui.request_moves import RequestMoves
from turngate.tui.request_text import call_text, ended_words, facts_text, heading
from turngate.tui.session import Sent, Session, problem_words
from turngate.tui.texts import plain_line
from turngate.wire.events import EventView
from turngate.wire.requests import RequestDetail

INERT_SECONDS: Final = 0.3
"""After another request, or another state of it, came on screen: keys typed before were not meant for it."""
KEYS_OF: Final[dict[Verb, str]] = {
    "approve": "a a approve",
    "reject": "r reject",
    "edit": "e edit",
    "respond": "s answer",
}
OUTCOME_KEYS: Final = "h it happened  d d did not, run it  t t nobody knows"


class RequestScreen(RequestMoves):
    """Shows and decides one request. ``order``: the inbox's, for the next one. ``wanted``: what the person came to do."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "approve", "Approve"),
        Binding("r", "ask('reject')", "Reject"),
        Binding("e", "ask('edit')", "Edit"),
        Binding("s", "ask('respond')", "Answer"),
        Binding("h", "ask('happened')", "It happened"),
        Binding("d", "did_not_happen", "It did not happen"),
        Binding("t", "tell_model", "Nobody knows"),
        Binding("c", "claim", "Claim"),
        Binding("n", "next", "Next"),
        Binding("o", "open_run", "Its run"),
    ]

    def __init__(self, session: Session, request_id: str, *, order: list[str], wanted: str = "") -> None:
        super().__init__(session, request_id, order)
        self._wanted = wanted
        self._inert_until = 0.0
        self._dialog: AskDialog | None = None

    def middle(self) -> ComposeResult:
        """Draw the request."""
        yield Reading(Static(Text(), id="call"), Static(Text(), id="facts"))

    def on_mount(self) -> None:
        """Let the keys scroll."""
        self.query_one(Reading).focus()

    def told(self, event: EventView) -> None:
        """Look again when something was said of this request or its call."""
        said = event.payload
        call_id = None if self.request is None else self.request.tool_call_id
        its_call = call_id is not None and said.get("tool_call_id") == call_id
        if said.get("request_id") == self.request_id or its_call or event.type == "run.ended":
            self.refresher.ask()

    async def look(self) -> None:
        """Read the request, and say so when it was decided meanwhile."""
        before = self.request
        try:
            request = await self.client.get_request(self.request_id)
        except NotFoundError as error:
            self.say(problem_words(error), is_bad=True)
            return
        self.request = request
        if before is not None and before.id == request.id and before.status == "pending" != request.status:
            self._ended_meanwhile(request)
        if before != request:
            is_new = before is None or before.id != request.id
            if is_new or before is None or before.allowed_verbs != request.allowed_verbs:
                self._inert_until = monotonic() + INERT_SECONDS
            self._draw(is_new=is_new)
        wanted, self._wanted = self._wanted, ""
        if wanted in {"reject", "edit"}:
            self.action_ask(wanted)
        elif wanted:
            self.say("This is the call. Press a to approve it.")

    def _ended_meanwhile(self, request: RequestDetail) -> None:
        self._arming.disarm()
        words = f"It was {ended_words(request)}"
        self.say(words)
        if self._dialog is not None and self._dialog.is_attached:
            self._dialog.complain(f"{words}. What you typed stays here.")

    def _draw(self, *, is_new: bool) -> None:
        request = self.request
        if request is None:
            return
        self.title_line(heading(request))
        self.query_one("#call", Static).update(call_text(request))
        self.query_one("#facts", Static).update(facts_text(request))
        if is_new:
            reading = self.query_one(Reading)
            reading.scroll_home(animate=False)
            reading.start_again()
        self.keys_line(self._keys(request))

    def _keys(self, request: RequestDetail) -> str:
        own = [KEYS_OF[verb] for verb in request.allowed_verbs]
        if request.kind == "outcome" and request.allowed_verbs:
            own = [OUTCOME_KEYS]
        return "  ".join([*own, "n next", "o run", "u back", "? help"])

    @property
    def is_inert(self) -> bool:
        """Whether what is on screen has just changed, so that no key decides yet."""
        return self.request is None or monotonic() < self._inert_until

    def _deciding(self, verb: Verb) -> RequestDetail | None:
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

    def _is_on_screen(self) -> bool:
        """Tell whether the call is on screen and all of it has been; else bring it there and say so."""
        reading, height = self.query_one(Reading), self.query_one("#call").size.height
        if not reading.shows(0, height) and not reading.has_seen(height):
            reading.scroll_home(animate=False)
        elif not reading.has_seen(height):
            reading.scroll_page_down(animate=False)
        elif not reading.shows(0, height):
            reading.scroll_home(animate=False)
        else:
            return True
        self._arming.disarm()
        more = "" if reading.has_seen(height) else " It goes on below: look at all of it."
        self.say(f"This is the call.{more} Then press a key to decide it.")
        return False

    def action_approve(self) -> None:
        """Approve what is on screen: by two presses, high risk by typing the tool's name."""
        request = self._deciding("approve")
        if request is None or not self._is_on_screen():
            return
        if request.risk == "high":
            self._open(self._confirm(request, "approve", partial(self.session.decide, request, "approve")))
        else:
            self._arming.press(
                "a", "Press a again to approve exactly this call.", partial(self._run, request, "approve")
            )

    def action_did_not_happen(self) -> None:
        """Say that a call did not happen, so that it runs."""
        request = self._outcome_request()
        if request is None or not self._is_on_screen():
            return
        if request.risk == "high":
            send = partial(self.session.decide, request, "respond", outcome="did_not_happen")
            self._open(self._confirm(request, "run", send))
        else:
            act = partial(self._run, request, "respond", "did_not_happen")
            self._arming.press("d", "It did not happen: press d again to run it, exactly as shown.", act)

    def action_tell_model(self) -> None:
        """Say that nobody knows whether a call happened."""
        request = self._outcome_request()
        if request is not None:
            act = partial(self._run, request, "respond", "tell_model")
            self._arming.press("t", "Nobody knows: press t again to tell the agent so.", act)

    def _outcome_request(self) -> RequestDetail | None:
        request = self._deciding("respond")
        if request is not None and request.kind != "outcome":
            self.say("That is for calls of which nobody knows whether they happened.")
            return None
        return request

    def _run(self, request: RequestDetail, verb: Verb, outcome: Outcome | None = None) -> None:
        async def send() -> None:
            self._taken(await self.session.decide(request, verb, outcome=outcome))

        self.say("Sending…")
        self.run_worker(send())

    def _taken(self, sent: Sent | None) -> None:
        self._dialog = None
        if sent is not None:
            self.say(sent.words, is_bad=not sent.taken)
        self.refresher.ask()

    def _confirm(self, request: RequestDetail, what: str, send: Callable[[], Awaitable[Sent]]) -> AskDialog:
        name = plain_line(request.tool_name, 64)

        async def deliver(_typed: str) -> Sent:
            return await send()

        return AskDialog(
            "High risk",
            f"Type the tool's name to {what} it: {name}",
            deliver,
            check=lambda typed: None if typed == request.tool_name else f"Not its name, {name}: nothing was sent.",
            pasteable=False,
        )

    def action_ask(self, what: str) -> None:
        """Ask for a text and decide with it."""
        self._arming.disarm()
        verb: Verb = "reject" if what == "reject" else "edit" if what == "edit" else "respond"
        request = self._deciding(verb) if what != "happened" else self._outcome_request()
        if request is None or (what == "respond" and request.kind == "outcome"):
            return
        self._ask(request, answer_of(request, what))

    def _ask(self, request: RequestDetail, answer: Answer) -> None:
        key = (request.id, answer.what)

        def keep(text: str) -> None:
            self.session.drafts[key] = text

        async def send(text: str) -> Sent:
            keep(text)
            decide = partial(self.session.decide, request, answer.verb, **answer.content(text))
            if answer.verb == "edit" and request.risk == "high":
                confirmed = await self.app.push_screen_wait(self._confirm(request, "run", decide))
                sent = confirmed or Sent(taken=False, words="Not confirmed; nothing was sent.")
            else:
                sent = await decide()
            if sent.taken:
                self.session.drafts.pop(key, None)
            return sent

        def fault(text: str) -> str | None:
            keep(text)
            return answer.fault(text)

        self._open(
            AskDialog(
                answer.title,
                answer.lead,
                send,
                text=self.session.drafts.get(key, answer.text),
                many=answer.many,
                is_json=answer.is_json,
                check=fault,
                on_leave=keep,
            )
        )

    def _open(self, dialog: AskDialog) -> None:
        self._dialog = dialog
        self.app.push_screen(dialog, self._taken)

    def action_open_run(self) -> None:
        """Open the run that asks."""
        if self.request is not None:
            from turngate.tui.run_screen import RunScreen  # noqa: PLC0415 - each of the two screens opens the other

            self.app.push_screen(RunScreen(self.session, self.request.run_id))
