"""``turngate fork`` and ``retry``: continue a run from one of its closed steps in a new conversation, or where it ended."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from turngate.cli import terminal
from turngate.cli.api_link import find_api
from turngate.cli.follow.run import Follower, Output
from turngate.cli.options import AsJson, DataDir, RunId, Url
from turngate.domain.errors import ConfigurationError
from turngate.runtime.policy_files import checked_source, read_text
from turngate.text.fork_plan import plan_lines
from turngate.wire.orders import ForkOrder
from turngate.wire.plans import ForkPlan

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
    for pieces in plan_lines(plan, {name: f"→ {file}" for name, file in files.items() if file is not None}):
        terminal.line(*pieces)
    if plan.needs_admin:
        terminal.line(("--plain leaves the policy out", "yellow"))
