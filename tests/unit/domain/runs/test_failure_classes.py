"""Failure classes: every stored ``error_class`` has a meaning, and a failure is placed at the right step."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from turngate.domain.errors import ModelErrorClass
from turngate.domain.runs.failure_classes import BUG, MEANINGS, FailureClass, broke_off_at, meaning_of

ROOT = Path(__file__).parents[4]


def test_every_class_of_a_models_error_has_a_meaning() -> None:
    """Every error that an adapter may raise has its own explanation, and none is called a bug."""
    assert {name for name in get_args(ModelErrorClass) if meaning_of(name) is BUG} == set()


def test_every_class_that_code_writes_has_a_meaning() -> None:
    """The table has all literal classes from the code that ends runs; a new one has to be entered."""
    source = "".join(
        (ROOT / file).read_text()
        for file in (
            "workflows/endings.py",
            "workflows/agent_turn.py",
            "activities/settle_call.py",
            "approvals_api/runs/order.py",
        )
    )
    written = set(re.findall(r'Ending\.failed\(\s*"(\w+)"', source)) | set(
        re.findall(r'error_class"?\s*[=:]\s*"(\w+)"', source)
    )
    assert {"step_cap", "malformed", "timeout", "bug", "workflow_gone", "not_started"} <= written
    assert written <= set(MEANINGS)


def test_every_failure_class_can_occur() -> None:
    """For every class that clients may receive, a stored value has that meaning."""
    assert {meaning.failure for meaning in MEANINGS.values()} == set(get_args(FailureClass))


def test_meanings_are_sentences_with_something_to_do() -> None:
    """A cause is one sentence; the next steps are one or more, without repeats; an unknown class is a bug."""
    for meaning in MEANINGS.values():
        assert re.fullmatch(r"[A-Z].*[^.:]\.", meaning.cause)
        assert ". " not in meaning.cause
        assert meaning.remedies
        assert len(set(meaning.remedies)) == len(meaning.remedies)
    assert meaning_of("ValueError") is meaning_of("") is BUG


@pytest.mark.parametrize(
    ("error_class", "step", "has_response", "planned", "all_settled_before", "at"),
    [
        ("unreachable", 0, False, False, True, 1),
        ("unreachable", 4, True, True, True, 5),
        ("malformed", 3, True, True, True, 3),
        ("tool_raised", 2, True, True, False, 2),
        ("bug", 2, True, True, False, 2),
        ("bug", 2, True, True, True, 3),
        ("bug", 2, True, False, True, 2),
        ("timeout", 0, False, False, True, 1),
        ("configuration", 6, True, True, True, 7),
        ("workflow_gone", 0, False, False, True, None),
        ("not_started", 0, False, False, True, None),
    ],
)
def test_a_failed_run_broke_off_at_this_step(
    error_class: str, step: int, has_response: bool, planned: bool, all_settled_before: bool, at: int | None
) -> None:
    """A missing response counts for the next step; calls left open or never planned count for this one."""
    failed_at = broke_off_at(
        meaning_of(error_class),
        step=step,
        has_response=has_response,
        planned=planned,
        all_settled_before=all_settled_before,
    )
    assert failed_at == at
