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


def server_settings(**overrides: object) -> Settings:
    """Return the settings, after the log is set up by them. Warns of what HTTP clients can't use of the environment.

    ``overrides``: of the command line; None: as configured. Raises ConfigurationError for settings that are wrong, or that
    want traces which this installation can't send.
    """
    if problem := problem_of(os.environ):
        terminal.warning(problem)
    settings = load_settings(**overrides)
    configure_logging(settings.log_level, settings.log_format)
    trace_settings(settings.traces, os.environ)  # before anything is waited for
    return settings


def unknown_settings() -> list[str]:
    """Return a sentence for each ``TURNGATE_`` variable of this process that is no setting."""
    text, file = "", os.environ.get("TURNGATE_NOTIFICATIONS")
    if file:  # it may name variables of its own
        with suppress(OSError):
            text = Path(file).expanduser().read_text(encoding="utf-8", errors="replace")
    return unknown_variables(os.environ, text)
