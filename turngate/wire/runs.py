"""Runs, and their steps."""

from __future__ import annotations

from decimal import Decimal
from typing import Literal

from pydantic import ConfigDict, Field

from turngate.domain.conversation.messages import Part, Role
from turngate.domain.requests import RunStatus, UnattendedAsks, WhileRunning
from turngate.domain.runs.budgets import MILLION
from turngate.domain.runs.outcomes import RunOutcome, describe_outcome
from turngate.domain.tools.defaults import Default
from turngate.wire.agents import agents_path
from turngate.wire.calls import CallView
from turngate.wire.people import Person
from turngate.wire.retention import ErasureView
from turngate.wire.view import View

# What a run overrides of its agent and its app.


class OverridesView(View):
    """A run's overrides. None: the agent's or app's setting applies.

    ``agent``: the agent whose instructions and tools these are. ``tools``: the tools of its toolkit that the run has.
    ``policy``: TOML, in place of the app's rules, the stored ones and every grant, with its ``policy_digest``.
    """

    __qualname__ = "WorldView"  # the component's name in the OpenAPI document
    model_config = ConfigDict(title="WorldView")

    agent: str
    digest: str
    instructions: str | None
    tools: list[str] | None
    policy: str | None
    policy_digest: str | None


class RunSummary(View):
    """A run in a list. ``ended_at``: None while it is live. ``task``: the first 500 characters of its input.

    ``parent_run_id``, ``parent_tool_call_id``: the call that a sub-agent's run answers. ``path``: the agents above it and
    its own, joined by ``/``. ``forked_from_run_id``, ``forked_from_step``: the closed step whose past a fork shares,
    or, if it ``is_retry``, the run that it continues in its conversation and the step where that one ended.
    ``unattended_asks``: what happens to its questions; counts only if it is not ``attended``. ``paused_at``: since when
    it is paused; None: it is not. ``schedule_id``: the schedule that opened it. ``cost_micros``: what its tokens cost, in
    millionths of the currency of the app's prices. ``replay_of_run_id``: set for a dry run, which executes no call: the run
    whose recorded results answer its calls. ``outcome``: how it ended; None while it is live. ``ended_by``: who
    interrupted it. ``model_chosen_by``: who switched its model while it was live; ``fell_back_from``: the model that could
    not be used, so that ``model`` is the fallback. ``erasure_id``: of the newest erasure of content of its conversation.
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
    started_by: Person
    created_at: str
    ended_at: str | None
    parent_run_id: str | None = None
    parent_tool_call_id: str | None = None
    path: str = ""
    forked_from_run_id: str | None = None
    forked_from_step: int | None = None
    is_retry: bool = False
    attended: bool = True
    unattended_asks: UnattendedAsks = "park"
    paused_at: str | None = None
    paused_by: Person | None = None
    pause_reason: str = ""
    schedule_id: str | None = None
    replay_of_run_id: str | None = None
    tokens_used: int = 0
    cost_micros: int = 0
    outcome: RunOutcome | None = None
    ended_by: Person | None = None
    model_chosen_by: Person | None = None
    fell_back_from: str | None = None
    erasure_id: str | None = None

    @property
    def how_it_ended(self) -> str:
        """Its outcome with details, such as ``budget: token_cap`` or ``interrupted by ada``; empty while it is live.

        It contains a person's name: escape it before you show it.
        """
        return describe_outcome(self.outcome, error_class=self.error_class, by=self.ended_by)

    @property
    def cost(self) -> str:
        """What its tokens cost, in the currency of the app's prices; empty if unknown."""
        return f"{Decimal(self.cost_micros) / MILLION:f}" if self.cost_micros else ""

    @property
    def agents(self) -> str:
        """The agents above the run's, and its own."""
        return agents_path(self.path, self.agent)


class SentMessage(View):
    """A message that someone sent to a live run, at the step that read it."""

    __qualname__ = "ToldMessage"  # the component's name in the OpenAPI document
    model_config = ConfigDict(title="ToldMessage")

    text: str
    sent_by: Person


class CutView(View):
    """What replaces the oldest messages from a step on: a ``summary``, or (``trim``) nothing.

    ``text``: as the model reads it. ``model``: which model wrote it. ``tokens_before``, ``tokens_after``: the request's size,
    estimated. ``forced``: the provider had refused the conversation as too long.
    """

    kind: Literal["summary", "trim"]
    text: str
    model: str
    tokens_before: int
    tokens_after: int
    forced: bool


class StepView(View):
    """One step: the model's response and its calls. ``closed_at``: None while calls are open.

    ``told``: messages that were sent to the live run and read before this step. ``corrective``: the message that tells the
    model why its response could not be used. ``nudge``: the message after this step's results that tells the model that the
    run makes no progress. ``cut``: what replaces the oldest messages from this step on.
    """

    step: int
    model: str
    model_spec: str | None = None
    finish_reason: str
    input_tokens: int
    output_tokens: int
    text: str
    reasoning: str
    calls: list[CallView]
    created_at: str
    closed_at: str | None
    corrective: str | None = None
    nudge: str | None = None
    cut: CutView | None = None
    told: list[SentMessage] = Field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Input and output tokens together."""
        return self.input_tokens + self.output_tokens


class ParentCall(View):
    """The call that a sub-agent's run answers. ``step``, ``place``: its position in its run, both from 1."""

    run_id: str
    tool_call_id: str
    tool_name: str
    agents: str
    step: int
    place: int


class WaitingMessage(View):
    """A message that the run has not read yet. ``while_running``: whether its next step reads it, or a new run does."""

    id: str
    text: str
    while_running: WhileRunning
    sent_by: Person
    created_at: str


class RunDetail(RunSummary):
    """A run with its steps. ``final_text``: the agent's answer; empty unless the run is completed.

    ``parent``: the call that it answers, for a sub-agent's run. ``waiting_messages``: sent to it and not read yet.
    ``own``: its overrides; None: it has none. ``schedule_name``: of the schedule that opened it. ``erased``: what of its
    content was erased, when and why.
    """

    steps: list[StepView]
    final_text: str
    parent: ParentCall | None = None
    waiting_messages: list[WaitingMessage] = Field(default_factory=list)
    own: OverridesView | None = None
    schedule_name: str | None = None
    erased: ErasureView | None = None


# Messages of a conversation.


class MessageView(View):
    """A message with its place in the conversation.

    ``defaults``: by tool call, in what its tool gets something else than is written; of calls that run as they are written.
    """

    id: str
    parent_id: str | None
    run_id: str | None
    step: int | None
    created_at: str
    role: Role
    parts: tuple[Part, ...]
    defaults: dict[str, list[Default]] = Field(default_factory=dict)
