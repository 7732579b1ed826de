"""The channels that notifications are sent to, made from the process's settings."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

from approvals_api.settings import is_loopback
from turngate.notifications.configuration import Channel, load_channels
from turngate.notifications.message_text import Links
from turngate.runtime.settings import Settings


def configured_channels(settings: Settings, file: Path | None = None) -> tuple[Channel, ...]:
    """Return the channels of ``file``, else of TURNGATE_NOTIFICATIONS; none without either.

    Raises ConfigurationError when the file, or a variable that it names, is wrong.
    """
    path = file or settings.notifications
    return () if path is None else load_channels(path, os.environ, Links(settings.resolved_public_url))


def link_warning(settings: Settings) -> str | None:
    """Return a warning about the links in messages; None when there is nothing to warn of."""
    if not is_loopback((urlsplit(settings.resolved_public_url).hostname or "").strip("[]")):
        return None
    return (
        f"links in messages lead to {settings.resolved_public_url}, which works on this machine only: "
        "set TURNGATE_PUBLIC_URL to the address at which people reach Turngate"
    )
