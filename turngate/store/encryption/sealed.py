"""Sealed text: what the database holds in place of a text of content.

``MARK PLACE:OWNER:BODY``. The place is ``table.column``, the owner names the data key, and the body is base64 of a nonce and of
AES-256-GCM (NIST SP 800-38D) over the row's label and the text. Everything before the body is authenticated with it, so a
text of another column or conversation is none; the label is compared by who knows the row.

A hash of content is ``MARK#BODY``, by AES-SIV (RFC 5297) under a key of the deployment: equal for equal hashes, so that the
database finds rows by it, and no one without the key can tell which content it is of.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, AESSIV

from turngate.domain.errors import UnreadableContentError
from turngate.store.storable import MARK, SealedText, storable

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
LABEL_BYTES: Final = 8
MOST_HASHES: Final = 2_000
"""How many opened hashes a process keeps in memory."""
HASH_MARK: Final = f"{MARK}#"
"""How the hash of content begins that is sealed. No text of content does: what follows its mark is the name of a table."""
ANY_ROW: Final = bytes(LABEL_BYTES)
"""The label of a row whose key isn't known when it is written, because the database gives it."""


def label_of(keys: tuple[object, ...]) -> bytes:
    """Return the label of the row with this primary key."""
    return hashlib.sha256("\x00".join(map(str, keys)).encode(errors="replace")).digest()[:LABEL_BYTES]


@dataclass(frozen=True)
class DataKey:
    """A key that seals texts. ``owner``: its name in them, without a colon at its end."""

    owner: str
    secret: bytes = field(repr=False)
    cipher: AESGCM = field(repr=False, compare=False)

    @classmethod
    def of(cls, owner: str, secret: bytes) -> DataKey:
        """Return the key of these bytes."""
        return cls(owner, secret, AESGCM(secret))

    def seal(self, place: str, label: bytes, text: str) -> SealedText:
        """Return a text as the database holds it. ``text``: storable."""
        head = f"{MARK}{place}:{self.owner}:"
        nonce = os.urandom(NONCE_BYTES)
        body = nonce + self.cipher.encrypt(nonce, label + text.encode(), head.encode())
        return SealedText(head + base64.b64encode(body).decode("ascii"))

    def derived(self, owner: str, salt: bytes) -> DataKey:
        """Return another key, under another name, that follows from this one and the salt."""
        return DataKey.of(owner, hmac.digest(self.secret, salt, "sha256"))


class HashKey:
    """The key that hashes of content are kept under. ``secret``: of the deployment, for nothing else."""

    def __init__(self, secret: bytes) -> None:
        self._siv = AESSIV(b"".join(hmac.digest(secret, half, "sha256") for half in (b"mac", b"encryption")))
        self._numbers = hmac.digest(secret, b"numbers", "sha256")
        self._opened: OrderedDict[str, str] = OrderedDict()

    def seal(self, value: Any) -> Any:
        """Return what the database holds for a hash; of a list, both forms of each: some rows are older than the key.

        A text in hex and of 64 characters stays below 64. None, and no text, are what they are.
        """
        if isinstance(value, list | tuple | set | frozenset):
            return [form for each in value for form in (self.seal(each), each)]
        if isinstance(value, int):
            number = hmac.digest(self._numbers, value.to_bytes(8, "big", signed=True), "sha256")
            return int.from_bytes(number[:8], "big", signed=True)
        if not value:
            return value
        try:
            kind, raw = "h", bytes.fromhex(value)
        except ValueError:
            raw = b""
        if raw.hex() != value:
            value = storable(value)
            kind, raw = "t", value.encode()
        body = base64.b85encode(self._siv.encrypt(raw, [kind.encode()])).decode("ascii")
        sealed = HASH_MARK + kind + body
        self._remember(sealed, value)
        return SealedText(sealed)

    def opened(self, sealed: str) -> str:
        """Return the hash. Raises UnreadableContentError."""
        known = self._opened.get(sealed)  # most are read by the process that wrote them, a moment before
        if known is not None:
            return known
        kind, body = sealed[len(HASH_MARK) :][:1], sealed[len(HASH_MARK) + 1 :]
        try:
            raw = self._siv.decrypt(base64.b85decode(body), [kind.encode()])
        except (InvalidTag, ValueError):
            raise UnreadableContentError(
                "a hash in the database can't be decrypted: it was changed or cut there"
            ) from None
        value = raw.hex() if kind == "h" else raw.decode()
        self._remember(sealed, value)
        return value

    def _remember(self, sealed: str, value: str) -> None:
        self._opened[sealed] = value
        if len(self._opened) > MOST_HASHES:
            self._opened.popitem(last=False)


@dataclass(frozen=True, slots=True)
class Envelope:
    """A sealed text, taken apart but not opened."""

    place: str
    owner: str
    head: str
    body: str

    @classmethod
    def of(cls, sealed: str) -> Envelope:
        """Take a text apart that begins with the mark. Raises UnreadableContentError."""
        end = sealed.rfind(":")
        place, _, owner = sealed[1:end].partition(":")
        if end < 0 or not place or not owner:
            raise UnreadableContentError("a text in the database is marked as encrypted, but is damaged")
        return cls(place, owner, sealed[: end + 1], sealed[end + 1 :])

    def opened(self, key: DataKey, label: bytes | None = None) -> str:
        """Return the text. ``label``: of the row that it was read from; None: not known. Raises UnreadableContentError."""
        try:
            body = base64.b64decode(self.body, validate=True)
            plain = key.cipher.decrypt(body[:NONCE_BYTES], body[NONCE_BYTES:], self.head.encode())
        except (InvalidTag, ValueError, binascii.Error):
            raise UnreadableContentError(
                f"a text in {self.place} can't be decrypted: it was changed or cut in the database, or belongs elsewhere",
                place=self.place,
            ) from None
        own = plain[:LABEL_BYTES]
        if label is not None and own not in {label, ANY_ROW}:
            raise UnreadableContentError(
                f"a text in {self.place} is that of another row: someone moved it in the database", place=self.place
            )
        return plain[LABEL_BYTES:].decode()
