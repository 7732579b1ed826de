"""Requests: the inbox, and one with everything an operator needs to decide it."""

from __future__ import annotations

import hashlib
from typing import Final, Literal, Self

from pydantic import ConfigDict, Field

from turngate.domain.origins.origin import Doubts, Origins
from turngate.domain.policy.judge import Judgement
from turngate.domain.policy.terms import PLAIN_TERMS
from turngate.domain.requests import ExecutionState, LostStart, RequestKind, RequestStatus, Verb, why_alone
from turngate.domain.runs.inbox import InboxStatus
from turngate.domain.tools.defaults import Default
from turngate.domain.tools.presentation import Presentation, warning_in
from turngate.domain.tools.results import ToolResult
from turngate.domain.tools.tool import ProcessConfinement, ToolManifest
from turngate.wire.agents import agents_path
from turngate.wire.calls import ResultInPart
from turngate.wire.decisions import DecisionView
from turngate.wire.people import Person, Says, Terms
from turngate.wire.precedents import PrecedentView, SameCallView, SiblingView
from turngate.wire.retention import ErasureView
from turngate.wire.runs import MessageView, RunSummary
from turngate.wire.view import View


class TaskView(View):
    """What a run is to do, its first 500 characters. ``agent``: whose run it is, or whose program tells it."""

    agent: str
    task: str


class LatestMessage(View):
    """The newest message that a person sent to the run, its first 500 characters.

    ``message_id``: empty: it is one of a program's own conversation, as that program tells it.
    """

    message_id: str
    text: str
    created_at: str


INPUT_CHARS: Final = 2_000
"""Of a request's arguments that a list has. The request itself has all of them."""


class RequestItem(View):
    """A request in the inbox. ``input``: the exact text that would run. ``path``: the agents that lead to it, with ``/`` between.

    In a list, ``input`` is at most the first 2,000 characters of ``input_chars``. If there are more, ``input_digest`` is the
    SHA-256 of the whole text, and the request itself has it; None: ``input`` is whole.

    Secrets in ``input`` are marks: ``⟦secret 1⟧`` where its tool declares one, and in lists ``⟦secret⟧`` where something looks
    like a credential. An edit that sends a mark with a number back keeps the secret.

    ``tasks``: of its run and of those above it, the topmost first. A person wrote the first one; the others are the words of the
    agent above. Empty for an external call.

    ``approvals``: how many of the ``quorum`` it has. ``parked_at``: since when it waits without expiring, because its time
    ran out or its run is unattended. ``claimed_by`` counts until ``claimed_until``. ``rungs_climbed``: of its escalation ladder.
    ``step``: of its run; None: its call is not in the store. ``doubts``: how many of its values are doubtful; none if it isn't
    known where they come from.
    ``summary``: what the call does, in one sentence of its tool or of Turngate; None: none is stored.
    ``defaults``: what the agent left out of ``input``, and the tool uses in its place. Secrets in them have no number.
    ``same_calls``: calls that are the same: one that waits, too, and the latest that was let through.
    ``preview_line``: the first line of its tool's preview, of a diff the first line that changes; None: it has none.
    ``preview_more``: how many lines more it has, in words; empty: none. ``preview_warns``: the line is a warning of the tool's.
    ``not_run``: why a call that was approved did not start, as the agent reads it: its tool has changed since, a rule denies it
    now, its run was interrupted. None: it did start, or still may.
    """

    id: str
    run_id: str
    tool_call_id: str
    kind: RequestKind
    status: RequestStatus
    agent: str
    tool_name: str
    input: str
    digest: str
    rule: str
    reason: Says
    risk: str
    expires_at: str | None
    created_at: str
    verb: Verb | None
    decided_by: Person | None
    decided_at: str | None
    urgent_at: str = ""
    path: str = ""
    quorum: int = 1
    approvals: int = 0
    rungs_climbed: int = 0
    parked_at: str | None = None
    claimed_by: Person | None = None
    claimed_until: str | None = None
    step: int | None = None
    summary: str | None = None
    defaults: list[Default] = Field(default_factory=list)
    preview_line: str | None = None
    preview_more: str = ""
    preview_warns: bool = False
    same_calls: list[SameCallView] = Field(default_factory=list)
    tasks: list[TaskView] = Field(default_factory=list)
    doubts: Doubts = Doubts()
    input_chars: int = 0
    input_digest: str | None = None
    not_run: Says | None = None

    @property
    def agents(self) -> str:
        """The agents that lead to the one that asks, and that one."""
        return agents_path(self.path, self.agent)

    @property
    def alone(self) -> str | None:
        """Why it can't be approved together with others, in words for people; None: it can."""
        return why_alone(self.kind, self.risk, self.quorum)

    @property
    def input_more(self) -> int:
        """How many characters of its arguments a list doesn't have."""
        return max(0, self.input_chars - len(self.input))

    @property
    def clipped(self) -> Self:
        """The request as a list has it. Equal arguments have equal digests, as far as people see them."""
        if self.input_chars <= INPUT_CHARS:
            return self
        digest = hashlib.sha256(self.input.encode()).hexdigest()
        return self.model_copy(update={"input": self.input[:INPUT_CHARS], "input_digest": digest})


