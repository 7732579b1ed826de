"""In which trace a run is, of those that this process has read lately: for its log's lines, which can't wait for a query.

Nothing is kept until :func:`keep` was called, where traces are exported.
"""

from __future__ import annotations

from typing import Final

from turngate.domain.runs.trace import RunTrace

MOST: Final = 10_000
_stored: dict[str, str | None] = {}
_is_kept = False


def keep() -> None:
    """Keep them from now on, for the life of this process."""
    global _is_kept  # noqa: PLW0603 - one log for each process
    _is_kept = True


def note(run_id: str, traceparent: str | None) -> None:
    """Note a run that was read. ``traceparent``: as it is stored."""
    if _is_kept and run_id not in _stored:
        if len(_stored) >= MOST:
            del _stored[next(iter(_stored))]
        _stored[run_id] = traceparent


def trace_id_of(run_id: str) -> str | None:
    """Return the id of a run's trace; None: this process hasn't read the run lately, or exports no traces."""
    return RunTrace.of(run_id, _stored[run_id]).trace_id if run_id in _stored else None
