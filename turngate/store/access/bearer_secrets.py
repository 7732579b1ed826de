"""The secrets of login links, sessions and tokens. They are stored only as SHA-256 hashes.

A plain hash is right here: each secret is 256 random bits, so there is nothing to guess (argon2 is for passwords).
"""

from __future__ import annotations

import hashlib
import secrets


def new_secret(prefix: str = "") -> str:
    """Return a new secret of 256 random bits."""
    return f"{prefix}{secrets.token_urlsafe(32)}"


def hashed(secret: str) -> str:
    """Return what is stored of a secret."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
