"""What keeps the deployment's own key: the settings (a file or the environment), Vault, or a class of your own.

A service wraps and unwraps the keys of the ring (:mod:`turngate.store.encryption.key_ring`), when a process starts and when keys
rotate. One of your own is a function ``module:name`` without parameters that returns an object with ``name``, ``wrap`` and
``unwrap`` as :class:`~turngate.store.encryption.key_ring.KeyService` describes them.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
import ssl
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from http import HTTPStatus
from importlib import import_module
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import httpx
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from turngate.domain.errors import ConfigurationError, UnavailableError
from turngate.domain.tools.secrets import mask_text
from turngate.http_environment import is_local, require_certificates, sync_client_for
from turngate.runtime.settings import Settings
from turngate.store.database import Database
from turngate.store.encryption.key_ring import KeyRing, KeyService, ring_of
from turngate.store.encryption.sealed import KEY_BYTES, NONCE_BYTES

VAULT: Final = "vault:"
VAULT_SECONDS: Final = 10
"""How long Vault may take to answer: a process that starts waits for it."""
MOST_CHARS: Final = 300
"""Of what Vault, or a proxy before it, answers, in an error."""
_REFUSALS: Final = frozenset({400, 401, 403, 404, 405})
"""Statuses of a wrong setting. With every other error, Vault or a proxy before it may answer later."""
_PURPOSE: Final = b"turngate key ring 1"


def new_key() -> str:
    """Return a new key as a file or the environment holds it."""
    return base64.b64encode(os.urandom(KEY_BYTES)).decode("ascii")


@dataclass(frozen=True)
class SecretKey:
    """A key that this process holds itself."""

    secret: bytes = field(repr=False)

    @classmethod
    def of(cls, text: str, variable: str) -> SecretKey:
        """Return the key of its base64. Raises ConfigurationError, which never repeats it."""
        try:
            secret = base64.b64decode(text.strip(), validate=True)
        except (ValueError, binascii.Error):
            secret = b""
        if len(secret) != KEY_BYTES:
            raise ConfigurationError(
                f"{variable} must hold {KEY_BYTES} random bytes in base64: `turngate keys new FILE` makes such a file"
            )
        return cls(secret)

    @property
    def name(self) -> str:
        """Which key it is: a hash of it, from which no one gets it back."""
        return f"key:{hashlib.sha256(_PURPOSE + self.secret).hexdigest()[:16]}"

    def wrap(self, key: bytes) -> str:
        """Return a key, encrypted."""
        nonce = os.urandom(NONCE_BYTES)
        return base64.b64encode(nonce + AESGCM(self.secret).encrypt(nonce, key, _PURPOSE)).decode("ascii")

    def unwrap(self, wrapped: str) -> bytes:
        """Return a key that :meth:`wrap` encrypted. Raises ConfigurationError."""
        try:
            raw = base64.b64decode(wrapped, validate=True)
            return AESGCM(self.secret).decrypt(raw[:NONCE_BYTES], raw[NONCE_BYTES:], _PURPOSE)
        except (InvalidTag, ValueError):
            raise ConfigurationError("a row of the table key_ring was changed: restore it from a backup") from None


@dataclass(frozen=True)
class VaultTransit:
    """A key in Vault's transit engine. Its address, token and certificates come from the variables of Vault's own tools.

    https://developer.hashicorp.com/vault/api-docs/secret/transit
    """

    mount: str
    key: str

    @classmethod
    def of(cls, place: str) -> VaultTransit:
        """Return the service of ``MOUNT/KEY``. Raises ConfigurationError."""
        mount, separator, key = place.rpartition("/")
        if not separator or not mount or not key:
            raise ConfigurationError("TURNGATE_KEY_SERVICE must be vault:MOUNT/KEY, such as vault:transit/turngate")
        return cls(mount, key)

    @property
    def name(self) -> str:
        """Which key it is."""
        return f"{VAULT}{self.mount}/{self.key}"

    def wrap(self, key: bytes) -> str:
        """Return a key, encrypted by Vault with the newest version of its own. Raises ConfigurationError, UnavailableError."""
        return self._call("encrypt", "ciphertext", plaintext=base64.b64encode(key).decode("ascii"))

    def unwrap(self, wrapped: str) -> bytes:
        """Return a key that Vault encrypted. Raises ConfigurationError, UnavailableError."""
        try:
            return base64.b64decode(self._call("decrypt", "plaintext", ciphertext=wrapped), validate=True)
        except binascii.Error:
            raise self._strange() from None

    def _call(self, operation: str, member: str, **values: str) -> str:
        """Return one member of what Vault answers to an operation."""
        address, token = _vault_address(), _vault_token()
        at = _without_login(address)
        url = f"{address.rstrip('/')}/v1/{quote(self.mount)}/{operation}/{quote(self.key)}"
        # A proxy of Vault's may insist on X-Vault-Request, which no page in a browser can send.
        headers = {"X-Vault-Request": "true", "X-Vault-Token": token}
        try:
            with sync_client_for(address, tls=_vault_tls(), seconds=VAULT_SECONDS) as client:
                # A redirect would take the token, and the key that is to be wrapped, to another address.
                answer = client.post(url, json=values, headers=headers, follow_redirects=False)
        except httpx.HTTPError as error:
            raise self._away(str(error), at) from None
        except UnicodeError:  # of a name that DNS can't have
            raise _no_address(at) from None
        if answer.is_error:
            reason = _in_one_line(answer, (token, *values.values())) or f"status {answer.status_code}"
            raise self._refusal(answer.status_code, reason, at)
        return self._member(answer, member)

    def _away(self, error: str, at: str) -> UnavailableError:
        """Return what to check. OpenSSL's errors have names, which httpx passes on in its text."""
        if "CERTIFICATE_VERIFY_FAILED" in error:
            return UnavailableError(
                f"the certificate of Vault at {at} can't be checked: check VAULT_ADDR, and that VAULT_CACERT names the "
                "file of the authority that signed it, or VAULT_CAPATH the directory (see `openssl rehash`)"
            )
        if "_ALERT_" in error:
            return UnavailableError(
                f"Vault at {at} ended the TLS connection: check VAULT_ADDR, and VAULT_CLIENT_CERT and VAULT_CLIENT_KEY if it "
                "asks for a certificate"
            )
        return UnavailableError(f"Vault doesn't answer at {at}: check VAULT_ADDR")

    def _refusal(self, status: int, reason: str, at: str) -> ConfigurationError | UnavailableError:
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            return UnavailableError(f"Vault is sealed or starting ({at}): unseal it, then start again")
        if status not in _REFUSALS:
            return UnavailableError(f"Vault at {at} can't answer now ({reason}): start again later")
        return ConfigurationError(
            f"Vault at {at} refuses {self.name} ({reason}): check VAULT_TOKEN, that its policy allows "
            f"encrypt and decrypt of {self.mount}/{self.key}, and that the key exists"
        )

    def _member(self, answer: httpx.Response, member: str) -> str:
        content = _json_of(answer)
        data = content.get("data") if isinstance(content, dict) else None
        value = data.get(member) if isinstance(data, dict) else None
        if not isinstance(value, str):
            raise self._strange()
        return value

    def _strange(self) -> ConfigurationError:
        return ConfigurationError(f"what answers for {self.name} is not Vault's transit engine: check VAULT_ADDR")


