"""Two deployments whose stores are two schemas of one PostgreSQL database, as their administrator sets them up."""

from __future__ import annotations

import secrets
from collections.abc import Callable

import psycopg
import pytest
from sqlalchemy.engine import make_url
from support.programs.terminal_process import turngate
from support.stores.postgres_server import PostgresServer


def test_two_deployments_share_a_database_and_nothing_in_it(
    postgres: PostgresServer, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """`turngate migrate` creates the schema and the role that the URL names; each has its own tokens, and a role without rights.

    A store that isn't there is named with the command that creates it.
    """
    names = [f"{name}_{secrets.token_hex(3)}" for name in ("acme", "bolt")]
    plain = postgres.fresh_url().replace("+psycopg", "")
    request.addfinalizer(_dropping(plain, names))

    def of(name: str, *words: str, code: int = 0) -> str:
        variables = {
            "TURNGATE_DATA_DIR": str(tmp_path_factory.getbasetemp() / name),
            "TURNGATE_DATABASE_URL": f"{plain}?schema={name}&role={name}",
        }
        done = turngate(*words, cwd=tmp_path_factory.getbasetemp(), **variables)
        assert done.returncode == code, done.stderr
        return " ".join((done.stdout + done.stderr).split())

    assert "`turngate migrate` creates it" in of(names[0], "token", "list", code=2)
    for name in names:
        assert "schema is at" in of(name, "migrate")
        assert "schema is at" in of(name, "migrate")
        of(name, "token", "add", f"of-{name}", "--scope", "requests:read")
    for name, other in (names, names[::-1]):
        listed = of(name, "token", "list")
        assert f"of-{name}" in listed
        assert f"of-{other}" not in listed
    _run(plain, f"GRANT USAGE ON SCHEMA {names[0]} TO {names[1]}")
    assert f"also reaches {names[0]}: REVOKE" in of(names[1], "token", "list", code=2)


def _run(url: str, *statements: str) -> None:
    where = make_url(url)
    with psycopg.connect(
        host=where.host, port=where.port, user="turngate", dbname=where.database, autocommit=True
    ) as connection:
        for each in statements:
            connection.execute(each.encode())


def _dropping(url: str, names: list[str]) -> Callable[[], None]:
    def drop() -> None:
        _run(url, *(f"DROP SCHEMA IF EXISTS {name} CASCADE" for name in names))
        _run(url, *(f"DROP ROLE IF EXISTS {name}" for name in names))

    return drop
