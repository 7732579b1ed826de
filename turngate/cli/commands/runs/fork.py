"""``turngate fork`` and ``retry``: continue a run from one of its closed steps in a new conversation, or where it ended."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from turngate.cli import terminal
from turngate.cli.api_link import find_api
from turngate.cli.follow.run import Follower, Output
from turngate.cli.options import AsJson, DataDir, RunId, Url
from turngate.domain.errors import ConfigurationError
from turngate.domain.text.sentences import counted
from turngate.runtime.policy_files import checked_source, read_text
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
        help="Restrict the agent to these of its tools: separated by commas, or repeat the option. An empty text means none.",
        show_default=False,
    ),
]
InstructionsFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="A file with other instructions for the agent.", show_default=False)
]
Plain = Annotated[
    bool,
    typer.Option("--plain", help="Do not take over the run's own instructions, tools and policy."),
]


def tool_names(options: list[str] | None) -> list[str] | None:
    """Return the names of ``--tools a,b --tool c``; None without the option."""
    if not options:
        return None
    return [name for each in options for name in (part.strip() for part in each.split(",")) if name]


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

    A new run continues the conversation, without a new message. What the run did stays done, and the model knows of each call
    whether it ran. Ctrl-C leaves the new run running.

    Exit code: 0 completed · 1 failed · 3 interrupted.
    """
    link = find_api(data_dir, url)
    with link.client() as client:
        started = client.retry_run(run_id, model=model)
        Follower(link, client, Output.of(as_json=as_json)).show_started(started, watch=watch)


def fork(
    run_id: RunId,
    message: Annotated[
        str | None,
        typer.Argument(
            metavar="MESSAGE", help="The message after that step; `-` reads it from stdin.", show_default=False
        ),
    ] = None,
    step: Annotated[
        int | None, typer.Option(min=1, help="The closed step to continue from.", show_default="its newest")
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
            help="A file of TOML rules that replaces the app's rules, the stored rules and every grant; for admins.",
            show_default=False,
        ),
    ] = None,
    plain: Plain = False,
    summarise: Annotated[
        bool,
        typer.Option(
            "--summarise",
            help="Begin with a summary of that past, which the fork's model writes first, instead of its messages.",
        ),
    ] = False,
    preview: Annotated[
        bool,
        typer.Option(
            "--preview", help="Start nothing; print what is reused, what is not undone, and what may run again."
        ),
    ] = False,
    watch: Annotated[bool, typer.Option(help="Follow the fork to its end, or return at once.")] = True,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Continue a run from one of its closed steps, in a new conversation.

    The fork shares the run's past up to that step, and continues with MESSAGE. The run itself stays as it is, and may still be
    running; what its tools did is not undone. The fork has the run's own instructions, tools and policy, unless an option says
    otherwise. Ctrl-C leaves the fork running.

    Exit code: 0 completed · 1 failed · 3 interrupted.
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
        show_plan(plan, files, as_json=as_json)
        return
    if message is None:
        raise ConfigurationError(
            f'there is no message: write `turngate fork {run_id} "…"`, or see the plan first with --preview'
        )
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
        Follower(link, client, Output.of(as_json=as_json)).show_started(started, watch=watch)


def show_plan(plan: ForkPlan, files: Mapping[str, Path | None], *, as_json: bool) -> None:
    """Print the plan of a fork or a dry run. ``files``: what the user changes by a file, which the server has not seen."""
    if as_json:
        terminal.document(plan.model_dump_json())
        return
    _print_plan(plan, {name: f"→ {file}" for name, file in files.items() if file is not None})


def _print_plan(plan: ForkPlan, local: Mapping[str, str]) -> None:
    """Print what is reused, what is not undone, and what may run again. ``local``: changes that only this command knows."""
    where = "its beginning" if plan.step is None else f"step {plan.step}"
    what = "a dry run" if plan.dry else "a fork"
    terminal.line((f"{what} of run {plan.run_id} from {where}", "bold"), "  nothing was started")
    terminal.line(f"the model reads {_read(plan)}")
    if plan.dry:
        terminal.line(f"no tool runs and no one is asked; recorded results that answer calls: {plan.reused_total:,}")
    else:
        # Where a summary replaces messages, the model does not read the results of their calls.
        calls = "calls whose recorded results it uses"
        if plan.replaced_by is not None:
            calls = "calls of that past, none of which runs again"
        terminal.line(f"{calls}: {plan.reused_total:,}")
    _calls(plan.reused, plan.reused_total)
    if not plan.dry:
        _not_undone(plan)
        terminal.line(
            f"calls after that step, which the model may make again and which are judged again: {plan.again_total:,}"
        )
        _calls(plan.again, plan.again_total, again=True)
    changes: dict[str, str] = {each.name: f"{each.was} → {each.will_be}" for each in plan.differences}
    changes.update(local)
    for name, change in changes.items():
        terminal.line((f"{name} ", "dim"), plain_line(change, 300))
    if plan.needs_admin:
        terminal.line(
            ("it would have a policy of its own, which needs the scope admin; --plain leaves the policy out", "yellow")
        )


def _read(plan: ForkPlan) -> str:
    read = "1 message as it is" if plan.messages == 1 else f"{plan.messages:,} messages as they are"
    earlier = "1 earlier one" if plan.replaced == 1 else f"{plan.replaced:,} earlier ones"
    match plan.replaced_by:
        case "summary":
            return f"{read}, and a summary instead of {earlier}"
        case "trim":
            return f"{read}; {earlier} {'is' if plan.replaced == 1 else 'are'} left out"
        case "new_summary":
            past = "the 1 message" if plan.replaced == 1 else f"the {plan.replaced:,} messages"
            return f"a summary of {past} of the past, which a model writes first, and nothing else"
        case _:
            return read


def _not_undone(plan: ForkPlan) -> None:
    if not plan.effects:
        terminal.line("the run did nothing that would have to be undone")
        return
    terminal.line(("not undone:", "yellow"))
    for each in plan.effects:
        unknown = f", the outcome of {each.unknown} is unknown" if each.unknown else ""
        times = counted(each.calls, "call")
        terminal.line(f"  {plain_line(each.tool_name, 64)}  {times}, {each.effect}{unknown}")


def _calls(calls: Sequence[PastCall], total: int, *, again: bool = False) -> None:
    for each in calls:
        parts = [each.verdict and {"allow": "allowed", "ask": "asked", "deny": "denied"}[each.verdict], each.decision]
        summary = ", ".join([*(part for part in parts if part), each.result or "open"])
        twice = again and each.happened
        happened = ("  it has happened; if the model makes it again, it may happen twice", "yellow") if twice else ""
        name = (plain_line(each.tool_name, 64), "bold")
        terminal.line(f"  step {each.step}  ", name, f"  {plain_line(each.input, 60)}  ", (summary, "dim"), happened)
    if total > len(calls):
        terminal.line(f"  … {total - len(calls):,} more")
