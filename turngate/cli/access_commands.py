"""``turngate login-link`` and ``turngate token``: letting people and programs in. They write the store themselves."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import Annotated, Final, get_args

import typer

from turngate.cli import terminal
from turngate.cli.options import DataDir
from turngate.domain.errors import ConfigurationError
from turngate.runtime.locations import RunningStack
from turngate.runtime.settings import Settings, load_settings

MAX_NAME_CHARS: Final = 100


class ScopeChoice(StrEnum):
    """What a token may do; the store's scopes (``turngate.store.access.Scope``)."""

    RUNS_WRITE = "runs:write"
    REQUESTS_READ = "requests:read"
    REQUESTS_DECIDE = "requests:decide"
    ADMIN = "admin"


def login_link(
    operator: Annotated[
        str | None, typer.Option(help="Whose name decisions carry.", show_default="your user name")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Print a link that logs one browser in, once, within 24 hours."""
    settings = load_settings(data_dir=data_dir)
    note = RunningStack.read(settings.data_dir)
    url = settings.resolved_api_url if settings.api_url or note is None else note.api_url
    terminal.line(asyncio.run(_new_link(settings, url, None if operator is None else _checked_name(operator))))
    if note is None and settings.api_url is None:
        terminal.note(f"nothing runs from {settings.data_dir} now: the link works once `turngate up` does")


def token(
    name: Annotated[str, typer.Argument(help="Who or what holds it; decisions and runs carry this name.")],
    scope: Annotated[
        list[ScopeChoice], typer.Option(help="What it may do; repeat for more. An agent's needs runs:write only.")
    ],
    data_dir: DataDir = None,
) -> None:
    """Make an API token and print it, this once.

    Programs send it as `Authorization: Bearer TOKEN`; turngate's own commands read it from TURNGATE_TOKEN.
    """
    settings = load_settings(data_dir=data_dir)
    terminal.line(asyncio.run(_new_token(settings, _checked_name(name), {choice.value for choice in scope})))
    terminal.note("keep it safe: it is stored hashed and cannot be shown again")


async def _new_link(settings: Settings, url: str, operator: str | None) -> str:
    from turngate.cli import stores  # noqa: PLC0415 - slow to import

    async with stores.opened_store(settings) as database:
        return await stores.new_login_link(database, url, operator or stores.local_user())


async def _new_token(settings: Settings, name: str, scopes: set[str]) -> str:
    from turngate.cli import stores  # noqa: PLC0415 - slow to import
    from turngate.store import access  # noqa: PLC0415 - slow to import

    granted = frozenset(scope for scope in get_args(access.Scope) if scope in scopes)
    async with stores.opened_store(settings) as database, database.write() as conn:
        return await access.issue_token(conn, name=name, scopes=granted)


def _checked_name(name: str) -> str:
    name = name.strip()
    if not name or len(name) > MAX_NAME_CHARS or not name.isprintable():
        raise ConfigurationError(f"a name has 1 to {MAX_NAME_CHARS} printable characters")
    return name
