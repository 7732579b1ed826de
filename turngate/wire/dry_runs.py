"""What became of a dry replay beside the run whose record it went by."""

from __future__ import annotations

from turngate.domain.policy.policy import Answer
from turngate.wire.view import View


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
    """A dry replay against its record.

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
