"""Clipping: a result too large for the model is shown head and tail; the whole is kept, with a way to read it."""

from __future__ import annotations

import json

from pydantic import JsonValue

from turngate.domain.digest import framed_sha256
from turngate.domain.tools.results import Failure, Ok

READ_RESULT = "read_result"
"""The engine's own tool that reads a stored whole; offered once a conversation holds a clipped result."""

MAX_WHOLE_CHARS = 10_000_000
"""Characters of JSON that are kept of one result. It is the most that ``Limits(result_chars=…)`` can show a model."""
PART_CHARS = 20_000
"""Characters that are kept of a result that is larger than may be kept, or nested deeper."""
HEAD_SHARE = 0.6
MAX_CLIPPED_REASON = 500


def whole_text(result: Ok | Failure) -> str:
    """Return the text that is clipped, stored and read on: the success value, or the failure's fields, as JSON.

    Half a surrogate pair (from a file name that is not UTF-8) becomes ``?``: it can be neither hashed nor stored.
    """
    body = result.value if isinstance(result, Ok) else result.fields
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode(errors="replace").decode()


def result_digest(text: str) -> str:
    """Return the id of a stored whole: hex SHA-256 over its text."""
    return framed_sha256(text)


def clipped(result: Ok | Failure, *, limit: int, reads_on: bool = True) -> tuple[Ok | Failure, str | None]:
    """Return what the model is shown, and the whole text to store; ``(result, None)`` when it fits.

    ``limit``: characters of the JSON text. ``reads_on``: the model has the engine's tool that reads the rest; an agent
    may have one of its own under that name, which must not be recommended for it. Deterministic, so a retry stores and
    shows the same.
    """
    text = whole_text(result)
    if len(text) <= limit:
        return result, None
    how_to_read = f"The whole result (JSON text of {len(text)} characters) is kept"
    if reads_on:
        how_to_read += f". Read it with {READ_RESULT}(result_id, offset={int(limit * HEAD_SHARE)})."
    else:
        how_to_read += " for the operators, and you have no tool to read it. Ask for less at a time."
    return in_part(result, _excerpt(text, limit=limit, how_to_read=how_to_read)), text


def _excerpt(text: str, *, limit: int, how_to_read: str) -> dict[str, JsonValue]:
    """Return head and tail of a result's whole text, with its digest. ``how_to_read``: about the rest."""
    head = text[: int(limit * HEAD_SHARE)]
    return {
        "truncated": True,
        "result_id": result_digest(text),
        "total_chars": len(text),
        "head": head,
        "tail": text[max(len(head), len(text) - (limit - len(head))) :],
        "how_to_read_the_rest": how_to_read,
    }


def in_part(result: Ok | Failure, excerpt: dict[str, JsonValue]) -> Ok | Failure:
    """Return a result that has an excerpt in place of its content."""
    if isinstance(result, Ok):
        return Ok(value=excerpt)
    # A failure has its long texts in its fields too, so a long reason must not get around the bound.
    reason = result.reason
    short = reason if len(reason) <= MAX_CLIPPED_REASON else f"{reason[:MAX_CLIPPED_REASON]}…"
    return Failure(kind=result.kind, reason=short, fields=excerpt)


def excerpt_of_unkeepable(text: str) -> dict[str, JsonValue]:
    """Return head and tail of a result that can't be kept whole, with the digest of ``text``, its JSON."""
    lost = f"Turngate keeps a part: the whole (JSON text of {len(text)} characters) is too large, or nested too deep."
    return _excerpt(text, limit=PART_CHARS, how_to_read=lost)


def shortened(text: str, *, limit: int) -> str:
    """Return the head and tail of a text that no one keeps whole, such as what an interrupted call had done so far."""
    if len(text) <= limit:
        return text
    head = int(limit * HEAD_SHARE)
    left_out = f"\n… {len(text) - limit} characters are left out here …\n"
    return f"{text[:head]}{left_out}{text[len(text) - (limit - head) :]}"
