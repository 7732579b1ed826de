"""One turn in an editor: a run followed to its end, its events told as session updates, its gates asked about."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, Final

from acp import RequestError, update_agent_message_text, update_agent_thought_text
from acp.schema import StopReason

from turngate.client import TurngateClient
from turngate.domain.conversation.messages import Delta
from turngate.domain.runs.outcomes import RunOutcome
from turngate.frontends.acp import render as show
from turngate.frontends.acp.calls import Calls
from turngate.frontends.acp.editor import Editor
from turngate.frontends.acp.gates import Gates
from turngate.text.link_words import LinkState
from turngate.wire.events import DeltaView, EventView, ProgressView
from turngate.wire.runs import RunDetail, StepView
from turngate.wire.streamed import Streamed, as_deltas

GATE_ENDS: Final = frozenset({"request.decided", "request.expired", "request.cancelled", "request.superseded"})
STOP_REASONS: Final[dict[RunOutcome, StopReason]] = {
    "completed": "end_turn",
    "interrupted": "cancelled",
    "step_cap": "max_turn_requests",
    "budget": "max_turn_requests",
    "no_progress": "max_turn_requests",
}
"""The other outcomes are errors of the turn."""
TOKEN_CAP: Final = "token_cap"  # noqa: S105 - an error class
IN_FULL: Final = "\n\n*(In full:)*\n\n"
AGAIN: Final = "\n\n*(The response broke off, and is made again.)*\n\n"


class Turn:
    """A run as the editor sees it. ``seen_steps``: steps that it has already, as (run, step); grows with what is sent.

    ``on_model``: called with a model that the run is switched to.
    """

    def __init__(
        self,
        client: TurngateClient,
        editor: Editor,
        calls: Calls,
        gates: Gates,
        seen_steps: set[tuple[str, int]],
        on_model: Callable[[str], Awaitable[None]],
    ) -> None:
        self._client = client
        self._editor = editor
        self._calls = calls
        self._gates = gates
        self._seen_steps = seen_steps
        self._on_model = on_model
        self._live = Streamed()
        self._is_void = False
        self._run_id = ""
        self._last_text = ""
        self._link_state = LinkState()
        self._telling: set[asyncio.Task[None]] = set()

    async def follow(self, run_id: str) -> RunDetail:
        """Tell a run to its end, and return it as it ended."""
        self._run_id = run_id
        try:
            async for event in self._client.follow_events(run_id, with_deltas=True, on_link=self._on_link):
                if isinstance(event, DeltaView):
                    await self._speak(event)
                elif isinstance(event, ProgressView):
                    text = event.payload if isinstance(event.payload, str) else json.dumps(event.payload)
                    await self._calls.progress(self._calls.id_of(event.run_id, event.tool_call_id), text)
                else:
                    await self._happened(event)
        finally:
            await self._gates.close()
        return await self._ended()

    def _on_link(self, is_open: bool) -> None:
        words = self._link_state.change(is_open=is_open)
        if words is not None:
            task = asyncio.create_task(self._editor.tell(update_agent_thought_text(f"{words}\n\n")))
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)

    async def _happened(self, event: EventView) -> None:
        payload: dict[str, Any] = event.named_payload
        match event.type:
            case "step.responded":
                await self._responded(event.run_id, int(payload["step"]))
            case "request.opened":
                self._gates.open(str(payload["request_id"]))
            case kind if kind in GATE_ENDS:
                await self._gate_ended(event, str(payload["request_id"]))
            case "execution.started":
                await self._calls.start(self._calls.id_of(event.run_id, str(payload["tool_call_id"])))
            case "execution.finished" | "call.closed":
                await self._settled(event.run_id, str(payload["tool_call_id"]))
            case "run.model_switched" if event.run_id == self._run_id:
                await self._on_model(str(payload["to"]))
            case "model.retrying":
                await self._editor.tell(
                    update_agent_thought_text(
                        f"The model fails, and is asked again: {show.fenced(str(payload['message']))}\n"
                    )
                )
            case _:
                pass

    async def _speak(self, deltas: DeltaView) -> None:
        if deltas.run_id != self._run_id or (deltas.run_id, deltas.step) in self._seen_steps:
            return
        step, attempt, had_words = self._live.step, self._live.attempt, bool(self._live.parts)
        if not self._live.take(deltas):
            return
        if deltas.step != step:
            self._is_void = False
        elif deltas.attempt != attempt or deltas.reset is not None:
            self._is_void |= had_words
        for delta in deltas.deltas:
            await self._say_words(delta, IN_FULL if deltas.is_last else AGAIN)

    async def _say_words(self, delta: Delta, why: str = AGAIN) -> None:
        """Say a piece of the response. ``why``: it takes the place of words that are void now."""
        if delta.kind == "tool-call" or not delta.text:
            return
        await self._say_again(why)
        tell = update_agent_thought_text if delta.kind == "reasoning" else update_agent_message_text
        await self._editor.tell(tell(delta.text))

    async def _say_again(self, why: str) -> None:
        """Say that what was shown is void, once there is something to show in its place: a run may have been stopped."""
        if self._is_void:
            self._is_void = False
            await self._editor.tell(update_agent_message_text(why))

    async def _responded(self, run_id: str, number: int) -> None:
        run = await self._client.get_run(run_id)
        step = next((each for each in run.steps if each.step == number), None)
        if step is None:
            return
        agents = "" if run_id == self._run_id else show.marked(run.agents)
        if (run_id, number) not in self._seen_steps:
            self._seen_steps.add((run_id, number))
            await self._say(step, agents)
        for call in step.calls:
            await self._calls.announce(run_id, call, agents)
            await self._calls.settle(run_id, call)

    async def _say(self, step: StepView, agents: str) -> None:
        """Say what of a step was not said live; a sub-agent's words are thoughts."""
        if agents:
            if step.text.strip():
                await self._editor.tell(update_agent_thought_text(f"{agents}: {step.text}\n\n"))
            return
        whole = as_deltas(reasoning=step.reasoning, text=step.text)
        missing = self._live.missing(whole) if self._live.step == step.step else whole
        if missing is None:
            await self._editor.tell(update_agent_message_text(IN_FULL))
        for delta in whole if missing is None else missing:
            await self._say_words(delta)
        self._live.forget()
        if step.text and step.calls:
            await self._editor.tell(update_agent_message_text("\n\n"))
        self._last_text = step.text

    async def _gate_ended(self, event: EventView, request_id: str) -> None:
        self._gates.ended(request_id)
        request = await self._client.get_request(request_id)
        known = self._calls.id_of(event.run_id, request.tool_call_id)
        by = "" if request.decided_by is None else f" by {request.decided_by}"
        message = "" if request.decision is None or not request.decision.message else f": {request.decision.message}"
        await self._calls.decided(known, "The request has ended:", f"{request.status}{by}{message}")

    async def _settled(self, run_id: str, tool_call_id: str) -> None:
        run = await self._client.get_run(run_id)
        for call in (call for step in run.steps for call in step.calls if call.tool_call_id == tool_call_id):
            await self._calls.announce(run_id, call)
            await self._calls.settle(run_id, call)

    async def _ended(self) -> RunDetail:
        run = await self._client.get_run(self._run_id)
        for call in (call for step in run.steps for call in step.calls):
            await self._calls.settle(run.id, call)
        if run.final_text and run.final_text != self._last_text:
            await self._editor.tell(update_agent_message_text(f"\n\n{run.final_text}"))
        if run.outcome != "completed":
            why = f"{run.how_it_ended or run.status}{f': {run.reason}' if run.reason else ''}"
            await self._editor.tell(update_agent_message_text(f"\n\nThe run has ended:\n{show.fenced(why)}\n"))
        return run


def stop_reason(run: RunDetail) -> StopReason:
    """Return why a turn stopped. Raises RequestError, with the run's outcome, where it failed."""
    if run.outcome == "budget" and run.error_class == TOKEN_CAP:
        return "max_tokens"
    if run.outcome in STOP_REASONS:
        return STOP_REASONS[run.outcome]
    ended = run.how_it_ended or run.status
    details = {"run_id": run.id, "outcome": run.outcome, "error_class": run.error_class, "reason": run.reason}
    raise RequestError(-32603, f"the run failed ({ended}): {run.reason}", details)
