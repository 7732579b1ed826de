"""Crashes of builders' code that the engine catches before it continues: where they are reported.

Policy, tools and views call code of a builder's own deep inside what must come to its end. They catch whatever it raises, report
it here, and answer as if it had said nothing. The engine keeps each under an id (``turngate.activities.engine.error_log``);
elsewhere, as in the API or a unit test, there is only the log.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, Protocol

_log: Final = logging.getLogger("turngate.tool")


class CrashReporter(Protocol):
    """Takes crashes. Called from any thread, inside transactions too: it must neither wait nor raise."""

    def __call__(self, says: str, error: BaseException, **names: str) -> None:
        """Take one. ``says``: what failed, such as ``preview failed``; ``names``: what it is about, such as ``tool="pay"``."""


_reporter: ContextVar[CrashReporter | None] = ContextVar("crash_reporter", default=None)


def report_crash(says: str, error: BaseException, **names: str) -> None:
    """Report what a builder's code raised, with its traceback. Never raises."""
    reporter = _reporter.get()
    if reporter is None:
        about = "".join(f" {name}={value!r}" for name, value in names.items())
        _log.error("%s%s", says, about, exc_info=error)
    else:
        reporter(says, error, **names)


@contextmanager
def crashes_go_to(reporter: CrashReporter) -> Iterator[None]:
    """Have crashes reported to this one until the block ends, in threads and tasks that the block starts, too."""
    token = _reporter.set(reporter)
    try:
        yield
    finally:
        _reporter.reset(token)
