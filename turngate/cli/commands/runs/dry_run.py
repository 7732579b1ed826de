"""``turngate replay RUN --dry``: repeat a run from its record, without effects, and print what differs (a dry run)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from turngate.cli import terminal
from turngate.cli.api_link import ApiLink, find_api
from turngate.cli.commands.runs.fork import (
    InstructionsFile,
    OtherAgent,
    OtherModel,
    Plain,
    ToolNames,
    show_plan,
    tool_names,
)
from turngate.cli.errors import EXIT_CTRL_C, EXIT_DIVERGED
from turngate.cli.follow.run import Watch
from turngate.cli.options import AsJson, DataDir, RunId, Url
from turngate.client import SyncTurngateClient
from turngate.domain.errors import ConfigurationError
from turngate.runtime.policy_files import checked_source, read_text
from turngate.text.plain_text import plain_line
from turngate.wire.comparison import DryRunReport
from turngate.wire.orders import DryRunOrder


def replay(
    run_id: RunId,
    dry: Annotated[
        bool, typer.Option("--dry", help="Required: no tool runs and no one is asked. There is no other replay.")
    ] = False,
    step: Annotated[
        int | None, typer.Option(min=1, help="The closed step after which to begin.", show_default="its beginning")
    ] = None,
    agent: OtherAgent = None,
    model: OtherModel = None,
    tools: ToolNames = None,
    instructions: InstructionsFile = None,
    policy: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A file of TOML rules that replaces all others.", show_default=False),
    ] = None,
    plain: Plain = False,
    preview: Annotated[
        bool, typer.Option("--preview", help="Start nothing; print which recorded results answer calls.")
    ] = False,
    watch: Annotated[bool, typer.Option(help="Follow the dry run to its end and sum it up, or return at once.")] = True,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Repeat a run from its recorded results, as a dry run: no tool runs, no one is asked.

    The dry run uses the worker's code as it is now, and another model, prompt or policy if you name one. The model is really
    asked. A call that the run made too gets its recorded result; any other call is closed as a divergence.

    Exit code: 0 nothing differs · 4 something differs.
    """
    link = find_api(data_dir, url)
    if preview:
        order = DryRunOrder(step=step, agent=agent, model=model, tools=tool_names(tools), plain=plain)
        with link.client() as client:
            plan = client.preview_replay(run_id, order)
        show_plan(plan, {"instructions": instructions, "policy": policy}, as_json=as_json)
        return
    if not dry:
        raise ConfigurationError(
            f"--dry is missing: `turngate replay {run_id} --dry` runs no tool. To run calls again, use `turngate fork`"
        )
    order = DryRunOrder(
        step=step,
        agent=agent,
        model=model,
        tools=tool_names(tools),
        instructions=None if instructions is None else read_text(instructions, what="the instructions"),
        policy=None if policy is None else checked_source(policy),
        plain=plain,
    )
    with link.client() as client:
        started = client.replay_run(run_id, order)
        if not watch:
            terminal.document(started.model_dump_json()) if as_json else terminal.line(started.id)
            return
        report = _follow_to_end(link, client, run_id, started.id, quiet=as_json)
    if as_json:
        terminal.document(report.model_dump_json())
    else:
        _show(link, report)
    if not report.same:
        raise typer.Exit(EXIT_DIVERGED)


def _follow_to_end(
    link: ApiLink, client: SyncTurngateClient, run_id: str, replay_id: str, *, quiet: bool
) -> DryRunReport:
    """Follow the dry run to its end, and return its comparison with the record. Ctrl-C leaves it running."""
    try:
        if quiet:
            for _event in client.follow_events(replay_id, with_progress=False):
                pass
        else:
            Watch(link, client, replay_id).to_the_end()
    except KeyboardInterrupt:
        terminal.note(
            f"You left; the dry run continues. Compare it later: turngate compare{link.options} {run_id} {replay_id}"
        )
        raise typer.Exit(EXIT_CTRL_C) from None
    report = client.compare_runs(run_id, replay_id).replay
    if report is None:
        raise LookupError(f"run {replay_id} is no dry run of {run_id}")
    return report


def _show(link: ApiLink, report: DryRunReport) -> None:
    terminal.line("")
    show_report(report)
    beside = f"{link.pages}/runs/{report.source_run_id}/compare/{report.replay_run_id}"
    terminal.line(("comparison ", "dim"), (beside, "underline"))


def show_report(report: DryRunReport) -> None:
    """Print the result of a dry run in a few lines."""
    counts = (
        f"{report.matched:,} matched, {report.diverged_total:,} diverged, {report.not_made_total:,} recorded but not made, "
        f"{report.verdicts_total:,} judged differently; the end is {'the same' if report.same_end else 'different'}"
    )
    terminal.line(("dry run: ", "bold"), (counts, "green" if report.same else "yellow"))
    for call in report.diverged:
        _line("diverged", call.step, call.tool_name, call.input)
    for call in report.not_made:
        _line("not made", call.step, call.tool_name, call.input)
    for each in report.verdicts:
        was, now = f"{each.was or 'not judged'} {each.was_rule}", f"{each.now or 'not judged'} {each.now_rule}"
        _line("judged", each.step, each.tool_name, f"{was.strip()} → {now.strip()}")
    listed = len(report.diverged) + len(report.not_made) + len(report.verdicts)
    total = report.diverged_total + report.not_made_total + report.verdicts_total
    if total > listed:
        terminal.line(f"  … {total - listed:,} more")


def _line(what: str, step: int, tool: str, text: str) -> None:
    terminal.line(
        (f"  {what:9}", "yellow"), f"step {step}  ", (plain_line(tool, 64), "bold"), f"  {plain_line(text, 100)}"
    )
