"""Passwords: argon2id in a thread, with the same work for an unknown user.

Parameters: argon2-cffi's own default, the low-memory profile of RFC 9106 §4 (64 MiB, 3 passes, 4 lanes). A hash contains
its parameters, so a new release may change them: users get a new hash when they next log in.
"""

from __future__ import annotations

import asyncio
import secrets
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Final

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError, VerifyMismatchError

_HASHER: Final = PasswordHasher()
_AT_ONCE: Final = 2
"""How many hashes this process computes at the same time: each takes 64 MiB and a processor."""


@dataclass(frozen=True, kw_only=True)
class Verified:
    """Whether a password was right, and the hash to store in place of the old one; None when that one is up to date."""

    right: bool
    new_hash: str | None = None


async def hash_password(password: str) -> str:
    """Return the argon2id hash of a checked password. Takes some 50 ms of a thread."""
    return await asyncio.get_running_loop().run_in_executor(_threads(), _HASHER.hash, password)


async def verify_password(stored: str | None, password: str | None) -> Verified:
    """Check a password against a stored hash.

    Args:
        stored: None for an unknown user or one without a password. A dummy hash is checked then, so that the time of
            the response does not reveal who is a user.
        password: as ``turngate.domain.identity.normal_password`` returns it; None is always wrong.
    """
    return await asyncio.get_running_loop().run_in_executor(_threads(), _verify, stored, password)


def _verify(stored: str | None, password: str | None) -> Verified:
    dummy_hash = _dummy_hash()  # for a known user, too: else the first unknown one would take twice as long
    try:
        _HASHER.verify(stored or dummy_hash, password or "")
    except VerifyMismatchError:
        return Verified(right=False)
    except (VerificationError, InvalidHashError):
        return Verified(right=False)  # a damaged hash lets no one in
    if stored is None or password is None:
        return Verified(right=False)
    return Verified(right=True, new_hash=_HASHER.hash(password) if _HASHER.check_needs_rehash(stored) else None)


@cache
def _dummy_hash() -> str:
    return _HASHER.hash(secrets.token_urlsafe(32))


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=_AT_ONCE, thread_name_prefix="turngate-password")
