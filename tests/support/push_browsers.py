"""The other end of a push message: a browser that decrypts it (RFC 8291) and a push service that checks who sends (RFC 8292)."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from support.notification_receivers import Received, Receiver

from turngate.notifications.http_post import Poster


def raw(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def text_of(some: bytes) -> str:
    return base64.urlsafe_b64encode(some).decode().rstrip("=")


def _hkdf(secret: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    return HKDF(SHA256(), length, salt, info).derive(secret)


@dataclass
class FakeBrowser:
    """A browser with a subscription. ``path``: of its endpoint."""

    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))
    auth: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    path: str = field(default_factory=lambda: f"/push/{secrets.token_hex(8)}")

    @property
    def point(self) -> bytes:
        return self.key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)

    @property
    def endpoint(self) -> str:
        return f"https://push.example{self.path}"

    @property
    def subscription(self) -> dict[str, Any]:
        return {"endpoint": self.endpoint, "keys": {"p256dh": text_of(self.point), "auth": text_of(self.auth)}}

    def decrypt(self, body: bytes) -> bytes:
        """Read one record of aes128gcm, as the browser does; raises when it is not for this browser."""
        salt, size, length = body[:16], int.from_bytes(body[16:20]), body[20]
        sender = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), body[21 : 21 + length])
        record = body[21 + length :]
        assert len(record) <= size
        info = b"WebPush: info\0" + self.point + body[21 : 21 + length]
        secret = _hkdf(self.key.exchange(ec.ECDH(), sender), self.auth, info, 32)
        key = _hkdf(secret, salt, b"Content-Encoding: aes128gcm\0", 16)
        nonce = _hkdf(secret, salt, b"Content-Encoding: nonce\0", 12)
        plain, mark, rest = AESGCM(key).decrypt(nonce, record, None).rpartition(b"\x02")
        assert (mark, rest.strip(b"\0")) == (b"\x02", b"")
        return plain

    def read(self, got: Received) -> dict[str, Any]:
        """Return what the service worker would show."""
        assert got.headers["content-encoding"] == "aes128gcm"
        message: dict[str, Any] = json.loads(self.decrypt(got.body))
        return message


def verified_claims(authorization: str, server_key: str) -> dict[str, Any]:
    """Check a VAPID header as a push service does; returns what it claims."""
    token, key = (part.partition("=")[2] for part in authorization.removeprefix("vapid ").split(", "))
    assert key == server_key
    signed, _dot, signature = token.rpartition(".")
    header, claims = (json.loads(raw(part)) for part in signed.split("."))
    assert header == {"typ": "JWT", "alg": "ES256"}
    r, s = (int.from_bytes(half) for half in (raw(signature)[:32], raw(signature)[32:]))
    public = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), raw(key))
    public.verify(utils.encode_dss_signature(r, s), signed.encode(), ec.ECDSA(SHA256()))
    return claims  # type: ignore[no-any-return]


def poster_to(receiver: Receiver) -> Callable[[str], Poster]:
    """Return what sends everything to a receiver on loopback, whichever host an endpoint names."""

    def poster(endpoint: str) -> Poster:
        path = endpoint.removeprefix("https://push.example")
        return Poster(url=f"http://127.0.0.1:{receiver.port}{path}", allow_private=True, gone=frozenset({404, 410}))

    return poster
