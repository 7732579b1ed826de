"""Two runs side by side: what they share, and where and in what they differ."""

from __future__ import annotations

from typing import Literal

from turngate.domain.policy.policy import Answer
from turngate.domain.runs.comparison import Aspect
from turngate.wire.calls import CallView
from turngate.wire.runs import RunSummary, WorldView
from turngate.wire.view import View

# What happened to a dry run beside the run whose record it went by.


class ReplayedCall(View):
    """A call that is not in both. ``input``: its first 200 characters. ``result``: ``ok``, a failure's kind, None while open."""

    step: int
    tool_call_id: str
    tool_name: str
    input: str
    result: str | None


class VerdictChange(View):
    """A call that policy judges otherwise than then. None: policy did not come to judge it.

    ``step``, ``tool_call_id``: in the replay; ``recorded_call_id``: in the run.
    """

    step: int
    tool_call_id: str
    recorded_call_id: str
    tool_name: str
    was: Answer | None
    was_rule: str
    now: Answer | None
    now_rule: str


class DryReplayReport(View):
    """A dry run against its record.

    ``matched``: calls that got the recorded result. ``diverged``: calls of the replay that the record has no answer for;
    ``not_made``: recorded calls that the replay did not make; ``verdicts``: matched calls that policy judges otherwise now.
    Of each the first 200, and how many there are. ``same_end``: both ended with the same status and class of failure.
    ``same``: every call matched, none is missing, and they ended the same; other verdicts and words do not count.
    """

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
OwnAspect = Literal["instructions", "tools", "policy"]
"""Those that a run may have of its own."""


class SharedPast(View):
    """The steps that both runs continue from: those of ``run_id`` up to ``through_step``, with their recorded results."""

    run_id: str
    through_step: int


class ComparedStep(View):
    """A step of one side, without its calls. ``run_id``: whose it is, which may be a run that this side was forked from."""

    run_id: str
    step: int
    model: str
    text: str
    corrective: str | None


class CallPair(View):
    """Two calls of the same tool beside each other; None: there is none on that side. ``differs``: empty when all is the same.

    Arguments and results are the same when they mean the same JSON. Who decided, when, how long it took and how many
    attempts it needed do not count.
    """

    run: CallView | None
    other: CallView | None
    differs: list[Aspect]

    @property
    def same(self) -> bool:
        """Both are there, and nothing differs."""
        return self.run is not None and self.other is not None and not self.differs


class StepPair(View):
    """Two steps beside each other; None: that side has none. ``text_differs``: the model's words. ``same``: all of it."""

    run: ComparedStep | None
    other: ComparedStep | None
    same: bool
    text_differs: bool
    calls: list[CallPair]


class ComparedRun(RunSummary):
    """One of the two runs. ``final_text``: its answer; empty unless it is completed. ``own``: as of the run itself."""

    final_text: str
    own: WorldView | None = None

    def of_its_own(self, aspect: OwnAspect) -> str | None:
        """Return what it has of its own, as one text; None: it is as its agent or app has it."""
        given = None if self.own is None else getattr(self.own, aspect)
        return ", ".join(given) if isinstance(given, list) else given


class Comparison(View):
    """Two runs compared.

    ``shared``: None when neither was forked or retried from the other, nor both from a third. ``steps``: behind the shared
    past, in order; runs that share none are laid side by side by the numbers of their steps. ``parts_at``: the place of
    the first step that differs, from 1; None: none does. ``replay``: set when one is a dry run of the other; decisions and
    executions are not compared then, because a replay has none.
    """

    run: ComparedRun
    other: ComparedRun
    differs: list[RunAspect]
    shared: SharedPast | None
    steps: list[StepPair]
    parts_at: int | None
    replay: DryReplayReport | None = None
