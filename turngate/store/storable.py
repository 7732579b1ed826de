"""Column types for text from outside: whatever arrives can be stored, alike on both databases.

PostgreSQL refuses NUL, and neither driver encodes half a surrogate pair. Models and tools send both (file names that
are not UTF-8, escapes in JSON), and a run must not fail, or a finished tool's result be lost, for a character (I9). Each
becomes U+FFFD. Digests are made before, from the text as it came: a call whose arguments had to be changed here can
never match its digest, so what runs is still what was shown (I6).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from sqlalchemy import BigInteger, Dialect, String, Text
from sqlalchemy.types import TypeDecorator

from turngate.domain.digest import keyed_sha256
from turngate.domain.text.json_text import without_half_pairs

MARK: Final = "\x02"
"""How encrypted text begins (:mod:`turngate.store.encryption.sealed`), and no other text."""


class SealedText(str):
    """Encrypted text, on its way to the database."""

    __slots__ = ()


def storable(text: str) -> str:
    """Return the text with NUL, unpaired surrogates and a mark at its beginning replaced by U+FFFD; any other text as it is."""
    if text.startswith(MARK):
        text = "\ufffd" + text[1:]
    if text.isascii() and "\x00" not in text:
        return text
    return without_half_pairs(text).replace("\x00", "\ufffd")


def stored_digest(values: Mapping[str, object], nonce: str) -> str:
    """Return the digest of a row's columns, as the database returns them. ``values``: text, numbers, booleans and None.

    ``nonce``: of the run that the row belongs to (:func:`turngate.domain.digest.keyed_sha256`).
    """
    stored = {name: storable(value) if isinstance(value, str) else value for name, value in values.items()}
    return keyed_sha256(nonce, json.dumps(stored, sort_keys=True, separators=(",", ":")))


def _for_driver(value: str) -> str:
    return str(value) if type(value) is SealedText else storable(value)


class StorableText(TypeDecorator[str]):
    """``TEXT``. ``place``: ``table.column``, of a column that is encrypted (:mod:`turngate.store.encryption.places`)."""

    impl = Text
    cache_ok = True
    place: str | None = None

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Return what the driver gets."""
        del dialect
        return None if value is None else _for_driver(value)


class StorableString(TypeDecorator[str]):
    """``VARCHAR(length)``. ``keyed``: it holds a hash of content, which an encrypted store keeps under a key of its own."""

    impl = String
    cache_ok = True
    keyed: bool = False

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Return what the driver gets."""
        del dialect
        return None if value is None else _for_driver(value)


class HashNumber(TypeDecorator[int]):
    """``BIGINT``: a hash of content as a number. ``keyed``: as in :class:`StorableString`."""

    impl = BigInteger
    cache_ok = True
    keyed: bool = False


class StorableTexts(TypeDecorator[list[str | None]]):
    """A list of texts as one parameter, for PostgreSQL's ``unnest``. ``place``: as in :class:`StorableText`."""

    impl = Text
    cache_ok = True

    def __init__(self, place: str | None = None) -> None:
        super().__init__()
        self.place = place

    def process_bind_param(self, value: list[str | None] | None, dialect: Dialect) -> list[str | None] | None:
        """Return what the driver gets."""
        del dialect
        if value is None:
            return None
        return [None if each is None else _for_driver(each) for each in value]
