"""Labels: what Temporal knows of a run, as a function of the run."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngate.domain.runs.labels import (
    ATTENDED,
    ATTRIBUTES,
    DECIDED,
    DRY_RUN,
    MOST_KEY_BYTES,
    UNATTENDED,
    RunLabels,
    labels_of,
    pseudonym,
)


@dataclass(frozen=True)
class Row:
    """What labels read of a run's row."""

    agent: str = "support"
    attended: bool = True
    schedule_id: str | None = None
    parent_run_id: str | None = None
    replay_of_run_id: str | None = None
    forked_from_run_id: str | None = None
    is_retry: bool = False


@pytest.mark.parametrize(
    ("row", "source", "priority"),
    [
        (Row(), "start", ATTENDED),
        (Row(attended=False), "start", UNATTENDED),
        (Row(attended=False, schedule_id="sched_1"), "schedule", UNATTENDED),
        (Row(parent_run_id="run_1"), "sub-agent", ATTENDED),
        (Row(forked_from_run_id="run_1"), "fork", ATTENDED),
        (Row(forked_from_run_id="run_1", is_retry=True), "retry", ATTENDED),
        (Row(replay_of_run_id="run_1", forked_from_run_id="run_1"), "dry-run", DRY_RUN),
        (Row(agent="external-shop"), "external-call", ATTENDED),
    ],
)
def test_source_and_priority_follow_from_the_run(row: Row, source: str, priority: int) -> None:
    """How the run came about, and how soon its work starts."""
    labels = labels_of(row)
    assert (labels.source, labels.priority) == (source, priority)


def test_a_decision_goes_first_and_a_dry_run_last() -> None:
    """The order on Temporal's scale, where 1 is first."""
    assert 1 == DECIDED < ATTENDED < UNATTENDED < DRY_RUN == 5


def test_attributes_are_those_that_have_a_value() -> None:
    """What a run doesn't have is no attribute of it."""
    assert labels_of(Row()).attributes == {"agent": "support", "source": "start"}
    every = labels_of(Row(schedule_id="sched_1"), starter="person-1").attributes
    assert tuple(every) == ATTRIBUTES


@given(agent=st.text(min_size=1, max_size=300))
def test_a_fairness_key_always_fits(agent: str) -> None:
    """Temporal refuses a start whose key is longer; a name that fits is the key."""
    agent = agent.encode(errors="ignore").decode() or "x"
    key = RunLabels(agent=agent, source="start", priority=ATTENDED).fairness_key
    assert len(key.encode()) <= MOST_KEY_BYTES
    assert key == agent or len(agent.encode()) > MOST_KEY_BYTES


def test_long_names_have_keys_of_their_own() -> None:
    """Two agents whose names begin alike don't share places."""
    first, second = (labels_of(Row(agent="t" * 80 + end)).fairness_key for end in "ab")
    assert first != second


def test_a_pseudonym_is_of_the_store_and_the_name() -> None:
    """It is the same each time, has nothing of the name, and is another one in another store."""
    assert pseudonym("salt", "ann") == pseudonym("salt", "ann") != pseudonym("other", "ann")
    assert "ann" not in pseudonym("salt", "ann")