def _vault_address() -> str:
    """Return Vault's address. Raises ConfigurationError for none, and for one to which anyone could read along."""
    address = os.environ.get("VAULT_ADDR", "http://localhost:8200")
    at = _without_login(address)
    try:
        url = httpx.URL(address)
    except (httpx.InvalidURL, ValueError):
        raise _no_address(at) from None
    if url.scheme not in ("http", "https") or not url.host:
        raise _no_address(at)
    if url.scheme == "http" and not is_local(str(url)):
        raise ConfigurationError(
            f"VAULT_ADDR={at} would send the token and the keys unencrypted: write https://HOST:8200"
        )
    return address


def _no_address(at: str) -> ConfigurationError:
    return ConfigurationError(f"VAULT_ADDR={at} is no address: write https://HOST:8200")


def _vault_token() -> str:
    """Return the token of the environment, or the one that ``vault login`` left. Empty: there is none."""
    token = os.environ.get("VAULT_TOKEN") or _token_of_login()
    if not (token.isascii() and token.isprintable()):
        raise ConfigurationError(
            "VAULT_TOKEN holds a line's end or another character that no token has: set it to the token alone"
        )
    return token


def _token_of_login() -> str:
    try:
        return Path("~/.vault-token").expanduser().read_text(errors="replace").strip()
    except (FileNotFoundError, NotADirectoryError, RuntimeError):  # RuntimeError: this user has no home
        return ""
    except OSError as error:
        raise ConfigurationError(
            f"~/.vault-token can't be read ({error.strerror}): set VAULT_TOKEN, or correct the file"
        ) from None


