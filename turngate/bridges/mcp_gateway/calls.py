"""One call on its way through the gateway: ask, wait, start, run it behind, report."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from mcp.types import CallToolResult, Tool

from turngate.bridges.external_calls import patiently
from turngate.bridges.mcp_gateway.downstream import Downstream
from turngate.bridges.mcp_gateway.results import external_tool, given, kept, refused, with_note
from turngate.client import TurngateClient
from turngate.domain.errors import ConflictError, TurngateError, UnavailableError
from turngate.domain.tools.external import ExternalTool
from turngate.domain.tools.results import Failure, Ok
from turngate.wire.external_calls import ExternalCallView, RunOrder

log = logging.getLogger("turngate.mcp_gateway")

Tell = Callable[[str], Awaitable[None]]
"""Tells the client that its call is alive, and what it waits for."""
PULSE_SECONDS: Final = 5
LAST_WORDS_SECONDS: Final = 3.0
MOST_LEFT_BEHIND: Final = 1_000
REASON_SECONDS: Final = 0.1
"""How long the reason of a cancellation, which is read behind it, may take to be noted."""
_STATES: Final = {
    "planning": "Turngate looks at the call.",
    "waiting": "A person is asked whether this call may run.",
    "running": "The call was started before, and its result is waited for.",
    "unknown": "Nobody knows whether the call happened; a person is asked.",
    "ready": "The call may run.",
}


class _NotOverError(Exception):
    """The client has waited as long as it is to wait; says what for, and what to do."""


@dataclass(kw_only=True)
class GatedCalls:
    """The calls of one gateway.

    ``source``: its name in policy and inbox. ``closing``: the gateway itself ends, so what waits is left for the next one.
    ``answer_within``: seconds until a client is told to ask again; None: it waits. ``adopted``: open calls that a client waits
    for here. ``running``: the calls that run behind, each in a task of its own, because it may outlive its client's patience.
    ``left_behind``: content → id of calls whose client waits no longer. One that is over meanwhile has a result for whoever asks
    again, and running it once more would be running it twice.
    """

    client: TurngateClient
    downstream: Downstream
    source: str
    trusted: bool = False
    timeout_seconds: int = 600
    closing: bool = False
    answer_within: int | None = None
    _adopted: set[str] = field(default_factory=set)
    _running: dict[str, asyncio.Task[CallToolResult | None]] = field(default_factory=dict)
    _leaving: set[asyncio.Task[None]] = field(default_factory=set)
    _left_behind: OrderedDict[tuple[str, str], str] = field(default_factory=OrderedDict)
    _adopting: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def call(
        self,
        tool: Tool,
        arguments: dict[str, Any],
        *,
        call_id: str | None,
        tell: Tell,
        ran_out_of_time: Callable[[], bool],
    ) -> CallToolResult:
        """Bring one call to its result. Whatever goes wrong before it was started, nothing runs (I2).

        ``call_id``: the client's own; the same again is the same call. None: an open call of this content is gone on with that
        nobody here waits for, as a client that comes back would, or else it is a new one. ``ran_out_of_time``: asked of a call
        that was cancelled: the client only waits no longer, and may come back.
        """
        said = external_tool(tool, trusted=self.trusted, timeout_seconds=self.timeout_seconds)
        raw_input = json.dumps(arguments, ensure_ascii=False)
        view: ExternalCallView | None = None
        try:
            view = await self._sent(said, raw_input, call_id)
            return await self._settled(view.id, tool, tell)
        except UnavailableError as away:
            return refused(f"The call did not run: {away.message}", kind="unavailable")
        except _NotOverError as waits:
            self._leave_behind(view)
            return refused(str(waits), kind="undecided")
        except TurngateError as error:
            return refused(f"The call did not run: {error.message}", kind=error.error_code)
        except asyncio.CancelledError:
            if view is not None:
                # The SDK cancels whatever is awaited here until we are gone: what is left to do is a task of its own.
                leaving = asyncio.create_task(self._left(view, ran_out_of_time))
                self._leaving.add(leaving)
                leaving.add_done_callback(self._leaving.discard)
                view = None
            raise
        finally:
            if view is not None:
                self._adopted.discard(view.id)

    async def aclose(self) -> None:
        """End what runs; what it came to is asked of a person."""
        running = list(self._running.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, *self._leaving, return_exceptions=True)

    async def _sent(self, said: ExternalTool, raw_input: str, call_id: str | None) -> ExternalCallView:
        """Send the call, and mark it as waited for here. One at a time, so that two equal calls do not become one."""
        if self._leaving:  # the same client may be back already
            await asyncio.wait(self._leaving)
        async with self._adopting:
            view = None if call_id is not None else await self._orphan(said, raw_input)
            if call_id is None and view is None:
                call_id = self._left_behind.pop((said.name, raw_input), None)
            view = view or await self._send(said, raw_input, call_id or secrets.token_hex(12))
            self._adopted.add(view.id)
            return view

    async def _orphan(self, said: ExternalTool, raw_input: str) -> ExternalCallView | None:
        """Return an open call of this content that nobody waits for here: an earlier gateway's, which was killed."""
        cursor: str | None = None
        while True:
            page = await self.client.list_external_calls(source=self.source, limit=200, cursor=cursor)
            for call in page.items:
                if (call.tool_name, call.input) == (said.name, raw_input) and call.id not in self._adopted:
                    try:  # sent again under its id, it has to be the same tool, too, or people were shown another (I6)
                        return await self._send(said, raw_input, call.tool_call_id)
                    except ConflictError:
                        continue
            cursor = page.next_cursor
            if cursor is None:
                return None

    async def _send(self, said: ExternalTool, raw_input: str, call_id: str) -> ExternalCallView:
        return await self.client.send_external_call(
            source=self.source, tool_call_id=call_id, tool=said, raw_input=raw_input
        )

    async def _settled(self, call_id: str, tool: Tool, tell: Tell) -> CallToolResult:
        attempt = secrets.token_hex(16)
        while True:
            view = await self._answered(call_id, tell)
            if view.result is not None:
                return _closed(view, view.result, tool)
            if await self.downstream.tool(tool.name) != tool:
                await self._given_up(call_id, "The server describes this tool differently by now.")
                changed = "the server describes this tool differently by now. List the tools again"
                raise ConflictError(changed, code="tool_changed")
            running = asyncio.create_task(self._started(call_id, tool, attempt, tell))
            self._running[call_id] = running
            running.add_done_callback(lambda _task: self._running.pop(call_id, None))
            result = await asyncio.shield(running)
            if result is not None:
                return result

    async def _started(self, call_id: str, tool: Tool, attempt: str, tell: Tell) -> CallToolResult | None:
        """Start the call and run it; None: it may not be started, or is over, which a look at it says."""
        try:
            started = await patiently(lambda: self.client.start_external_call(call_id, attempt=attempt))
        except ConflictError as refusal:
            if refusal.error_code not in {"not_ready", "already_started"}:
                raise
            return None
        return None if started.run is None else await self._run(call_id, tool, started.run, attempt, tell)

    async def _left(self, view: ExternalCallView, ran_out_of_time: Callable[[], bool]) -> None:
        """Do as a client meant that cancelled its call: take the request back, or let all stand for when it asks again."""
        await asyncio.sleep(REASON_SECONDS)
        stands = self.closing or ran_out_of_time()
        running = self._running.get(view.id)
        if stands:
            self._leave_behind(view)
        elif running is not None:
            running.cancel()
        else:
            await self._given_up(view.id, "The MCP client cancelled the call.")
        self._adopted.discard(view.id)

    def _leave_behind(self, view: ExternalCallView | None) -> None:
        if view is not None:
            self._left_behind[view.tool_name, view.input] = view.tool_call_id
        if len(self._left_behind) > MOST_LEFT_BEHIND:
            self._left_behind.popitem(last=False)

    async def _answered(self, call_id: str, tell: Tell) -> ExternalCallView:
        """Return the call once it may run or has its result, after days if need be; meanwhile the client hears of it."""
        view = await patiently(lambda: self.client.get_external_call(call_id))
        until = None if self.answer_within is None else time.monotonic() + self.answer_within
        while view.state not in {"ready", "done"}:
            if until is not None and time.monotonic() > until:
                raise _NotOverError(f"{_STATES[view.state]} Make the very same call again to go on waiting for it.")
            await tell(_STATES[view.state])
            left = PULSE_SECONDS if until is None else math.ceil(until - time.monotonic())
            wait = max(1, min(PULSE_SECONDS, left))
            view = await patiently(lambda: self.client.get_external_call(call_id, wait=wait))  # noqa: B023 - awaited here
        return view

    async def _run(self, call_id: str, tool: Tool, order: RunOrder, attempt: str, tell: Tell) -> CallToolResult:
        """Run the call behind: exactly what was approved. From here on it may have happened, whatever goes wrong."""
        outcome: CallToolResult | Literal["lost"] = "lost"
        pulse = asyncio.create_task(_pulse(tell))
        try:
            outcome = await self.downstream.call(tool.name, order, lambda what: _quietly(tell, what))
        except asyncio.CancelledError:
            await asyncio.shield(self._reported(call_id, attempt, None))
            raise
        finally:
            pulse.cancel()
        if outcome == "lost":
            await self._reported(call_id, attempt, None)
            return refused(
                "The call was sent to the server, and its answer was lost. It may or may not have happened: find out before "
                "you do anything that depends on it. A person is asked, too.",
                kind="unknown",
            )
        await self._reported(call_id, attempt, kept(outcome))
        return with_note(outcome, order.input) if order.edited else outcome

    async def _reported(self, call_id: str, attempt: str, result: Ok | Failure | None) -> None:
        """Report; one that is not taken is logged, and the call then counts as lost when its time is over."""
        limit = LAST_WORDS_SECONDS if result is None else None
        try:
            async with asyncio.timeout(limit):
                await patiently(lambda: self.client.report_external_call(call_id, attempt=attempt, result=result))
        except (TurngateError, TimeoutError):
            log.warning("what call %s came to could not be reported", call_id, exc_info=True)

    async def _given_up(self, call_id: str, why: str) -> None:
        """Take back a call: its request leaves the inbox."""
        try:
            await self.client.interrupt(call_id, reason=why)
        except TurngateError:
            log.warning("call %s was given up, and Turngate could not be told", call_id, exc_info=True)


def _closed(view: ExternalCallView, result: Ok | Failure, tool: Tool) -> CallToolResult:
    answer = given(result, tool)
    return answer if view.edited_input is None or isinstance(result, Failure) else with_note(answer, view.edited_input)


async def _pulse(tell: Tell) -> None:
    while True:
        await asyncio.sleep(PULSE_SECONDS)
        await _quietly(tell, "The call runs.")


async def _quietly(tell: Tell, what: str) -> None:
    """Tell, if anybody is there: whether a call runs does not hang on who watches it."""
    try:
        await tell(what)
    except Exception:
        log.debug("a client could not be told of its call", exc_info=True)
