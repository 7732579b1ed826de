"""The settings of a process that serves, with the log that they ask for."""

from __future__ import annotations

import os

from turngate.cli import terminal
from turngate.runtime.settings import Settings, load_settings, misspelled
from turngate.runtime.telemetry import configure_logging
from turngate.runtime.traces.switch import trace_settings
from turngate.text.plain_text import plain_line


def server_settings(**overrides: object) -> Settings:
    """Return the settings, after the log is set up by them. Warns of each variable that misspells one.

    ``overrides``: of the command line; None: as configured. Raises ConfigurationError for settings that are wrong, or that
    want traces which this installation can't send.
    """
    for each in misspelled(os.environ):
        terminal.note(("warning: ", "bold yellow"), plain_line(each))
    settings = load_settings(**overrides)
    configure_logging(settings.log_level, settings.log_format)
    trace_settings(settings.traces, os.environ)  # before anything is waited for
    return settings
