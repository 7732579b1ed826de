"""Which part of a run's time is its own work."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from turngate.domain.runs.working_time import STARTS, Moment, working_time

BEGAN = datetime(2027, 1, 1, tzinfo=UTC)


def moments(*of: str) -> list[Moment]:
    """``"4 request.opened a"``: after four seconds, of run ``r``; ``… a below``: of a run below; ``4 timer w``: a wait begins."""
    listed = []
    for each in of:
        seconds, kind, key, *run = each.split()
        type_, at = STARTS if kind == "timer" else kind, BEGAN + timedelta(seconds=int(seconds))
        listed.append(Moment(run[0] if run else "r", type_, key, at, on_timer=kind == "timer"))
    return listed


@pytest.mark.parametrize(
    ("events", "seconds"),
    [
        ([], 100),
        (["10 request.opened a", "40 request.decided a"], 70),
        (["10 request.opened a"], 10),
        (["10 request.opened a", "20 request.opened b", "40 request.expired a", "50 request.cancelled b"], 60),
        (["5 execution.started x", "10 request.opened a", "30 execution.finished x", "40 request.decided a"], 90),
        (["10 request.opened a", "20 execution.started x", "50 execution.unknown x"], 40),
        (["10 run.paused r", "60 run.resumed r"], 50),
        (["10 run.paused r", "20 request.opened a", "30 request.decided a", "40 execution.started x"], 10),
        (["0 execution.started s", "10 request.opened a below", "40 request.decided a below"], 70),
        (
            [
                "0 execution.started s",
                "0 execution.started x",
                "10 request.opened a below",
                "40 request.decided a below",
            ],
            100,
        ),
        (["10 timer w", "70 execution.finished w"], 40),
        (["10 timer w"], 10),
        (["10 timer w", "10 execution.started x", "30 execution.finished x", "70 execution.finished w"], 60),
        (["10 timer w", "20 request.opened a", "30 execution.finished w", "60 request.decided a"], 50),
        (["0 execution.started s", "10 timer w below", "70 execution.finished w below"], 40),
        (["10 request.decided never-opened", "20 request.viewed a"], 100),
    ],
)
def test_waiting_for_people_and_timers_does_not_count(events: list[str], seconds: int) -> None:
    """Only while nothing of the run or below it runs; a call that a sub-agent answers does not work itself."""
    spent = working_time(moments(*events), BEGAN, BEGAN + timedelta(seconds=100), sub_agents={("r", "s")})
    assert spent == timedelta(seconds=seconds)
