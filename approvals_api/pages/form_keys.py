"""What every form that starts a run needs: its complaints by control, and the key that makes pressing twice start one."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from turngate.domain.errors import InvalidInputError, TurngateError


def by_control(error: TurngateError | None) -> dict[str, str]:
    """Return complaints by the control they are about: the pointers are the controls' names."""
    problems = error.details.get("errors", []) if isinstance(error, InvalidInputError) else []
    return {problem["pointer"].removeprefix("/"): problem["message"] for problem in problems}


def key_of(typed: Mapping[str, str], error: TurngateError | None) -> str:
    """Return the key that makes pressing a button twice start one run; a new one after it was used for something else."""
    used = error is not None and error.error_code == "idempotency_key_reused"
    return typed["key"] if typed.get("key") and not used else f"web_{secrets.token_hex(12)}"
