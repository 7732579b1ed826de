"""What may be done at a request beside deciding it: claim it, and go on to the next one."""

from __future__ import annotations

from turngate.domain.errors import TurngateError
from turngate.tui.arming import Arming
from turngate.tui.screens import LiveScreen
from turngate.tui.session import Session, problem_words
from turngate.tui.texts import plain_line, until
from turngate.wire.requests import RequestDetail


class RequestMoves(LiveScreen):
    """A screen that stands at one request of the inbox. ``order``: the inbox's, for the next one."""

    def __init__(self, session: Session, request_id: str, order: list[str]) -> None:
        super().__init__(session)
        self.request_id = request_id
        self.request: RequestDetail | None = None
        self._order = order
        self._arming = Arming(self, self.say)

    def action_claim(self) -> None:
        """Claim the request, give one's own claim back, or take somebody else's over (two presses)."""
        request = self.request
        if request is None or request.status != "pending":
            return
        holder = request.claimed_by if request.claimed_until and until(request.claimed_until) != "now" else None
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
            self.say(problem_words(error), is_bad=True)
        self.refresher.ask()

    def action_next(self) -> None:
        """Show the next request of the inbox that waits."""
        self._arming.disarm()
        self.run_worker(self._next())

    async def _next(self) -> None:
        try:
            waiting = [each.id for each in (await self.client.list_requests(limit=200)).items]
        except TurngateError as error:
            self.failed(error)
            return
        if self.request_id in waiting:
            behind = waiting[waiting.index(self.request_id) + 1 :]
        else:  # It was decided: on from where it stood.
            passed = set(self._order[: self._order.index(self.request_id)] if self.request_id in self._order else [])
            behind = [each for each in waiting if each not in passed] or waiting
        self._order = waiting
        if behind:
            self.request_id = behind[0]
            self.say("")
            self.refresher.ask()
        else:
            self.say("Nothing else waits.")
