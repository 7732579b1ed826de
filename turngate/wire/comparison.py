"""Two runs side by side: what they share, and where and in what they differ."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict

from turngate.domain.policy.policy import VerdictKind
from turngate.domain.runs.comparison import Aspect
from turngate.wire.calls import CallView
from turngate.wire.runs import OverridesView, RunSummary
from turngate.wire.view import View

# A dry run compared with the run whose recorded results it used.


class ReplayedCall(View):
    """A call of only one of the runs. ``input``: its first 200 characters. ``result``: ``ok``, a failure's kind, or None."""

    step: int
    tool_call_id: str
    tool_name: str
    input: str
    result: str | None


class VerdictChange(View):
    """A call whose verdict has changed. None: policy did not judge the call.

    ``step``, ``tool_call_id``: in the dry run; ``recorded_call_id``: in the recorded run.
    """

    step: int
    tool_call_id: str
    recorded_call_id: str
    tool_name: str
    was: VerdictKind | None
    was_rule: str
    now: VerdictKind | None
    now_rule: str


class DryRunReport(View):
    """A dry run compared with the recorded run.

    ``matched``: calls that got the recorded result. ``diverged``: calls of the dry run that have no recorded result;
    ``not_made``: recorded calls that the dry run did not make; ``verdicts``: matched calls whose verdict differs now.
    Each list has the first 200, and its ``…_total`` says how many there are. ``same_end``: both ended with the same status
    and class of failure. ``same``: every call matched, none is missing, and both ended the same; verdicts and the model's
    words don't count.
    """

    __qualname__ = "DryReplayReport"  # the component's name in the OpenAPI document
    model_config = ConfigDict(title="DryReplayReport")

    source_run_id: str
    replay_run_id: str
    matched: int
    diverged: list[ReplayedCall]
    diverged_total: int
    not_made: list[ReplayedCall]
    not_made_total: int
    verdicts: list[VerdictChange]
    verdicts_total: int
    same_end: bool
    same: bool


RunAspect = Literal[
    "task",
    "agent",
    "agent_version",
    "model",
    "workspace",
    "instructions",
    "tools",
    "policy",
    "status",
    "failure",
    "answer",
]
"""What two runs as a whole can differ in."""
OverriddenAspect = Literal["instructions", "tools", "policy"]
"""What a run can override."""


class SharedPast(View):
    """The steps that both runs continue from: those of ``run_id`` up to ``through_step``, with their recorded results."""

    run_id: str
    through_step: int


class ComparedStep(View):
    """A step of one side, without its calls. ``run_id``: the run of the step; it can be one that this side was forked from."""

    run_id: str
    step: int
    model: str
    text: str
    corrective: str | None


class CallPair(View):
    """Two calls of the same tool, one of each run. None: that run has none. ``differs``: empty if the calls are the same.

    Arguments and results are the same if they are equal as JSON. Who decided, when, how long the call took and how many
    attempts it needed don't count.
    """

    run: CallView | None
    other: CallView | None
    differs: list[Aspect]

    @property
    def same(self) -> bool:
        """Whether both runs have the call and nothing differs."""
        return self.run is not None and self.other is not None and not self.differs


class StepPair(View):
    """Two steps, one of each run. None: that run has none. ``text_differs``: the model's words do. ``same``: nothing differs."""

    run: ComparedStep | None
    other: ComparedStep | None
    same: bool
    text_differs: bool
    calls: list[CallPair]


class ComparedRun(RunSummary):
    """One of the two runs. ``final_text``: its answer; empty unless it is completed. ``own``: its overrides; None: none."""

    final_text: str
    own: OverridesView | None = None

    def override(self, aspect: OverriddenAspect) -> str | None:
        """Return what the run overrides, as one text. None: its agent's or app's setting applies."""
        value = None if self.own is None else getattr(self.own, aspect)
        return ", ".join(value) if isinstance(value, list) else value


class Comparison(View):
    """Two runs compared.

    ``shared``: None if neither was forked or retried from the other, nor both from a third. ``steps``: those after the shared
    past, in order; runs that share none are paired by the numbers of their steps. ``parts_at``: the place of the first pair
    that differs, from 1; None: none does. ``replay``: set if one is a dry run of the other; decisions and executions are not
    compared then, because a dry run has none.
    """

    run: ComparedRun
    other: ComparedRun
    differs: list[RunAspect]
    shared: SharedPast | None
    steps: list[StepPair]
    parts_at: int | None
    replay: DryRunReport | None = None
