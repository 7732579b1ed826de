"""A database with its content encrypted, by a key made for it."""

from __future__ import annotations

import os

import pytest

from turngate.runtime.key_services import SecretKey, new_key
from turngate.store.database import Database
from turngate.store.encryption.key_ring import KeyRing, KeyService, ring_of

_KEY = "OWN_KEY_OF_TESTS"

ALSO_ENCRYPTED = pytest.mark.parametrize("database", ["sqlite", "postgresql", "encrypted"], indirect=True)
"""Of a test that stands for many: it runs on an encrypted database, too, wherever `make test` runs."""
BOTH_ENCRYPTED = pytest.mark.parametrize(
    "database",
    ["sqlite", "postgresql", "encrypted", pytest.param("postgresql, encrypted", marks=pytest.mark.exhaustive)],
    indirect=True,
)
"""Of a test that looks into the files of a database."""


def _test_key() -> str:
    """This test process's key, which the programs that it starts have, too."""
    return os.environ.setdefault(_KEY, new_key())


async def read_with_test_key(database: Database) -> None:
    """Let a program that a test started use the test's database, encrypted or not."""
    async with database.read() as conn:
        if not await ring_of(conn):
            return
        ring = KeyRing([SecretKey.of(_test_key(), "a test's key")])
        await ring.load(conn)
    database.encrypt_with(ring)


async def encrypted(database: Database, *services: KeyService) -> KeyRing:
    """Encrypt a database from now on, by the first of these services; without any, by a new key."""
    ring = KeyRing(services or [SecretKey.of(_test_key(), "a test's key")])
    async with database.write() as conn:
        await ring.create(conn)
    database.encrypt_with(ring)
    return ring
