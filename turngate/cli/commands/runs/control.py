"""``turngate interrupt``, ``pause``, ``resume``, ``send`` and ``model``: steering a run from outside."""

from __future__ import annotations

from typing import Annotated

import typer

from turngate.cli import terminal
from turngate.cli.api_link import find_api
from turngate.cli.options import DataDir, RunId, Url
from turngate.domain.requests import WhileRunning
from turngate.text.plain_text import plain


def interrupt(
    run_id: RunId,
    reason: Annotated[str, typer.Option(help="The reason, for the run's history.")] = "",
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Stop a run: its running tools are cancelled and its open requests close.

    The conversation can continue later: `turngate retry`, `fork` or `send`.
    """
    with find_api(data_dir, url).client() as client:
        client.interrupt(run_id, reason=reason)
    terminal.line(f"{run_id} is stopping")


def pause(
    run_id: RunId,
    reason: Annotated[str, typer.Option(help="The reason, for the run's history.")] = "",
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Hold a run: calls that run finish, and nothing new starts until you resume it."""
    link = find_api(data_dir, url)
    with link.client() as client:
        client.pause(run_id, reason=reason)
    terminal.line(f"{run_id} holds")
    terminal.note(f"resume it:  turngate resume{link.options} {run_id}")


def resume(run_id: RunId, data_dir: DataDir = None, url: Url = None) -> None:
    """Resume a run that is on hold."""
    with find_api(data_dir, url).client() as client:
        client.resume(run_id)
    terminal.line(f"{run_id} resumes")


def send(
    run_id: RunId,
    text: Annotated[str, typer.Argument(help="The message.", show_default=False)],
    while_running: Annotated[
        WhileRunning | None,
        typer.Option(
            help="What a live run does with the message. `queue`: a new run answers it. `inject`: the agent reads it before its "
            "next step. `supersede`: the same, and open requests end at once. Default: as the agent declares.",
            show_default=False,
        ),
    ] = None,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Send a message to a run's conversation, while the run is live or later."""
    link = find_api(data_dir, url)
    with link.client() as client:
        run = client.send_message(run_id, text, while_running=while_running)
    if run.status == "running" and run.id == run_id:
        terminal.line(f"{run.id} gets the message")
    else:
        terminal.line(f"{run.id} answers the message")
    terminal.note(f"follow it:  turngate watch{link.options} {run.id}")


def model(
    run_id: RunId,
    spec: Annotated[
        str, typer.Argument(metavar="MODEL", help="PROVIDER:NAME, or a profile's name.", show_default=False)
    ],
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Switch a live run to another model.

    Its next model request goes to the new one, also a request that waits for its retry.
    """
    with find_api(data_dir, url).client() as client:
        run = client.switch_model(run_id, spec)
    terminal.line(f"{run.id} continues with {plain(run.model)}")
