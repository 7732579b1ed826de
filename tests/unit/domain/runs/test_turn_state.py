"""What a run remembers from one step to the next, and which decisions let a handler start."""

from __future__ import annotations

from typing import Any

import pytest

from turngate.domain.requests import runs_the_call
from turngate.domain.runs.turn_state import TurnState


def test_an_interrupt_ends_a_pause() -> None:
    """A paused run holds; once it is interrupted it has to come to its end."""
    assert TurnState(paused=True).held
    assert not TurnState(paused=True, interrupted=True).held
    assert not TurnState().held


def test_only_the_step_at_hand_is_recovered() -> None:
    """The requests of the next step are this workflow's own."""
    state = TurnState(step=2, recovered_step=2)
    assert state.recovering
    state.close_step(malformed=False)
    assert not state.recovering


def test_i9_only_consecutive_malformed_responses_count() -> None:
    """I9: a good response resets the count."""
    state = TurnState()
    counts = []
    for malformed in (True, True, False, True):
        state.close_step(malformed=malformed)
        counts.append(state.malformed_in_a_row)
    assert counts == [1, 2, 0, 1]


def test_i8_the_whole_state_crosses_continue_as_new() -> None:
    """I8: the state is one value whose JSON round-trips; it names no person and no request."""
    state = TurnState(step=3, malformed_in_a_row=1, recovered_step=3, interrupted=True, paused=True, finishing=True)
    assert TurnState.model_validate_json(state.model_dump_json()) == state
    assert TurnState.model_validate_json("{}") == TurnState()
    assert not {"by", "gates", "answers"} & set(TurnState.model_fields)


@pytest.mark.parametrize(
    ("kind", "verb", "outcome", "runs"),
    [
        ("approval", "approve", None, True),
        ("approval", "edit", None, True),
        ("approval", "reject", None, False),
        ("approval", "respond", None, False),
        ("question", "respond", None, False),
        ("question", "approve", None, False),
        ("outcome", "respond", "did_not_happen", True),
        ("outcome", "respond", "happened", False),
        ("outcome", "respond", "tell_model", False),
        ("outcome", "respond", None, False),
        ("outcome", "approve", "did_not_happen", False),
    ],
)
def test_i2_only_these_decisions_let_a_handler_start(kind: Any, verb: Any, outcome: Any, runs: bool) -> None:
    """I2: approving or editing an approval, or resolving a lost call as not happened; nothing else."""
    assert runs_the_call(kind, verb, outcome) is runs
