"""``turngate recover`` and ``reconcile``: runs whose workflow is gone, and an inbox that differs from the workflows.

They use the store and Temporal themselves, so they need no running API.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Annotated, Final

import typer

from turngate.approvals_api.events.feed import EventFeed
from turngate.approvals_api.gateway.client import Gateway
from turngate.approvals_api.recovery import reconcile as reconcile_store
from turngate.approvals_api.recovery import recover as recover_runs
from turngate.approvals_api.recovery.reconcile import Finding
from turngate.approvals_api.recovery.recover import RunReport
from turngate.approvals_api.recovery.restored import RestoredFinding, reconcile_restored
from turngate.approvals_api.services import Services
from turngate.cli import terminal
from turngate.cli.api_settings import api_settings, label_settings
from turngate.cli.errors import EXIT_WENT_WRONG
from turngate.cli.options import AsJson, DataDir
from turngate.cli.stores import actor, opened_store
from turngate.cli.temporal_link import connect_when_there
from turngate.runtime.settings import Settings, load_stack_settings
from turngate.text.plain_text import plain_line

NOTE_EACH: Final = 500
"""A line of progress goes to stderr after so many runs."""
WAIT_SECONDS: Final = 5.0
OUTCOME_WORDS: Final = {
    "recovered": ("✓ ", "recovered"),
    "would_recover": ("· ", "would be recovered"),
    "alive": ("· ", "left alone: its workflow is open"),
    "ended": ("· ", "left alone: it has ended"),
    "starting": ("· ", "left alone"),
    "stopping": ("✗ ", "not recovered"),
    "not_published": ("✗ ", "not recovered"),
}
DIFFERENCE_WORDS: Final = {
    "lost_run": "run without a workflow",
    "lost_workflow": "workflow without a run",
    "not_told": "run that missed a decision",
}
RESTORED_WORDS: Final = {
    "doubtful_call": "call in doubt",
    "held_run": "held",
    "no_workflow": "no new workflow",
    "workflow_of_no_run": "workflow without a run",
}
UNFIXABLE: Final = frozenset({"no_workflow", "workflow_of_no_run"})


def recover(
    run_ids: Annotated[
        list[str] | None, typer.Argument(metavar="RUN", help="The runs to recover.", show_default=False)
    ] = None,
    all_runs: Annotated[bool, typer.Option("--all", help="Recover every live run whose workflow is gone.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what the command would do.")] = False,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Continue runs whose workflow is gone, from their last closed step.

    A workflow is gone when Temporal's database was lost, or when someone terminated it. Decisions still count, and nothing runs
    twice: a `once` call that was running becomes a question. Runs with an open workflow stay as they are. Without RUN and --all
    the command lists what --all would recover. It uses the store and Temporal directly; other processes may keep running.

    Exit code: 0, or 1 when a run could not be recovered.
    """
    listing = dry_run or not (run_ids or all_runs)
    reports = asyncio.run(_recover(load_stack_settings(data_dir=data_dir), run_ids or None, listing, quiet=as_json))
    done = sum(each.outcome in {"recovered", "would_recover"} for each in reports)
    if as_json:
        terminal.raw(json.dumps([asdict(each) for each in reports]))
    else:
        hint = "; `turngate recover --all` recovers them" if done and not (run_ids or all_runs) else ""
        what = "run(s) would be recovered" if listing else "run(s) recovered"
        terminal.note(f"{done:,} of {len(reports):,} {what}{hint}")
    if any(each.needs_help for each in reports):
        raise typer.Exit(EXIT_WENT_WRONG)


