"""A real PgBouncer in transaction mode before a test's PostgreSQL: a few sessions of the server, shared by all of its clients."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from sqlalchemy.engine import make_url

from turngate.runtime.embedded_temporal import choose_port

START_SECONDS = 30


@contextmanager
def pooled(url: str, *, sessions: int = 2, mode: str = "transaction") -> Iterator[str]:
    """Start PgBouncer and yield a URL of the same database through it."""
    address, port = make_url(url), choose_port()
    home = Path(tempfile.mkdtemp(prefix="turngate-pooler-"))
    settings = home / "pgbouncer.ini"
    settings.write_text(
        f"[databases]\n* = host={address.host} port={address.port} user={address.username}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
        f"pool_mode = {mode}\ndefault_pool_size = {sessions}\nignore_startup_parameters = options\n"
    )
    program = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"
    command = [program, str(settings)]
    if os.geteuid() == 0:  # it refuses to run as root
        account = pwd.getpwnam("postgres")
        for path in (home, settings):
            os.chown(path, account.pw_uid, account.pw_gid)
        command = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "--pdeathsig", "KILL", *command]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    through = address.set(host="127.0.0.1", port=port)
    try:
        _wait_until_ready(through.set(drivername="postgresql").render_as_string(hide_password=False))
        yield through.render_as_string(hide_password=False)
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(home, ignore_errors=True)


def _wait_until_ready(url: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            psycopg.connect(url, connect_timeout=5).close()
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return
