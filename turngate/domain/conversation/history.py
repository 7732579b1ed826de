"""Reconciliation: before every model request each tool call has exactly one result, directly after it, in order (I1).

Pure functions over messages, without a clock. Assistant messages make calls and tool messages answer them; the same
parts in a message of another role are neither. A result counts only if it comes after its call and before the next
message that is not a tool message; position matters because providers refuse a result that precedes its call or floats
in a later turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from turngate.domain.conversation.messages import Message, Part, ProviderOptions, ToolCallPart, ToolResultPart
from turngate.domain.tools.results import Failure

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
    for message, following in _turns(history):
        answered = _first_results(following)
        open_calls.extend(call for call in _calls(message) if call.tool_call_id not in answered)
    return _each_id_once(open_calls)


def is_reconciled(history: Sequence[Message]) -> bool:
    """Tell whether a provider would accept the history: every call answered once, in order, and no stray result."""
    return list(history) == reconcile(history)


def close_pending(history: Sequence[Message], reason: str | Failure = "") -> list[ToolResultPart]:
    """Return one closure for each of :func:`unanswered_calls`, in the same order; ``[]`` when nothing is open.

    They answer the calls of the last message once they are appended as one tool message. A call left open further back
    needs its result further back: that is :func:`reconcile`'s work, which takes the same closure.

    Args:
        history: messages from the first on.
        reason: what the model reads of each call: a text makes it ``cancelled`` ("" says no more than that), a Failure
            is used as it is.
    """
    closure = reason if isinstance(reason, Failure) else Failure(kind="cancelled", reason=reason)
    return closures(unanswered_calls(history), closure)


def closures(calls: Iterable[ToolCallPart], closure: Failure) -> list[ToolResultPart]:
    """Return ``closure`` as the result of each call, in call order; of calls that share an id the first one counts."""
    return [
        ToolResultPart(tool_call_id=call.tool_call_id, tool_name=call.tool_name, result=closure)
        for call in _each_id_once(calls)
    ]


def reconcile(history: Sequence[Message], closure: Failure = CLOSED_BY_REPAIR) -> list[Message]:
    """Return the history with every call answered exactly once, directly after it and in the model's order.

    Open calls get ``closure``; a second result for a call and results without a call are dropped; the results of one
    assistant message become one tool message, which holds nothing else. Messages of other roles stay the very same, and
    so does a tool message that is in order: rewriting it would break the provider's prompt cache. Idempotent:
    reconciling twice changes nothing.
    """
    repaired: list[Message] = []
    for message, following in _turns(history):
        if message is not None:
            repaired.append(message)
        results = _first_results(following)
        answers = tuple(results.get(closed.tool_call_id, closed) for closed in closures(_calls(message), closure))
        if not answers:
            continue
        if following and following[0].parts == answers:
            repaired.append(following[0])
        else:
            options = _options_of(following, answers)
            repaired.append(Message(role="tool", parts=answers, provider_options=options))
    return repaired


def _turns(history: Iterable[Message]) -> Iterator[tuple[Message | None, list[Message]]]:
    """Yield each message that is not a tool message, with the unbroken run of tool messages directly after it.

    Tool messages that begin the history come with None.
    """
    message: Message | None = None
    following: list[Message] = []
    for each in history:
        if each.role == "tool":
            following.append(each)
            continue
        yield message, following
        message, following = each, []
    yield message, following


def _calls(message: Message | None) -> list[ToolCallPart]:
    return message.calls if message is not None and message.role == "assistant" else []


def _each_id_once(calls: Iterable[ToolCallPart]) -> list[ToolCallPart]:
    first: dict[str, ToolCallPart] = {}
    for call in calls:
        first.setdefault(call.tool_call_id, call)
    return list(first.values())


def _first_results(following: Iterable[Message]) -> dict[str, ToolResultPart]:
    first: dict[str, ToolResultPart] = {}
    for message in following:
        for part in message.results:
            first.setdefault(part.tool_call_id, part)
    return first


def _options_of(following: Iterable[Message], answers: Iterable[ToolResultPart]) -> ProviderOptions:
    """Return the message-level options of the tool messages that gave an answer; per provider the first one's."""
    options: ProviderOptions = {}
    awaited = {part.tool_call_id for part in answers}
    for message in following:
        gave = awaited.intersection(part.tool_call_id for part in message.results)
        if gave:
            options = {**message.provider_options, **options}
            awaited -= gave
    return options


def mint_call_ids(message: Message, *, step: int, taken: set[str]) -> Message:
    """Return the message with call ids that are present, storable and unique among ``taken`` and each other.

    Providers omit ids, repeat them, or make them thousands of characters long; a minted id is ``call_<step>_<index>``,
    so a retry of the same response mints the same one. When that is taken too (an earlier run of the conversation minted
    it, or the model made it up), a number follows.
    """
    used = set(taken)
    parts: list[Part] = []
    for index, part in enumerate(message.parts):
        own: Part = part
        if isinstance(part, ToolCallPart):
            call_id = part.tool_call_id
            if not 0 < len(call_id) <= MAX_CALL_ID_CHARS or not call_id.isprintable() or call_id in used:
                call_id = _free_id(minted_id(step, index), used)
                own = part.model_copy(update={"tool_call_id": call_id})
            used.add(call_id)
        parts.append(own)
    return message.model_copy(update={"parts": tuple(parts)})


def minted_id(step: int, index: int | str) -> str:
    """Return the id that is minted for the part at this place of a step's response, if it is free."""
    return f"call_{step}_{index}"


def _free_id(stem: str, used: set[str]) -> str:
    candidate, number = stem, 1
    while candidate in used:
        number += 1
        candidate = f"{stem}_{number}"
    return candidate
