"""One call on its way through the gateway: ask, wait, start, run it behind, report."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast

from mcp import MCPError
from mcp.types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    PARSE_ERROR,
    REQUEST_TIMEOUT,
    CallToolResult,
    InputRequiredResult,
    RequestParamsMeta,
    Tool,
)

from turngate.bridges.mcp_gateway_downstream import Downstream
from turngate.bridges.mcp_gateway_results import external_tool, given, kept, refused, with_note
from turngate.bridges.outside_calls import patiently
from turngate.client import TurngateClient
from turngate.domain.errors import ConflictError, TurngateError, UnavailableError
from turngate.domain.external import ExternalTool
from turngate.domain.results import Failure, Ok
from turngate.wire.external_calls import ExternalCallView, RunOrder

log = logging.getLogger("turngate.mcp_gateway")

Tell = Callable[[str], Awaitable[None]]
"""Tells the client that its call is alive, and what it waits for."""
KEY: Final = "turngate/idempotency-key"
PULSE_SECONDS: Final = 5
LAST_WORDS_SECONDS: Final = 3.0
_ANSWER_LOST: Final = frozenset({CONNECTION_CLOSED, REQUEST_TIMEOUT, PARSE_ERROR, INTERNAL_ERROR, INVALID_REQUEST})
"""Errors that the SDK also makes up itself, for an answer that never came: with these the call may have happened."""
_STATES: Final = {
    "planning": "Turngate looks at the call.",
    "waiting": "A person is asked whether this call may run.",
    "running": "The call was started before, and its result is waited for.",
    "unknown": "Nobody knows whether the call happened; a person is asked.",
    "ready": "The call may run.",
}


@dataclass(kw_only=True)
class GatedCalls:
    """The calls of one gateway.

    ``source``: its name in policy and inbox. ``adopted``: open calls that a client waits for here. ``refusals``: what was
    refused in this process, by content. ``closing``: the gateway itself ends, so what waits is left for the next one.
    """

    client: TurngateClient
    downstream: Downstream
    source: str
    trusted: bool = False
    timeout_seconds: int = 600
    closing: bool = False
    _adopted: set[str] = field(default_factory=set)
    _refusals: dict[tuple[str, str], Failure] = field(default_factory=dict)
    _adopting: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def call(self, tool: Tool, arguments: dict[str, Any], *, call_id: str | None, tell: Tell) -> CallToolResult:
        """Bring one call to its result. Whatever goes wrong before it was started, nothing runs (I2).

        ``call_id``: the client's own; the same again is the same call. None: an open call of this content is gone on with that
        nobody here waits for, as a client that comes back would, or else it is a new one.
        """
        said = external_tool(tool, trusted=self.trusted, timeout_seconds=self.timeout_seconds)
        raw_input = json.dumps(arguments, ensure_ascii=False)
        before = self._refusals.get((said.name, raw_input)) if call_id is None else None
        if before is not None:
            again = "This is the same call that was already refused, so nobody was asked again. "
            return refused(again + before.reason, kind=before.kind)
        view: ExternalCallView | None = None
        try:
            view = await self._sent(said, raw_input, call_id)
            return await self._settled(view.id, tool, tell)
        except UnavailableError as away:
            return refused(f"The call did not run: {away.message}", kind="unavailable")
        except TurngateError as error:
            return refused(f"The call did not run: {error.message}", kind=error.error_code)
        except asyncio.CancelledError:
            if view is not None and not self.closing:
                await asyncio.shield(self._given_up(view.id, "The MCP client cancelled the call."))
            raise
        finally:
            if view is not None:
                self._adopted.discard(view.id)

    async def _sent(self, said: ExternalTool, raw_input: str, call_id: str | None) -> ExternalCallView:
        """Send the call, and mark it as waited for here. One at a time, so that two equal calls do not become one."""
        async with self._adopting:
            view = None if call_id is not None else await self._orphan(said, raw_input)
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
                return self._closed(view, view.result)
            if await self.downstream.tool(tool.name) != tool:
                await self._given_up(call_id, "The server describes this tool differently by now.")
                changed = "the server describes this tool differently by now. List the tools again"
                raise ConflictError(changed, code="tool_changed")
            try:
                started = await patiently(lambda: self.client.start_external_call(call_id, attempt=attempt))
            except ConflictError as refusal:
                if refusal.error_code not in {"not_ready", "already_started"}:
                    raise
            else:
                if started.run is not None:
                    return await self._run(call_id, tool, started.run, attempt)

    async def _answered(self, call_id: str, tell: Tell) -> ExternalCallView:
        """Return the call once it may run or has its result, after days if need be; meanwhile the client hears of it."""
        view = await patiently(lambda: self.client.get_external_call(call_id))
        while view.state not in {"ready", "done"}:
            await tell(_STATES[view.state])
            view = await patiently(lambda: self.client.get_external_call(call_id, wait=PULSE_SECONDS))
        return view

    def _closed(self, view: ExternalCallView, result: Ok | Failure) -> CallToolResult:
        if isinstance(result, Failure) and result.kind in {"rejected", "denied"}:
            self._refusals[(view.tool_name, view.input)] = result
        answer = given(result)
        return (
            answer if view.edited_input is None or isinstance(result, Failure) else with_note(answer, view.edited_input)
        )

    async def _run(self, call_id: str, tool: Tool, order: RunOrder, attempt: str) -> CallToolResult:
        """Run the call behind: exactly what was approved. From here on it may have happened, whatever goes wrong."""
        outcome: CallToolResult | Literal["lost"] = "lost"
        try:
            outcome = await self._behind(tool.name, order)
        except asyncio.CancelledError:
            await asyncio.shield(self._reported(call_id, attempt, None))
            raise
        if outcome == "lost":
            self.downstream.broken()
            await self._reported(call_id, attempt, None)
            return refused(
                "The call was sent to the server, and its answer was lost. It may or may not have happened: find out before "
                "you do anything that depends on it. A person is asked, too.",
                kind="unknown",
            )
        await self._reported(call_id, attempt, kept(outcome))
        return with_note(outcome, order.input) if order.edited else outcome

    async def _behind(self, name: str, order: RunOrder) -> CallToolResult | Literal["lost"]:
        try:
            client = await self.downstream.client()
        except UnavailableError as away:
            return refused(f"The call did not run: {away.message}", kind="unavailable")
        meta = cast("RequestParamsMeta", {KEY: order.idempotency_key})  # an open map, by the specification
        try:
            async with asyncio.timeout(self.timeout_seconds):
                answer = await client.session.call_tool(
                    name, json.loads(order.input or "{}"), meta=meta, allow_input_required=True
                )
        except MCPError as error:
            if error.code in _ANSWER_LOST:
                return "lost"
            return refused(f"The server refused the call: {error.message}", kind="tool_failure")
        except Exception:
            log.warning("the answer to a call of %s was lost", name, exc_info=True)
            return "lost"
        if isinstance(answer, InputRequiredResult):
            return refused(
                "The server wants to ask a person or a model before it goes on; that is declined.", kind="tool_failure"
            )
        return answer

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
