"""``turngate login-link`` and ``session``: log people in, see who is logged in, log them out. They write the store."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from turngate.cli import stores, terminal
from turngate.cli.options import DataDir
from turngate.domain.errors import ConfigurationError, NotFoundError
from turngate.domain.policy.terms import Role
from turngate.domain.text.sentences import counted
from turngate.runtime.locations import RunningStack
from turngate.runtime.settings import load_stack_settings
from turngate.store.access import sessions
from turngate.store.access.sessions import Session
from turngate.text.instants import minute
from turngate.text.plain_text import plain_line
from turngate.wire.people import display_name

app = typer.Typer(no_args_is_help=True, help="See who is logged in, and log people out.")


def login_link(
    name: Annotated[
        str | None, typer.Argument(help="The name that decisions carry.", show_default="your user name")
    ] = None,
    role: Annotated[
        Role | None,
        typer.Option(help="What the person may do.", show_default="operator; a stored user keeps their role"),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Print a link that logs one browser in, once, within 24 hours."""
    settings = load_stack_settings(data_dir=data_dir)
    note = RunningStack.read(settings.data_dir)
    url = settings.resolved_public_url
    if note is not None and settings.api_url is None:
        url = settings.public_url or note.public_url or note.api_url

    async def make() -> str:
        async with stores.opened_store(settings) as database:
            return await stores.new_login_link(database, url, name or stores.local_user(), role)

    terminal.line(asyncio.run(make()))
    if note is None and settings.api_url is None:
        terminal.note(
            f"nothing runs from {settings.data_dir} now: the link works after you start `turngate up`. Another "
            "Turngate on this machine, such as a demo, shows its own command on its log-in page"
        )


@app.command("list")
def session_list(data_dir: DataDir = None) -> None:
    """List who is logged in: id, name, role, how, since when, last seen, browser."""
    settings = load_stack_settings(data_dir=data_dir)

    async def read() -> list[Session]:
        async with stores.opened_store(settings) as database, database.read() as conn:
            return await sessions.listed(conn, idle=settings.session_idle)

    terminal.table(
        ("SESSION", "NAME", "ROLE", "BY", "SINCE", "LAST SEEN", "BROWSER"),
        [
            (
                each.id,
                plain_line(display_name(each.name)),
                each.role,
                each.via,
                minute(each.created_at),
                minute(each.last_seen_at),
                plain_line(each.user_agent),
            )
            for each in asyncio.run(read())
        ],
    )


@app.command("revoke")
def session_revoke(
    session: Annotated[str | None, typer.Argument(help="The session's id.", show_default=False)] = None,
    user: Annotated[str | None, typer.Option(help="Log this person out everywhere, instead of one session.")] = None,
    data_dir: DataDir = None,
) -> None:
    """Log a person out at once: one session, or all of them."""
    if (session is None) == (user is None):
        raise ConfigurationError("say which sessions: the id of one, or --user NAME for all of a person")
    settings = load_stack_settings(data_dir=data_dir)

    async def change() -> int:
        async with stores.opened_store(settings) as database, database.write() as conn:
            if user is not None:
                return await sessions.revoke_all(conn, user, by=await stores.acting_as(conn))
            return int(await sessions.revoke(conn, session or "", by=await stores.acting_as(conn)))

    count = asyncio.run(change())
    if count == 0:
        raise NotFoundError("there is no such session: `turngate session list` shows who is logged in")
    terminal.line(f"ended {counted(count, 'session')}")
