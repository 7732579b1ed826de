"""A database with its content encrypted, by a key made for it."""

from __future__ import annotations

from turngate.runtime.key_services import SecretKey, new_key
from turngate.store.database import Database
from turngate.store.encryption.key_ring import KeyRing, KeyService


async def encrypted(database: Database, *services: KeyService) -> KeyRing:
    """Encrypt a database from now on, by the first of these services; without any, by a new key."""
    ring = KeyRing(services or [SecretKey.of(new_key(), "a test's key")])
    async with database.write() as conn:
        await ring.create(conn)
    database.encrypt_with(ring)
    return ring
