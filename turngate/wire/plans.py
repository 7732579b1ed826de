"""What a fork or a dry run would use again and what would run again, said before it is started."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field

from turngate.domain.policy.policy import Answer
from turngate.domain.requests import ExecutionState, RequestStatus
from turngate.wire.runs import WorldView
from turngate.wire.view import View

Replacement = Literal["summary", "trim", "new_summary"]
"""``summary``: one that stands already; ``trim``: nothing, they are left out; ``new_summary``: a model writes one first."""
Changed = Literal["agent", "model", "workspace", "instructions", "tools", "policy"]


class PastCall(View):
    """A call that the run made. ``input``: the first 200 characters.

    ``decision``: how its newest request stands; None: no one was asked. ``result``: ``ok``, a failure's kind, or None while it
    is open. ``happened``: a ``once`` call whose handler was started: made again, it may happen twice.
    """

    step: int
    tool_call_id: str
    tool_name: str
    effect: str
    input: str
    verdict: Answer | None
    decision: RequestStatus | None
    execution: ExecutionState
    result: str | None
    happened: bool


class EffectCount(View):
    """Calls of one tool that the run and its sub-agents started and that are not undone. ``unknown``: of those, how many."""

    tool_name: str
    effect: str
    calls: int
    unknown: int


class Difference(View):
    """What the new run would have in place of what this run has, in a few words each."""

    name: Changed
    was: str
    will_be: str


class ForkPlan(View):
    """What would be used again and what would not. Nothing was changed.

    ``step``: the closed step it would continue from; None: the replay's beginning. ``messages``: how many the model reads again
    as they are; ``replaced``: how many before them it does not, and ``replaced_by`` what stands in their place (None: there
    are none). ``reused``: for a fork the calls whose recorded results it reads, the newest 200; for a dry run the first
    200 that its calls are answered from. ``effects``: what happened already and is not undone. ``again``: for a fork the
    first 200 calls behind the step, which the model may make again and which are judged and asked for again. ``own``: what the
    new run has of its own. ``needs_admin``: it would live under a policy of its own, which takes the scope `admin`.
    """

    __qualname__ = "Preview"  # the component's name in the OpenAPI document
    model_config = ConfigDict(title="Preview")

    run_id: str
    step: int | None
    dry: bool
    messages: int
    replaced: int = 0
    replaced_by: Replacement | None = None
    reused: list[PastCall]
    reused_total: int
    effects: list[EffectCount] = Field(default_factory=list)
    again: list[PastCall] = Field(default_factory=list)
    again_total: int = 0
    differences: list[Difference]
    own: WorldView | None
    needs_admin: bool
