"""Figure 3: bytes of workflow history that one gated turn leaves, in a short and in a long conversation."""

from __future__ import annotations

import secrets

from bench.figures import Figure, Ratio
from bench.sides import Side
from bench.turngate_side import Turngate

from turngate.domain.conversation.messages import Message, TextPart, user_message
from turngate.store.database import Database
from turngate.store.runs import messages

GOAL_BYTES = 8 * 1024
SHORT, LONG = 10, 400
CLOCK_BYTES = 40
"""Timestamps and task ids are varints: this much difference is the clock's, not the conversation's."""


async def measure(ours: Turngate, baseline: Side) -> list[Figure]:
    """One line per length of the conversation."""
    plain = await _gated_turn_bytes(baseline, None)
    sizes = {
        length: await _gated_turn_bytes(ours, await _conversation_of(ours.engine.database, length))
        for length in (SHORT, LONG)
    }
    same = abs(sizes[LONG] - sizes[SHORT]) <= CLOCK_BYTES
    return [
        Figure(
            name=f"history of a gated turn, {length} prior messages",
            ours=f"{size} B",
            baseline=f"{plain} B",
            ratio=Ratio.of([size], [plain]),
            goal=f"<= {GOAL_BYTES} B" + (", the same" if length == LONG else ""),
            reached=size <= GOAL_BYTES and (same or length == SHORT),
            samples={"ours_bytes": [size], "baseline_bytes": [plain]},
        )
        for length, size in sizes.items()
    ]


async def _gated_turn_bytes(side: Side, conversation_id: str | None) -> int:
    turn_id = await side.start(conversation_id)
    ask = await side.ask_of(turn_id)
    await side.idle(turn_id)  # so that no decision shares a workflow task with the request, which would save bytes
    await side.decide(ask)
    await side.complete(turn_id)
    return sum(event.ByteSize() for event in (await side.workflow(turn_id).fetch_history()).events)


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
