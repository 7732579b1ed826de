"""``turngate replay-check``: whether this release can go on with the runs there are, found out before it is deployed."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from turngate.cli.options import AsJson, DataDir
from turngate.runtime.settings import load_settings


class WhichRuns(StrEnum):
    """Which runs to take from Temporal when none is named."""

    RUNNING = "running"
    ALL = "all"


def replay_check(
    run_ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="RUN", show_default=False, help="Only these; without any, the runs of --status."),
    ] = None,
    status: Annotated[
        WhichRuns,
        typer.Option(
            help="`running`: those whose workflow is open; `all`: also those that ended and Temporal still has."
        ),
    ] = WhichRuns.RUNNING,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="At most so many of --status.", show_default="all of them")
    ] = None,
    files: Annotated[
        list[Path] | None,
        typer.Option(
            "--file",
            metavar="HISTORY.json",
            show_default=False,
            help="A history in a file, or a directory of them, in place of Temporal's; may be repeated.",
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(metavar="DIR", show_default=False, help="Keep the histories in this directory, for --file."),
    ] = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Replay the histories of runs with this release's workflow code: would it go on with them?

    Run it with the new release, before its first worker starts. Nothing is executed and nothing is changed: histories are
    read, from Temporal as `turngate worker` finds it. They hold ids and names, no conversation content. Sub-agents' runs
    are runs, too.

    Exit code: 0 this release goes on with all of them; 1 with some it cannot (each is listed), or Temporal is away.
    """
    from turngate.cli import replay_output  # noqa: PLC0415 - slow to import

    replay_output.replay_and_report(
        load_settings(data_dir=data_dir),
        run_ids=run_ids or [],
        every=status is WhichRuns.ALL,
        limit=limit,
        files=files or [],
        save=save,
        as_json=as_json,
    )
