"""``turngate fork`` and ``retry``: go on from a closed step of a run in a conversation of its own, or where it ended."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from turngate.cli import terminal
from turngate.cli.api_link import find_api
from turngate.cli.follow.run import Shown, tell_started
from turngate.cli.options import AsJson, DataDir, RunId, Url
from turngate.cli.policy_files import checked_source, read_text
from turngate.cli.run_options import warn_of_shared_directory
from turngate.domain.errors import ConfigurationError
from turngate.text.plain_text import plain_line
from turngate.wire.orders import ForkOrder
from turngate.wire.plans import ForkPlan, PastCall

OtherAgent = Annotated[str | None, typer.Option(help="Another agent.", show_default="the run's")]
OtherModel = Annotated[
    str | None,
    typer.Option(help="Another model: PROVIDER:NAME, or a profile's name.", show_default="the run's, or that agent's"),
]
ToolNames = Annotated[
    list[str] | None,
    typer.Option(
        "--tools",
        "--tool",
        metavar="NAMES",
        help="The agent has these of its tools only; with commas, or several times. An empty text: none.",
        show_default=False,
    ),
]
InstructionsFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="In place of the agent's instructions.", show_default=False)
]
Plain = Annotated[
    bool,
    typer.Option("--plain", help="Take over nothing that the run has of its own: instructions, tools, policy."),
]


def tool_names(given: list[str] | None) -> list[str] | None:
    """Return the names of ``--tools a,b --tool c``; None when it was left out."""
    if not given:
        return None
    return [name for each in given for name in (part.strip() for part in each.split(",")) if name]


def retry(
    run_id: RunId,
    model: Annotated[
        str | None, typer.Option(help="Another model: PROVIDER:NAME, or a profile's name.", show_default="the run's")
    ] = None,
    watch: Annotated[bool, typer.Option(help="Follow the new run to its end, or return at once.")] = True,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Continue a run that failed or was interrupted, where it ended.

    What it did stays done, and nothing is sent twice: of each call the model knows whether it ran. Ctrl-C leaves the new
    run running. Exit code: 0 completed, 1 failed, 3 interrupted.
    """
    link = find_api(data_dir, url)
    with link.client() as client:
        started = client.retry_run(run_id, model=model)
        tell_started(link, client, started, watch=watch, shown=Shown.of(as_json=as_json))


