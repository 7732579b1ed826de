"""Options that several commands share, declared once."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Final

import typer

from turngate.domain.errors import ConfigurationError

DEFAULT_APP: Final = "turngate.cli.default_app:app"

AppArgument = Annotated[
    str,
    typer.Argument(
        metavar="APP",
        show_default=False,
        help="Your app as MODULE:NAME, such as my_app:app. Without it: the built-in coding agent, named coder.",
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        help="Directory of the store, Temporal's state and logs.", show_default="$TURNGATE_DATA_DIR, else .turngate"
    ),
]
ApiPort = Annotated[
    int | None,
    typer.Option(min=1, max=65_535, help="Port of the API.", show_default="$TURNGATE_API_PORT, else 8321"),
]
TemporalPort = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=65_535,
        help="Port of the embedded Temporal.",
        show_default="a free one, the same after a restart",
    ),
]
TemporalUi = Annotated[bool, typer.Option("--temporal-ui", help="Serve Temporal's own web pages too.")]
Url = Annotated[
    str | None,
    typer.Option(
        help="Address of the API.",
        show_default="$TURNGATE_API_URL, else the data directory's stack",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs, nothing else.")]
RunId = Annotated[str, typer.Argument(metavar="RUN", help="The run's id, as `turngate runs` shows it.")]


# Spans and instants as people type them: ``90s``, ``15m``, ``1h``, ``7d``; ``2026-05-01`` or ``7d`` for seven days ago.


_SPAN: Final = re.compile(r"([0-9]{1,9})(s|m|h|d)")
_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def seconds_of(text: str, option: str) -> int:
    """Return a span in seconds. Raises ConfigurationError naming the option."""
    match = _SPAN.fullmatch(text.strip())
    if match is None:
        raise ConfigurationError(f"{option} {text}: write it like 90s, 15m, 1h or 7d")
    return int(match.group(1)) * _UNITS[match.group(2)]


def instant_of(text: str, option: str) -> datetime:
    """Return an instant: ISO 8601 (UTC unless it says), or a span before now. Raises ConfigurationError naming the option."""
    try:
        if _SPAN.fullmatch(text.strip()):
            return datetime.now(UTC) - timedelta(seconds=seconds_of(text, option))
        instant = datetime.fromisoformat(text)
        return (instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise ConfigurationError(f"{option} {text}: write it like 2026-05-01T08:00, or 7d for seven days ago") from None
