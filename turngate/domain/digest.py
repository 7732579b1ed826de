"""Digests: what was shown is what runs (I6).

Pure; the framing is ours: every field is preceded by its length, so no two different calls can share the bytes.
"""

from __future__ import annotations

import hashlib
import hmac
import json

from turngate.domain.text.json_text import MAX_ARGUMENT_CHARS


def framed_sha256(*fields: str) -> str:
    """Return the hex SHA-256 over length-prefixed UTF-8 fields (``("ab", "c")`` differs from ``("a", "bc")``)."""
    return hashlib.sha256(framed(*fields)).hexdigest()


def keyed_sha256(nonce: str, *fields: str) -> str:
    """Return the hex HMAC-SHA256 over the fields, framed as for :func:`framed_sha256`, with a run's nonce as its key.

    Content is often short, and who has a plain digest of it can try values until one fits. The nonce goes when the content
    goes, and then the digest says nothing. It is empty for rows that belong to no run, in a store that isn't encrypted.
    """
    return hmac.digest(nonce.encode(), framed(*fields), "sha256").hex()


def framed(*fields: str) -> bytes:
    """Return the fields in UTF-8, each after its length in eight bytes."""
    frames = bytearray()
    for field in fields:
        encoded = field.encode(
            errors="surrogatepass"
        )  # a model may send half a surrogate pair, and must not wedge this
        frames += len(encoded).to_bytes(8, "big") + encoded
    return bytes(frames)


def call_digest(
    *,
    tool_name: str,
    manifest_digest: str,
    raw_input: str,
    run_id: str,
    tool_call_id: str,
    policy_version: str,
    nonce: str,
    defaults: str | None,
) -> str:
    """Return the digest that request, decision and execution must agree on.

    ``raw_input``: the exact argument text, never re-serialised; ``manifest_digest``: of the tool's declaration, so a
    tool that changed after it was shown does not match. ``nonce``: the run's. ``defaults``: what the handler gets besides, as it
    is stored; None: nothing.
    """
    beside = () if defaults is None else (defaults,)
    return keyed_sha256(nonce, tool_name, manifest_digest, raw_input, run_id, tool_call_id, policy_version, *beside)


def repeat_key(tool_name: str, raw_input: str) -> str:
    """Return a key equal for calls that mean the same: same tool, same JSON value, whatever order or spacing.

    Text that is not JSON, or nests too deep to be read, keys as itself: this runs before a call is known to be valid,
    so the model's text must never make it raise (I9). Used to close a repeat of a refused call without asking again (I12).
    """
    if len(raw_input) > MAX_ARGUMENT_CHARS:
        return framed_sha256(tool_name, raw_input)
    try:
        # ASCII: half a surrogate pair is valid as a JSON escape, and cannot be encoded as a character.
        canonical = json.dumps(json.loads(raw_input), sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):
        canonical = raw_input
    return framed_sha256(tool_name, canonical)


def idempotency_key(run_id: str, tool_call_id: str) -> str:
    """Return the key a handler gets: the same for every attempt of a call."""
    return framed_sha256(run_id, tool_call_id)[:32]


def derived_id(prefix: str, *fields: str) -> str:
    """Return an id that a retry derives again (``rq_`` requests, ``msg_`` messages): 96 bits of the framed digest."""
    return f"{prefix}_{framed_sha256(*fields)[:24]}"
