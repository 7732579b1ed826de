"""``turngate model`` and ``turngate models``: switch a live run's model; see which ones there are."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from turngate.cli import terminal
from turngate.cli.api_link import find_api
from turngate.cli.failing import EXIT_WENT_WRONG
from turngate.cli.options import DEFAULT_APP, AppArgument, AsJson, DataDir, Url
from turngate.cli.run_commands import RunId
from turngate.runtime.settings import Settings, load_settings
from turngate.text.plain_text import plain

if TYPE_CHECKING:
    from turngate.cli.model_survey import Seen


def model(
    run_id: RunId,
    spec: Annotated[
        str, typer.Argument(metavar="MODEL", help="PROVIDER:NAME, or a profile's name.", show_default=False)
    ],
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Switch a live run's model: its next request goes to this one, and so does one that waits to be tried again."""
    with find_api(data_dir, url).client() as client:
        run = client.switch_model(run_id, spec)
    terminal.line(f"{run.id} goes on with {plain(run.model)}")


def models(
    app: AppArgument = DEFAULT_APP,
    probe: Annotated[
        bool, typer.Option("--probe", help="Ask each profile and model a short question; it may cost something.")
    ] = False,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """List the profiles of models.toml, the models that APP names, and the providers: can each be used from here?

    A provider can be used when its package is installed and its key is set. Exit code 1 when a profile or a model that is
    named cannot be used.
    """
    found = asyncio.run(_found(load_settings(data_dir=data_dir), app, probe=probe))
    if as_json:
        terminal.raw(json.dumps([asdict(each) for each in found]))
    else:
        _show(found)
    if any(each.problem and each.kind != "provider" for each in found):
        raise typer.Exit(EXIT_WENT_WRONG)


async def _found(settings: Settings, target: str, *, probe: bool) -> list[Seen]:
    from turngate.cli import model_survey  # noqa: PLC0415 - slow to import
    from turngate.cli.app_loading import load_builders_app  # noqa: PLC0415 - slow to import

    app = load_builders_app(target)
    return [each async for each in model_survey.survey(settings, app, probe=probe)]


def _show(found: list[Seen]) -> None:
    for kind, title in (("profile", "Profiles"), ("model", "Models that are named"), ("provider", "Providers")):
        shown = [each for each in found if each.kind == kind]
        if not shown:
            continue
        terminal.line((title, "bold"))
        for each in shown:
            stands_for = f" = {each.model}" if each.model else ""
            details = f" ({each.details})" if each.details else ""
            said = "answers" if each.answered else each.problem
            # That a provider has no key is no mistake: hardly anybody has all of them.
            mark = ("  ✓ ", "green") if not each.problem else ("  - ", "dim") if kind == "provider" else ("  ✗ ", "red")
            terminal.line(mark, plain(f"{each.name}{stands_for}{details}{': ' if said else ''}{said}"))
