"""What is around a request: the other calls of its step, and what people decided about calls like it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final, Literal

from turngate.domain.requests import ExecutionState, Verb
from turngate.domain.text.durations import span
from turngate.wire.people import Person
from turngate.wire.view import View

CallState = Literal[
    "waits", "running", "ran", "failed", "unknown", "approved", "rejected", "responded", "expired", "cancelled",
    "superseded", "closed", "settled", "open",
]  # fmt: skip
"""``waits``: for a person. ``approved`` to ``superseded``: how its request ended, while it has not started. ``closed``: it
never runs, because a rule or its arguments forbid it. ``settled``: it has its result without a handler. ``open``: none of
these."""
_VERBS: Final[dict[Verb, str]] = {
    "approve": "approved", "edit": "approved with edits", "reject": "rejected", "respond": "answered by hand",
}  # fmt: skip
_ENDS: Final[dict[ExecutionState, str]] = {
    "not_started": "has not run", "executing": "is running", "succeeded": "ran", "failed": "failed",
    "unknown": "may or may not have run",
}  # fmt: skip
_STATES: Final[dict[CallState, str]] = {
    "waits": "waits for a decision", "unknown": "may or may not have run", "responded": "answered", "closed": "does not run",
    "settled": "done", "open": "has not run yet",
}  # fmt: skip


SameCallState = Literal["waits", "approved", ExecutionState]
_SAME: Final[dict[SameCallState, tuple[str, str]]] = {
    "waits": ("is also waiting", ""), "approved": ("was approved", "and is about to run"),
    "not_started": ("was approved", "and has not run"), "executing": ("started", "and is still running"),
    "succeeded": ("ran", "and returned a result"), "failed": ("ran", "and failed"),
    "unknown": ("started", "and it isn't known whether it happened"),
}  # fmt: skip


class SameCallView(View):
    """Another call of the same tool with the same arguments, for a call that would not be harmless twice.

    ``request_id``: of one that waits; None: one that was let through. That is the newest of this run or of the last hour, and
    the newest that may have happened. ``at``: when it was approved, started or ended.
    """

    state: SameCallState
    request_id: str | None = None
    at: str | None = None

    @property
    def before(self) -> str:
        """What happened to it, in words: what comes before how long ago that was."""
        return f"The same call {_SAME[self.state][0]}"

    @property
    def after(self) -> str:
        """And what comes after that; empty: nothing does."""
        return _SAME[self.state][1]

    @property
    def words(self) -> str:
        """All of it, as of now."""
        if self.at is None:
            return f"{self.before}: {self.request_id}"
        seconds = (datetime.now(UTC) - datetime.fromisoformat(self.at)).total_seconds()
        return f"{self.before} {span(seconds)} ago {self.after}"


class SiblingView(View):
    """Another call of the same step. ``input``: the beginning of what runs. ``request_id``: None: no one was asked."""

    tool_call_id: str
    tool_name: str
    input: str
    state: CallState
    request_id: str | None

    @property
    def words(self) -> str:
        """Its state in words."""
        return _STATES.get(self.state, self.state)


class DifferenceView(View):
    """One place (JSON pointer) where the arguments differ. ``was``, ``now``: of the precedent and of this call; None: nothing.

    Of long texts, the part around where they begin to differ.
    """

    at: str
    was: str | None
    now: str | None


class PrecedentCase(View):
    """A decided request about the same tool. ``same``: it asked for the same call.

    ``differences``: at most eight; ``more_differences``: how many others there are. ``message``: the decision's, its first 500
    characters. ``execution``: how the call ended.
    """

    request_id: str
    run_id: str
    agent: str
    verb: Verb
    decided_by: Person
    decided_at: str
    message: str
    execution: ExecutionState
    same: bool
    differences: list[DifferenceView]
    more_differences: int

    @property
    def decided(self) -> str:
        """What was decided, in words."""
        return _VERBS[self.verb]

    @property
    def outcome(self) -> str:
        """How an approved call ended, in words; empty: it was not to run."""
        return _ENDS[self.execution] if self.verb in {"approve", "edit"} else ""

    @property
    def likeness(self) -> str:
        """How it differs, in words."""
        count = len(self.differences) + self.more_differences
        if self.same:
            return "the same call"
        return "one value differs" if count == 1 else f"{count} values differ"


class PrecedentView(View):
    """What people decided about calls of the same tool, found by comparing text: a paraphrase isn't recognised.

    ``approved`` (``edited`` of them with edits), ``rejected``, ``answered``: of the newest 1,000 decisions on this tool.
    ``last_rejection``: the newest of these rejections. ``waiting_alike``: other requests that wait and ask for the same call,
    up to 1,000. ``nearest``: up to three, the most alike first. ``ran``, ``failed``, ``unknown``: of the newest 50 calls of this
    tool that people approved.
    """

    approved: int
    edited: int
    rejected: int
    answered: int
    last_rejection: PrecedentCase | None
    waiting_alike: int
    nearest: list[PrecedentCase]
    ran: int
    failed: int
    unknown: int

    @property
    def decisions(self) -> str:
        """How often people decided how, in words."""
        if not self.approved + self.rejected + self.answered:
            return "No one has decided about a call of this tool before."
        edited = f", {self.edited} of them with edits" if self.edited else ""
        rejected = f"rejected {_times(self.rejected)}" if self.rejected else "never rejected"
        answered = f", answered by hand {_times(self.answered)}" if self.answered else ""
        approved = f"Approved {_times(self.approved)}{edited}" if self.approved else "Never approved"
        return f"{approved}, {rejected}{answered}."

    @property
    def record(self) -> str:
        """How the tool's newest approved calls ended, in words; empty: none has."""
        ended = self.ran + self.failed + self.unknown
        if not ended:
            return ""
        calls = "the last approved call" if ended == 1 else f"the last {ended} approved calls"
        if self.ran == ended:
            return f"{calls.capitalize()} ran without a failure."
        failed = f"{self.failed} failed" if self.failed else ""
        unknown = f"{self.unknown} may or may not have run" if self.unknown else ""
        return f"Of {calls}, {' and '.join(each for each in (failed, unknown) if each)}."

    @property
    def waiting(self) -> str:
        """How many requests wait for the same call, in words; empty: no other one."""
        if not self.waiting_alike:
            return ""
        if self.waiting_alike == 1:
            return "One other request waits for the same call."
        return f"{self.waiting_alike:,} other requests wait for the same call."


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"
