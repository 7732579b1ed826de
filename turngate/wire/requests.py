"""Requests: the inbox, and one with everything an operator needs to decide it."""

from __future__ import annotations

from pydantic import Field

from turngate.domain.policy.judge import Judgement
from turngate.domain.policy.terms import PLAIN_TERMS, AskTerms
from turngate.domain.requests import ExecutionState, RequestKind, RequestStatus, Verb
from turngate.domain.runs.inbox import InboxStatus
from turngate.domain.tools.presentation import Presentation
from turngate.domain.tools.results import ToolResult
from turngate.domain.tools.tool import ToolManifest
from turngate.wire.agents import agents_path
from turngate.wire.calls import ResultInPart
from turngate.wire.decisions import DecisionView
from turngate.wire.runs import MessageView, RunSummary
from turngate.wire.view import View


class RequestItem(View):
    """A request in the inbox. ``input``: the exact text that would run. ``path``: the agents that lead to it, by ``/``.

    ``approvals``: how many of the ``quorum`` it needs it has. ``parked_at``: it ran out of time, or no one attends its run,
    and it waits without a clock. ``claimed_by`` counts until ``claimed_until``. ``rungs_climbed``: of its ladder.
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
    reason: str
    risk: str
    expires_at: str | None
    created_at: str
    verb: Verb | None
    decided_by: str | None
    decided_at: str | None
    path: str = ""
    quorum: int = 1
    approvals: int = 0
    rungs_climbed: int = 0
    parked_at: str | None = None
    claimed_by: str | None = None
    claimed_until: str | None = None

    @property
    def agents(self) -> str:
        """Who asks, behind the agents above it."""
        return agents_path(self.path, self.agent)


class ApprovalView(View):
    """One of the approvals that a request needs several of."""

    decided_by: str
    message: str
    created_at: str


class EarlierApproval(View):
    """An approval that does not count any more. ``precondition``: exact JSON of what the call depended on then, or None."""

    request_id: str
    decided_by: str
    decided_at: str
    precondition: str | None


class RequestDetail(RequestItem):
    """A request with everything an operator needs to decide it.

    ``allowed_verbs``: what may be answered; empty once it ended. ``messages``: the conversation up to and including the
    message that made the call. ``execution``, ``edited_input``, ``result``, ``presentation`` and ``in_part`` are the call's.
    ``precondition``: exact JSON of what the call depended on when it was asked for; None: its tool does not say.
    ``instead_of``: the request whose approval this one takes the place of, because that changed or grew too old;
    ``replaced_by``: the other way round; ``earlier``: that approval. ``ask_terms``: who may decide it and how, as it
    stands now. ``given``: the approvals so far. ``judged``: what the judge, a model, said of the call; None: it was not asked.
    """

    manifest: ToolManifest
    agent_words: str
    preview_kind: str | None
    preview: str | None
    not_by: str | None
    ask_terms: AskTerms = PLAIN_TERMS
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
    instead_of: str | None = None
    replaced_by: str | None = None
    earlier: EarlierApproval | None = None
    judged: Judgement | None = None
    run: RunSummary
    messages: list[MessageView]


class RequestCount(View):
    """How many requests there are under a filter of this status."""

    status: InboxStatus
    count: int


# Claims: who has taken a request on.


class ClaimView(View):
    """The claim that stands on a request, and until when it counts."""

    request_id: str
    claimed_by: str
    claimed_until: str


# Comments on a request.


class CommentView(View):
    """What someone said about a request, to other people; no model reads it."""

    id: str
    request_id: str
    author: str
    text: str
    created_at: str


# Presence: who looks at a request now.


class LookingView(View):
    """Someone who looks at the request. ``last_at``: their last sign, at most a minute ago."""

    name: str
    last_at: str


class Presence(View):
    """Who else looks at a request, by name."""

    looking: list[LookingView]


# Saved views of the inbox.


class SavedViewItem(View):
    """A filter of the inbox that a person saved. ``query``: as it stands in the inbox's URL."""

    name: str
    query: str
    created_at: str
