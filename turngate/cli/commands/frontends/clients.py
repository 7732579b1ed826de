"""``turngate tui`` and ``acp``: the public client as a terminal UI, and as a server on stdin and stdout."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated, Final

import typer

from turngate.cli import terminal
from turngate.cli.api_link import find_api
from turngate.cli.options import DataDir, Url
from turngate.cli.terminal import when_unread
from turngate.client import TurngateClient
from turngate.domain.errors import ConfigurationError, MissingExtraError
from turngate.frontends.lines import JsonLines
from turngate.runtime.locations import own_state
from turngate.text.plain_text import plain

SESSIONS: Final = "acp-sessions"
"""Each session's conversation, below the user's state directory (https://specifications.freedesktop.org/basedir-spec)."""


def acp(
    agent: Annotated[str | None, typer.Option(help="Which agent.", show_default="the only one there is")] = None,
    model: Annotated[
        str | None, typer.Option(help="A model instead of the agent's own, as PROVIDER:NAME.", show_default=False)
    ] = None,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Let an editor drive an agent: the Agent Client Protocol on stdin and stdout.

    The editor starts this command; docs/howto/use-from-an-editor.md shows how to configure it. A session is a conversation, and
    works in the editor's project directory. Decisions in the editor carry the name of the token's owner. Needs the extra `acp`.
    Ends when stdin ends; runs continue. Exit code: 0.
    """
    try:
        from turngate.frontends.acp.agent import serve_acp  # noqa: PLC0415 - an extra, needed here alone
        from turngate.frontends.acp.models import answering_agent  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "acp":
            raise
        raise MissingExtraError("the Agent Client Protocol", "acp") from None
    link = find_api(data_dir, url)

    async def serve() -> None:
        async with TurngateClient(link.url, token=link.token, pages_url=link.pages) as client:
            if sys.stdin.isatty():  # someone tries the command in a terminal: what it does, and in whose name
                name, _model = await answering_agent(client, agent)
                me = await client.get_me()
                terminal.note(
                    f"speaks the Agent Client Protocol for {plain(name)} as {plain(me.name)} at {client.url}, "
                    "one message a line; Ctrl-D ends it"
                )
            lines = JsonLines(sys.stdin.buffer, sys.stdout.buffer)
            when_unread(lines.hang_up)  # also while there is nothing to write
            await serve_acp(client, lines, agent=agent, model=model, sessions=own_state() / SESSIONS)

    asyncio.run(serve())


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
