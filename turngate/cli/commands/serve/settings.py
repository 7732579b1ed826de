"""The settings of a process that serves, with the log that they ask for."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from turngate.cli import terminal
from turngate.http_environment import problem_of
from turngate.runtime.settings import Settings, load_settings, unknown_variables
from turngate.runtime.telemetry import configure_logging
from turngate.runtime.traces.switch import trace_settings
from turngate.text.plain_text import plain_line


def server_settings(**overrides: object) -> Settings:
    """Return the settings, after the log is set up by them. Warns as :func:`environment_warnings`.

    ``overrides``: of the command line; None: as configured. Raises ConfigurationError for settings that are wrong, or that
    want traces which this installation can't send.
    """
    for each in environment_warnings():  # first: a setting that is missing may be misspelled
        terminal.note(("warning: ", "bold yellow"), plain_line(each))
    settings = load_settings(**overrides)
    configure_logging(settings.log_level, settings.log_format)
    trace_settings(settings.traces, os.environ)  # before anything is waited for
    return settings


def environment_warnings() -> list[str]:
    """Return a sentence for each variable that is no setting, and for what HTTP clients can't use of the environment."""
    text, file = "", os.environ.get("TURNGATE_NOTIFICATIONS")
    if file:  # it may name variables of its own
        with suppress(OSError):
            text = Path(file).expanduser().read_text(encoding="utf-8", errors="replace")
    problem = problem_of(os.environ)
    return [*unknown_variables(os.environ, text), *([problem] if problem else [])]
