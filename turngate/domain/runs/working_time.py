"""A run's own working time: its clock stops while all that it could do waits for a person or a timer, and while it is paused.

Pure. What counts: asking a model, running tools, a sub-agent's work, and waiting for a worker. With one call at a gate and
another one running, the run works.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

OPENS: Final = "request.opened"
CLOSES: Final = frozenset({"request.decided", "request.expired", "request.cancelled", "request.superseded"})
STARTS: Final = "execution.started"
ENDS: Final = frozenset({"execution.finished", "execution.unknown"})
PAUSES: Final = "run.paused"
RESUMES: Final = "run.resumed"
TYPES: Final = frozenset({OPENS, STARTS, PAUSES, RESUMES}) | CLOSES | ENDS


@dataclass(frozen=True)
class Moment:
    """One event of a run or of one below it. ``key``: the request, or the tool call, that it is about.

    ``on_timer``: what starts is a wait until some time, which ends as other calls do.
    """

    run_id: str
    type: str
    key: str
    at: datetime
    on_timer: bool = False


def working_time(
    moments: Iterable[Moment], began: datetime, at: datetime, *, sub_agents: Collection[tuple[str, str]] = ()
) -> timedelta:
    """Return how much of the time from ``began`` to ``at`` counts.

    ``moments``: oldest first, of :data:`TYPES`. ``sub_agents``: (run, tool call) of the calls that a run below answers: they do
    not work themselves.
    """
    waiting: set[tuple[str, str]] = set()
    running: set[tuple[str, str]] = set()
    paused: set[str] = set()
    waited, since = timedelta(), began
    for moment in (*moments, Moment("", "", "", at)):
        if paused or (waiting and not running):
            waited += max(min(moment.at, at) - since, timedelta())
        since = max(since, moment.at)
        about = (moment.run_id, moment.key)
        if moment.type == OPENS or moment.on_timer:
            waiting.add(about)
        elif moment.type in CLOSES:
            waiting.discard(about)
        elif moment.type == STARTS and about not in sub_agents:
            running.add(about)
        elif moment.type in ENDS:
            running.discard(about)
            waiting.discard(about)
        elif moment.type == PAUSES:
            paused.add(moment.run_id)
        elif moment.type == RESUMES:
            paused.discard(moment.run_id)
    return max(at - began - waited, timedelta())
