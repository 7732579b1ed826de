"""``turngate schema``: the JSON Schema of a file that people write, for their editors."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from turngate.models.script import script_schema


def schema(
    _of: Annotated[Literal["script"], typer.Argument(metavar="script", help="A scripted model's script.")],
) -> None:
    """Print the JSON Schema of a scripted model's script, with which editors complete and check it."""
    typer.echo(script_schema(), nl=False)
