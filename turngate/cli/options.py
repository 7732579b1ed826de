"""Options that several commands share, declared once, and times as users type them."""

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
AppHere = Annotated[
    str | None,
    typer.Argument(
        metavar="APP",
        show_default=False,
        help="Your app as MODULE:NAME, such as my_app:app. Without it, where no app is: the built-in coding agent, named coder.",
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        help="The directory of the store, Temporal's state and the logs.",
        show_default="$TURNGATE_DATA_DIR, else this directory's own in ~/.local/state/turngate",
    ),
]
ApiPort = Annotated[
    int | None,
    typer.Option(min=1, max=65_535, help="The port of the API.", show_default="$TURNGATE_API_PORT, else 8321"),
]
TemporalPort = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=65_535,
        help="The port of the embedded Temporal.",
        show_default="a free one; the same after a restart",
    ),
]
AllowUnconfined = Annotated[
    bool,
    typer.Option(
        "--allow-unconfined", help="Let tools start processes even if this machine can't confine them; each call asks."
    ),
]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=65_535,
        help="Serve metrics for Prometheus at this port, under /metrics, on TURNGATE_METRICS_HOST.",
        show_default="$TURNGATE_METRICS_PORT, else no metrics",
    ),
]
TemporalUi = Annotated[bool, typer.Option("--temporal-ui", help="Also serve Temporal's own web pages.")]
Url = Annotated[
    str | None,
    typer.Option(
        help="The address of the API.",
        show_default="$TURNGATE_API_URL, else the data directory's stack",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs, and nothing else.")]
RunId = Annotated[str, typer.Argument(metavar="RUN", help="The run's id, from `turngate runs`.")]


_SPAN: Final = re.compile(r"([0-9]{1,9})(s|m|h|d)")
_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def seconds_of(text: str, option: str) -> int:
    """Return a length of time such as ``90s``, ``15m``, ``1h`` or ``7d`` in seconds.

    Raises ConfigurationError, which names the option.
    """
    match = _SPAN.fullmatch(text.strip())
    if match is None:
        raise ConfigurationError(f"{option} {text}: write it like 90s, 15m, 1h or 7d")
    return int(match.group(1)) * _UNITS[match.group(2)]


def instant_of(text: str, option: str) -> datetime:
    """Return an instant: ISO 8601 (UTC unless it has a zone), or a length of time before now.

    Raises ConfigurationError, which names the option.
    """
    try:
        if _SPAN.fullmatch(text.strip()):
            return datetime.now(UTC) - timedelta(seconds=seconds_of(text, option))
        instant = datetime.fromisoformat(text)
        return (instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise ConfigurationError(f"{option} {text}: write it like 2026-05-01T08:00, or 7d for seven days ago") from None
