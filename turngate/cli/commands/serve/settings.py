"""The settings of a process that serves, with the log that they ask for."""

from __future__ import annotations

from turngate.runtime.settings import Settings, load_settings
from turngate.runtime.telemetry import configure_logging


def server_settings(**overrides: object) -> Settings:
    """Return the settings, after the log is set up by them. ``overrides``: of the command line; None: as configured."""
    settings = load_settings(**overrides)
    configure_logging(settings.log_level, settings.log_format)
    return settings