class ApprovalView(View):
    """One of the approvals that a request needs several of."""

    decided_by: Person
    message: str
    created_at: str


class EarlierApproval(View):
    """An approval that no longer counts. ``precondition``: exact JSON of what the call depended on then, or None."""

    request_id: str
    decided_by: Person
    decided_at: str
    precondition: str | None


class Consequences(View):
    """What each answer leads to, in short lines for the person who decides.

    ``yes``: an approval, an answer, or what happened. ``no``: a rejection, or an outcome that no one knows. ``silence``: no
    answer. ``undo``: whether the call can be taken back; empty: nothing runs.
    """

    yes: str
    no: str
    silence: str
    undo: str


class CrashView(View):
    """A crash of a builder's code. ``says``: what failed; ``about``: which tool or hook. ``turngate logs ID`` has the rest."""

    id: str
    says: str
    about: str


class RequestDetail(RequestItem):
    """A request with everything an operator needs to decide it.

    Who may decide it sees all of its call but what the tool declares secret, in ``input``, ``defaults``, ``summary``,
    ``preview``, ``origins`` and ``precondition``, while it is pending. For everyone else, and once it ended, these are masked as
    in a list. ``unseen_secrets``: where ``input`` has secrets (JSON pointers) that the reader did not have revealed: an
    approval runs them unseen, and its decision says so; empty once it ended.
    ``allowed_verbs``: how it can be decided; empty once it ended. ``messages``: the conversation up to and including the
    message with the call. ``execution``, ``edited_input``, ``result``, ``presentation`` and ``in_part``: as in the call.
    ``precondition``: exact JSON of what the call depends on, when the request was opened; None: its tool has no precondition.
    ``starts_at``: when the approved call starts; until then its approval can be taken back. None: at once, or it isn't approved.
    ``instead_of``: the request that this one replaces, because its precondition changed or its approval grew too old, or was
    taken back;
    ``replaced_by``: the one that replaces this; ``earlier``: the replaced approval. ``ask_terms``: who may decide it and
    how, as of now. ``starters``: everyone whose order led to the call, where the rule lets none of them decide; else empty.
    ``given``: the approvals so far. ``judged``: what the judge, a model, said of the call; None: it was not
    asked. ``confinement``: how the processes that the call starts are confined; None: it starts none. ``origins``: where
    each argument of ``input`` comes from, found by comparing texts when the request was opened; None: not known. ``leads_to``:
    what yes, no and silence lead to; None: it has ended.
    ``lost_start``: of a question about what happened to a call: how that had started and ended, and how to check whether it took
    effect. Such a question waits on when its run ends.
    ``latest_message``: a person's newest one to the run before this call; None: its task is the newest. ``time_left``: of the
    run's time budget, in words; None: it has none, or the request has ended.
    ``siblings``: the other calls of its step, at most 64. ``precedent``: what people decided about calls like it; None: it is
    no approval, or a token that may read only its own runs reads it. ``reject_reasons``: with which people lately rejected calls
    or questions of this tool, at most six, the reader's own first; none once it ended. ``crashes``: of the tool's own code about
    this call, such as its preview, the oldest first.
    """

    manifest: ToolManifest
    latest_message: LatestMessage | None = None
    time_left: str | None = None
    agent_words: str
    preview_kind: str | None
    preview: str | None
    unseen_secrets: list[str] = Field(default_factory=list)
    not_by: Person | None
    starters: list[Person] = Field(default_factory=list)
    ask_terms: Terms = PLAIN_TERMS
    given: list[ApprovalView] = Field(default_factory=list)
    allowed_verbs: list[Verb]
    decision: DecisionView | None
    execution: ExecutionState
    partial_output: str
    edited_input: str | None
    result: ToolResult | None
    presentation: Presentation | None = None
    in_part: ResultInPart | None = None
    precondition: str | None = None
    confinement: ProcessConfinement | None = None
    origins: Origins | None = None
    leads_to: Consequences | None = None
    starts_at: str | None = None
    lost_start: LostStart | None = None
    instead_of: str | None = None
    replaced_by: str | None = None
    earlier: EarlierApproval | None = None
    judged: Judgement | None = None
    siblings: list[SiblingView] = Field(default_factory=list)
    precedent: PrecedentView | None = None
    reject_reasons: list[str] = Field(default_factory=list)
    crashes: list[CrashView] = Field(default_factory=list)
    run: RunSummary
    messages: list[MessageView]
    erased: ErasureView | None = None

    @property
    def input_for_readers(self) -> str:
        """``input`` as those see it who don't decide: for what they see, too, such as a grant, and to compare with others."""
        return self.manifest.masked_input(self.input).text

    @property
    def outlives_its_run(self) -> bool:
        """Whether it asks what happened to a call whose run has ended: the answer is recorded, and nothing runs."""
        return self.kind == "outcome" and self.run.status != "running"

    @property
    def warning(self) -> str:
        """What a result that is no failure warns of; empty: nothing."""
        return warning_in(self.result, self.presentation)

    @property
    def waits_to_start(self) -> bool:
        """Whether the call is approved and has not started, because its approval can be taken back."""
        if self.starts_at is None or self.replaced_by is not None:
            return False
        return self.execution == "not_started" and self.result is None

    @property
    def void_words(self) -> str:
        """That its approval no longer counts, for those who have it on their screen; empty: it counts, or there is none."""
        if self.status != "approved" or self.replaced_by is None or self.execution != "not_started":
            return ""
        return "This approval no longer counts: it was taken back, or what it was given for has changed. The call did not run."

    def can_be_taken_back(self, by: str | None) -> bool:
        """Tell whether this person has approved the call, which waits to start."""
        has_approved = by == self.decided_by or any(each.decided_by == by for each in self.given)
        return self.waits_to_start and has_approved


