"""``turngate tui``: the inbox and the runs, live in a terminal."""

from __future__ import annotations

import asyncio

from turngate.cli import terminal
from turngate.cli.api_link import find_api
from turngate.cli.options import DataDir, Url
from turngate.client import TurngateClient
from turngate.domain.errors import ConfigurationError, MissingExtraError


def tui(data_dir: DataDir = None, url: Url = None) -> None:
    """Answer requests and follow runs in a terminal UI, with the keys of the pages.

    `?` shows the keys. Decisions carry the name of the token's owner. While the API is away, the last known state stays on
    screen. Works without colour (`NO_COLOR`), from 80 columns by 24 lines. Needs the extra `tui`. Runs continue when you leave.
    Exit code: 0.
    """
    try:
        from turngate.frontends.tui.app import TurngateTui  # noqa: PLC0415 - an extra, needed here alone
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "textual":
            raise
        raise MissingExtraError("the terminal UI", "tui") from None
    if not terminal.is_interactive():
        raise ConfigurationError(
            "the terminal UI needs a terminal for its input and its output: use `turngate requests` and "
            "`turngate decide` in scripts"
        )
    link = find_api(data_dir, url)

    async def show() -> None:
        async with TurngateClient(link.url, token=link.token) as client:
            await TurngateTui(client).run_async()

    asyncio.run(show())
