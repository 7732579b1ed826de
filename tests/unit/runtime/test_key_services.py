"""Vault's transit engine as a key service, against a real server: OpenBao, which speaks the same API.

What a real one can't be made to answer (a proxy's statuses, a cut or slow answer, one that isn't Vault's) comes from a server of
our own.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import ssl
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from support.servers.certificates import certificate_for
from support.servers.openbao import OpenBao, running_openbao
from typer.testing import CliRunner, Result

from turngate.cli.main import app
from turngate.domain.errors import ConfigurationError, UnavailableError
from turngate.runtime import key_services
from turngate.runtime.key_services import open_keys, service_of
from turngate.runtime.settings import load_settings
from turngate.store.database import Database

KEY = os.urandom(32)
PLACE = "vault:transit/turngate"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenBao]:
    with running_openbao(tmp_path_factory.mktemp("openbao")) as running:
        yield running


@pytest.fixture
def openbao(server: OpenBao, monkeypatch: pytest.MonkeyPatch) -> OpenBao:
    """The server, and a token that may do what the how-to documents and nothing else."""
    monkeypatch.setenv("VAULT_ADDR", server.address)
    monkeypatch.setenv("VAULT_TOKEN", server.token())
    return server


@pytest.mark.exhaustive
def test_vault_wraps_and_unwraps_also_after_its_key_was_rotated(openbao: OpenBao) -> None:
    service = service_of(PLACE)
    wrapped = service.wrap(KEY)
    openbao.call("transit/keys/turngate/rotate")
    assert service.unwrap(wrapped) == KEY
    again = service.wrap(KEY)
    assert service.unwrap(again) == KEY
    assert [each.split(":")[0] for each in (wrapped, again)] == ["vault", "vault"]
    assert int(again.split(":")[1][1:]) == int(wrapped.split(":")[1][1:]) + 1
    assert KEY not in wrapped.encode()


@pytest.mark.exhaustive
def test_a_refusal_names_what_to_check(openbao: OpenBao, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key, a mount or a token that the policy doesn't allow, a key that was changed, and a token that was revoked."""
    service, allowed = service_of(PLACE), os.environ["VAULT_TOKEN"]
    wrapped = service.wrap(KEY)
    with pytest.raises(ConfigurationError, match="that the key exists"):
        service_of("vault:transit/other").wrap(KEY)
    with pytest.raises(ConfigurationError, match=r"permission denied|that the key exists"):
        service_of("vault:nowhere/turngate").wrap(KEY)
    with pytest.raises(ConfigurationError, match="authentication failed"):
        service.unwrap(f"{wrapped[:-6]}AAAA{wrapped[-2:]}")
    monkeypatch.setenv("VAULT_TOKEN", openbao.root_token)
    with pytest.raises(ConfigurationError, match="that the key exists"):
        service_of("vault:nowhere/turngate").wrap(KEY)
    monkeypatch.setenv("VAULT_TOKEN", "s.other")
    with pytest.raises(ConfigurationError, match="permission denied") as refused:
        service_of(PLACE).wrap(KEY)
    assert "s.other" not in str(refused.value)
    monkeypatch.setenv("VAULT_TOKEN", allowed)
    openbao.call("auth/token/revoke", {"token": allowed})
    with pytest.raises(ConfigurationError, match="permission denied"):
        service.unwrap(wrapped)


def test_a_refusal_is_one_line(vault: Strange) -> None:
    """What Vault says when a policy doesn't allow a path has several."""
    vault.answer = 403, {"errors": ["1 error occurred:\n\t* permission denied\n\n"]}
    with pytest.raises(ConfigurationError, match=r"permission denied\): check .*that the key exists") as refused:
        service_of("vault:transit/other").wrap(KEY)
    assert "\n" not in str(refused.value)


@pytest.mark.exhaustive
def test_a_vault_that_is_sealed_or_gone_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running_openbao(tmp_path) as own:
        monkeypatch.setenv("VAULT_ADDR", own.address)
        monkeypatch.setenv("VAULT_TOKEN", own.token())
        service = service_of(PLACE)
        wrapped = service.wrap(KEY)
        own.call("sys/seal")
        with pytest.raises(UnavailableError, match="sealed"):
            service.unwrap(wrapped)
        own.stop()
        with pytest.raises(UnavailableError, match="check VAULT_ADDR"):
            service.unwrap(wrapped)


