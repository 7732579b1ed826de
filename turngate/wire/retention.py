"""What is kept, what was erased, and what may not be."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from turngate.domain.requests import RunStatus
from turngate.wire.view import View

HoldKind = Literal["conversation", "agent"]
ErasedWhat = Literal["all", "results"]


class ErasureView(View):
    """An erasure of a conversation's content. ``what``: all of it, or only the results of tools.

    ``rule``: the retention rule by which it went; empty: a person erased it. ``counts``: how many rows were emptied, by kind.
    """

    id: str
    conversation_id: str
    what: ErasedWhat
    erased_by: str
    reason: str
    rule: str
    counts: dict[str, int]
    created_at: str

    @property
    def says(self) -> str:
        """What was erased, when, by whom and why, in a sentence. It contains a person's words: escape it."""
        content = (
            "The content of this conversation" if self.what == "all" else "What tools returned in this conversation"
        )
        why = f"by the retention rule {self.rule}" if self.rule else f"by {self.erased_by}: {self.reason}"
        return f"{content} was erased on {self.created_at[:10]} {why.rstrip('.')}."


class RunToErase(View):
    """A run that an erasure reaches, or one that shares its messages or results."""

    id: str
    conversation_id: str
    agent: str
    status: RunStatus
    created_at: str


class HoldView(View):
    """A legal hold. ``target``: a conversation's id, or an agent's name. ``removed_at``: None while it applies."""

    id: str
    kind: HoldKind
    target: str
    reason: str
    created_by: str
    created_at: str
    removed_by: str | None = None
    removed_at: str | None = None


class ErasurePreview(View):
    """What erasing a conversation would empty, by kind. Nothing has changed.

    ``conversation_ids``: whose content would go: it, those of its sub-agents, and its forks' where they are included.
    ``forks``: runs of other conversations that share its messages or results. ``shared_with``: conversations whose past it
    shares, which stay. ``pending_requests``: what still waits for a person. ``schedules``: schedules that continue it.
    ``holds``: why nothing may go. ``erased``: its earlier erasure.
    """

    conversation_id: str
    conversation_ids: list[str]
    runs: list[RunToErase]
    live_run_ids: list[str]
    pending_requests: int
    forks: list[RunToErase]
    shared_with: list[str]
    schedules: list[str]
    holds: list[HoldView]
    counts: dict[str, int]
    erased: ErasureView | None = None


class ErasureResult(View):
    """What was erased. ``remains``: in sentences, where copies of it may still be."""

    erasures: list[ErasureView]
    remains: list[str] = Field(default_factory=list)
