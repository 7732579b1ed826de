"""Vault's transit engine as a key service, through hvac, against a server that speaks its HTTP API as Vault documents it.

Vault itself can't be installed where these tests run.
"""

from __future__ import annotations

import base64
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from turngate.domain.errors import ConfigurationError, UnavailableError
from turngate.runtime import key_services
from turngate.runtime.key_services import service_of

TOKEN = "s.token"
KEY = os.urandom(32)


class Transit:
    """One key with versions. ``answer``: what every request gets in place of it; ``cut``: the connection ends before."""

    def __init__(self) -> None:
        self.versions = [os.urandom(32)]
        self.answer: tuple[int, Any] | None = None
        self.cut = False
        self.seen: list[str] = []

    def respond(self, path: str, token: str | None, body: dict[str, str]) -> tuple[int, Any]:
        self.seen.append(path)
        if self.answer is not None:
            return self.answer
        if token != TOKEN:
            return 403, {"errors": ["permission denied"]}
        match path.split("/"):
            case ["", "v1", "transit", "encrypt", "turngate"]:
                nonce, plain = os.urandom(12), base64.b64decode(body["plaintext"])
                sealed = base64.b64encode(nonce + AESGCM(self.versions[-1]).encrypt(nonce, plain, None)).decode()
                return 200, {"data": {"ciphertext": f"vault:v{len(self.versions)}:{sealed}"}}
            case ["", "v1", "transit", "decrypt", "turngate"]:
                _vault, version, sealed = body["ciphertext"].split(":")
                raw = base64.b64decode(sealed)
                try:
                    plain = AESGCM(self.versions[int(version[1:]) - 1]).decrypt(raw[:12], raw[12:], None)
                except InvalidTag:
                    return 400, {"errors": ["cipher: message authentication failed"]}
                return 200, {"data": {"plaintext": base64.b64encode(plain).decode()}}
        return 404, {"errors": []}


@pytest.fixture
def vault(monkeypatch: pytest.MonkeyPatch) -> Iterator[Transit]:
    transit = Transit()
    with _served(transit) as address:
        monkeypatch.setenv("VAULT_ADDR", address)
        monkeypatch.setenv("VAULT_TOKEN", TOKEN)
        yield transit


@contextmanager
def _served(transit: Transit) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
            status, answer = transit.respond(self.path, self.headers["X-Vault-Token"], body)
            if transit.cut:
                self.connection.close()
                return
            content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_vault_wraps_and_unwraps_also_after_its_key_was_rotated(vault: Transit) -> None:
    service = service_of("vault:transit/turngate")
    wrapped = service.wrap(KEY)
    vault.versions.append(os.urandom(32))
    assert service.unwrap(wrapped) == KEY
    assert service.unwrap(service.wrap(KEY)) == KEY
    assert vault.seen[:2] == ["/v1/transit/encrypt/turngate", "/v1/transit/decrypt/turngate"]
    assert KEY not in wrapped.encode()


@pytest.mark.parametrize("status", [412, 429, 500, 501, 502, 503, 504])
def test_a_vault_that_cannot_answer_now_is_unavailable(vault: Transit, status: int) -> None:
    """Too many requests, a fault of its own, a proxy before it, sealed: none of them is a wrong setting."""
    vault.answer = status, {"errors": ["not now"]}
    with pytest.raises(UnavailableError, match="Vault"):
        service_of("vault:transit/turngate").wrap(KEY)


def test_a_cut_connection_and_a_slow_vault_are_unavailable(vault: Transit, monkeypatch: pytest.MonkeyPatch) -> None:
    vault.cut = True
    with pytest.raises(UnavailableError, match="check VAULT_ADDR"):
        service_of("vault:transit/turngate").wrap(KEY)
    vault.cut = False
    release = threading.Event()
    monkeypatch.setattr(vault, "respond", lambda *_request: (release.wait(5), (200, {}))[1])
    monkeypatch.setattr(key_services, "VAULT_SECONDS", 0.2)
    with pytest.raises(UnavailableError, match="doesn't answer"):
        service_of("vault:transit/turngate").wrap(KEY)
    release.set()


@pytest.mark.parametrize(
    ("place", "token", "what"),
    [
        ("vault:transit/turngate", "s.other", "permission denied"),
        ("vault:transit/other", TOKEN, "that the key exists"),
        ("vault:nowhere/turngate", TOKEN, "that the key exists"),
    ],
)
def test_a_refusal_names_what_to_check(
    vault: Transit, monkeypatch: pytest.MonkeyPatch, place: str, token: str, what: str
) -> None:
    """A wrong token, key or mount is a wrong setting, and the token is in no message."""
    monkeypatch.setenv("VAULT_TOKEN", token)
    with pytest.raises(ConfigurationError, match=what) as refused:
        service_of(place).wrap(KEY)
    assert token not in str(refused.value)


def test_errors_that_are_no_texts_are_a_refusal(vault: Transit) -> None:
    vault.answer = 400, {"errors": [1, None]}
    with pytest.raises(ConfigurationError, match="refuses"):
        service_of("vault:transit/turngate").wrap(KEY)


def test_a_changed_key_is_refused(vault: Transit) -> None:
    service = service_of("vault:transit/turngate")
    wrapped = service.wrap(KEY)
    with pytest.raises(ConfigurationError, match="authentication failed"):
        service.unwrap(f"{wrapped[:-6]}AAAA{wrapped[-2:]}")


@pytest.mark.parametrize(
    "answer", [{}, {"data": None}, {"data": {"plaintext": 7}}, {"data": {"plaintext": "!"}}, ["data"], "text"]
)
def test_an_answer_that_is_not_vaults_is_refused(vault: Transit, answer: Any) -> None:
    vault.answer = 200, answer
    with pytest.raises(ConfigurationError, match="not Vault's transit engine"):
        service_of("vault:transit/turngate").unwrap("vault:v1:AAAA")
