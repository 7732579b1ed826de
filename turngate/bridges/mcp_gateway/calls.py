"""One call on its way through the gateway: ask, wait, start, run it downstream, report."""

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
from functools import partial
from typing import Any, Final, Literal

from mcp.types import CallToolResult, Tool

from turngate.bridges.mcp_gateway.downstream import Downstream
from turngate.bridges.mcp_gateway.results import external_tool, for_client, from_log, refused, to_log, with_note
from turngate.bridges.reports import Reports, patiently
from turngate.client import TurngateClient
from turngate.domain.errors import ConflictError, TurngateError, UnavailableError
from turngate.domain.tools.external import ExternalMessage, ExternalTool, message
from turngate.domain.tools.results import Failure, Ok
from turngate.wire.external_calls import ExternalCallView, RunOrder
from turngate.wire.orders import ExternalCallOrder

log = logging.getLogger("turngate.mcp_gateway")

Notify = Callable[[str], Awaitable[None]]
"""Tells the client that its call is alive, and what it waits for."""
PULSE_SECONDS: Final = 5
MOST_ABANDONED: Final = 1_000
REASON_SECONDS: Final = 0.1
"""How long we wait for the reason of a cancellation, which arrives after it."""
_STATES: Final = {
    "planning": "Turngate is checking the call.",
    "waiting": "A person must decide whether this call may run.",
    "running": "The call was started before. Turngate is waiting for its result.",
    "unknown": "It is unknown whether the call happened. A person must say.",
    "ready": "The call may run.",
}


class _StillOpenError(Exception):
    """The call is still open, and the client has waited long enough. Says what it waits for, and what to do."""


