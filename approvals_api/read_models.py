"""What the API shows: pydantic models only, so that the command line can read answers without importing the store."""

from __future__ import annotations

from typing import Final, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, JsonValue

from turngate.domain.messages import Part, Role
from turngate.domain.policy import Verdict
from turngate.domain.presentation import Presentation
from turngate.domain.requests import ExecutionState, Outcome, RequestKind, RequestStatus, RunStatus, Verb
from turngate.domain.results import ToolResult
from turngate.domain.signals import Signal
from turngate.domain.tools import ToolManifest

Item = TypeVar("Item")


PATH_MARK: Final = " \N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK} "


def agents_path(path: str, agent: str) -> str:
    """Return an agent behind those above it, as people read it, with a mark between them; the agent alone at the top."""
    return PATH_MARK.join(path.split("/")) if "/" in path else agent


class _View(BaseModel):
    model_config = ConfigDict(frozen=True, from_attributes=True)


class Page(_View, Generic[Item]):
    """One page of a list. ``next_cursor``: where the next page begins; None on the last one."""

    items: list[Item]
    next_cursor: str | None = None


class AgentView(_View):
    """An agent as its worker published it.

    ``sub_agent_of``: the agents whose calls it answers; empty for one that the app offers to people itself.
    """

    name: str
    version: str
    model: str
    description: str
    tools: list[str]
    published_at: str
    sub_agent_of: list[str] = []


class RunSummary(_View):
    """A run in a list. ``ended_at``: None while it is live. ``task``: the first 500 characters of its input.

    ``parent_run_id``, ``parent_tool_call_id``: the call that a sub-agent's run answers. ``path``: the agents above it and
    its own, joined by ``/``. ``forked_from_run_id``, ``forked_from_step``: the closed step whose past a fork shares.
    """

    id: str
    conversation_id: str
    agent: str
    agent_version: str
    model: str
    workspace: str | None
    task: str
    status: RunStatus
    reason: str
    error_class: str
    step: int
    started_by: str
    created_at: str
    ended_at: str | None
    parent_run_id: str | None = None
    parent_tool_call_id: str | None = None
    path: str = ""
    forked_from_run_id: str | None = None
    forked_from_step: int | None = None

    @property
    def agents(self) -> str:
        """The run's agent behind those above it."""
        return agents_path(self.path, self.agent)


class CallRequest(_View):
    """A request that one call opened, and how it was answered."""

    id: str
    kind: RequestKind
    status: RequestStatus
    verb: Verb | None
    decided_by: str | None
    decided_at: str | None
    created_at: str
    expires_at: str | None


class ResultInPart(_View):
    """A result that is shown in part: how much of its JSON text. The whole is at ``…/calls/{tool_call_id}/result``."""

    shown_chars: int
    total_chars: int


class CallView(_View):
    """One tool call: what the model asked for, what was decided, what happened; kept apart.

    ``input``: the exact text the model sent. ``edited_input``: what ran in its place. ``requests``: oldest first.
    ``execution``: ``not_started`` until its handler was let through. ``result``: None while the call is open.
    ``presentation``: the result as its tool, or else the default, shows it to people; None while the call is open.
    ``in_part``: set where ``result`` is not the whole. ``signal``: what the call asks of the run, and ``waits_until``: the
    end of a wait. ``child_run_id``: the sub-agent's run that answers it.
    """

    tool_call_id: str
    tool_name: str
    input: str
    edited_input: str | None
    digest: str
    effect: str
    disposition: Literal["run", "ask", "closed"]
    verdict: Verdict | None
    requests: list[CallRequest]
    execution: ExecutionState
    attempts: int
    started_at: str | None
    ended_at: str | None
    result: ToolResult | None
    presentation: Presentation | None = None
    settled_at: str | None
    in_part: ResultInPart | None = None
    signal: Signal | None = None
    waits_until: str | None = None
    child_run_id: str | None = None

    @property
    def request(self) -> CallRequest | None:
        """The newest request of the call, which is the one that speaks for it now; None when it never asked."""
        return self.requests[-1] if self.requests else None


class StepView(_View):
    """One step: the model's response and its calls. ``closed_at``: None while calls are open.

    ``corrective``: what the model is told of a response that nothing could be made of.
    """

    step: int
    model: str
    finish_reason: str
    input_tokens: int
    output_tokens: int
    text: str
    reasoning: str
    calls: list[CallView]
    created_at: str
    closed_at: str | None
    corrective: str | None = None

    @property
    def tokens(self) -> int:
        """Input and output tokens together."""
        return self.input_tokens + self.output_tokens


class ParentCall(_View):
    """The call that a sub-agent's run answers. ``step`` and ``place`` (both from 1) are where its run shows it."""

    run_id: str
    tool_call_id: str
    tool_name: str
    agents: str
    step: int
    place: int


class RunDetail(RunSummary):
    """A run with its steps. ``final_text``: the agent's answer; empty unless the run is completed.

    ``parent``: the call that it answers, for a sub-agent's run.
    """

    steps: list[StepView]
    final_text: str
    parent: ParentCall | None = None


class MessageView(_View):
    """A message with its place in the conversation."""

    id: str
    parent_id: str | None
    run_id: str | None
    step: int | None
    created_at: str
    role: Role
    parts: tuple[Part, ...]


class RequestItem(_View):
    """A request in the inbox. ``input``: the exact text that would run. ``path``: the agents that lead to it, by ``/``."""

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

    @property
    def agents(self) -> str:
        """Who asks, behind the agents above it."""
        return agents_path(self.path, self.agent)


class DecisionView(_View):
    """The answer that won a request. ``args``: exact JSON text."""

    id: str
    verb: Verb
    args: str | None
    message: str
    outcome: Outcome | None
    decided_by: str
    decided_at: str


class RequestDetail(RequestItem):
    """A request with everything an operator needs to decide it.

    ``allowed_verbs``: what may be answered; empty once it ended. ``messages``: the conversation up to and including the
    message that made the call. ``execution``, ``edited_input``, ``result``, ``presentation`` and ``in_part`` are the call's.
    ``precondition``: exact JSON of what the call depended on when it was asked for; None: its tool does not say.
    ``instead_of``: the request whose approval this one takes the place of, because that changed; ``replaced_by``: the
    other way round.
    """

    manifest: ToolManifest
    agent_words: str
    preview_kind: str | None
    preview: str | None
    not_by: str | None
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
    run: RunSummary
    messages: list[MessageView]


class DecisionResult(_View):
    """The answer to a submitted decision. ``status``: None while it waits for a worker (202)."""

    request_id: str
    decision_id: str
    status: RequestStatus | None


class RequestCount(_View):
    """How many requests have one status."""

    status: RequestStatus
    count: int


class EventView(_View):
    """One event. ``seq``: its place among all events; ``run_seq``: within its run."""

    seq: int
    run_seq: int
    run_id: str
    type: str
    payload: dict[str, JsonValue]
    created_at: str


class ProgressView(_View):
    """What a tool said while it ran. ``n``: place within its call, from 1; ``dropped``: how many before it were left out."""

    type: Literal["call.progress"] = "call.progress"
    run_id: str
    tool_call_id: str
    n: int
    payload: JsonValue
    dropped: int
    created_at: str
