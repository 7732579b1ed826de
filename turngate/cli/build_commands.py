"""``turngate builds``: which builds of the workers there are, who has runs left, which one gets the new ones."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from turngate.cli import terminal
from turngate.cli.options import DataDir
from turngate.runtime.settings import Settings, load_settings


def builds(
    set_current: Annotated[
        str | None,
        typer.Option(
            metavar="BUILD",
            show_default=False,
            help="Let new runs go to workers of this build from now on; so do open runs that belong to no build yet.",
        ),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """List the builds that workers came up with (`turngate worker --build-id`), and how many open runs each still has.

    A run stays with the build that began it until it continues as new, which long runs do. Once a build is not current
    and has no open runs, its workers may be stopped.
    """
    asyncio.run(list_builds(load_settings(data_dir=data_dir), set_current))


async def list_builds(settings: Settings, chosen: str | None) -> None:
    """Make the ``chosen`` build the current one if there is one, then list all. Raises as ``worker_builds`` does."""
    from turngate.cli import worker_builds  # noqa: PLC0415 - slow to import
    from turngate.cli.temporal_link import find_address  # noqa: PLC0415 - slow to import
    from turngate.runtime.temporal_client import connect  # noqa: PLC0415 - slow to import

    client = await connect(settings, find_address(settings))
    if chosen is not None:
        await worker_builds.make_current(client, settings.deployment_name, chosen, say=terminal.note)
    found = await worker_builds.known(client, settings.deployment_name)
    terminal.table(
        ("BUILD", "STATUS", "OPEN RUNS"),
        [(each.build_id, "current" if each.current else "", str(each.open_runs)) for each in found],
    )
    if not found:
        terminal.note("no worker has come up with a build: `turngate worker --build-id BUILD` starts one")
    elif not any(each.current for each in found):
        terminal.note("none is current, so these workers get no new runs: turngate builds --set-current BUILD")