@dataclass(kw_only=True)
class GatedCalls:
    """The calls of one gateway.

    Attributes:
        source: its name in policy and inbox.
        closing: the gateway itself is ending, so open calls are left for the next one.
        answer_within: seconds until a client must ask again; None: it waits.
        _adopted: open calls that a client of this gateway waits for.
        _running: the calls that run downstream, each in its own task, because it may outlive its client's patience.
        _abandoned: content → id of calls whose client no longer waits. When such a call ends, the next client that makes it
            gets the result: to run it again would be to run it twice.
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
    _cancellations: set[asyncio.Task[None]] = field(default_factory=set)
    _abandoned: OrderedDict[tuple[str, str], str] = field(default_factory=OrderedDict)
    _adopting: asyncio.Lock = field(default_factory=asyncio.Lock)
    _reports: Reports = field(init=False)

    def __post_init__(self) -> None:
        """Prepare for reports."""
        self._reports = Reports(self.client)

    async def call(
        self,
        tool: Tool,
        arguments: dict[str, Any],
        *,
        call_id: str | None,
        notify: Notify,
        timed_out: Callable[[], bool],
        task: str | None = None,
    ) -> CallToolResult:
        """Bring one call to its result. If anything goes wrong before the start, nothing runs (I2).

        ``call_id``: the client's own; the same id again is the same call. None: continue an open call with this content that
        no client waits for, because its client may have come back; else it is a new call. ``timed_out``: whether the client
        of a cancelled call only stopped waiting, and may come back. ``task``: what the client says that it was asked to do.
        """
        described = external_tool(tool, trusted=self.trusted, timeout_seconds=self.timeout_seconds)
        raw_input = json.dumps(arguments, ensure_ascii=False)
        view: ExternalCallView | None = None
        try:
            view = await self._sent(described, raw_input, call_id, () if task is None else (message("person", task),))
            return await self._settled(view.id, tool, notify)
        except UnavailableError as away:
            return refused(f"The call did not run: {away.message}", kind="unavailable")
        except _StillOpenError as waits:
            self._abandon(view)
            return refused(str(waits), kind="undecided")
        except TurngateError as error:
            return refused(f"The call did not run: {error.message}", kind=error.error_code)
        except asyncio.CancelledError:
            if view is not None:
                # The SDK cancels everything that is awaited here until we return, so the rest runs in its own task.
                cancellation = asyncio.create_task(self._cancelled(view, timed_out))
                self._cancellations.add(cancellation)
                cancellation.add_done_callback(self._cancellations.discard)
                view = None
            raise
        finally:
            if view is not None:
                self._adopted.discard(view.id)

    async def aclose(self) -> None:
        """Cancel the running calls. A person is asked what happened to each."""
        running = list(self._running.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, *self._cancellations, return_exceptions=True)
        await self._reports.aclose()

    async def _sent(
        self, tool: ExternalTool, raw_input: str, call_id: str | None, conversation: tuple[ExternalMessage, ...]
    ) -> ExternalCallView:
        """Send the call, and mark that a client waits for it. One at a time, so that two equal calls don't become one."""
        if self._cancellations:  # the same client may be back already
            await asyncio.wait(self._cancellations)
        async with self._adopting:
            view = None if call_id is not None else await self._orphan(tool, raw_input)
            if call_id is None and view is None:
                call_id = self._abandoned.pop((tool.name, raw_input), None)
            view = view or await self._send(tool, raw_input, call_id or secrets.token_hex(12), conversation)
            self._adopted.add(view.id)
            return view

    async def _orphan(self, tool: ExternalTool, raw_input: str) -> ExternalCallView | None:
        """Return an open call with this content that no client waits for: an earlier gateway, which was killed, sent it."""
        cursor: str | None = None
        while True:
            page = await self.client.list_external_calls(source=self.source, limit=200, cursor=cursor)
            for call in page.items:
                if (call.tool_name, call.input) == (tool.name, raw_input) and call.id not in self._adopted:
                    try:  # fails if the tool has changed: people would have seen another tool than the one that runs (I6)
                        return await self._send(tool, raw_input, call.tool_call_id)
                    except ConflictError:
                        continue
            cursor = page.next_cursor
            if cursor is None:
                return None

    async def _send(
        self, tool: ExternalTool, raw_input: str, call_id: str, conversation: tuple[ExternalMessage, ...] = ()
    ) -> ExternalCallView:
        order = ExternalCallOrder(
            source=self.source, tool_call_id=call_id, tool=tool, input=raw_input, conversation=conversation
        )
        return await self.client.send_external_call(order)

    async def _settled(self, call_id: str, tool: Tool, notify: Notify) -> CallToolResult:
        attempt = secrets.token_hex(16)
        while True:
            view = await self._answered(call_id, notify)
            if view.result is not None:
                return _closed(view, view.result, tool)
            if await self.downstream.tool(tool.name) != tool:
                await self._withdraw(call_id, "The server now describes this tool differently.")
                changed = "the server now describes this tool differently. List the tools again"
                raise ConflictError(changed, code="tool_changed")
            running = asyncio.create_task(self._started(call_id, tool, attempt, notify))
            self._running[call_id] = running
            running.add_done_callback(lambda _task: self._running.pop(call_id, None))
            result = await asyncio.shield(running)
            if result is not None:
                return result

    async def _started(self, call_id: str, tool: Tool, attempt: str, notify: Notify) -> CallToolResult | None:
        """Start the call and run it. None: it may not start yet, or it is over; its view says which."""
        try:
            started = await patiently(lambda: self.client.start_external_call(call_id, attempt=attempt))
        except ConflictError as refusal:
            if refusal.error_code not in {"not_ready", "already_started"}:
                raise
            return None
        return None if started.run is None else await self._run(call_id, tool, started.run, attempt, notify)

    async def _cancelled(self, view: ExternalCallView, timed_out: Callable[[], bool]) -> None:
        """Do what the client that cancelled its call meant: withdraw the call, or leave it open for when it asks again."""
        await asyncio.sleep(REASON_SECONDS)
        stays_open = self.closing or timed_out()
        running = self._running.get(view.id)
        if stays_open:
            self._abandon(view)
        elif running is not None:
            running.cancel()
        else:
            await self._withdraw(view.id, "The MCP client cancelled the call.")
        self._adopted.discard(view.id)

    def _abandon(self, view: ExternalCallView | None) -> None:
        if view is not None:
            self._abandoned[view.tool_name, view.input] = view.tool_call_id
        if len(self._abandoned) > MOST_ABANDONED:
            self._abandoned.popitem(last=False)

    async def _answered(self, call_id: str, notify: Notify) -> ExternalCallView:
        """Return the call once it may run or has its result, if need be after days. Meanwhile notify the client."""
        view = await patiently(lambda: self.client.get_external_call(call_id))
        until = None if self.answer_within is None else time.monotonic() + self.answer_within
        while view.state not in {"ready", "done"}:
            if until is not None and time.monotonic() > until:
                raise _StillOpenError(
                    f"{_STATES[view.state]} Make the very same call again to continue waiting for it."
                )
            await notify(_STATES[view.state])
            left = PULSE_SECONDS if until is None else math.ceil(until - time.monotonic())
            wait = max(1, min(PULSE_SECONDS, left))
            view = await patiently(lambda: self.client.get_external_call(call_id, wait=wait))  # noqa: B023 - awaited here
        return view

    async def _run(self, call_id: str, tool: Tool, order: RunOrder, attempt: str, notify: Notify) -> CallToolResult:
        """Run exactly what was approved. From here on, any error leaves open whether the call happened."""
        report = partial(self._reports.send, call_id, attempt, deadline_at=order.deadline_at)
        answer: CallToolResult | Literal["lost"] = "lost"
        pulse = asyncio.create_task(_pulse(notify))
        try:
            answer = await self.downstream.call(tool.name, order, lambda message: _notify_quietly(notify, message))
        except asyncio.CancelledError:
            await asyncio.shield(report(None))
            raise
        finally:
            pulse.cancel()
        if answer == "lost":
            await report(None)
            return refused(
                "The call was sent to the server, and its answer was lost. It may or may not have happened: find out before "
                "you do anything that depends on it. A person is asked, too.",
                kind="unknown",
            )
        await report(to_log(answer))
        answer = for_client(answer, tool)
        return with_note(answer, order.input) if order.edited else answer

    async def _withdraw(self, call_id: str, why: str) -> None:
        """Withdraw a call: its request leaves the inbox."""
        try:
            await self.client.interrupt(call_id, reason=why)
        except TurngateError:
            log.warning("call %s could not be withdrawn from Turngate", call_id, exc_info=True)


def _closed(view: ExternalCallView, result: Ok | Failure, tool: Tool) -> CallToolResult:
    answer = from_log(result, tool)
    if view.edited_input is None or isinstance(result, Failure):
        return answer
    return with_note(answer, view.edited_input)


async def _pulse(notify: Notify) -> None:
    while True:
        await asyncio.sleep(PULSE_SECONDS)
        await _notify_quietly(notify, "The call runs.")


async def _notify_quietly(notify: Notify, message: str) -> None:
    """Notify the client if it is connected: whether a call runs does not depend on who watches it."""
    try:
        await notify(message)
    except Exception:
        log.debug("a client could not be notified of its call", exc_info=True)
