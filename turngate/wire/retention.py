"""What is kept, what was erased, and what may not be."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from turngate.domain.requests import RunStatus
from turngate.domain.text.instants import in_utc
from turngate.wire.people import Person, display_name
from turngate.wire.view import View

HoldKind = Literal["conversation", "agent"]
ErasedWhat = Literal["all", "results", "previews"]
_CONTENT: Final[dict[ErasedWhat, str]] = {
    "all": "The content of this conversation was",
    "results": "What tools returned in this conversation was",
    "previews": "The previews of this conversation's calls were",
}


class ErasureView(View):
    """An erasure of a conversation's content. ``what``: all of it, only the results of tools, or only previews.

    ``rule``: the retention rule by which it went; empty: a person erased it. ``counts``: how many rows were emptied, by kind.
    """

    id: str
    conversation_id: str
    what: ErasedWhat
    erased_by: Person
    reason: str
    rule: str
    counts: dict[str, int]
    created_at: str

    @property
    def says(self) -> str:
        """What was erased, when, by whom and why, in a sentence. It contains a person's words: escape it."""
        why = f"by the retention rule {self.rule}" if self.rule else f"by {display_name(self.erased_by)}: {self.reason}"
        return f"{_CONTENT[self.what]} erased at {in_utc(self.created_at)} {why.rstrip('.')}."


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
    created_by: Person
    created_at: str
    removed_by: Person | None = None
    removed_at: str | None = None


class RetentionRunView(View):
    """One time that the retention rules were applied. ``ended_at`` None: it has not ended yet.

    ``counts``: rule → how much went: conversations, or rows. ``problem``: what could not be erased; empty: nothing.
    """

    id: str
    state: Literal["running", "broken off", "ended"]
    started_at: str
    started_by: Person
    ended_at: str | None
    counts: dict[str, int]
    problem: str


class RetentionStatus(View):
    """When retention ran and runs. ``file``: the retention file; None: there is none, so everything is kept.

    ``every_seconds``: how often an API applies it; None: only a command does. ``next_at``: when it does so next. ``problem``:
    what is wrong with the file; empty: nothing. ``runs``: the newest first.
    """

    file: str | None
    every_seconds: int | None
    next_at: str | None
    problem: str
    runs: list[RetentionRunView]

    @property
    def says(self) -> str:
        """When it runs next, in a sentence."""
        if self.file is None:
            return "Everything is kept: TURNGATE_RETENTION names no file."
        if self.problem:
            return f"Nothing is erased: {self.problem}"
        if self.next_at is None:
            return "An API doesn't apply the rules by itself: `turngate retention run` does."
        return f"An API applies the rules next at {in_utc(self.next_at)}, or as soon as one runs after that."


class RuleView(View):
    """A retention rule, and how much it would erase now. ``agent`` None: of every agent; ``tools`` None: of all.

    ``would_go``: conversations, or rows. ``is_more``: counting ended before everything was looked at.
    """

    name: str
    kind: str
    keep_seconds: int
    agent: str | None
    tools: list[str] | None
    would_go: int
    is_more: bool


class RetentionView(View):
    """What is kept and what was erased. ``rules``: empty where there is no file, or where it has a mistake.

    ``erasures``: the newest 50, by people and by rules.
    """

    status: RetentionStatus
    rules: list[RuleView]
    holds: list[HoldView]
    erasures: list[ErasureView]


class ErasureDone(View):
    """What was erased. ``person``: of a person, how much by kind. ``remains``: where copies may still be, in sentences."""

    target: str
    erasures: list[ErasureView] = Field(default_factory=list)
    person: dict[str, int] = Field(default_factory=dict)
    remains: list[str] = Field(default_factory=list)


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
