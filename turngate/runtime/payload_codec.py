"""What Temporal gets of an encrypted store's runs: payloads that only processes with the store's keys can read.

The key follows from the deployment's data key (:mod:`turngate.store.encryption.key_ring`) and a salt of the process, because
random nonces allow one key only 2³² payloads. That data key outlives rotations, so a history of any age stays readable. A
payload from before encryption was on is read as it is: nothing is decided on what a payload says (ADR 0060).
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError
from temporalio.api.common.v1 import Payload
from temporalio.converter import PayloadCodec

from turngate.domain.errors import UnreadableContentError

if TYPE_CHECKING:  # cryptography is slow to import, and few encrypt
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    from turngate.store.encryption.key_ring import KeyRing

ENCODING: Final = "encoding"
ENCRYPTED: Final = b"binary/encrypted"
KEY_ID: Final = "encryption-key-id"
NONCE_BYTES: Final = 12
SALT_BYTES: Final = 12
MOST_CIPHERS: Final = 1_000
"""Keys of other processes, kept in memory: each restart of a process makes one."""
_PURPOSE: Final = b"turngate temporal payloads 1"
_CHANGED: Final = "a message from Temporal can't be decrypted: it was changed or cut there"


def missing_key(key_id: str, *, has: str | None) -> UnreadableContentError:
    """Return the error about a payload that another key encrypted. ``has``: this process's key; None: it has none."""
    here = "this process has no key" if has is None else f"this process has the key {has}, that of another database"
    return UnreadableContentError(
        f"a message from Temporal is encrypted with the key {key_id or '(none)'}, and {here}: start workers, APIs and "
        "commands of one task queue with the same TURNGATE_DATABASE_URL and TURNGATE_KEY_FILE (or TURNGATE_KEY_SERVICE)"
    )


class SealedPayloads(PayloadCodec):
    """Encrypts payloads with AES-256-GCM (NIST SP 800-38D), and decrypts those of every process of the same store.

    ``key_id``: which store's key it is; it is in each payload's metadata, and tells nothing of the key.
    """

    def __init__(self, ring: KeyRing) -> None:
        self._root = ring.secret_for(_PURPOSE)
        self.key_id = hashlib.sha256(_PURPOSE + self._root).hexdigest()[:16]
        self._ciphers: OrderedDict[str, AESGCM] = OrderedDict()
        salt = os.urandom(SALT_BYTES).hex()
        self._name = f"{self.key_id}.{salt}".encode("ascii")
        self._cipher = self._cipher_of(salt)

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Encrypt payloads, their metadata included."""
        return [self._seal(each) for each in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Decrypt payloads. Raises UnreadableContentError: one was changed, or another store's key encrypted it."""
        return [self._open(each) if each.metadata.get(ENCODING) == ENCRYPTED else each for each in payloads]

    def _seal(self, payload: Payload) -> Payload:
        nonce = os.urandom(NONCE_BYTES)
        body = self._cipher.encrypt(nonce, payload.SerializeToString(), self._name)
        return Payload(metadata={ENCODING: ENCRYPTED, KEY_ID: self._name}, data=nonce + body)

    def _open(self, payload: Payload) -> Payload:
        name = payload.metadata.get(KEY_ID, b"")
        key_id, _, salt = name.decode("ascii", errors="replace").partition(".")
        if key_id != self.key_id:
            raise missing_key(key_id, has=self.key_id)
        if len(salt) != 2 * SALT_BYTES:
            raise UnreadableContentError(_CHANGED)
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - as above

        try:
            cipher = self._cipher if name == self._name else self._cipher_of(salt)
            body = cipher.decrypt(payload.data[:NONCE_BYTES], payload.data[NONCE_BYTES:], name)
            return Payload.FromString(body)
        except (InvalidTag, ValueError, DecodeError):
            raise UnreadableContentError(_CHANGED) from None

    def _cipher_of(self, salt: str) -> AESGCM:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - as above

        cipher = self._ciphers.get(salt)
        if cipher is None:
            cipher = self._ciphers[salt] = AESGCM(hmac.digest(self._root, bytes.fromhex(salt), "sha256"))
            if len(self._ciphers) > MOST_CIPHERS:
                self._ciphers.popitem(last=False)
        return cipher
