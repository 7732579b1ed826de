"""``turngate login-link``, ``token`` and ``session``: letting people and programs in, and out. They write the store."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final, get_args

import typer
from typer.core import TyperGroup

from turngate.cli import terminal
from turngate.cli.options import DataDir
from turngate.domain.errors import ConfigurationError, NotFoundError
from turngate.domain.identity import Scope
from turngate.domain.policy.terms import Role
from turngate.runtime.locations import RunningStack
from turngate.runtime.settings import load_settings
from turngate.text.plain_text import plain_line

if TYPE_CHECKING:
    from turngate.store.access.sessions import Session
    from turngate.store.access.tokens import Token

MINUTE_CHARS: Final = len("2026-01-01T00:00")

# The store takes a while to import; hence the imports inside the functions.


class ScopeChoice(StrEnum):
    """What a token may do (``turngate.domain.identity.Scope``)."""

    RUNS_WRITE = "runs:write"
    REQUESTS_READ = "requests:read"
    REQUESTS_DECIDE = "requests:decide"
    ADMIN = "admin"


class RoleChoice(StrEnum):
    """What a person may do (``turngate.domain.policy.terms.Role``)."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"


class _Tokens(TyperGroup):
    """``turngate token NAME …`` is ``turngate token add NAME …``: making one is what people come for."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # typer's base class takes its own, private Context
        """Put the command in when the first word is none."""
        if args and args[0] not in self.commands and args[0] not in {"-h", "--help"}:
            args = ["add", *args]
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed


token_app = typer.Typer(cls=_Tokens, no_args_is_help=True, help="Let programs in: API tokens, made, listed, revoked.")
session_app = typer.Typer(no_args_is_help=True, help="See who is logged in, and log them out.")


def login_link(
    name: Annotated[
        str | None, typer.Argument(help="Whose name decisions carry.", show_default="your user name")
    ] = None,
    role: Annotated[
        RoleChoice | None,
        typer.Option(help="What they may do.", show_default="operator; a stored user keeps their role"),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Print a link that logs one browser in, once, within 24 hours."""
    settings = load_settings(data_dir=data_dir)
    note = RunningStack.read(settings.data_dir)
    url = settings.resolved_api_url if settings.api_url or note is None else note.api_url

    async def make() -> str:
        from turngate.cli import stores  # noqa: PLC0415

        async with stores.opened_store(settings) as database:
            wanted: Role | None = None if role is None else role.value
            return await stores.new_login_link(database, url, name or stores.local_user(), wanted)

    terminal.line(asyncio.run(make()))
    if note is None and settings.api_url is None:
        terminal.note(f"nothing runs from {settings.data_dir} now: the link works once `turngate up` does")