def _vault_tls() -> ssl.SSLContext:
    """Return what Vault's certificate is checked with, and the certificate that Vault is shown if it asks for one."""
    context = _vault_authorities()
    certificate, key = (os.environ.get(f"VAULT_CLIENT_{each}") or None for each in ("CERT", "KEY"))
    if certificate is not None:
        try:
            context.load_cert_chain(certificate, key, password="")  # without it, the terminal is asked
        except OSError as error:  # ssl.SSLError is one
            raise ConfigurationError(
                f"VAULT_CLIENT_CERT={certificate} can't be used with VAULT_CLIENT_KEY={key or ''} ({error}): name PEM files of a "
                "certificate and its key, without a passphrase"
            ) from None
    elif key is not None:
        raise ConfigurationError("VAULT_CLIENT_KEY is set without VAULT_CLIENT_CERT: set both, or unset it")
    return context


def _vault_authorities() -> ssl.SSLContext:
    """Return what the variables of Vault's own tools say, of which VAULT_CACERT counts more, or what our other clients use."""
    name = "VAULT_CACERT" if os.environ.get("VAULT_CACERT") else "VAULT_CAPATH"
    place = os.environ.get(name)
    if not place:
        require_certificates()
        return httpx.create_ssl_context()
    try:
        if Path(place).is_dir():
            return ssl.create_default_context(capath=place)
        return ssl.create_default_context(cafile=place)
    except OSError as error:  # ssl.SSLError is one
        raise ConfigurationError(f"{name}={place} can't be used ({error}): check {name}") from None


def _json_of(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except (ValueError, RecursionError):
        return None


def _in_one_line(answer: httpx.Response, sent: Iterable[str]) -> str:
    """Return the errors that Vault lists, or the beginning of another answer.

    ``sent``: the token and the values, which an answer may repeat.
    """
    content = _json_of(answer)
    errors = content.get("errors") if isinstance(content, dict) else None
    text = ", ".join(map(str, errors)) if isinstance(errors, list) else answer.text
    return " ".join(mask_text(text, [each for each in sent if each]).split())[:MOST_CHARS]


def _without_login(url: str) -> str:
    """Return an address, or what should be one, without the name and password that it may have."""
    return re.sub(r"\A([a-z]+://)?.*@", r"\1", url, flags=re.DOTALL | re.IGNORECASE)


def service_of(place: str) -> KeyService:
    """Return the service that a setting names: ``vault:MOUNT/KEY`` or ``module:function``. Raises ConfigurationError."""
    if place.startswith(VAULT):
        return VaultTransit.of(place.removeprefix(VAULT))
    module, _, name = place.partition(":")
    try:
        if "" not in sys.path:
            sys.path.insert(0, "")
        service: KeyService = getattr(import_module(module), name)()
    except Exception as error:
        raise ConfigurationError(
            f"TURNGATE_KEY_SERVICE={place} can't be used ({error}): give vault:MOUNT/KEY, or module:function of your own"
        ) from error
    missing = [each for each in ("name", "wrap", "unwrap") if not hasattr(service, each)]
    if missing:
        raise ConfigurationError(f"TURNGATE_KEY_SERVICE={place} returned an object without {' and '.join(missing)}")
    return service


def services_of(settings: Settings) -> list[KeyService]:
    """Return what the settings name, the current key first; empty: content isn't encrypted. Raises ConfigurationError."""
    if settings.key is not None and settings.key_service is not None:
        raise ConfigurationError("TURNGATE_KEY and TURNGATE_KEY_SERVICE both name a key: set one of them")
    services: list[KeyService] = []
    if settings.key is not None:
        services.append(SecretKey.of(settings.key.get_secret_value(), "TURNGATE_KEY"))
    if settings.key_service is not None:
        services.append(service_of(settings.key_service))
    former: list[KeyService] = []
    if settings.former_key is not None:
        former.append(SecretKey.of(settings.former_key.get_secret_value(), "TURNGATE_FORMER_KEY"))
    if settings.former_key_service is not None:
        former.append(service_of(settings.former_key_service))
    if former and not services:
        raise ConfigurationError("TURNGATE_FORMER_KEY is set without TURNGATE_KEY: content needs a current key, too")
    return [*services, *former]


async def open_keys(settings: Settings, database: Database) -> None:
    """Let the database be read and written with the settings' keys, if it is encrypted.

    Raises:
        ConfigurationError: it is encrypted and no key is configured, or another one; or the other way round.
        UnavailableError: the service that keeps the key is away.
    """
    services = services_of(settings)
    async with database.read() as conn:
        ring = await ring_of(conn)
        if not services:
            if ring:
                raise ConfigurationError(
                    f"the content of this database is encrypted with {ring[-1]}, and no key is configured: set "
                    "TURNGATE_KEY_FILE or TURNGATE_KEY_SERVICE"
                )
            return
        keys = KeyRing(services)
        await keys.load(conn)
    database.encrypt_with(keys)
