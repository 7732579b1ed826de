"""What may be done at a request beside deciding it: claim it, talk about it, look at what led to it, go on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from textual.binding import Binding, BindingType

from turngate.client.requests import Where
from turngate.domain.errors import TurngateError, UnavailableError
from turngate.frontends.tui.arming import Arming
from turngate.frontends.tui.dialogs import AskDialog, TextDialog
from turngate.frontends.tui.problems import problem_words
from turngate.frontends.tui.request_around import conversation_text, holder_of
from turngate.frontends.tui.screens import LiveScreen
from turngate.frontends.tui.session import Sent, Session
from turngate.frontends.tui.texts import plain_line, until
from turngate.wire.requests import CommentView, LookingView, RequestDetail

PRESENCE_SECONDS: Final = 25.0
"""Between two signs that somebody still looks; one counts for a minute."""
MAX_COMMENTS: Final = 200


class RequestMoves(LiveScreen):
    """A screen that stands at one request of the inbox. ``order``, ``where``: the inbox's, for the next one."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c", "claim", "Claim"),
        Binding("w", "comment", "Comment"),
        Binding("v", "conversation", "What led to it"),
        Binding("n", "next", "Next"),
        Binding("o", "open_run", "Its run"),
    ]

    def __init__(self, session: Session, request_id: str, order: list[str], where: Where | None = None) -> None:
        super().__init__(session)
        self.request_id = request_id
        self.request: RequestDetail | None = None
        self.comments: Sequence[CommentView] = ()
        self.others: Sequence[LookingView] = ()
        self._order = order
        self._where = where or Where()
        self._arming = Arming(self, self.say)

    def on_mount(self) -> None:
        """Go on saying that somebody looks."""
        self.set_interval(PRESENCE_SECONDS, self._still_looking)

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
            return  # whoever else looks is a courtesy; what matters says itself that the API is away
        self.draw_around()

    def draw_around(self) -> None:
        """Draw what stands around the request."""

    def action_claim(self) -> None:
        """Claim the request, give one's own claim back, or take somebody else's over (two presses)."""
        request = self.request
        if request is None or request.status != "pending":
            return
        holder = holder_of(request)
        if holder is None:
            self.run_worker(self._claim())
        elif holder == self.session.me:
            self.run_worker(self._claim(give_back=True))
        else:
            hint = f"{plain_line(holder, 60)} has claimed it: press c again to take it over."
            self._arming.press("c", hint, lambda: self.run_worker(self._claim(take_over=True)))

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
                words = "Nobody knows whether it arrived. Send it again: it is kept once."
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

    def action_conversation(self) -> None:
        """Show the conversation that led to the call."""
        if self.request is not None:
            title = "The conversation up to this call"
            self.app.push_screen(TextDialog(title, conversation_text(self.request.messages), at_end=True))

    def action_open_run(self) -> None:
        """Open the run that asks."""
        if self.request is not None:
            from turngate.frontends.tui.run_screen import RunScreen  # noqa: PLC0415 - each of the two screens opens the other

            self.app.push_screen(RunScreen(self.session, self.request.run_id))

    def action_next(self) -> None:
        """Show the next request of the inbox that waits."""
        self._arming.disarm()
        self.run_worker(self._next())

    async def _next(self) -> None:
        try:
            page = await self.client.list_requests(limit=200, **self._where)
        except TurngateError as error:
            self.failed(error)
            return
        waiting = [each.id for each in page.items]
        if self.request_id in waiting:
            at = waiting.index(self.request_id)
            behind = [*waiting[at + 1 :], *waiting[:at]]
        else:  # It was decided: on from where it stood.
            passed = set(self._order[: self._order.index(self.request_id)] if self.request_id in self._order else [])
            behind = [each for each in waiting if each not in passed] or waiting
        self._order = waiting
        if behind:
            self.request_id = behind[0]
            self.comments, self.others = (), ()
            self.say("")
            self.refresher.ask()
        else:
            self.say("Nothing else waits.")
