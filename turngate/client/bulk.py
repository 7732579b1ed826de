"""Many decisions at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from turngate.client.calls import Call, key_or_new, model, post
from turngate.wire.bulk import DecidedItems


def decide_requests(
    digests: Mapping[str, str],
    *,
    verb: Literal["approve", "reject"],
    message: str = "",
    idempotency_key: str | None = None,
) -> Call[DecidedItems]:
    """Decide requests of one tool and one rule alike, and return what became of each.

    Args:
        digests: request id → the digest of the call as it was shown; 1 to 100.
        verb: what is decided of each.
        message: what the agents read.
        idempotency_key: the same again gets the first answers; None makes one.

    Raises:
        InvalidInputError: ``invalid_bulk``: more than one tool or rule, or high risk; nothing was sent.
        ForbiddenError: the credential may not decide.
    """
    items = [{"request_id": request_id, "digest": digest} for request_id, digest in digests.items()]
    body = {"decision": verb, "items": items, "message": message}
    return post("/requests/decisions", model(DecidedItems), body, key=key_or_new(idempotency_key))
