"""I1 against histories of earlier systems: where they agree with this design, and where this design is stricter and why.

Those systems keep a flat list of calls and outputs. Here the calls of one response are one assistant message, and
their results are the tool message after it.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from turngate.domain.conversation.history import close_pending, is_reconciled, reconcile, unanswered_calls
from turngate.domain.conversation.messages import Message, Part, ToolCallPart, ToolResultPart, user_message
from turngate.domain.tools.results import Failure, Ok

HI = user_message("hi")
SEARCH = ToolCallPart(tool_call_id="c98", tool_name="web_search", input='{"query":"x"}')
DROP = ToolCallPart(tool_call_id="c99", tool_name="delete_database", input='{"name":"prod"}')
A, B, C = (ToolCallPart(tool_call_id=call_id, tool_name="t", input="{}") for call_id in "abc")
COUNTED = Ok(value={"count": 0})
REDIRECTED = Failure(kind="cancelled", reason="user redirected")


def calls(*parts: Part) -> Message:
    return Message(role="assistant", parts=parts)


def results(*answered: ToolCallPart, result: Ok | Failure = COUNTED) -> Message:
    parts = (
        ToolResultPart(tool_call_id=call.tool_call_id, tool_name=call.tool_name, result=result) for call in answered
    )
    return Message(role="tool", parts=tuple(parts))


GHOST = results(A.model_copy(update={"tool_call_id": "ghost"}))


@dataclass(frozen=True)
class Case:
    """A history, the ids that are open in it, in order, and whether it may be sent to a provider."""

    history: list[Message]
    open_ids: list[str]
    reconciled: bool


AGREED = {
    "nothing said": Case([], [], True),
    "one of two calls has its result": Case([HI, calls(SEARCH, DROP), results(SEARCH)], ["c99"], False),
    "a call without a result": Case([HI, calls(DROP)], ["c99"], False),
    "closed, and then the person continued": Case(
        [user_message("first"), calls(DROP), results(DROP, result=REDIRECTED), user_message("never mind")], [], True
    ),
    "open on both sides of an answered one": Case([calls(A, B, C), results(B)], ["a", "c"], False),
    "two calls of one id, one result": Case([calls(SEARCH, SEARCH), results(SEARCH)], [], True),
}

STRICTER = {
    "a result in front of its call": Case([results(SEARCH), calls(SEARCH)], ["c98"], False),
    "a result a turn before its call": Case([results(SEARCH), HI, calls(SEARCH)], ["c98"], False),
    "two calls of one id, no result": Case([calls(SEARCH, SEARCH)], ["c98"], False),
    "two messages of one id, no result": Case([calls(SEARCH), HI, calls(SEARCH)], ["c98"], False),
    "one result after the second of two messages with one id": Case(
        [calls(SEARCH), HI, calls(SEARCH), results(SEARCH)], ["c98"], False
    ),
    "a result a turn after its call": Case([calls(SEARCH), HI, results(SEARCH)], ["c98"], False),
    "a result of no call": Case([GHOST], [], False),
    "a result of no call beside a good one": Case([calls(A), results(A), GHOST], [], False),
    "two results of one call": Case([calls(A), results(A, A)], [], False),
    "results in another order than the calls": Case([calls(A, B), results(B, A)], [], False),
    "results in two messages": Case([calls(A, B), results(A), results(B)], [], False),
}


def ids(history: list[Message]) -> list[str]:
    return [call.tool_call_id for call in unanswered_calls(history)]


@pytest.mark.parametrize("case", AGREED.values(), ids=AGREED)
def test_i1_the_same_calls_are_open_as_in_earlier_systems(case: Case) -> None:
    """I1: on these histories the earlier systems and DESIGN agree which calls are open."""
    assert (ids(case.history), is_reconciled(case.history)) == (case.open_ids, case.reconciled)


@pytest.mark.parametrize("case", STRICTER.values(), ids=STRICTER)
def test_i1_position_and_repetition_count(case: Case) -> None:
    """I1: the earlier systems accept a result anywhere and list a doubled id twice. DESIGN 13 wins.

    A provider answers 400 to a result that comes before its call, a turn away from it, twice, or for no call at all;
    and two closures for one doubled id would be two results of one call. So a result counts only after its call, an id
    is listed once, and a history with a stray, second or re-ordered result is not reconciled although no call is open.
    """
    assert (ids(case.history), is_reconciled(case.history)) == (case.open_ids, case.reconciled)


@pytest.mark.parametrize("case", [*AGREED.values(), *STRICTER.values()], ids=[*AGREED, *STRICTER])
def test_i1_each_of_them_can_be_sent_after_the_repair(case: Case) -> None:
    """I1: the repair closes exactly the ids that were open, and returns a whole history unchanged."""
    repaired = reconcile(case.history, REDIRECTED)
    assert is_reconciled(repaired)
    assert reconcile(repaired) == repaired
    assert (repaired == case.history) is case.reconciled
    closed = [part.tool_call_id for message in repaired for part in message.results if part.result == REDIRECTED]
    had = [part.tool_call_id for message in case.history for part in message.results if part.result == REDIRECTED]
    assert [call_id for call_id in dict.fromkeys(closed) if call_id not in had] == case.open_ids


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        pytest.param("user moved on", Failure(kind="cancelled", reason="user moved on"), id="with a reason"),
        pytest.param("", Failure(kind="cancelled"), id="without one"),
    ],
)
def test_i1_an_open_call_is_closed_as_cancelled(reason: str, expected: Failure) -> None:
    """I1: the closure names the call and its tool; only the open call gets one, with no invented reason."""
    history = [HI, calls(SEARCH, DROP), results(SEARCH)]
    assert close_pending(history, reason) == [
        ToolResultPart(tool_call_id="c99", tool_name="delete_database", result=expected)
    ]


def test_i1_closures_are_in_call_order() -> None:
    """I1: an answered call between two open ones gets no closure; the others keep the model's order."""
    assert [part.tool_call_id for part in close_pending([calls(A, B, C), results(B)])] == ["a", "c"]


@pytest.mark.parametrize("history", [[HI, calls(DROP)], [HI, calls(A, B)], [calls(SEARCH, SEARCH)]])
def test_i1_closing_is_done_once(history: list[Message]) -> None:
    """I1: with the closures appended the history is reconciled, and closing it again closes nothing."""
    closed = [*history, Message(role="tool", parts=tuple(close_pending(history)))]
    assert is_reconciled(closed)
    assert close_pending(closed) == []


def test_i1_the_repair_may_run_at_every_turn() -> None:
    """I1: the earlier systems repair only when a turn is entered again. DESIGN wants it before every model request.

    That is safe because a history in which each call is answered is returned unchanged, message by message.
    """
    history = [HI, calls(A, B), results(A, B), user_message("and now?"), calls(C), results(C)]
    for end in (1, 3, 4, 6):
        assert all(after is before for after, before in zip(reconcile(history[:end]), history[:end], strict=True))
