"""Figure 3: the workflow history that one gated turn leaves, in bytes and events, in a short and in a long conversation."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from bench.figures import Figure, Ratio
from bench.sides import Side
from bench.turngate_side import Turngate

from turngate.domain.conversation.messages import Message, TextPart, user_message
from turngate.store.database import Database
from turngate.store.runs import messages

GOAL_BYTES = 5 * 1024
GOAL_EVENTS = 21
"""Of two activities with a signal between them, and a workflow task after each: there is no way with fewer."""
SHORT, LONG = 10, 400
CLOCK_BYTES = 40
"""Timestamps and task ids are varints: this much difference is the clock's, not the conversation's."""


async def measure(ours: Turngate, baseline: Side) -> list[Figure]:
    """One line per length of the conversation."""
    plain = await _gated_turn(baseline, None)
    turns = {
        length: await _gated_turn(ours, await _conversation_of(ours.engine.database, length))
        for length in (SHORT, LONG)
    }
    same = abs(turns[LONG].size - turns[SHORT].size) <= CLOCK_BYTES
    return [
        Figure(
            name=f"history of a gated turn, {length} prior messages",
            ours=f"{turn.size} B, {turn.events} events",
            baseline=f"{plain.size} B, {plain.events} events",
            ratio=Ratio.of([turn.size], [plain.size]),
            goal=f"<= {GOAL_BYTES} B, <= {GOAL_EVENTS} events" + (", the same" if length == LONG else ""),
            reached=turn.size <= GOAL_BYTES and turn.events <= GOAL_EVENTS and (same or length == SHORT),
            samples={"ours_bytes": [turn.size], "baseline_bytes": [plain.size]},
        )
        for length, turn in turns.items()
    ]


@dataclass(frozen=True)
class TurnHistory:
    """The history of one turn. ``size``: of its events, in bytes."""

    size: int
    events: int


async def _gated_turn(side: Side, conversation_id: str | None) -> TurnHistory:
    turn_id = await side.start(conversation_id)
    ask = await side.ask_of(turn_id)
    await side.idle(turn_id)  # so that no decision shares a workflow task with the request, which would save bytes
    await side.decide(ask)
    await side.complete(turn_id)
    events = (await side.workflow(turn_id).fetch_history()).events
    return TurnHistory(sum(event.ByteSize() for event in events), len(events))


async def _conversation_of(database: Database, length: int) -> str:
    """Store a conversation of this many messages of some 200 characters each."""
    conversation_id = f"conv_{secrets.token_hex(12)}"
    texts = [f"message {number} " + "x" * 200 for number in range(length)]
    history = [
        Message(role="assistant", parts=(TextPart(text=text),)) if number % 2 else user_message(text)
        for number, text in enumerate(texts)
    ]
    async with database.write() as conn:
        await messages.create_with_past(conn, conversation_id, history)
    return conversation_id