@pytest.mark.exhaustive
def test_vaults_certificate_is_checked_by_vault_cacert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the file, or with one that isn't there, nothing is sent."""
    with running_openbao(tmp_path, tls=True) as own:
        monkeypatch.setenv("VAULT_ADDR", own.address)
        monkeypatch.setenv("VAULT_TOKEN", own.token())
        service = service_of(PLACE)
        with pytest.raises(UnavailableError, match=f"certificate .*{own.address}.*VAULT_CACERT"):
            service.wrap(KEY)
        monkeypatch.setenv("VAULT_CACERT", str(tmp_path / "absent.pem"))
        with pytest.raises(ConfigurationError, match=r"absent\.pem.*VAULT_CACERT"):
            service.wrap(KEY)
        monkeypatch.setenv("VAULT_CACERT", str(own.authority))
        assert service.unwrap(service.wrap(KEY)) == KEY


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1:8200", "vault.internal", "http://", "", "https://h:port", "https://[::1", "https://a..b"),
        *("me:hunter2@vault.internal", "https://me:hun/ter2@vault:port"),
    ],
)
def test_an_address_that_is_no_url_is_refused(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("VAULT_ADDR", address)
    monkeypatch.setenv("VAULT_TOKEN", "s.token")
    with pytest.raises(ConfigurationError, match=r"VAULT_ADDR.* is no address") as refused:
        service_of(PLACE).wrap(KEY)
    assert "hun" not in str(refused.value)


@pytest.mark.parametrize("token", ["s.token\n", "s.tok\u20acn"])
def test_a_token_that_no_header_can_hold_is_refused_and_not_repeated(
    vault: Strange, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    """A line's end comes with a secret that `echo` made. Neither the error nor its traceback has the token."""
    monkeypatch.setenv("VAULT_TOKEN", token)
    with pytest.raises(ConfigurationError, match="VAULT_TOKEN") as refused:
        service_of(PLACE).wrap(KEY)
    assert "s.tok" not in "".join(traceback.format_exception(refused.value))


@pytest.mark.exhaustive
def test_a_store_is_encrypted_with_a_key_in_vault(
    openbao: OpenBao, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It opens before and after a rotation in Vault and here, and not without Vault."""
    monkeypatch.setenv("TURNGATE_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("TURNGATE_KEY_SERVICE", PLACE)

    def keys(*arguments: str) -> Result:
        return CliRunner().invoke(app, ["keys", *arguments])

    assert keys("init").exit_code == 0
    assert PLACE in keys("status").output
    openbao.call("transit/keys/turngate/rotate")
    assert keys("rotate").exit_code == 0
    assert PLACE in keys("status").output
    monkeypatch.delenv("TURNGATE_KEY_SERVICE")
    database = Database(load_settings().resolved_database_url)
    with pytest.raises(ConfigurationError, match=f"encrypted with {PLACE}"):
        asyncio.run(open_keys(load_settings(), database))
    asyncio.run(database.close())


class Strange:
    """A server with an answer to every request. ``cut``: the connection ends before it; ``release``: it waits for this.

    ``redirect``: where its answer leads. ``paths``: what was asked for. ``tokens``: by whom.
    """

    def __init__(self) -> None:
        self.answer: tuple[int, Any] = (200, {})
        self.cut = False
        self.redirect = ""
        self.paths: list[str] = []
        self.tokens: list[str] = []
        self.release = threading.Event()
        self.release.set()


@pytest.fixture
def vault(monkeypatch: pytest.MonkeyPatch) -> Iterator[Strange]:
    strange = Strange()
    with _served(strange) as address:
        monkeypatch.setenv("VAULT_ADDR", address)
        monkeypatch.setenv("VAULT_TOKEN", "s.token")
        yield strange


@contextmanager
def _served(strange: Strange, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            strange.paths.append(self.path)
            strange.tokens.append(self.headers["X-Vault-Token"])
            strange.release.wait(5)
            status, answer = strange.answer
            if strange.cut:
                self.connection.close()
                return
            content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            if strange.redirect:
                self.send_header("Location", strange.redirect)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_args: object) -> None: ...

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_args: object) -> None: ...  # of clients that hang up

    server = Server(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)  # how often it looks for its end
    thread.start()
    try:
        yield f"{'https' if tls else 'http'}://localhost:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


BOTH = {"data": {"ciphertext": "vault:v1:AAAA", "plaintext": base64.b64encode(KEY).decode()}}


@pytest.fixture
def certified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Path]]:
    """The certificate and key of a server with TLS that answers those who show the same certificate."""
    certificate, key = certificate_for("localhost", tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=certificate)
    tls.verify_mode = ssl.CERT_REQUIRED
    tls.load_cert_chain(certificate, key)
    strange = Strange()
    strange.answer = 200, BOTH
    for name in ("CACERT", "CAPATH", "CLIENT_CERT", "CLIENT_KEY"):
        monkeypatch.delenv(f"VAULT_{name}", raising=False)
    with _served(strange, tls) as address:
        monkeypatch.setenv("VAULT_ADDR", address)
        monkeypatch.setenv("VAULT_TOKEN", "s.token")
        yield certificate, key


def test_vault_is_shown_a_certificate_and_its_own_is_checked(
    certified: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By VAULT_CAPATH as by VAULT_CACERT, which counts more. What is missing is named."""
    certificate, key = certified
    subject = x509.load_pem_x509_certificate(certificate.read_bytes()).subject.public_bytes()
    number = int.from_bytes(hashlib.sha1(subject[2:], usedforsecurity=False).digest()[:4], "little")
    authorities = certificate.parent / "authorities"
    authorities.mkdir()
    service = service_of(PLACE)
    monkeypatch.setenv("VAULT_CAPATH", str(authorities))
    with pytest.raises(UnavailableError, match="VAULT_CAPATH"):
        service.wrap(KEY)
    (authorities / f"{number:08x}.0").symlink_to(certificate)  # as `openssl rehash` makes it
    with pytest.raises(UnavailableError, match="VAULT_CLIENT_CERT"):
        service.wrap(KEY)
    monkeypatch.setenv("VAULT_CLIENT_CERT", str(certificate))
    monkeypatch.setenv("VAULT_CLIENT_KEY", str(key))
    assert service.wrap(KEY) == "vault:v1:AAAA"
    monkeypatch.setenv("VAULT_CACERT", str(certificate))
    monkeypatch.setenv("VAULT_CAPATH", str(certificate.parent / "absent"))
    assert service.wrap(KEY) == "vault:v1:AAAA"
    monkeypatch.delenv("VAULT_CACERT")
    with pytest.raises(ConfigurationError, match=r"VAULT_CAPATH=.*absent"):
        service.wrap(KEY)


@pytest.mark.parametrize(
    ("certificate", "key"),
    [
        (None, "key.pem"),
        ("absent.pem", "key.pem"),
        ("certificate.pem", "absent.pem"),
        ("certificate.pem", "locked.pem"),
    ],
)
def test_a_certificate_that_cannot_be_shown_is_refused(
    certified: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, certificate: str | None, key: str
) -> None:
    """No terminal is asked for a key's passphrase."""
    folder = certified[0].parent
    private = serialization.load_pem_private_key(certified[1].read_bytes(), None)
    locked = serialization.BestAvailableEncryption(b"passphrase")
    pem = private.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked)
    (folder / "locked.pem").write_bytes(pem)
    if certificate is not None:
        monkeypatch.setenv("VAULT_CLIENT_CERT", str(folder / certificate))
    monkeypatch.setenv("VAULT_CLIENT_KEY", str(folder / key))
    with pytest.raises(ConfigurationError, match="VAULT_CLIENT_CERT"):
        service_of(PLACE).wrap(KEY)


def test_a_vault_on_this_machine_is_asked_through_no_proxy(vault: Strange, monkeypatch: pytest.MonkeyPatch) -> None:
    """To a proxy the token would go unencrypted."""
    vault.answer = 200, BOTH
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    service = service_of(PLACE)
    assert (service.wrap(KEY), service.unwrap("vault:v1:AAAA")) == ("vault:v1:AAAA", KEY)


def test_the_token_is_the_environments_or_the_one_of_vault_login(
    vault: Strange, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    vault.answer = 200, BOTH
    monkeypatch.setenv("HOME", str(tmp_path))
    service_of(PLACE).wrap(KEY)
    monkeypatch.setenv("VAULT_TOKEN", "")
    service_of(PLACE).wrap(KEY)
    (tmp_path / ".vault-token").write_text("s.file\n")
    service_of(PLACE).wrap(KEY)
    assert vault.tokens == ["s.token", "", "s.file"]


def test_a_vault_that_cannot_answer_now_is_unavailable(vault: Strange, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many requests, a fault of its own, a proxy before it, whose page is not repeated, no answer: no wrong setting."""
    service = service_of(PLACE)
    for status in (412, 429, 500, 501, 502, 503, 504):
        vault.answer = status, {"errors": ["not now"]}
        with pytest.raises(UnavailableError, match="Vault"):
            service.wrap(KEY)
    vault.answer = 502, b"bad gateway " * 10_000
    with pytest.raises(UnavailableError, match="bad gateway") as away:
        service.wrap(KEY)
    assert len(str(away.value)) < 500
    vault.cut = True
    with pytest.raises(UnavailableError, match="check VAULT_ADDR"):
        service.wrap(KEY)
    vault.cut = False
    vault.release.clear()
    monkeypatch.setattr(key_services, "VAULT_SECONDS", 0.2)
    with pytest.raises(UnavailableError, match="doesn't answer"):
        service.wrap(KEY)
    vault.release.set()


def test_what_an_answer_repeats_of_a_request_is_not_printed(vault: Strange) -> None:
    """A server that echoes token and key: neither the error nor its traceback has them."""
    key = base64.b64encode(KEY).decode()
    for status in (400, 403, 502):
        vault.answer = status, {"errors": [f"X-Vault-Token: s.token and {key}"]}
        with pytest.raises((ConfigurationError, UnavailableError), match="X-Vault-Token") as refused:
            service_of(PLACE).wrap(KEY)
        text = "".join(traceback.format_exception(refused.value))
        assert ("s.token" in text, key in text) == (False, False)


def test_vaults_token_follows_no_redirect(vault: Strange) -> None:
    """Not even to the same address: what answers so is not Vault's engine."""
    vault.redirect = "/elsewhere"
    vault.answer = 307, {}
    with pytest.raises(ConfigurationError, match="VAULT_ADDR"):
        service_of(PLACE).wrap(KEY)
    assert vault.paths == ["/v1/transit/encrypt/turngate"]


@pytest.mark.parametrize(
    "address", ["http://vault.internal:8200", "HTTP://me:pw@10.0.0.7:8200", "http://127.0.0.1.evil.example"]
)
def test_vault_is_asked_by_https_only(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """Except on this machine; and a password in the address is not repeated."""
    monkeypatch.setenv("VAULT_ADDR", address)
    monkeypatch.setenv("VAULT_TOKEN", "s.token")
    with pytest.raises(ConfigurationError, match=r"unencrypted.*https") as refused:
        service_of(PLACE).wrap(KEY)
    assert "me:pw" not in str(refused.value)


def test_an_answer_that_is_not_vaults_is_refused(vault: Strange) -> None:
    """Errors that are no texts, and a key that is none."""
    for answer in ({"errors": [1, None]}, ["errors"], "errors"):
        vault.answer = 400, answer
        with pytest.raises(ConfigurationError, match="refuses"):
            service_of(PLACE).wrap(KEY)
    for answer in ({}, {"data": None}, {"data": {"plaintext": 7}}, {"data": {"plaintext": "!"}}, ["data"], "text"):
        vault.answer = 200, answer
        with pytest.raises(ConfigurationError, match="not Vault's transit engine"):
            service_of(PLACE).unwrap("vault:v1:AAAA")
