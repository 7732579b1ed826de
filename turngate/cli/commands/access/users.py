"""``turngate user``: the people Turngate knows. It writes the store, as any user who can read the data directory may."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from turngate.cli import stores, terminal
from turngate.cli.options import DataDir
from turngate.domain.errors import ConfigurationError
from turngate.domain.identity import checked_password
from turngate.domain.policy.terms import Role
from turngate.runtime.settings import load_stack_settings
from turngate.store.access import users
from turngate.store.access.passwords import hash_password
from turngate.store.access.users import User
from turngate.store.database import Connection
from turngate.text.instants import minute
from turngate.text.plain_text import plain_line
from turngate.wire.people import display_name

Result = TypeVar("Result")


app = typer.Typer(no_args_is_help=True, help="The people who can log in: names, roles, passwords.")

UserName = Annotated[str, typer.Argument(help="The user's name, in upper or lower case.")]
PasswordStdin = Annotated[
    bool, typer.Option("--password-stdin", help="Read the password from the first line of stdin instead of asking.")
]


@app.command("add")
def add(
    name: Annotated[str, typer.Argument(help="The user's name, which decisions carry.")],
    role: Annotated[Role, typer.Option(help="A viewer sees, an operator also decides, an admin manages everything.")],
    email: Annotated[str, typer.Option(help="The user's e-mail address.")] = "",
    password_stdin: PasswordStdin = False,
    no_password: Annotated[
        bool, typer.Option("--no-password", help="The user logs in with `turngate login-link NAME` only.")
    ] = False,
    data_dir: DataDir = None,
) -> None:
    """Add a user. A password has at least 12 characters; a few words are easy to remember."""
    if password_stdin and no_password:
        raise ConfigurationError("--password-stdin and --no-password contradict each other: use only one")
    password = None if no_password else _password(from_stdin=password_stdin)

    async def change(conn: Connection, by: str) -> str:
        hashed = None if password is None else await hash_password(password)
        user = await users.add(conn, users.User(name=name, role=role, password_hash=hashed, email=email), by=by)
        return display_name(user.name)

    terminal.line(f"{plain_line(_in_store(data_dir, change))} is {role} now")
    if no_password:
        terminal.note(f"log them in with `turngate login-link {plain_line(name)}`")


@app.command("list")
def listed(data_dir: DataDir = None) -> None:
    """List the users: name, role, how they log in, since when, e-mail."""

    async def read(conn: Connection, _by: str) -> list[User]:
        return await users.all_users(conn)

    terminal.table(
        ("NAME", "ROLE", "LOGS IN BY", "SINCE", "E-MAIL"),
        [
            (
                plain_line(display_name(each.name)),
                each.role,
                _login_method(each),
                minute(each.created_at),
                plain_line(each.email),
            )
            for each in _in_store(data_dir, read)
        ],
    )


@app.command("role")
def role(
    name: UserName,
    role: Annotated[Role, typer.Argument(help="The new role.")],
    data_dir: DataDir = None,
) -> None:
    """Give a user another role. It applies at once, to all sessions and tokens of the user."""

    async def change(conn: Connection, by: str) -> None:
        await users.set_role(conn, name, role, by=by)

    _in_store(data_dir, change)
    terminal.line(f"{plain_line(name)} is {role} now")


@app.command("password")
def password(name: UserName, password_stdin: PasswordStdin = False, data_dir: DataDir = None) -> None:
    """Set a new password. All sessions of the user end."""
    wanted = _password(from_stdin=password_stdin)

    async def change(conn: Connection, by: str) -> None:
        await users.set_password(conn, name, await hash_password(wanted), by=by)

    _in_store(data_dir, change)
    terminal.line(f"{plain_line(name)} has a new password; their sessions have ended")


@app.command("disable")
def disable(name: UserName, data_dir: DataDir = None) -> None:
    """Lock a user out at once: their sessions end and their tokens stop working."""
    _set_disabled(data_dir, name, disabled=True)


@app.command("enable")
def enable(name: UserName, data_dir: DataDir = None) -> None:
    """Unlock a disabled user."""
    _set_disabled(data_dir, name, disabled=False)


def _set_disabled(data_dir: Path | None, name: str, *, disabled: bool) -> None:
    async def change(conn: Connection, by: str) -> None:
        await users.set_disabled(conn, name, disabled=disabled, by=by)

    _in_store(data_dir, change)
    terminal.line(f"{plain_line(name)} is {'disabled' if disabled else 'enabled'}")


def _in_store(data_dir: Path | None, change: Callable[[Connection, str], Awaitable[Result]]) -> Result:
    settings = load_stack_settings(data_dir=data_dir)

    async def run() -> Result:
        async with stores.opened_store(settings) as database, database.write() as conn:
            return await change(conn, await stores.acting_as(conn))

    return asyncio.run(run())


def _password(*, from_stdin: bool) -> str:
    """Return a checked password. It is never an option: other users of the machine see those in the process list."""
    if from_stdin:
        typed = sys.stdin.readline().removesuffix("\n").removesuffix("\r")
    elif terminal.is_interactive():
        typed = typer.prompt("Password", hide_input=True, confirmation_prompt=True)
    else:
        raise ConfigurationError("there is no terminal to ask for the password: pipe it to --password-stdin")
    return checked_password(typed)


def _login_method(user: User) -> str:
    if user.disabled:
        return "disabled"
    if user.oidc_issuer:
        return plain_line(user.oidc_issuer)
    return "password" if user.password_hash else "links"
