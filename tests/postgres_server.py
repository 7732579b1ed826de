"""A real PostgreSQL for tests: one server for the session, one database for each test that asks."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg


class PostgresServer:
    """A running server. ``url(name)`` is a SQLAlchemy URL for a fresh database."""

    def __init__(self, port: int) -> None:
        self._port = port

    def _connect(self) -> psycopg.Connection:
        return psycopg.connect(
            host="127.0.0.1", port=self._port, user="turngate", dbname="postgres", autocommit=True, connect_timeout=2
        )

    def fresh_url(self, *, template: str = "template1") -> str:
        """Create a database, empty or as a copy of another that nobody is connected to, and return its URL."""
        name = f"t_{secrets.token_hex(6)}"
        with self._connect() as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return f"postgresql+psycopg://turngate@127.0.0.1:{self._port}/{name}"

    def wait_until_ready(self, process: subprocess.Popen[bytes], log: Path) -> None:
        """Return when it answers; fails with its log when it ended or takes longer than 30 s."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and process.poll() is None:
            try:
                self._connect().close()
            except psycopg.OperationalError:
                time.sleep(0.05)
            else:
                return
        raise RuntimeError(f"PostgreSQL did not start: {log.read_text(errors='replace')[-2000:]}")


@contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    """Start a server in a temporary directory. As root it runs as the user ``postgres``: initdb refuses root."""
    home = Path(tempfile.mkdtemp(prefix="turngate-pg-"))
    as_user: list[str] = []
    if os.geteuid() == 0:
        account = pwd.getpwnam("postgres")
        os.chown(home, account.pw_uid, account.pw_gid)
        as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = home / "log"
    cluster = home / "cluster"
    # Durability is not what these tests prove, and fsync is most of their time.
    quick = ["-c", "fsync=off", "-c", "full_page_writes=off", "-c", "max_connections=200"]
    initdb = [*as_user, _program("initdb"), "-D", str(cluster), "-U", "turngate", "-A", "trust", "--no-sync"]
    subprocess.run(initdb, check=True, capture_output=True, cwd=home)
    serve = [*as_user, _program("postgres"), "-D", str(cluster), "-p", str(port), "-h", "127.0.0.1", "-k", str(home)]
    with log.open("wb") as output:
        process = subprocess.Popen([*serve, *quick], stdout=output, stderr=output, cwd=home)
    try:
        server = PostgresServer(port)
        server.wait_until_ready(process, log)
        yield server
    finally:
        process.terminate()  # "smart" shutdown would wait for pooled connections; the directory goes anyway
        try:
            process.wait(timeout=3)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(home, ignore_errors=True)


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is not None and name != "postgres":
        return found
    installed = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    if not installed:
        raise RuntimeError(f"PostgreSQL's {name} is not installed; run scripts/system-packages")
    return str(installed[-1])
