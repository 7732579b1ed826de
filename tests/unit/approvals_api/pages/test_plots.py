"""The plots of "How we decide": what is drawn is what was counted, few marks say it, and no one is named."""

from __future__ import annotations

from datetime import timedelta

import pytest
from support.stores.stored_requests import AT

from turngate.approvals_api.pages.pictures.plots import (
    FOOT,
    TOP,
    counts_in_words,
    over_time,
    time_to_answer,
    wait_labels,
)
from turngate.approvals_api.requests.statistics import ANSWERS, MOST_PERIODS, WAITS, periods_of, waits_of
from turngate.domain.requests import Verb
from turngate.store.clock import as_text
from turngate.store.requests.requests import EndedApproval

VERBS: tuple[Verb | None, ...] = ("approve", "edit", "reject", "respond", None)


def ended(verb: Verb | None, *, at: float, after: float = 1.0) -> EndedApproval:
    opened = AT + timedelta(seconds=at)
    decided = opened + timedelta(seconds=after)
    times = {"created_at": as_text(opened), "decided_at": as_text(decided)}
    return EndedApproval(tool_name="pay", rule="default", verb=verb, execution=None, **times)


@pytest.mark.parametrize("gap", [1.0, 90.0, 5_000.0, 90_000.0, 4_000_000.0])
def test_approvals_are_counted_over_time(gap: float) -> None:
    """Whatever time they cover, each approval is in one of at most 24 periods that follow each other without a gap."""
    every = [ended(VERBS[n % 5], at=n * gap) for n in range(100)]
    periods = periods_of(every)
    assert 1 <= len(periods) <= MOST_PERIODS
    counted = {name: sum(each.counts[name] for each in periods) for name in ANSWERS}
    assert counted == {**dict.fromkeys(ANSWERS, 20), "taken_back": 0}
    starts = [each.begin for each in periods]
    assert starts == [starts[0] + timedelta(seconds=n * periods[0].seconds) for n in range(len(periods))]
    drawing = over_time(periods)
    assert len(drawing.boxes) == sum(each.counts[name] > 0 for each in periods for name in ANSWERS)
    assert all(TOP <= each.y <= FOOT and each.y + each.height <= FOOT + 0.11 for each in drawing.boxes)
    assert drawing.marks <= 200


def test_a_bar_is_stacked_by_how_it_ended() -> None:
    """The parts of a bar are stacked, as high as their counts, and its title says all of them."""
    (period,) = periods_of([*[ended("approve", at=0.0)] * 3, ended("reject", at=0.0)])
    approved, rejected = over_time([period]).boxes
    assert (approved.kind, rejected.kind) == ("mark approve", "mark reject")
    assert approved.height == pytest.approx(3 * rejected.height, abs=0.2)
    assert rejected.y + rejected.height == pytest.approx(approved.y, abs=0.2)
    assert counts_in_words(period) in approved.title
    assert counts_in_words(period) == "3 approved as asked, 1 rejected"


def test_the_time_to_answer_is_a_distribution() -> None:
    """Each decision is in one class, the border belongs to the longer one, and what no one decided is in none."""
    every = [ended("approve", at=0.0, after=seconds) for seconds in (0, 4.9, 5, 59, 60, 86_399, 86_400, 1e7)]
    waits = waits_of([*every, ended(None, at=0.0, after=10)])
    assert [each.count for each in waits] == [2, 1, 1, 1, 0, 0, 1, 2]
    assert wait_labels(waits) == [
        *(
            "under 5 s",
            "under 15 s",
            "under 1 min",
            "under 5 min",
            "under 30 min",
            "under 2 h",
            "under 1 d",
            "1 d or more",
        ),
    ]
    assert len(waits) == len(WAITS) + 1
    assert time_to_answer(waits).boxes[0].title == "under 5 s: 2"


def test_nothing_is_drawn_of_nothing() -> None:
    """Without approvals there are no periods, and without decisions no times."""
    assert periods_of([]) == []
    assert waits_of([ended(None, at=0.0)]) == []
