"""Many requests at once: only what was on screen is decided, with what was folded of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from time import monotonic
from typing import ClassVar, Final, Literal

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Static

from turngate.domain.errors import InvalidInputError, TurngateError
from turngate.frontends.tui.answers import kept_edit
from turngate.frontends.tui.dialogs import AskDialog
from turngate.frontends.tui.double_press import DoublePress
from turngate.frontends.tui.problems import problem_words
from turngate.frontends.tui.request_text import RISK_STYLE, reviewed_lines
from turngate.frontends.tui.screens import LiveScreen
from turngate.frontends.tui.session import Sent, Session
from turngate.frontends.tui.texts import at, fold_call, folded, line, plain_line
from turngate.frontends.tui.widgets import ScrolledText
from turngate.wire.decisions import DecidedItem
from turngate.wire.orders import MAX_LOOKED_MS, Look
from turngate.wire.policy import WaitingForGrant
from turngate.wire.requests import RequestDetail, RequestItem

AT_ONCE: Final = 8
"""Calls that are read at the same time."""


class BulkScreen(LiveScreen):
    """Decides several requests in the same way. What is approved on its own, such as high risk, comes last, with the reason.

    ``waiting``: the grant for which they are reviewed.
    """

    KEYS = "j k scroll  a a approve all  r reject all  f unfold  Escape back  ? keys"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "approve", "Approve all"),
        Binding("r", "reject", "Reject all"),
        Binding("f", "fold", "Unfold all of long calls, or fold them again"),
    ]

    def __init__(
        self, session: Session, chosen: Sequence[RequestItem], *, waiting: WaitingForGrant | None = None
    ) -> None:
        super().__init__(session)
        self.chosen = [*(each for each in chosen if each.alone is None), *(each for each in chosen if each.alone)]
        self._details: dict[str, RequestDetail] = {}
        self._result: dict[str, str] = {}
        self._waiting = waiting
        self._whole = False
        self._began = 0.0
        self._double_press = DoublePress(self, self.say)

    def middle(self) -> ComposeResult:
        """Draw every call."""
        yield ScrolledText(Static(Text(), id="calls"))

    def on_mount(self) -> None:
        """Read the calls, and let the keys scroll."""
        self.title_line(line(("Decide together  ", "bold"), "reading the calls…"))
        self.query_one(ScrolledText).focus()
        self.run_worker(self._read())

    async def _read(self) -> None:
        few = asyncio.Semaphore(AT_ONCE)

        async def one(request_id: str) -> RequestDetail:
            async with few:
                return await self.client.get_request(request_id)

        try:
            details = await asyncio.gather(*(one(each.id) for each in self.chosen))
        except TurngateError as error:
            self.failed(error)
            return
        self._details = {each.id: each for each in details}
        self._began = monotonic()
        self._draw()
        self.query_one(ScrolledText).start_again()

    def action_fold(self) -> None:
        """Unfold all of long calls, or fold them again. Lines move, so what was seen of them no longer counts."""
        if not self._details:
            self.say("The calls are not read yet.")
            return
        if self._result or not any(fold_call(each).is_folded for each in self._details.values()):
            self.say("Nothing of these calls is folded.")
            return
        self._double_press.disarm()
        self._whole = not self._whole
        self._draw()
        reading = self.query_one(ScrolledText)
        reading.scroll_home(animate=False)
        reading.start_again()
        self.say("These are the whole calls. Look at all of them." if self._whole else "They are folded again.")

    @property
    def _must_unfold(self) -> bool:
        approved = (self._details[each.id] for each in self.chosen if each.alone is None)
        return not self._whole and any(fold_call(each).must_unfold for each in approved)

    def _draw(self) -> None:
        self.title_line(line(("Decide together  ", "bold"), f"{len(self.chosen)} requests, each as it would run"))
        lines = []
        for item in self.chosen:
            result = self._result.get(item.id, "" if item.alone is None else f"Approve this on its own: {item.alone}.")
            lines.append(
                at(
                    "",
                    (plain_line(item.tool_name, 64), "bold"),
                    "  risk ",
                    (item.risk, RISK_STYLE.get(item.risk, "")),
                    f"  {plain_line(item.agents, 60)}, rule {plain_line(item.rule, 60)}",
                )
            )
            lines.extend(reviewed_lines(self._details[item.id], whole=self._whole))
            if result:
                lines.append(at("  ", (result, "bold")))
            lines.append(at(""))
        self.query_one("#calls", Static).update(folded(lines))

    def action_approve(self) -> None:
        """Approve all of them, once all of them were on screen."""
        reading = self.query_one(ScrolledText)
        count = sum(each.alone is None for each in self.chosen)
        if self._result:
            self.say("They were decided; see the result of each.")
        elif not self._details:
            self.say("The calls are not read yet.")
        elif any(kept_edit(self.session, each) is not None for each in self._details.values()):
            self.say("You edited one of these, and didn't send it. Decide that one on its own first.")
        elif not count:
            self.say("None of these can be approved together with others.")
        elif self._must_unfold:
            self.action_fold()
        elif not reading.was_read:
            self._double_press.disarm()
            reading.scroll_page_down(animate=False)
            self.say("There is more below: look at all of them, then press a.")
        else:
            self._double_press.press(
                "a", f"Press a again to approve {'all ' if count == len(self.chosen) else ''}{count}.", self._approve
            )

    def _approve(self) -> None:
        self.run_worker(self._send("approve", "" if self._waiting is None else self._waiting.reason))

    def action_reject(self) -> None:
        """Ask for a reason and reject all of them."""
        self._double_press.disarm()
        if self._result or not self._details:
            return
        self.app.push_screen(
            AskDialog("Reject all of them", "Why? The agents read it.", lambda text: self._send("reject", text))
        )

    async def _send(self, verb: Literal["approve", "reject"], message: str, *, confirm: str = "") -> Sent:
        self.say("Sending…")
        digests = {item.id: item.digest for item in self.chosen}
        grant_id = self._waiting.grant_id if self._waiting is not None and verb == "approve" else None
        reading = self.query_one(ScrolledText)
        looked_ms = min(round((monotonic() - self._began) * 1_000), MAX_LOOKED_MS)
        look = Look(looked_ms=looked_ms, seen_percent=100 if reading.was_read else None)
        try:
            decided = await self.client.decide_requests(
                digests, verb=verb, message=message, confirm=confirm, grant_id=grant_id, look=look
            )
        except InvalidInputError as error:
            words = problem_words(error)
            if error.error_code == "confirm_needed" and not confirm:
                send = partial(self._send, verb, message)
                self.app.push_screen(
                    AskDialog("Many in a short time", words, lambda word: send(confirm=word), pasteable=False)
                )
            self.say(f"Nothing was decided: {words}", is_bad=True)
            return Sent(taken=False, words=words)
        except TurngateError as error:
            words = f"Nothing was decided: {problem_words(error)}"
            self.say(words, is_bad=True)
            return Sent(taken=False, words=words)
        self._result = {each.request_id: _result(each) for each in decided.items}
        wrong = sum(each.problem is not None for each in decided.items)
        self.say(f"{len(decided.items) - wrong} decided, {wrong} not; each says why.", is_bad=bool(wrong))
        self._draw()
        return Sent(taken=True, words="")


def _result(item: DecidedItem) -> str:
    if item.problem is not None:
        return f"→ not decided: {plain_line(str(item.problem.get('detail', '')), 500)}"
    return f"→ {item.request_status or 'recorded; it takes effect when a worker runs again'}"
