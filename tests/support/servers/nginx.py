"""A real nginx before a test's API, which serves it below a path."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_SECONDS = 30
TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


@contextmanager
def below(port: int, path: str, upstream: str, *, strips: bool) -> Iterator[None]:
    """Serve ``upstream`` on a port, below a path that nginx takes off what it passes on (``strips``), or leaves there.

    Without ``strips`` it also names its own upstream as ``Host``, which is nginx's default.
    """
    home = Path(tempfile.mkdtemp(prefix="turngate-nginx-"))
    host = "proxy_set_header Host $http_host;" if strips else ""
    paths = " ".join(f"{name}_temp_path {home}/{name};" for name in TEMPORARY)
    settings = home / "nginx.conf"
    settings.write_text(
        f"daemon off; master_process off; pid {home}/pid; error_log {home}/log; events {{}}\n"
        f"http {{ access_log off; {paths} server {{ listen 127.0.0.1:{port};\n"
        f"location {path}/ {{ proxy_pass {upstream}{'/' if strips else ''}; {host} }} }} }}\n"
    )
    program = shutil.which("nginx") or "/usr/sbin/nginx"
    process = subprocess.Popen([program, "-p", str(home), "-c", str(settings), "-e", str(home / "log")])
    try:
        _wait_until_ready(port)
        yield
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(home, ignore_errors=True)


def _wait_until_ready(port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 5).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return
