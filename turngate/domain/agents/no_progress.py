"""Noticing a run that goes round in circles: the same calls with the same results, step after step. Pure.

A step *repeats* when its calls and their results are those of the step before it, or of the one two or three before it
(a model that goes back and forth). Each closed step keeps a :class:`Trail`, made from that of the step before it, so the
look costs the same at step 10,000. A poll whose result changes is progress; so is a step that waited on purpose, or that
called a tool which :class:`NoProgress` lets be repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from turngate.domain.conversation.messages import Message
from turngate.domain.digest import framed_sha256

PERIODS: Final = 3
"""The longest round that is noticed, in steps: A, AB and ABC again and again."""
DIGEST_CHARS: Final = 32
MAX_NAMES: Final = 20
MAX_NAME_CHARS: Final = 64
"""Of a tool that no one declared, whose name the model made up."""

NUDGE: Final = "You are repeating yourself: "
ADVICE: Final = (
    " The results will not change by themselves. Do something else: use other arguments or another tool, or give your final "
    "answer and say in it what you could not find out or do."
)


class NoProgress(BaseModel):
    """When a run counts as going round in circles, and what happens to it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: int = Field(default=3, ge=1, le=1_000)
    """Steps in a row that repeat earlier ones before the model gets the nudge."""
    after_nudge: int = Field(default=2, ge=1, le=1_000)
    """Further ones, before the run ends."""
    may_repeat: tuple[str, ...] = ()
    """Tools (shell-style patterns) that are there to be called again and again, such as one that polls or scrolls."""

    @property
    def end(self) -> int:
        """Steps in a row that end the run."""
        return self.steps + self.after_nudge

    def lets_repeat(self, tool_name: str) -> bool:
        """Tell whether a step that calls this tool never counts."""
        return any(fnmatchcase(tool_name, pattern) for pattern in self.may_repeat)


class Trail(BaseModel):
    """What one closed step keeps of those before it.

    ``recent``: digests of the newest steps, itself last, at most :data:`PERIODS`. ``repeats``: for each length of a round,
    from 1, how many steps in a row up to this one were those of so many steps before.
    """

    model_config = ConfigDict(frozen=True)

    recent: tuple[str, ...] = ()
    repeats: tuple[int, ...] = (0,) * PERIODS

    @property
    def in_a_row(self) -> int:
        """Steps in a row, up to this one, that repeat earlier ones."""
        return max(self.repeats)

    def then(self, digest: str | None) -> Trail:
        """Return the trail of the next step. ``digest``: None: it made no calls, or it never counts."""
        if digest is None:
            return Trail()
        repeats = [
            count + 1 if len(self.recent) > place and self.recent[-1 - place] == digest else 0
            for place, count in enumerate(self.repeats)
        ]
        return Trail(recent=(*self.recent, digest)[-PERIODS:], repeats=tuple(repeats))


@dataclass(frozen=True, kw_only=True)
class SettledCall:
    """A call with its result, as texts. ``ran_with``: what ran in place of ``raw_input``, when a person edited it."""

    tool_name: str
    raw_input: str
    result: str
    ran_with: str = ""


def step_digest(calls: Sequence[SettledCall]) -> str | None:
    """Return what makes two steps the same: their calls and results, in whatever order; None when there are no calls."""
    each = sorted(framed_sha256(call.tool_name, call.raw_input, call.ran_with, call.result) for call in calls)
    return framed_sha256(*each)[:DIGEST_CHARS] if each else None


def nudge(in_a_row: int, tool_names: Iterable[str]) -> str:
    """Return the nudge, which the model gets once, as a user message after the results."""
    names = ", ".join(name[:MAX_NAME_CHARS] for name in list(dict.fromkeys(tool_names))[:MAX_NAMES])
    steps = "step" if in_a_row == 1 else f"{in_a_row} steps"
    return f"{NUDGE}your last {steps} made the same calls ({names}) as before, and got the same results.{ADVICE}"


def is_nudge(message: Message) -> bool:
    """Tell whether a user message is one that :func:`nudge` wrote, and no person."""
    return message.role == "user" and message.text.startswith(NUDGE) and message.text.endswith(ADVICE)


def ended_reason(in_a_row: int) -> str:
    """Return why a run ended, without a word of what the model or a tool said."""
    return (
        f"The last {in_a_row} steps made the same calls as before and got the same results, even after a message told the "
        "model so; that is the agent's limit (no_progress)."
    )
