"""``turngate token``: API tokens for programs. It writes the store."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from typer.core import TyperGroup

from turngate.cli import stores, terminal
from turngate.cli.options import DataDir
from turngate.domain.errors import NotFoundError
from turngate.domain.identity import Scope, TokenBounds
from turngate.domain.text.sentences import counted
from turngate.runtime.settings import load_stack_settings
from turngate.store.access import tokens
from turngate.store.access.tokens import Token
from turngate.store.clock import now
from turngate.text.instants import minute
from turngate.text.plain_text import plain_line
from turngate.wire.people import display_name


class ScopeChoice(StrEnum):
    """What a token may do (``turngate.domain.identity.Scope``)."""

    RUNS_WRITE = "runs:write"
    RUNS_ALL = "runs:all"
    REQUESTS_READ = "requests:read"
    REQUESTS_DECIDE = "requests:decide"
    ADMIN = "admin"


class _Tokens(TyperGroup):
    """``turngate token NAME --scope SCOPE`` is short for ``turngate token add NAME --scope SCOPE``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # typer's base class takes its own, private Context
        """Insert ``add`` when the first word is no command."""
        if args and args[0] not in self.commands and args[0] not in {"-h", "--help"}:
            args = ["add", *args]
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed


app = typer.Typer(cls=_Tokens, no_args_is_help=True, help="API tokens for programs: add, list, revoke.")


@app.command("add")
def token_add(
    name: Annotated[str, typer.Argument(help="Who or what uses it; decisions and runs carry this name.")],
    scope: Annotated[
        list[ScopeChoice], typer.Option(help="What it may do; repeat for more. An agent needs runs:write only.")
    ],
    user: Annotated[
        str | None, typer.Option(help="The user it acts for: decisions and runs carry that name instead.")
    ] = None,
    days: Annotated[
        int | None,
        typer.Option(min=1, max=3_650, help="How many days it is valid.", show_default="until it is revoked"),
    ] = None,
    agent: Annotated[
        list[str] | None,
        typer.Option(help="An agent whose runs it may start; repeat for more.", show_default="every agent"),
    ] = None,
    workspace: Annotated[
        list[Path] | None,
        typer.Option(
            help="A directory in and below which its runs work; repeat for more.", show_default="where any run may work"
        ),
    ] = None,
    source: Annotated[
        list[str] | None,
        typer.Option(
            help="A source whose external calls it sends: rules and grants for the source count for them. Without --agent, the "
            "token starts nothing else. Repeat for more.",
            show_default="any; but a machine only claims it, so only rules and grants for every agent allow its calls",
        ),
    ] = None,
    trust_ask: Annotated[
        bool,
        typer.Option(
            "--trust-ask",
            help="Let its external calls that say `ask: false` run if no rule covers them. Else a person is asked.",
        ),
    ] = False,
    data_dir: DataDir = None,
) -> None:
    """Make an API token and print it, this once. `turngate token NAME --scope SCOPE` does the same.

    Programs send it as `Authorization: Bearer TOKEN`. Turngate's own commands read it from TURNGATE_TOKEN.
    """
    settings = load_stack_settings(data_dir=data_dir)
    chosen = {choice.value for choice in scope}
    granted = frozenset(each for each in get_args(Scope) if each in chosen)
    bounds = TokenBounds(
        agents=agent or None,
        workspaces=[str(each.expanduser().resolve()) for each in workspace] if workspace else None,
        sources=source or None,
        trust_ask=trust_ask,
    )

    async def make() -> str:
        async with stores.opened_store(settings) as database, database.write() as conn:
            return await tokens.issue(
                conn,
                tokens.NewToken(
                    name=name,
                    scopes=granted,
                    owner=user,
                    expires_at=None if days is None else now() + timedelta(days=days),
                    bounds=bounds,
                ),
                by=await stores.acting_as(conn),
            )

    terminal.line(asyncio.run(make()))
    terminal.note("keep it safe: only its hash is stored, so it cannot be shown again")


@app.command("list")
def token_list(data_dir: DataDir = None) -> None:
    """List the valid tokens: id, name, scopes, user, made, last used, valid until, bounds. Never a secret."""
    settings = load_stack_settings(data_dir=data_dir)

    async def read() -> list[Token]:
        async with stores.opened_store(settings) as database, database.read() as conn:
            return await tokens.listed(conn)

    terminal.table(
        ("TOKEN", "NAME", "SCOPES", "USER", "MADE", "LAST USED", "UNTIL", "BOUND TO"),
        [
            (
                each.id,
                plain_line(display_name(each.name)),
                " ".join(sorted(each.scopes)) or "none",
                plain_line(display_name(each.owner or "-")),
                minute(each.created_at),
                minute(each.last_used_at),
                minute(each.expires_at),
                plain_line(_bound_to(each.bounds)),
            )
            for each in asyncio.run(read())
        ],
    )


def _bound_to(bounds: TokenBounds) -> str:
    named = [("agents", bounds.agents), ("workspaces", bounds.workspaces), ("sources", bounds.sources)]
    parts = [f"{what} {', '.join(each)}" for what, each in named if each is not None]
    return "; ".join([*parts, *(["trust-ask"] if bounds.trust_ask else [])]) or "-"


@app.command("revoke")
def token_revoke(
    name: Annotated[str, typer.Argument(help="The id of a token, or a name for all tokens of that name.")],
    data_dir: DataDir = None,
) -> None:
    """Revoke tokens; they stop working at once."""
    settings = load_stack_settings(data_dir=data_dir)

    async def change() -> int:
        async with stores.opened_store(settings) as database, database.write() as conn:
            return len(await tokens.revoke(conn, name=name, token_id=name, by=await stores.acting_as(conn)))

    count = asyncio.run(change())
    if count == 0:
        raise NotFoundError(f"there is no token {name!r}: `turngate token list` shows the valid ones")
    terminal.line(f"revoked {counted(count, 'token')}")
