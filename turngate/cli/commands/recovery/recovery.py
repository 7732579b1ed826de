"""``turngate recover`` and ``turngate reconcile``: runs whose workflow is gone, and an inbox that differs from them.

They work on the store and on Temporal themselves, so they need no running API.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Annotated, Final

import typer

from approvals_api.events.feed import EventFeed
from approvals_api.gateway.client import Gateway
from approvals_api.recovery import reconcile as reconcile_store
from approvals_api.recovery import recover as recover_runs
from approvals_api.recovery.reconcile import Finding
from approvals_api.recovery.recover import RunReport
from approvals_api.services import Services
from turngate.cli import terminal
from turngate.cli.api_settings import api_settings
from turngate.cli.errors import EXIT_WENT_WRONG
from turngate.cli.options import AsJson, DataDir
from turngate.cli.stores import acting_as, opened_store
from turngate.cli.temporal_link import connect_when_there
from turngate.runtime.settings import Settings, load_settings
from turngate.text.plain_text import plain_line

TOLD_EACH: Final = 500
"""After so many runs a line on stderr says how far it is."""
WAIT_SECONDS: Final = 5.0
LEFT: Final = frozenset({"stopping", "not_published"})
"""What a person has to do something about before the run can be recovered."""
DID: Final = {
    "recovered": ("✓ ", "recovered"),
    "would_recover": ("· ", "would be recovered"),
    "alive": ("· ", "left alone: its workflow is open"),
    "ended": ("· ", "left alone: it has ended"),
    "starting": ("· ", "left alone"),
    "stopping": ("✗ ", "not recovered"),
    "not_published": ("✗ ", "not recovered"),
}
OFF: Final = {
    "lost_run": "run without a workflow",
    "lost_workflow": "workflow without a run",
    "not_asked": "workflow that does not answer",
    "unknown_to_run": "request that its run does not know",
    "closed_in_run": "request that its run has closed",
    "closed_in_inbox": "request that the inbox does not show",
}


def recover(
    run_ids: Annotated[list[str] | None, typer.Argument(metavar="RUN", help="The runs.", show_default=False)] = None,
    all_runs: Annotated[bool, typer.Option("--all", help="Every live run whose workflow is gone.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Continue runs whose workflow is gone, from their last closed step.

    It is gone when Temporal's database was lost, or when somebody terminated it. What was decided counts, and nothing is
    done again: a `once` call that was at work becomes a question. A run whose workflow is open is left alone. Without RUN
    and --all it lists what --all would recover. Works on the store and on Temporal themselves, whatever else runs. Exits
    with 1 when a run could not be recovered.
    """
    listing = dry_run or not (run_ids or all_runs)
    reports = asyncio.run(_recover(load_settings(data_dir=data_dir), run_ids or None, listing, quiet=as_json))
    done = sum(each.outcome in {"recovered", "would_recover"} for each in reports)
    if as_json:
        terminal.raw(json.dumps([asdict(each) for each in reports]))
    else:
        hint = "; `turngate recover --all` does it" if done and not (run_ids or all_runs) else ""
        what = "run(s) would be recovered" if listing else "run(s) recovered"
        terminal.note(f"{done:,} of {len(reports):,} {what}{hint}")
    if any(each.outcome in LEFT for each in reports):
        raise typer.Exit(EXIT_WENT_WRONG)


def reconcile(
    fix: Annotated[bool, typer.Option("--fix", help="Rebuild the inbox from the workflows.")] = False,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Compare the store with Temporal, and report runs and requests that differ.

    Asks the workflow of each live run, so a worker has to run. --fix brings the inbox to what the workflows say, and
    decides nothing. Exits with 1 when something is off (with --fix: and stays so).
    """
    found = asyncio.run(_reconcile(load_settings(data_dir=data_dir), fix=fix, quiet=as_json))
    off = sum(not each.fixed for each in found)
    if as_json:
        terminal.raw(json.dumps([_document(each) for each in found]))
    elif not found:
        terminal.note("store and workflows agree")
    else:
        terminal.note(f"{len(found):,} thing(s) off, {len(found) - off:,} put right")
        if any(each.kind == "lost_run" for each in found):
            terminal.note("`turngate recover --all` goes on with the runs that have no workflow")
    if off:
        raise typer.Exit(EXIT_WENT_WRONG)


async def _recover(settings: Settings, run_ids: list[str] | None, dry_run: bool, *, quiet: bool) -> list[RunReport]:
    looked_at = 0

    def tell(report: RunReport) -> None:
        nonlocal looked_at
        looked_at += 1
        if looked_at % TOLD_EACH == 0:
            terminal.note(f"{looked_at:,} runs looked at …")
        if not quiet and (run_ids is not None or report.outcome != "alive"):
            _show(report)

    async with _services(settings) as services:
        return await recover_runs.recover(services, run_ids, by=acting_as(), dry_run=dry_run, on_report=tell)


async def _reconcile(settings: Settings, *, fix: bool, quiet: bool) -> list[Finding]:
    def tell(finding: Finding) -> None:
        if not quiet:
            mark = ("✓ ", "green") if finding.fixed else ("✗ ", "red")
            which = f" {finding.request_id}" if finding.request_id else ""
            put_right = "; put right" if finding.fixed else ""
            terminal.line(
                mark,
                (plain_line(finding.run_id, 80), "bold"),
                f"{which}  {OFF[finding.kind]}: ",
                finding.detail,
                put_right,
            )

    async with _services(settings) as services:
        return await reconcile_store.reconcile(services, fix=fix, by=acting_as(), on_finding=tell)


def _show(report: RunReport) -> None:
    mark, did = DID[report.outcome]
    step = "" if report.step is None else f", at step {report.step}"
    why = f": {plain_line(report.detail, 300)}" if report.detail else ""
    terminal.line(mark, (plain_line(report.run_id, 80), "bold"), f"  {did}{step}{why}")


def _document(finding: Finding) -> dict[str, object]:
    """Return a finding as `--json` prints it; the names are part of the command's output."""
    members = {"kind": finding.kind, "run_id": finding.run_id, "request_id": finding.request_id}
    return {**members, "said": finding.detail, "mended": finding.fixed}


@asynccontextmanager
async def _services(settings: Settings) -> AsyncIterator[Services]:
    """Give what an API stands on, without one."""
    async with opened_store(settings) as database:
        client = await connect_when_there(settings, terminal.note, wait_seconds=WAIT_SECONDS)
        yield Services(
            database=database, gateway=Gateway(client), feed=EventFeed(database), settings=api_settings(settings)
        )
