"""Options that several commands share, declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

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