def fork(
    run_id: RunId,
    message: Annotated[
        str | None,
        typer.Argument(
            metavar="MESSAGE", help="What to say after that step; `-` reads it from stdin.", show_default=False
        ),
    ] = None,
    step: Annotated[
        int | None, typer.Option(min=1, help="The closed step to go on from.", show_default="its newest")
    ] = None,
    agent: OtherAgent = None,
    model: OtherModel = None,
    workspace: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Another directory to work in.", show_default="the run's")
    ] = None,
    tools: ToolNames = None,
    instructions: InstructionsFile = None,
    policy: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="TOML rules in place of the app's, the stored ones and every grant; for admins.",
            show_default=False,
        ),
    ] = None,
    plain: Plain = False,
    summarise: Annotated[
        bool,
        typer.Option(
            "--summarise", help="Begin afresh with a summary of that past, which the fork's model writes first."
        ),
    ] = False,
    preview: Annotated[
        bool,
        typer.Option("--preview", help="Start nothing: say what is used again, what is not undone, what runs anew."),
    ] = False,
    watch: Annotated[bool, typer.Option(help="Follow the fork to its end, or return at once.")] = True,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Continue a run from one of its closed steps, in a new conversation.

    The other run stays as it is, and may still be running; what its tools did is not undone. What it has of its own
    (instructions, tools, policy) the fork has, too, unless it is told otherwise. Ctrl-C leaves the fork running.
    Exit code: 0 completed, 1 failed, 3 interrupted.
    """
    link = find_api(data_dir, url)
    directory = None if workspace is None else workspace.expanduser().resolve()
    if preview:
        order = ForkOrder(
            step=step, agent=agent, model=model, tools=tool_names(tools), plain=plain, summarise=summarise
        )
        with link.client() as client:
            plan = client.preview_fork(run_id, order)
        files = {"workspace": directory, "instructions": instructions, "policy": policy}
        tell_plan(plan, files, as_json=as_json)
        return
    if message is None:
        raise ConfigurationError("say what the fork is to do: turngate fork RUN MESSAGE, or look first with --preview")
    if directory is not None:
        warn_of_shared_directory(link, directory)
    order = ForkOrder(
        text=sys.stdin.read() if message == "-" else message,
        step=step,
        agent=agent,
        model=model,
        workspace=None if directory is None else str(directory),
        tools=tool_names(tools),
        instructions=None if instructions is None else read_text(instructions, what="the instructions"),
        policy=None if policy is None else checked_source(policy),
        plain=plain,
        summarise=summarise,
    )
    with link.client() as client:
        started = client.fork_run(run_id, order)
        tell_started(link, client, started, watch=watch, shown=Shown.of(as_json=as_json))


def tell_plan(plan: ForkPlan, files: Mapping[str, Path | None], *, as_json: bool) -> None:
    """Print a fork's or a dry run's plan. ``files``: changes named by a file, which the server has not seen."""
    if as_json:
        terminal.raw(plan.model_dump_json())
        return
    show_plan(plan, {name: f"→ {file}" for name, file in files.items() if file is not None})


# A plan on the terminal: what a fork or a dry run would use again, what is not undone, what would run again.


def show_plan(plan: ForkPlan, given: Mapping[str, str]) -> None:
    """Print it. ``given``: what the server was not told of, such as a file's name, by what it changes."""
    where = "its beginning" if plan.step is None else f"step {plan.step}"
    what = "a dry replay" if plan.dry else "a fork"
    terminal.line((f"{what} of run {plan.run_id} from {where}", "bold"), "  nothing was started")
    terminal.line(f"the model reads {_read(plan)}")
    if plan.dry:
        terminal.line(
            f"no tool runs and nobody is asked; recorded results that calls are answered from: {plan.reused_total:,}"
        )
    else:
        # Where a summary stands in place of messages, the model does not read the results of their calls.
        reused = "calls whose recorded results it goes on from"
        if plan.replaced_by is not None:
            reused = "calls of that past, none of which runs again"
        terminal.line(f"{reused}: {plan.reused_total:,}")
    _calls(plan.reused, plan.reused_total)
    if not plan.dry:
        _not_undone(plan)
        terminal.line(
            f"calls behind that step, which the model may make again, judged and asked for anew: {plan.again_total:,}"
        )
        _calls(plan.again, plan.again_total, again=True)
    told: dict[str, str] = {each.name: f"{each.was} → {each.will_be}" for each in plan.differences}
    told.update(given)
    for name, change in told.items():
        terminal.line((f"{name} ", "dim"), plain_line(change, 300))
    if plan.needs_admin:
        terminal.line(("it would live under a policy of its own: that takes the scope admin, or --plain", "yellow"))


def _read(plan: ForkPlan) -> str:
    read = "1 message as it is" if plan.messages == 1 else f"{plan.messages:,} messages as they are"
    earlier = "1 earlier one" if plan.replaced == 1 else f"{plan.replaced:,} earlier ones"
    match plan.replaced_by:
        case "summary":
            return f"{read}, and a summary in place of {earlier}"
        case "trim":
            return f"{read}; {earlier} {'is' if plan.replaced == 1 else 'are'} left out"
        case "new_summary":
            past = "the 1 message" if plan.replaced == 1 else f"the {plan.replaced:,} messages"
            return f"a summary of {past} of the past, which a model writes first, and nothing else of it"
        case _:
            return read


def _not_undone(plan: ForkPlan) -> None:
    if not plan.effects:
        terminal.line("nothing that the run did has an effect to undo")
        return
    terminal.line(("not undone:", "yellow"))
    for each in plan.effects:
        unknown = f", of {each.unknown} nobody knows the end" if each.unknown else ""
        times = "1 call" if each.calls == 1 else f"{each.calls:,} calls"
        terminal.line(f"  {plain_line(each.tool_name, 64)}  {times}, {each.effect}{unknown}")


def _calls(shown: Sequence[PastCall], total: int, *, again: bool = False) -> None:
    for each in shown:
        parts = [each.verdict and {"allow": "allowed", "ask": "asked", "deny": "denied"}[each.verdict], each.decision]
        told = ", ".join([*(part for part in parts if part), each.result or "open"])
        twice = again and each.happened
        happened = ("  it has happened: made again, it may happen twice", "yellow") if twice else ""
        name = (plain_line(each.tool_name, 64), "bold")
        terminal.line(f"  step {each.step}  ", name, f"  {plain_line(each.input, 60)}  ", (told, "dim"), happened)
    if total > len(shown):
        terminal.line(f"  … {total - len(shown):,} more")
