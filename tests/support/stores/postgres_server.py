"""A real PostgreSQL for tests: one server for the session, one database for each test that needs one."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from sqlalchemy.engine import make_url

from turngate.runtime.embedded_temporal import choose_port

RESTART_SECONDS = 30.0
NEEDS_PASSWORD = "needs_password"
"""A role that the server trusts less than the others."""
MEMORY = Path("/dev/shm")  # noqa: S108 - mkdtemp makes the name
ROOM_BYTES = 4 * 2**30
"""A cluster is placed in memory if this much is free; creating a database's 300 files takes half as long there."""


class PostgresServer:
    """A running server. ``url(name)`` is a SQLAlchemy URL for a fresh database."""

    def __init__(self, port: int) -> None:
        self._port = port

    def _connect(self) -> psycopg.Connection:
        return psycopg.connect(
            host="127.0.0.1", port=self._port, user="turngate", dbname="postgres", autocommit=True, connect_timeout=10
        )

    def fresh_url(self, *, template: str = "template1") -> str:
        """Create a database, empty or as a copy of another without connections, and return its URL."""
        name = f"t_{secrets.token_hex(6)}"
        with self._connect() as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return f"postgresql+psycopg://turngate@127.0.0.1:{self._port}/{name}"

    def with_password(self, url: str) -> str:
        """Return the URL of the same database for someone who needs a password, with what must be escaped in URLs."""
        password = "p@ss/w:rd% é"
        with self._connect() as connection:
            connection.execute(
                f"DROP ROLE IF EXISTS {NEEDS_PASSWORD}; CREATE ROLE {NEEDS_PASSWORD} LOGIN SUPERUSER PASSWORD '{password}'"
            )
        return make_url(url).set(username=NEEDS_PASSWORD, password=password).render_as_string(hide_password=False)

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


class Cluster:
    """A separate PostgreSQL in a temporary directory, which can be killed and started again.

    As root it runs as the user ``postgres``: initdb refuses root. ``dies_with_us``: the kernel kills it when this thread
    ends, also by SIGKILL (Linux, as root). ``durable``: on disk, and each commit waits for it.
    """

    def __init__(self, *, dies_with_us: bool = False, durable: bool = False) -> None:
        self._durable = durable
        roomy = not durable and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= ROOM_BYTES
        self.home = Path(tempfile.mkdtemp(prefix="turngate-pg-", dir=MEMORY if roomy else None))
        self._log = self.home / "log"
        self._cluster = self.home / "cluster"
        self._as_user: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None
        if os.geteuid() == 0:
            account = pwd.getpwnam("postgres")
            os.chown(self.home, account.pw_uid, account.pw_gid)
            wish = ["--pdeathsig", "KILL"] if dies_with_us else []
            self._as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", *wish]
        # Not one of the kernel's choice: until the server listens, any outgoing connection may take such a port.
        self._port = choose_port()
        self.server = PostgresServer(self._port)
        initdb = [program("initdb"), "-D", str(self._cluster), "-U", "turngate", "-A", "trust", "--no-sync"]
        initdb.append("--encoding=UTF8")  # whatever LANG is here: for C it would be SQL_ASCII
        subprocess.run([*self._as_user, *initdb], check=True, capture_output=True, cwd=self.home)
        access = self._cluster / "pg_hba.conf"
        access.write_text(f"host all {NEEDS_PASSWORD} 127.0.0.1/32 scram-sha-256\n{access.read_text()}")

    @property
    def port(self) -> int:
        """Where it listens on loopback, in each of its lives."""
        return self._port

    @property
    def pid(self) -> int | None:
        """The postmaster's pid; None while there is none."""
        return None if self._process is None or self._process.poll() is not None else self._process.pid

    def start(self) -> None:
        """Start the server; does not wait for it."""
        # Durability is not what these tests prove, and fsync is most of their time: what a killed process has handed to the
        # kernel is there all the same.
        wanted = ("fsync=off", "full_page_writes=off", "wal_level=minimal", "max_wal_senders=0", "autovacuum=off")
        chosen = () if self._durable else wanted
        quick = [word for each in (*chosen, "max_connections=200") for word in ("-c", each)]
        where = ["-D", str(self._cluster), "-p", str(self._port), "-h", "127.0.0.1", "-k", str(self.home)]
        with self._log.open("ab") as output:
            command = [*self._as_user, program("postgres"), *where, *quick]
            self._process = subprocess.Popen(command, stdout=output, stderr=output, cwd=self.home)

    def wait_until_ready(self) -> None:
        """Return when it answers; fails with its log when it ended or takes longer than 30 s."""
        assert self._process is not None
        self.server.wait_until_ready(self._process, self._log)

    def kill(self) -> None:
        """SIGKILL the postmaster; its backends end when they see that."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def start_again(self) -> None:
        """Start it after a kill and wait until it answers. Until the last backend has ended it refuses to start."""
        deadline = time.monotonic() + RESTART_SECONDS
        while True:
            self.start()
            try:
                self.wait_until_ready()
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
            else:
                return

    def close(self) -> None:
        """Stop it and remove everything."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)  # at once, pooled connections or not: the directory goes anyway
            try:
                self._process.wait(timeout=3)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        shutil.rmtree(self.home, ignore_errors=True)


@contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    """Start a server in a temporary directory."""
    with running_cluster() as cluster:
        yield cluster.server


@contextmanager
def running_cluster(*, durable: bool = False) -> Iterator[Cluster]:
    """Start a cluster in a temporary directory; ``durable`` as for :class:`Cluster`."""
    cluster = Cluster(durable=durable)
    try:
        cluster.start()
        cluster.wait_until_ready()
        yield cluster
    finally:
        cluster.close()


def program(name: str) -> str:
    path = shutil.which(name)
    if path is not None and name != "postgres":
        return path
    installed = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    if not installed:
        raise RuntimeError(f"PostgreSQL's {name} is not installed; run scripts/system-packages")
    return str(installed[-1])
