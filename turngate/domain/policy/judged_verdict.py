"""The judge's place among the rules: after everything that allows, before the default. Pure."""

from __future__ import annotations

from typing import Final

from turngate.domain.policy.judge import Judge, Judgement
from turngate.domain.policy.policy import Verdict

JUDGE_RULE: Final = "judge"
"""The rule of a call that the judge let run. A policy's rule may have this name too; it has no ``judged``."""


def is_for_judge(verdict: Verdict) -> bool:
    """Tell whether the judge is asked about a call with this verdict: a person would be, and no rule insists on one."""
    return verdict.answer == "ask" and verdict.judgeable


def with_judgement(verdict: Verdict, judgement: Judgement | None, judge: Judge | None, *, digest: str) -> Verdict:
    """Return the verdict after the judge: allowed, or unchanged with the judgement added.

    ``verdict``: policy's, as it is now. ``judge``: as it is declared now. ``digest``: of the bytes about to run.
    """
    if judgement is None:
        return verdict
    if not is_for_judge(verdict) or not judgement.lets_run(judge, digest=digest):
        return verdict.model_copy(update={"judged": judgement})
    return Verdict(
        answer="allow",
        rule=JUDGE_RULE,
        reason=judgement.reason,
        risk=verdict.risk,
        shadow=verdict.shadow,
        judged=judgement,
    )
