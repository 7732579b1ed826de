"""``turngate logs``: errors of runs with their whole text and traceback."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from turngate.cli import terminal
from turngate.cli.api_link import find_api
from turngate.cli.commands.runs.explain import error_line
from turngate.cli.follow.lines import AGENT_MARGIN
from turngate.cli.options import AsJson, DataDir, Url
from turngate.text.instants import second
from turngate.text.plain_text import indented, plain_line
from turngate.wire.explanation import ErrorView

LISTED: Final = 20


def logs(
    wanted: Annotated[
        str | None,
        typer.Argument(metavar="[ID]", help="An error's id (err-…), or a run's: its errors.", show_default=False),
    ] = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Print an error with its traceback, worker and build, by the id that a log line or page shows.

    Without an id, the newest errors of all runs are listed. An error's id is in the worker's log line, in `turngate explain`
    and on the run's page. Capitals, spaces, and O in place of 0 don't matter.
    """
    of_run = wanted if wanted is not None and wanted.startswith("run_") else None
    with find_api(data_dir, url).client() as client:
        if wanted is None or of_run is not None:
            errors = client.list_errors(run_id=of_run, limit=LISTED).items
        else:
            errors = [client.get_error(wanted)]
    if as_json:
        terminal.document("\n".join(each.model_dump_json() for each in errors))
        return
    if not errors:
        terminal.note("no run has had an error" if of_run is None else f"run {of_run} has had no error")
    for error in errors:
        if wanted is None:
            terminal.line((error.id, "bold"), f"  {second(error.created_at)}  {error.run_id}  {error_line(error)}")
        else:
            _show(error)


def _show(error: ErrorView) -> None:
    terminal.line((error.id, "bold"), f"  {error_line(error)}")
    terminal.line(indented(error.message or "", AGENT_MARGIN))
    call = "" if error.tool_call_id is None else f", call {plain_line(error.tool_call_id, 255)}"
    facts = {
        "at": error.created_at,
        "run": f"{error.run_id}{call}",
        "worker": plain_line(error.worker or "", 255),
        "build": plain_line(error.build or "", 255),
    }
    for label, text in facts.items():
        terminal.line((f"  {label} ", "dim"), text)
    if error.traceback:
        terminal.line(indented(error.traceback.rstrip(), AGENT_MARGIN))
    terminal.line("")
