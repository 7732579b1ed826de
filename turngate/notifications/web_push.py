"""A message to a browser: encrypted for it alone (RFC 8291) and signed with the server's key (VAPID, RFC 8292).

Slow to import (cryptography): only what sends or subscribes does that. Why it is written here: docs/adr/0042.
"""

from __future__ import annotations

import base64
import json
import os
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from urllib.parse import urlsplit

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from turngate.notifications import message_text
from turngate.notifications.http_post import Poster
from turngate.notifications.items import Payload
from turngate.notifications.message_text import Links
from turngate.notifications.send_results import SendResult

PLAIN_BYTES: Final = 3_072
"""Every message is padded to this size, so that the push service can't tell one from another by length."""
RECORD_BYTES: Final = 4_096
"""Of RFC 8188. A push service takes messages of at least that size (RFC 8030 §7.2)."""
MAX_TITLE_CHARS: Final = 120
MAX_BODY_CHARS: Final = 400
LINES: Final = 4
SIGNED_FOR: Final = timedelta(hours=12)
"""How long a push service may take a signature; at most 24 hours (RFC 8292 §2)."""
LONGEST_WAIT: Final = timedelta(hours=24)
"""How long a push service keeps a message for a device that is off."""
NEAR_HOME: Final = Links("")
"""Links without a host: the browser knows from where it has the page that shows them."""
POINT_BYTES: Final = 65
AUTH_BYTES: Final = 16


class PushKey:
    """The server's key pair on P-256, which every push service knows it by. Never in a ``repr``."""

    def __init__(self, key: ec.EllipticCurvePrivateKey) -> None:
        self._key = key
        self.public = encode(_point(key.public_key()))
        """The public half as browsers take it (``applicationServerKey``)."""

    @classmethod
    def generate(cls) -> PushKey:
        """Return a new key pair."""
        return cls(ec.generate_private_key(ec.SECP256R1()))

    @classmethod
    def from_pem(cls, text: str) -> PushKey:
        """Read a private key (PEM). Raises ValueError, without repeating it, unless it is one on the curve P-256."""
        try:
            key = load_pem_private_key(text.encode(), password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            key = None
        if isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP256R1):
            return cls(key)
        raise ValueError("must be a private key on the curve P-256, in PEM and without a password")

    def to_pem(self) -> str:
        """Return the private key as text."""
        return self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()

    def authorization(self, endpoint: str, *, contact: str | None, at: datetime) -> str:
        """Return the header that proves to this push service who sends. ``contact``: a URL to complain at."""
        where = urlsplit(endpoint)
        claims = {"aud": f"{where.scheme}://{where.netloc}", "exp": int((at + SIGNED_FOR).timestamp())}
        if contact is not None:
            claims["sub"] = contact
        signed = ".".join(encode(json.dumps(each).encode()) for each in ({"typ": "JWT", "alg": "ES256"}, claims))
        r, s = decode_dss_signature(self._key.sign(signed.encode(), ec.ECDSA(SHA256())))
        return f"vapid t={signed}.{encode(r.to_bytes(32) + s.to_bytes(32))}, k={self.public}"


@dataclass(frozen=True, kw_only=True, repr=False)
class BrowserKeys:
    """What a browser's messages are encrypted for. ``public``: its point. ``auth``: the secret that only we share with it."""

    public: ec.EllipticCurvePublicKey
    auth: bytes

    @classmethod
    def read(cls, p256dh: str, auth: str) -> BrowserKeys:
        """Read both as a browser gives them (base64url). Raises ValueError for what is no such key."""
        point, secret = decode(p256dh), decode(auth)
        if len(point) != POINT_BYTES or len(secret) != AUTH_BYTES:
            raise ValueError("p256dh has 65 bytes and auth 16, in base64url")
        return cls(public=ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), point), auth=secret)


def encrypt(
    message: bytes, to: BrowserKeys, *, own: ec.EllipticCurvePrivateKey, salt: bytes, padded_to: int = PLAIN_BYTES
) -> bytes:
    """Return a message that only this browser can read (RFC 8291 §4), as one record of ``aes128gcm`` (RFC 8188).

    ``own``, ``salt``: a new key pair and 16 new bytes for each message.
    """
    own_point = _point(own.public_key())
    secret = _derived(
        own.exchange(ec.ECDH(), to.public), to.auth, b"WebPush: info\0" + _point(to.public) + own_point, 32
    )
    key = _derived(secret, salt, b"Content-Encoding: aes128gcm\0", 16)
    nonce = _derived(secret, salt, b"Content-Encoding: nonce\0", 12)
    plain = message + b"\x02" + bytes(max(0, padded_to - len(message) - 1))
    header = salt + RECORD_BYTES.to_bytes(4) + bytes([len(own_point)]) + own_point
    return header + AESGCM(key).encrypt(nonce, plain, None)


@dataclass(frozen=True, kw_only=True)
class Push:
    """One message on its way. ``keep``: how long the push service keeps it for a device that is off."""

    body: bytes
    is_urgent: bool
    keep: timedelta


async def post(push: Push, to: BrowserKeys, poster: Poster, authorization: str) -> SendResult:
    """Send one message. Each attempt is encrypted again: a salt is used once."""
    own, salt = ec.generate_private_key(ec.SECP256R1()), os.urandom(16)
    headers = {
        "Content-Type": "application/octet-stream",
        "Content-Encoding": "aes128gcm",
        "TTL": str(int(push.keep.total_seconds())),
        "Urgency": "high" if push.is_urgent else "normal",
        "Authorization": authorization,
    }
    return await poster.post(encrypt(push.body, to, own=own, salt=salt), headers)


def message_of(payload: Payload, *, waiting: int) -> bytes:
    """Return what the service worker shows: titles and names, an address on this server, and how many requests wait.

    Of a request: tool, agent and risk, with hidden characters marked. Never an argument or an agent's words. Of proposed
    rules: by whom.
    """
    if payload.test:
        title, body = "Notifications are on", "This browser announces the requests that you may decide."
    elif payload.count == 1:
        item = payload.items[0]
        facts = dict(message_text.facts(item))
        title, body = message_text.item_title(item), facts.get("Agent") or facts.get("Proposed by", "")
    else:
        are_requests = all(item.request_id is not None for item in payload.items)
        title = f"{payload.count} {'requests' if are_requests else 'things'} wait for you"
        lines = [message_text.item_title(item) for item in payload.items[:LINES]]
        body = "\n".join([*lines, *(["…"] if payload.count > LINES else [])])
    message = {
        "title": title[:MAX_TITLE_CHARS],
        "body": body[:MAX_BODY_CHARS],
        "path": NEAR_HOME.of(payload),
        "tag": payload.items[0].request_id or payload.items[0].name if payload.count == 1 else "turngate",
        "waiting": waiting,
    }
    return json.dumps(message, ensure_ascii=False).encode()


def encode(raw: bytes) -> str:
    """Return base64url without padding."""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def decode(text: str) -> bytes:
    """Return the bytes of base64url, padded or not. Raises ValueError for anything else."""
    if not text.isascii():
        raise ValueError("this is no base64url")
    bare = text.rstrip("=")
    return base64.b64decode(bare + "=" * (-len(bare) % 4), altchars=b"-_", validate=True)


def _point(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)


def _derived(secret: bytes, salt: bytes, purpose: bytes, length: int) -> bytes:
    return HKDF(algorithm=SHA256(), length=length, salt=salt, info=purpose).derive(secret)
