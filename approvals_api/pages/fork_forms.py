"""Reading the forms that start a run: a fork's, a dry run's, a new run's."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, Final

from turngate.approvals_api.runs.overrides import listed
from turngate.domain.errors import InvalidInputError, TurngateError
from turngate.wire.orders import DryRunOrder, ForkOrder

MAX_STEP: Final = 2**31 - 1


def fork_order(typed: Mapping[str, str]) -> ForkOrder:
    """Return the order of the fork's form; an empty control means: as in the run."""
    return ForkOrder(
        text=text_of(typed, "text"),
        workspace=word_of(typed, "workspace"),
        summarise=typed.get("summarise") == "yes",
        **_overrides(typed),
    )


def dry_run_order(typed: Mapping[str, str]) -> DryRunOrder:
    """Return the order of the dry run's form; an empty control means: as in the run."""
    return DryRunOrder(**_overrides(typed))


def _overrides(typed: Mapping[str, str]) -> dict[str, Any]:
    return {
        "step": step_of(typed),
        "agent": word_of(typed, "agent"),
        "model": word_of(typed, "model"),
        "instructions": text_of(typed, "instructions") or None,
        "tools": listed(word_of(typed, "tools")),
        "policy": text_of(typed, "policy") or None,
        "plain": typed.get("plain") == "yes",
    }


def text_of(typed: Mapping[str, str], name: str) -> str:
    """Return a text as it was typed, with line feeds as line ends."""
    return typed.get(name, "").replace("\r\n", "\n")


def word_of(typed: Mapping[str, str], name: str) -> str | None:
    """Return a control's one line, None when it is empty."""
    return typed.get(name, "").strip() or None


def step_of(typed: Mapping[str, str]) -> int | None:
    """Return the step that was chosen, None for none; raises InvalidInputError for anything but a step's number."""
    text = typed.get("step", "").strip()
    if not text:
        return None
    if text.isascii() and text.isdecimal() and len(text) <= len(str(MAX_STEP)) and 1 <= int(text) <= MAX_STEP:
        return int(text)
    message = "type the number of a closed step"
    raise InvalidInputError(message, errors=[{"pointer": "/step", "message": message}])


# Complaints by control, and the key that makes pressing twice start one run.


def by_control(error: TurngateError | None) -> dict[str, str]:
    """Return complaints by the control they are about: the pointers are the controls' names."""
    problems = error.details.get("errors", []) if isinstance(error, InvalidInputError) else []
    return {problem["pointer"].removeprefix("/"): problem["message"] for problem in problems}


def key_of(typed: Mapping[str, str], error: TurngateError | None) -> str:
    """Return the key that makes pressing a button twice start one run; a new key once it was used for something else."""
    used = error is not None and error.error_code == "idempotency_key_reused"
    return typed["key"] if typed.get("key") and not used else f"web_{secrets.token_hex(12)}"
