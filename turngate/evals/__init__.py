"""Evaluate an agent: cases through the real engine, with swapped handlers and scripted approvers, and a report.

    from turngate.evals import Approver, Case, Expect, run_cases

    report = asyncio.run(run_cases(app, [Case(name="…", message="…", approvers=[Approver(do="approve")])]))
    report.check()

``turngate eval`` does the same with a file of cases (docs/howto/evaluate-an-agent.md).
"""

from __future__ import annotations

from turngate.evals.cases import Approver, Bounds, Called, Case, Expect, Fails, Returns, Text, load_cases, parse_cases
from turngate.evals.facts import CaseRun
from turngate.evals.report import ApproverDecision, Attempt, Change, Report, Totals, changes, junit_xml, load_report
from turngate.evals.runner import EvalOptions, run_cases

__all__ = [
    "Approver",
    "ApproverDecision",
    "Attempt",
    "Bounds",
    "Called",
    "Case",
    "CaseRun",
    "Change",
    "EvalOptions",
    "Expect",
    "Fails",
    "Report",
    "Returns",
    "Text",
    "Totals",
    "changes",
    "junit_xml",
    "load_cases",
    "load_report",
    "parse_cases",
    "run_cases",
]