def reconcile(
    fix: Annotated[bool, typer.Option("--fix", help="Tell runs again what they missed.")] = False,
    restored: Annotated[
        bool,
        typer.Option(
            "--restored",
            help="The store is from a backup: find what it can't know. With --fix: before you start workers.",
        ),
    ] = False,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Compare the store with Temporal, and report runs that differ.

    Finds runs without workflows, workflows without runs, and runs that have not acted on a decision. --fix tells them again, and
    decides nothing.

    After a restore, --restored lists the live runs, and `once` calls that may have run after the backup. With --fix, each such
    call becomes a question to a person instead of running, live runs are held, and each gets a new workflow.

    Exit code: 0, or 1 when something differs, or may (with --fix: and could not be fixed).
    """
    if restored:
        _reconcile_restored(load_stack_settings(data_dir=data_dir), fix=fix, as_json=as_json)
        return
    findings = asyncio.run(_reconcile(load_stack_settings(data_dir=data_dir), fix=fix, quiet=as_json))
    open_count = sum(not each.fixed for each in findings)
    if as_json:
        terminal.raw(json.dumps([_document(each) for each in findings]))
    elif not findings:
        terminal.note("store and workflows agree")
    else:
        terminal.note(f"{len(findings):,} difference(s), {len(findings) - open_count:,} fixed")
        if any(each.kind == "lost_run" for each in findings):
            terminal.note("`turngate recover --all` continues the runs that have no workflow")
    if open_count:
        raise typer.Exit(EXIT_WENT_WRONG)


def _reconcile_restored(settings: Settings, *, fix: bool, as_json: bool) -> None:
    async def act() -> list[RestoredFinding]:
        async with _services(settings) as services:
            by = await actor(services.database)
            return await reconcile_restored(services, by=by, fix=fix, on_finding=None if as_json else _show_restored)

    findings = asyncio.run(act())
    if as_json:
        terminal.raw(json.dumps([asdict(each) for each in findings]))
    elif not findings:
        terminal.note("no run was live in the backup")
    elif fix:
        terminal.note("check each held run, then `turngate resume RUN` or `turngate interrupt RUN`")
    else:
        terminal.note(
            "nothing was changed: `turngate reconcile --restored --fix` holds these runs and asks about these calls"
        )
    left = [each for each in findings if not fix or each.kind in UNFIXABLE]
    if fix and left and not as_json:
        terminal.note(f"{len(left):,} of them could not be fixed: see docs/howto/back-up-and-restore.md")
    if left:
        raise typer.Exit(EXIT_WENT_WRONG)


async def _recover(settings: Settings, run_ids: list[str] | None, dry_run: bool, *, quiet: bool) -> list[RunReport]:
    looked_at = 0

    def show(report: RunReport) -> None:
        nonlocal looked_at
        looked_at += 1
        if looked_at % NOTE_EACH == 0:
            terminal.note(f"{looked_at:,} runs looked at …")
        if not quiet and (run_ids is not None or report.outcome != "alive"):
            _show(report)

    async with _services(settings) as services:
        return await recover_runs.recover(
            services, run_ids, by=await actor(services.database), dry_run=dry_run, on_report=show
        )


async def _reconcile(settings: Settings, *, fix: bool, quiet: bool) -> list[Finding]:
    def show(finding: Finding) -> None:
        if not quiet:
            mark = ("✓ ", "green") if finding.fixed else ("✗ ", "red")
            which = f" {finding.request_id}" if finding.request_id else ""
            fixed = "; fixed" if finding.fixed else ""
            terminal.line(
                mark,
                (plain_line(finding.run_id, 80), "bold"),
                f"{which}  {DIFFERENCE_WORDS[finding.kind]}: ",
                finding.detail,
                fixed,
            )

    async with _services(settings) as services:
        return await reconcile_store.reconcile(services, fix=fix, on_finding=show)


def _show_restored(finding: RestoredFinding) -> None:
    which = f" {finding.tool_call_id}" if finding.tool_call_id else ""
    pieces = (plain_line(finding.run_id, 80), "bold"), f"{plain_line(which, 300)}  {RESTORED_WORDS[finding.kind]}: "
    terminal.line(("· ", "bold"), *pieces, plain_line(finding.detail, 300))


def _show(report: RunReport) -> None:
    mark, words = OUTCOME_WORDS[report.outcome]
    step = "" if report.step is None else f", at step {report.step}"
    why = f": {plain_line(report.detail, 300)}" if report.detail else ""
    terminal.line(mark, (plain_line(report.run_id, 80), "bold"), f"  {words}{step}{why}")


def _document(finding: Finding) -> dict[str, object]:
    """Return a finding as `--json` prints it; the names are part of the command's output."""
    members = {"kind": finding.kind, "run_id": finding.run_id, "request_id": finding.request_id}
    return {**members, "said": finding.detail, "mended": finding.fixed}


@asynccontextmanager
async def _services(settings: Settings) -> AsyncIterator[Services]:
    """Yield the services of an API, without its HTTP server."""
    async with opened_store(settings) as database:
        client = await connect_when_there(settings, terminal.note, database, wait_seconds=WAIT_SECONDS)
        yield Services(
            database=database,
            gateway=Gateway(client, labels=label_settings(settings)),
            feed=EventFeed(database),
            settings=api_settings(settings),
        )
