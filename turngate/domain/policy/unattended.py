"""What happens to a verdict that asks in a run for which no one watches the inbox."""

from __future__ import annotations

from typing import Final

from turngate.domain.policy.always_asked import MAY_HAVE_HAPPENED, NETWORK, UNCONFINED
from turngate.domain.policy.policy import BUILT_IN_ASKS, PROTECTED, STORED_RULES_UNREADABLE, Verdict
from turngate.domain.requests import UnattendedAsks
from turngate.domain.tools.tool import Tool

_IF_ATTENDED: Final = "run it attended, so that a person can approve it."
_FIXES: Final = {
    **dict.fromkeys((UNCONFINED, NETWORK, MAY_HAVE_HAPPENED), f"No rule can allow it: {_IF_ATTENDED}"),
    **dict.fromkeys((PROTECTED, STORED_RULES_UNREADABLE), f"Or {_IF_ATTENDED}"),
}
"""Rules that no one wrote → what comes after their own reason, which says the rest."""


def unattended(verdict: Verdict, tool: Tool, mode: UnattendedAsks) -> Verdict:
    """Return the verdict for a run that no one attends: asking is parked, kept or turned into a refusal.

    A refusal says what would let the call run, for the operator who reads it in the morning.
    """
    if verdict.answer != "ask":
        return verdict
    if mode == "park":  # without a clock, and without a ladder, which ends at a person
        return verdict.model_copy(update={"terms": verdict.terms.model_copy(update={"ladder": []})})
    asked_by_rule = verdict.rule not in BUILT_IN_ASKS
    if mode == "rules" and (asked_by_rule or tool.kind == "interaction"):
        return verdict
    why = f"rule {verdict.rule!r} asks a person" if asked_by_rule else "a person would be asked"
    if tool.kind == "interaction":
        fix = "Nothing but a person may answer a question."
    elif verdict.rule in _FIXES:
        fix = f"{verdict.reason} {_FIXES[verdict.rule]}"
    elif asked_by_rule:
        fix = f"Change rule {verdict.rule!r} to allow it, or run it attended."
    else:
        fix = f'A policy rule would allow it: verdict = "allow", tools = ["{tool.name}"].'
    reason = f"No one attends this run, and {why} for this call. {fix}"
    return verdict.model_copy(update={"answer": "deny", "rule": "unattended", "reason": reason})
