"""The calls about what is kept and what was erased. They need a token with the scope ``admin``."""

from __future__ import annotations

from turngate.client.calls import Call, get, model, post, segment
from turngate.wire.retention import ErasureDone, ErasurePreview, HoldView, RetentionView


def get_retention() -> Call[RetentionView]:
    """Return the retention rules with what each would erase now, the last runs, the holds and what was erased."""
    return get("/retention", model(RetentionView))


def add_hold(target: str, *, reason: str) -> Call[HoldView]:
    """Put a legal hold on a conversation, a run's conversation, or everything of an agent. Raises NotFoundError."""
    return post("/retention/holds", model(HoldView), {"target": target, "reason": reason})


def release_hold(hold_id: str, *, reason: str) -> Call[HoldView]:
    """Remove a legal hold. Raises NotFoundError; ConflictError ``hold_ended``."""
    return post(f"/retention/holds/{segment(hold_id)}/release", model(HoldView), {"reason": reason})


def preview_erasure(target: str, *, with_forks: bool = False) -> Call[ErasurePreview]:
    """Return what erasing a conversation would empty, and what keeps it. Changes nothing. Raises NotFoundError."""
    body = {"target": target, "with_forks": with_forks}
    return post("/retention/erasures/preview", model(ErasurePreview), body)


def erase_content(
    target: str, *, reason: str, confirm: str, with_forks: bool = False, interrupt: bool = False
) -> Call[ErasureDone]:
    """Erase the content of a conversation, or what is stored of a person. It can't be undone.

    ``confirm``: the target again. Raises NotFoundError; ConflictError ``held``, ``run_live`` or ``forked``; InvalidInputError
    ``not_confirmed``.
    """
    body = {"target": target, "reason": reason, "confirm": confirm, "with_forks": with_forks, "interrupt": interrupt}
    return post("/retention/erasures", model(ErasureDone), body)
