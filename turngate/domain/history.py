"""Reconciliation: before every model request each tool call has exactly one result, directly after it, in order (I1).

Pure functions over messages, without a clock. A result counts only when it stands after its call and before the next
message that is not a tool message; position matters because providers refuse a result that precedes its call or floats
in a later turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from turngate.domain.messages import Message, Part, ToolCallPart, ToolResultPart
from turngate.domain.results import Failure

MAX_CALL_ID_CHARS = 255
"""What the store's columns hold; PostgreSQL refuses more."""

CLOSED_BY_REPAIR = Failure(
    kind="interrupted",
    reason="This call was left open when its run stopped. Whether it had begun is not recorded here.",
)


def unanswered_calls(history: Sequence[Message]) -> list[ToolCallPart]:
    """Return the calls without a valid result, in the model's order, each call id once.

    A result before its call does not answer it, nor does one that comes after the conversation has moved on.
    """
    open_calls: list[ToolCallPart] = []
    seen: set[str] = set()
    for index, message in enumerate(history):
        answered = {part.tool_call_id for part in _results_after(history, index)}
        for call in message.calls:
            if call.tool_call_id not in answered and call.tool_call_id not in seen:
                open_calls.append(call)
                seen.add(call.tool_call_id)
    return open_calls


def is_reconciled(history: Sequence[Message]) -> bool:
    """Tell whether a provider would accept the history: every call answered once, in order, and no stray result."""
    return list(history) == reconcile(history)


def close_pending(
    calls: Sequence[ToolCallPart], reasons: Mapping[str, Failure], default: Failure
) -> list[ToolResultPart]:
    """Return one closure per call, in call order; ``reasons`` maps tool_call_id → why, ``default`` covers the rest."""
    return [
        ToolResultPart(
            tool_call_id=call.tool_call_id,
            tool_name=call.tool_name,
            result=reasons.get(call.tool_call_id, default),
        )
        for call in calls
    ]


def reconcile(history: Sequence[Message], closure: Failure = CLOSED_BY_REPAIR) -> list[Message]:
    """Return the history with every call answered exactly once, directly after it and in the model's order.

    Open calls get ``closure``; a second result for a call and results without a call are dropped; the results of one
    assistant message become one tool message. Idempotent: reconciling twice changes nothing.
    """
    repaired: list[Message] = []
    for index, message in enumerate(history):
        if message.role == "tool":
            continue  # results are re-attached directly behind the message that made the calls
        repaired.append(message)
        if not message.calls:
            continue
        by_call: dict[str, ToolResultPart] = {}
        for part in _results_after(history, index):
            by_call.setdefault(part.tool_call_id, part)
        unique = {call.tool_call_id: call for call in message.calls}
        answers = [by_call.get(call_id) or close_pending([call], {}, closure)[0] for call_id, call in unique.items()]
        following = history[index + 1] if index + 1 < len(history) else None
        if following is not None and following.role == "tool" and list(following.parts) == answers:
            repaired.append(following)
        else:
            repaired.append(Message(role="tool", parts=tuple(answers)))
    return repaired


def _results_after(history: Sequence[Message], index: int) -> list[ToolResultPart]:
    """Return the results in the unbroken run of tool messages that follows ``history[index]``."""
    found: list[ToolResultPart] = []
    for message in history[index + 1 :]:
        if message.role != "tool":
            break
        found.extend(message.results)
    return found


def mint_call_ids(message: Message, *, step: int, taken: set[str]) -> Message:
    """Return the message with call ids that are present, storable and unique among ``taken`` and each other.

    Providers omit ids, repeat them, or make them thousands of characters long; a minted id is ``call_<step>_<index>``,
    so a retry of the same response mints the same one. When that is taken too (an earlier run of the conversation minted
    it, or the model made it up), a number follows.
    """
    used = set(taken)
    parts: list[Part] = []
    for index, part in enumerate(message.parts):
        kept: Part = part
        if isinstance(part, ToolCallPart):
            call_id = part.tool_call_id
            if not 0 < len(call_id) <= MAX_CALL_ID_CHARS or not call_id.isprintable() or call_id in used:
                call_id = _minted_id(f"call_{step}_{index}", used)
                kept = part.model_copy(update={"tool_call_id": call_id})
            used.add(call_id)
        parts.append(kept)
    return message.model_copy(update={"parts": tuple(parts)})


def _minted_id(stem: str, used: set[str]) -> str:
    candidate, number = stem, 1
    while candidate in used:
        number += 1
        candidate = f"{stem}_{number}"
    return candidate
