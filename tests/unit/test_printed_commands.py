"""Every ``turngate`` command in a string, a template or a document can be typed as it is printed."""

from __future__ import annotations

import pytest
from support.project.printed_commands import Printed, in_code, in_texts, problem_of

MOST_FEW = 100


@pytest.mark.parametrize("collected", [in_code, in_texts], ids=["code", "texts"])
def test_every_printed_command_can_be_typed(collected) -> None:
    """The command exists, it has these options, and the number and the shape of what it gets are right."""
    printed = list(collected())
    assert len(printed) > MOST_FEW, "the scanner finds them"
    problems = [f"{each.where}: {each.command}: {problem}" for each in printed if (problem := problem_of(each))]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(
    "command",
    [
        "turngate nothing",
        "turngate worker APP --url http://127.0.0.1:1",
        "turngate decide REQUEST DECISION",
        "turngate decide REQUEST",
        "turngate fork RUN MESSAGE, or see the plan",
        "turngate fork RUN --step one MESSAGE",
        "turngate requests --nothing",
        "turngate schedule nothing",
        "turngate retry 'RUN",
    ],
)
def test_a_command_that_cannot_be_typed_is_found(command: str) -> None:
    """No such command or option, too few words or too many, a wrong choice or number, an open quotation mark."""
    assert problem_of(Printed("here", command)) is not None
