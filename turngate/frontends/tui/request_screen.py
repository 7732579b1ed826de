"""One request: the exact call, everything beside it, and the keys that decide it.

A key decides the request that is on screen, by the digest that came with what is shown.
"""

from __future__ import annotations

from functools import partial
from time import monotonic
from typing import ClassVar, Final

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Static

from turngate.client.requests import Where
from turngate.domain.errors import NotFoundError
from turngate.domain.requests import Outcome, Verb
from turngate.frontends.tui.problems import problem_words
from turngate.frontends.tui.reading import Reading
from turngate.frontends.tui.request_answers import RequestAnswers
from turngate.frontends.tui.request_around import comments_text, state_text
from turngate.frontends.tui.request_text import call_text, ended_words, facts_text, heading
from turngate.frontends.tui.session import Session
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


class RequestScreen(RequestAnswers):
    """Shows and decides one request. ``order``, ``where``: the inbox's. ``wanted``: what the person came to do."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "approve", "Approve"),
        Binding("d", "did_not_happen", "It did not happen"),
        Binding("t", "tell_model", "Nobody knows"),
    ]

    def __init__(
        self, session: Session, request_id: str, *, order: list[str], where: Where | None = None, wanted: str = ""
    ) -> None:
        super().__init__(session, request_id, order, where)
        self._wanted = wanted
        self._inert_until = 0.0

    def middle(self) -> ComposeResult:
        """Draw the request."""
        yield Static(Text(), id="state")
        yield Reading(Static(Text(), id="call"), Static(Text(), id="facts"), Static(Text(), id="comments"))

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
        if request.id != self.request_id:
            return  # Another one was asked for meanwhile.
        self.request = request
        if before is not None and before.id == request.id and before.status == "pending" != request.status:
            self._ended_meanwhile(request)
        if before != request:
            is_new = before is None or (before.id, before.digest) != (request.id, request.digest)
            if is_new or before is None or before.allowed_verbs != request.allowed_verbs:
                self._inert_until = monotonic() + INERT_SECONDS
            self._draw(is_new=is_new)
        wanted, self._wanted = self._wanted, ""
        if wanted in {"reject", "edit"}:
            self.action_ask(wanted)
        elif wanted:
            self.say("This is the call. Press a to approve it.")
        await self.look_around()
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
        self._arming.disarm()
        words = f"It was {ended_words(request)}"
        self.say(words)
        self.complain(f"{words}. What you typed stays here.")

    def _draw(self, *, is_new: bool) -> None:
        request = self.request
        if request is None:
            return
        self.title_line(heading(request))
        self.query_one("#call", Static).update(call_text(request))
        self.query_one("#facts", Static).update(facts_text(request))
        self.draw_around()
        if is_new:
            reading = self.query_one(Reading)
            reading.scroll_home(animate=False)
            reading.start_again()
        self.keys_line(self._keys(request))

    def _keys(self, request: RequestDetail) -> str:
        own = [KEYS_OF[verb] for verb in request.allowed_verbs]
        if request.kind == "outcome" and request.allowed_verbs:
            own = [OUTCOME_KEYS]
        one_by_one = request.kind != "approval" or request.risk == "high" or request.quorum > 1
        grant = ["g grant"] if "approve" in request.allowed_verbs and not one_by_one else []
        return "  ".join([*own, *grant, "w comment", "n next", "? keys"])

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

    def is_call_on_screen(self) -> bool:
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
        request = self.deciding("approve")
        if request is None or not self.is_call_on_screen():
            return
        if request.risk == "high":
            self.open_dialog(self.confirm(request, "approve", partial(self.session.decide, request, "approve")))
        else:
            self._arming.press(
                "a", "Press a again to approve exactly this call.", partial(self._run, request, "approve")
            )

    def action_did_not_happen(self) -> None:
        """Say that a call did not happen, so that it runs."""
        request = self.outcome_request()
        if request is None or not self.is_call_on_screen():
            return
        if request.risk == "high":
            send = partial(self.session.decide, request, "respond", outcome="did_not_happen")
            self.open_dialog(self.confirm(request, "run", send))
        else:
            act = partial(self._run, request, "respond", "did_not_happen")
            self._arming.press("d", "It did not happen: press d again to run it, exactly as shown.", act)

    def action_tell_model(self) -> None:
        """Say that nobody knows whether a call happened."""
        request = self.outcome_request()
        if request is not None:
            act = partial(self._run, request, "respond", "tell_model")
            self._arming.press("t", "Nobody knows: press t again to tell the agent so.", act)

    def _run(self, request: RequestDetail, verb: Verb, outcome: Outcome | None = None) -> None:
        async def send() -> None:
            self.taken(await self.session.decide(request, verb, outcome=outcome))

        self.say("Sending…")
        self.run_worker(send())
