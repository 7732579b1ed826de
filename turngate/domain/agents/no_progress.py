"""Noticing a run that goes round in circles: the same calls with the same results, step after step. Pure.

A step *repeats* when its calls and their results are those of the step before it, or of the one two or three before it
(a model that goes back and forth). A *call* repeats when one of the last three steps made it with the same arguments and
got the same result, whatever else those steps did: that takes more repeats before it counts, because the rest may be work.
Each closed step keeps a :class:`Trail`, made from that of the step before it, so the look costs the same at step 10,000.
A poll whose result changes is progress, and so is a tool whose arguments change; so is a step that waited on purpose, or
that called a tool which :class:`NoProgress` lets be repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from turngate.domain.conversation.messages import Message
from turngate.domain.digest import framed_sha256
from turngate.domain.tools.tool import NAME_PATTERN

PERIODS: Final = 3
"""The longest round that is noticed, in steps: A, AB and ABC again and again."""
DIGEST_CHARS: Final = 32
MAX_NAMES: Final = 20
MAX_NAME_CHARS: Final = 64
"""Of a tool that no one declared, whose name the model made up."""
MAX_CALLS: Final = 32
"""Calls that a trail remembers. Those that repeat most stay."""

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
    calls: int = Field(default=6, ge=1, le=1_000)
    """Repeats of one call, in steps that do something else too, before the model gets the nudge; never fewer than ``steps``."""
    after_nudge: int = Field(default=2, ge=1, le=1_000)
    """Further ones of either, before the run ends."""
    may_repeat: tuple[str, ...] = ()
    """Tools (shell-style patterns) that are there to be called again and again, such as one that polls or scrolls."""

    @property
    def end(self) -> int:
        """Steps in a row that end the run."""
        return self.steps + self.after_nudge

    @property
    def repeats_of_a_call(self) -> int:
        """Repeats of one call before the nudge."""
        return max(self.calls, self.steps)

    def lets_repeat(self, tool_name: str) -> bool:
        """Tell whether calls of this tool never count, nor a step that makes one as a whole."""
        return any(fnmatchcase(tool_name, pattern) for pattern in self.may_repeat)

    def trail_after(self, before: Trail, calls: Sequence[SettledCall]) -> Trail:
        """Return the trail with a step that made these calls. ``before``: the trail up to it."""
        counted = [call for call in calls if not self.lets_repeat(call.tool_name)]
        trail = before.then(step_digest(counted) if len(counted) == len(calls) else None, counted)
        if (
            trail.in_a_row == self.steps
        ):  # the model is nudged for the steps as a whole, so its calls are counted from here
            return trail.model_copy(update={"calls": {}})
        return trail


@dataclass(frozen=True, kw_only=True)
class SettledCall:
    """A call with its result, as texts. ``ran_with``: what ran in place of ``raw_input``, when a person edited it."""

    tool_name: str
    raw_input: str
    result: str
    ran_with: str = ""

    @property
    def digest(self) -> str:
        """What makes two calls the same, their results included."""
        return framed_sha256(self.tool_name, self.raw_input, self.ran_with, self.result)


class RepeatedCall(BaseModel):
    """A call with its result, and how often it was made.

    ``repeats``: steps that made it again, each at most :data:`PERIODS` after the one before. ``age``: steps since the last.
    """

    model_config = ConfigDict(frozen=True)

    tool_name: str
    repeats: int = 0
    age: int = 0


class Trail(BaseModel):
    """What one closed step keeps of those before it.

    ``recent``: digests of the newest steps, itself last, at most :data:`PERIODS`. ``repeats``: for each length of a round,
    from 1, how many steps in a row up to this one were those of so many steps before. ``calls``: digest → call, of the same
    newest steps, at most :data:`MAX_CALLS`.
    """

    model_config = ConfigDict(frozen=True)

    recent: tuple[str, ...] = ()
    repeats: tuple[int, ...] = (0,) * PERIODS
    calls: dict[str, RepeatedCall] = {}

    @property
    def in_a_row(self) -> int:
        """Steps in a row, up to this one, that repeat earlier ones."""
        return max(self.repeats)

    @property
    def repeated_calls(self) -> list[RepeatedCall]:
        """The calls of this step that earlier ones made too."""
        return [each for each in self.calls.values() if each.repeats and not each.age]

    def then(self, digest: str | None, calls: Sequence[SettledCall] = ()) -> Trail:
        """Return the trail of the next step.

        ``digest``: of the step; None: it made no calls, or it never counts as a whole. ``calls``: those that count.
        """
        then_calls = self._then_calls(calls)
        if digest is None:
            return Trail(calls=then_calls)
        repeats = [
            count + 1 if len(self.recent) > place and self.recent[-1 - place] == digest else 0
            for place, count in enumerate(self.repeats)
        ]
        return Trail(recent=(*self.recent, digest)[-PERIODS:], repeats=tuple(repeats), calls=then_calls)

    def _then_calls(self, calls: Sequence[SettledCall]) -> dict[str, RepeatedCall]:
        then = {
            digest: call.model_copy(update={"age": call.age + 1})
            for digest, call in self.calls.items()
            if call.age + 1 < PERIODS
        }
        for call in calls:
            digest = call.digest[:DIGEST_CHARS]
            before = self.calls.get(digest)
            if before is None:
                then[digest] = RepeatedCall(tool_name=call.tool_name[:MAX_NAME_CHARS])
            else:
                then[digest] = before.model_copy(update={"age": 0, "repeats": before.repeats + 1})
        most = sorted(then.items(), key=lambda item: (-item[1].repeats, item[1].age))
        return dict(most[:MAX_CALLS])


def step_digest(calls: Sequence[SettledCall]) -> str | None:
    """Return what makes two steps the same: their calls and results, in whatever order; None when there are no calls."""
    each = sorted(call.digest for call in calls)
    return framed_sha256(*each)[:DIGEST_CHARS] if each else None


def nudge(trail: Trail, limit: NoProgress, tool_names: Iterable[str]) -> str | None:
    """Return the nudge after a step with this trail, which the model gets as a user message after the results; None: none.

    ``tool_names``: those that the step called.
    """
    if trail.in_a_row == limit.steps:
        steps = "step" if trail.in_a_row == 1 else f"{trail.in_a_row} steps"
        return f"{NUDGE}your last {steps} made the same calls ({_names(tool_names)}) as before, and got the same results.{ADVICE}"
    enough = limit.repeats_of_a_call
    spinning = [each.tool_name for each in trail.repeated_calls if each.repeats == enough]
    if spinning and trail.in_a_row < limit.steps:  # beyond that, the model was nudged for the steps as a whole
        return (
            f"{NUDGE}you made the same call ({_names(spinning)}) {enough + 1} times within a few steps, with the same "
            f"arguments, and got the same result each time.{ADVICE}"
        )
    return None


def _names(tool_names: Iterable[str]) -> str:
    return ", ".join(name[:MAX_NAME_CHARS] for name in list(dict.fromkeys(tool_names))[:MAX_NAMES])


def is_nudge(message: Message) -> bool:
    """Tell whether a user message is one that :func:`nudge` wrote, and no person."""
    return message.role == "user" and message.text.startswith(NUDGE) and message.text.endswith(ADVICE)


def ended_reason(trail: Trail, limit: NoProgress) -> str | None:
    """Return why a run ends after a step with this trail, without a word of what the model or a tool said; None: it continues."""
    if trail.in_a_row >= limit.end:
        return (
            f"The last {trail.in_a_row} steps made the same calls as before and got the same results, even after a message "
            "told the model so; that is the agent's limit (no_progress)."
        )
    worst = max(trail.repeated_calls, key=lambda each: each.repeats, default=RepeatedCall(tool_name=""))
    if worst.repeats >= limit.repeats_of_a_call + limit.after_nudge:
        call = f"one call of {worst.tool_name}" if NAME_PATTERN.fullmatch(worst.tool_name) else "one call"
        return (
            f"The model made {call} {worst.repeats + 1} times with the same arguments and got the same result each time, even "
            "after a message told it so, whatever it did beside that; that is the agent's limit (no_progress)."
        )
    return None
