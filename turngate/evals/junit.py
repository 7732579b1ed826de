"""A report as JUnit XML, which continuous integration shows as tests: a suite per model, a test per attempt."""

from __future__ import annotations

import re
from typing import Final
from xml.etree import ElementTree as ET

from turngate.evals.report import Attempt, Report, totals

NOT_XML: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 (§2.2, Char) does not allow in any spelling; an agent's text may hold it."""


def junit_xml(report: Report) -> str:
    """Return the report's text, with its declaration."""
    root = ET.Element("testsuites", name="turngate eval")
    for model in report.models:
        attempts = report.of(model=model)
        sums = totals(attempts)
        suite = ET.SubElement(
            root,
            "testsuite",
            name=_clean(model),
            tests=str(len(attempts)),
            failures=str(sums.failed),
            errors="0",
            skipped=str(sums.not_run),
            time=f"{sums.seconds:.3f}",
        )
        for each in attempts:
            _add(suite, each, several=report.repeat > 1)
    ET.indent(root)
    return f"<?xml version='1.0' encoding='utf-8'?>\n{ET.tostring(root, encoding='unicode')}\n"


def _add(suite: ET.Element, attempt: Attempt, *, several: bool) -> None:
    name = f"{attempt.case} [{attempt.attempt}]" if several else attempt.case
    test = ET.SubElement(
        suite, "testcase", classname=_clean(attempt.model), name=_clean(name), time=f"{attempt.seconds:.3f}"
    )
    if attempt.status == "failed":
        first = attempt.reasons[0] if attempt.reasons else "failed"
        failure = ET.SubElement(test, "failure", message=_clean(first))
        failure.text = _clean("\n".join(attempt.reasons))
    elif attempt.status == "not_run":
        ET.SubElement(test, "skipped", message="the evaluation was stopped before its end")
    if attempt.run_ids:
        ET.SubElement(test, "system-out").text = _clean(
            f"runs: {', '.join(attempt.run_ids)}\noutcome: {attempt.outcome}\n{attempt.final_text}"
        )


def _clean(text: str) -> str:
    return NOT_XML.sub("\ufffd", text)
