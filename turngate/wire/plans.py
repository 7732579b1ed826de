"""The plan of a fork or a dry run: what it would reuse and what would run again."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field

from turngate.domain.policy.policy import VerdictKind
from turngate.domain.requests import ExecutionState, RequestStatus
from turngate.wire.runs import OverridesView
from turngate.wire.view import View

Replacement = Literal["summary", "trim", "new_summary"]
"""``summary``: an existing one; ``trim``: nothing, the messages are left out; ``new_summary``: a model writes one first."""
Changed = Literal["agent", "model", "workspace", "instructions", "tools", "policy"]


class PastCall(View):
    """A call of the earlier run. ``input``: the first 200 characters.

    ``decision``: the status of its newest request; None: no one was asked. ``result``: ``ok``, a failure's kind, or None while
    it is open. ``happened``: its handler was started and its effect is ``once``: if it runs again, it may happen twice.
    """

    step: int
    tool_call_id: str
    tool_name: str
    effect: str
    input: str
    verdict: VerdictKind | None
    decision: RequestStatus | None
    execution: ExecutionState
    result: str | None
    happened: bool


class EffectCount(View):
    """How many calls of one tool the run and its sub-agents started; none is undone. ``unknown``: of those, lost ones."""

    tool_name: str
    effect: str
    calls: int
    unknown: int


class Difference(View):
    """One difference between the new run and this one, in a few words."""

    name: Changed
    was: str
    will_be: str


class ForkPlan(View):
    """What a fork or a dry run would reuse and what would run again. Nothing was changed.

    ``step``: the closed step to continue from; None: a dry run from the start. ``messages``: how many the model reads again
    unchanged; ``replaced``: how many before them it does not read, and ``replaced_by``: what it reads instead (None: nothing
    is replaced). ``reused``: for a fork, the newest 200 calls whose recorded results it reads; for a dry run, the first 200
    recorded calls that answer its own. ``effects``: what already happened and is not undone. ``again``: for a fork, the first
    200 calls after the step; the model may make them again, and they are judged and asked about again. ``own``: the new
    run's overrides. ``needs_admin``: it would have its own policy, which takes the scope `admin`.
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
    own: OverridesView | None
    needs_admin: bool
