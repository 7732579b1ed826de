"""What somebody asks for when they start a run, checked as far as it can be without the store."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from approvals_api.requests.answer_check import require_storable
from turngate.domain.agents.model_profiles import PROFILE_NAME
from turngate.domain.agents.overrides import World
from turngate.domain.digest import framed_sha256
from turngate.domain.errors import InvalidInputError
from turngate.domain.runs.requests import UnattendedAsks
from turngate.store.runs.external_calls import ExternalCall

MAX_TEXT_CHARS = 100_000
MAX_MODEL_CHARS = 200
MAX_KEY_CHARS = 255


@dataclass(frozen=True, kw_only=True)
class ForkPoint:
    """Where a fork leaves another run: after its closed step ``step``, whose last message is ``message_id``."""

    run_id: str
    step: int
    message_id: str


@dataclass(frozen=True, kw_only=True)
class Order:
    """A checked order. ``fingerprint``: equal for the same content from the same person; ``key``: Idempotency-Key.

    ``forked_from``: the past that a new conversation begins with; None: it begins empty. ``continues``: it goes on in the same
    conversation where that run ended, and nothing new is said. ``unattended``: what becomes of its
    questions, because nobody attends the run; None: somebody does. ``world``: what it has of its own.
    ``begins_at``: the message that a new conversation begins with, and nothing new is said. ``replay_of``: the run of which it
    is a dry replay. ``model_is_fixed``: somebody chose ``model`` for every step.
    """

    text: str
    conversation_id: str | None
    workspace: str | None
    model: str | None
    key: str | None
    fingerprint: str
    forked_from: ForkPoint | None = None
    continues: bool = False
    unattended: UnattendedAsks | None = None
    world: World | None = None
    begins_at: str | None = None
    replay_of: str | None = None
    summarise: bool = False
    model_is_fixed: bool = False
    external: ExternalCall | None = None
    """The call from outside that the run stands for, without the run's id."""


async def checked_order(
    *,
    by: str,
    agent: str,
    text: str,
    conversation_id: str | None,
    workspace: str | None,
    model: str | None,
    idempotency_key: str | None,
    text_at: str = "/input",
    unattended: UnattendedAsks | None = None,
) -> Order:
    """Return the order, or raise InvalidInputError saying what does not fit. ``text_at``: where the text was sent."""
    return Order(
        text=_checked_text(text, text_at),
        conversation_id=conversation_id,
        workspace=await _checked_workspace(workspace),
        model=None if model is None else checked_model(model),
        key=_checked_key(idempotency_key),
        fingerprint=framed_sha256(
            by, agent, text, conversation_id or "", workspace or "", model or "", *([unattended] if unattended else [])
        ),
        unattended=unattended,
    )


def _checked_text(text: str, pointer: str) -> str:
    if not text.strip():
        raise _invalid(pointer, "say what the agent should do: the text is empty")
    if len(text) > MAX_TEXT_CHARS:
        raise _invalid(pointer, f"at most {MAX_TEXT_CHARS:,} characters, not {len(text):,}")
    require_storable(text, pointer)
    return text


async def _checked_workspace(workspace: str | None) -> str | None:
    if workspace is None:
        return None
    require_storable(workspace, "/workspace")
    path = Path(workspace)
    if not path.is_absolute() or not await asyncio.to_thread(path.is_dir):
        raise _invalid("/workspace", f"{workspace!r} is not the absolute path of a directory that exists here")
    return workspace


def checked_model(model: str) -> str:
    """Return the spec; raises InvalidInputError for what is neither ``provider:name`` nor could be a profile's name."""
    provider, _colon, name = model.partition(":")
    formed = bool(PROFILE_NAME.fullmatch(model)) or bool(provider and name)
    if not formed or len(model) > MAX_MODEL_CHARS or not model.isprintable():
        raise _invalid(
            "/model",
            "a model is written provider:name, such as openai:gpt-5, or a profile's name; at most 200 characters",
        )
    return model


def _checked_key(key: str | None) -> str | None:
    if key is None or (0 < len(key) <= MAX_KEY_CHARS and key.isprintable()):
        return key
    raise _invalid("", f"Idempotency-Key: 1 to {MAX_KEY_CHARS} printable characters")


def _invalid(pointer: str, message: str) -> InvalidInputError:
    return InvalidInputError(message, errors=[{"pointer": pointer, "message": message}])
