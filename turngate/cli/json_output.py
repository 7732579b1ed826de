"""A followed run as lines for programs: one JSON object each, with ``type`` and ``seq``, flushed as it is printed.

The objects are those of the API's event stream. ``seq`` is None for what is told live and kept nowhere: what a running tool
says (``call.progress``) and what a model says (``response.delta``). The last line is ``run.outcome``.
"""

from __future__ import annotations

import json

from turngate.cli import terminal
from turngate.client import Told
from turngate.wire.events import EventView
from turngate.wire.runs import RunDetail


class RunAsJson:
    """The lines of one run."""

    def __init__(self) -> None:
        self._last_seq: int | None = None

    def show(self, told: Told) -> None:
        """Print an event, or what is said live."""
        if isinstance(told, EventView):
            self._last_seq = told.seq
        _print(
            {
                "type": told.type,
                "seq": told.seq if isinstance(told, EventView) else None,
                **told.model_dump(mode="json"),
            }
        )

    def end(self, run: RunDetail, *, exit_code: int) -> None:
        """Print the last line: how the run ended, the exit code that says it, and the run. ``seq``: of the last event."""
        _print(
            {
                "type": "run.outcome",
                "seq": self._last_seq,
                "run_id": run.id,
                "status": run.status,
                "outcome": run.outcome,
                "error_class": run.error_class,
                "reason": run.reason,
                "exit_code": exit_code,
                "run": run.model_dump(mode="json"),
            }
        )


def _print(line: dict[str, object]) -> None:
    terminal.raw(json.dumps(line, ensure_ascii=True))