@token_app.command("add")
def token_add(
    name: Annotated[str, typer.Argument(help="Who or what holds it; decisions and runs carry this name.")],
    scope: Annotated[
        list[ScopeChoice], typer.Option(help="What it may do; repeat for more. An agent's needs runs:write only.")
    ],
    user: Annotated[
        str | None, typer.Option(help="A user it acts for: decisions and runs carry that name instead.")
    ] = None,
    days: Annotated[
        int | None, typer.Option(min=1, max=3_650, help="How long it holds.", show_default="until it is revoked")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Make an API token and print it, this once. `turngate token NAME --scope …` is short for it.

    Programs send it as `Authorization: Bearer TOKEN`; turngate's own commands read it from TURNGATE_TOKEN.
    """
    settings = load_settings(data_dir=data_dir)
    chosen = {choice.value for choice in scope}
    granted = frozenset(each for each in get_args(Scope) if each in chosen)

    async def make() -> str:
        from turngate.cli import stores  # noqa: PLC0415
        from turngate.store.access import tokens  # noqa: PLC0415
        from turngate.store.clock import now  # noqa: PLC0415

        async with stores.opened_store(settings) as database, database.write() as conn:
            return await tokens.issue(
                conn,
                name=name,
                scopes=granted,
                owner=user,
                expires_at=None if days is None else now() + timedelta(days=days),
                by=stores.acting_as(),
            )

    terminal.line(asyncio.run(make()))
    terminal.note("keep it safe: it is stored hashed and cannot be shown again")


@token_app.command("list")
def token_list(data_dir: DataDir = None) -> None:
    """List the tokens that hold: id, name, scopes, whose, made, last used, out of date. Never a secret."""
    settings = load_settings(data_dir=data_dir)

    async def read() -> list[Token]:
        from turngate.cli import stores  # noqa: PLC0415
        from turngate.store.access import tokens  # noqa: PLC0415

        async with stores.opened_store(settings) as database, database.read() as conn:
            return await tokens.listed(conn)

    terminal.table(
        ("TOKEN", "NAME", "SCOPES", "USER", "MADE", "LAST USED", "UNTIL"),
        [
            (
                each.id,
                plain_line(each.name),
                " ".join(sorted(each.scopes)) or "none",
                plain_line(each.owner or "-"),
                minute(each.created_at),
                minute(each.last_used_at),
                minute(each.expires_at),
            )
            for each in asyncio.run(read())
        ],
    )


@token_app.command("revoke")
def token_revoke(
    name: Annotated[str, typer.Argument(help="The token's name, for all of that name, or its id.")],
    data_dir: DataDir = None,
) -> None:
    """Revoke tokens; they stop working at once."""
    settings = load_settings(data_dir=data_dir)

    async def change() -> int:
        from turngate.cli import stores  # noqa: PLC0415
        from turngate.store.access import tokens  # noqa: PLC0415

        async with stores.opened_store(settings) as database, database.write() as conn:
            return len(await tokens.revoke(conn, name=name, token_id=name, by=stores.acting_as()))

    count = asyncio.run(change())
    if count == 0:
        raise NotFoundError(f"there is no token {name!r}: `turngate token list` shows which hold")
    terminal.line(f"revoked {count} token{'' if count == 1 else 's'}")


@session_app.command("list")
def session_list(data_dir: DataDir = None) -> None:
    """List who is logged in: id, name, role, by what, since, last seen, with which browser."""
    settings = load_settings(data_dir=data_dir)

    async def read() -> list[Session]:
        from turngate.cli import stores  # noqa: PLC0415
        from turngate.store.access import sessions  # noqa: PLC0415

        async with stores.opened_store(settings) as database, database.read() as conn:
            return await sessions.listed(conn, idle=settings.session_idle)

    terminal.table(
        ("SESSION", "NAME", "ROLE", "BY", "SINCE", "LAST SEEN", "BROWSER"),
        [
            (
                each.id,
                plain_line(each.name),
                each.role,
                each.via,
                minute(each.created_at),
                minute(each.last_seen_at),
                plain_line(each.user_agent),
            )
            for each in asyncio.run(read())
        ],
    )


@session_app.command("revoke")
def session_revoke(
    session: Annotated[str | None, typer.Argument(help="The session's id.", show_default=False)] = None,
    user: Annotated[str | None, typer.Option(help="Everywhere this person is logged in, instead of one.")] = None,
    data_dir: DataDir = None,
) -> None:
    """Log somebody out, at once: one session, or all of a person."""
    if (session is None) == (user is None):
        raise ConfigurationError("say which: the id of a session, or --user NAME for all of somebody's")
    settings = load_settings(data_dir=data_dir)

    async def change() -> int:
        from turngate.cli import stores  # noqa: PLC0415
        from turngate.store.access import sessions  # noqa: PLC0415

        async with stores.opened_store(settings) as database, database.write() as conn:
            if user is not None:
                return await sessions.revoke_all(conn, user, by=stores.acting_as())
            return int(await sessions.revoke(conn, session or "", by=stores.acting_as()))

    count = asyncio.run(change())
    if count == 0:
        raise NotFoundError("there is no such session: `turngate session list` shows who is logged in")
    terminal.line(f"ended {count} session{'' if count == 1 else 's'}")


def minute(instant: str | None) -> str:
    """Return a stored instant to the minute, UTC; a dash for none."""
    return "-" if instant is None else instant[:MINUTE_CHARS].replace("T", " ")