class RequestCount(View):
    """How many requests match a filter with this status. ``is_more``: there are more than ``count``, which ends at 10,000."""

    status: InboxStatus
    count: int
    is_more: bool = False


# Claims: who works on a request.


class ClaimView(View):
    """The claim on a request, and until when it counts."""

    request_id: str
    claimed_by: Person
    claimed_until: str


# Comments on a request.


class CommentView(View):
    """A comment on a request, for other people; no model reads it."""

    id: str
    request_id: str
    author: Person
    text: str
    created_at: str


SecretPlace = Literal["arguments", "task", "words", "result"]
"""Which text a secret is in: the call's arguments, its run's task, what the agent said with it, its result."""


class RevealedSecret(View):
    """A secret, revealed. ``value``: its exact JSON text.

    ``place``: which text it is in. ``pointer``: where it is in the arguments (JSON pointer); "": in another text.
    """

    pointer: str
    value: str
    place: SecretPlace = "arguments"


class RevealedSecrets(View):
    """The secrets in a request's arguments, in the order of their marks, then those in other texts about it."""

    secrets: list[RevealedSecret]


# Presence: who looks at a request now.


class Viewer(View):
    """A person who looks at the request. ``last_at``: when they last did, at most a minute ago."""

    __qualname__ = "LookingView"  # the component's name in the OpenAPI document
    model_config = ConfigDict(title="LookingView")

    name: Person
    last_at: str


class Presence(View):
    """Who else looks at a request, by name."""

    looking: list[Viewer]
