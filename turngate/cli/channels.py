"""From settings to the channels that notifications are sent to. Imports the channels' libraries: import it where needed."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

from approvals_api.settings import is_loopback
from turngate.notifications.configuration import Channel, load_channels
from turngate.notifications.message_text import Links
from turngate.runtime.settings import Settings


def configured_channels(settings: Settings, file: Path | None = None) -> tuple[Channel, ...]:
    """Return the channels of ``file``, else of TURNGATE_NOTIFICATIONS; none when neither is given.

    Raises ConfigurationError when the file or what it names in the environment is wrong.
    """
    path = file or settings.notifications
    return () if path is None else load_channels(path, os.environ, Links(settings.resolved_public_url))


def link_warning(settings: Settings) -> str | None:
    """Return what is wrong with where messages will lead to; None when nothing is known to be."""
    if not is_loopback((urlsplit(settings.resolved_public_url).hostname or "").strip("[]")):
        return None
    return (
        f"links will lead to {settings.resolved_public_url}, which works on this machine only: "
        "set TURNGATE_PUBLIC_URL to where people reach Turngate"
    )
