"""``turngate fork`` and ``retry``: go on from a closed step of a run in a conversation of its own, or where it ended."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from turngate.cli.api_link import find_api
from turngate.cli.options import AsJson, DataDir, Url
from turngate.cli.run_commands import RunId, tell_started, warn_of_shared_directory


def retry(
    run_id: RunId,
    model: Annotated[
        str | None, typer.Option(help="Another model, as PROVIDER:NAME.", show_default="the run's")
    ] = None,
    watch: Annotated[bool, typer.Option(help="Follow the new run to its end, or return at once.")] = True,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Go on where a run failed or was interrupted, in its conversation, with nothing new said.

    What it did stays done, and nothing is sent twice: of each call the model knows whether it ran. Ctrl-C leaves the new
    run running. Exit code: 0 completed, 1 failed, 3 interrupted.
    """
    link = find_api(data_dir, url)
    with link.client() as client:
        started = client.retry_run(run_id, model=model)
        tell_started(link, client, started, watch=watch, as_json=as_json)


def fork(
    run_id: RunId,
    message: Annotated[
        str, typer.Argument(metavar="MESSAGE", help="What to say after that step; `-` reads it from stdin.")
    ],
    step: Annotated[
        int | None, typer.Option(min=1, help="The closed step to go on from.", show_default="its newest")
    ] = None,
    agent: Annotated[str | None, typer.Option(help="Another agent.", show_default="the run's")] = None,
    model: Annotated[
        str | None, typer.Option(help="Another model, as PROVIDER:NAME.", show_default="the run's, or that agent's")
    ] = None,
    workspace: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Another directory to work in.", show_default="the run's")
    ] = None,
    watch: Annotated[bool, typer.Option(help="Follow the fork to its end, or return at once.")] = True,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Start a run that shares another one's past up to a step, and goes on with MESSAGE in a conversation of its own.

    The other run stays as it is, and may still be running; what its tools did is not undone. Ctrl-C leaves the fork
    running. Exit code: 0 completed, 1 failed, 3 interrupted.
    """
    link = find_api(data_dir, url)
    directory = None if workspace is None else workspace.expanduser().resolve()
    if directory is not None:
        warn_of_shared_directory(link, directory)
    with link.client() as client:
        started = client.fork_run(
            run_id,
            sys.stdin.read() if message == "-" else message,
            step=step,
            agent=agent,
            model=model,
            workspace=None if directory is None else str(directory),
        )
        tell_started(link, client, started, watch=watch, as_json=as_json)
