"""What the terminal says about how a request came about."""

from __future__ import annotations

from turngate.text.run_words import task_lines
from turngate.wire.requests import TaskView


def test_each_agent_asked_the_next() -> None:
    """The first task is a person's; every other one names the agent that wrote it. Hidden characters are spelled out."""
    tasks = [TaskView(agent="desk", task="Refund A-113"), TaskView(agent="payer", task="Pay\u202e 49.00")]
    assert task_lines(tasks) == [("the task", "Refund A-113"), ("desk asked payer", "Pay⟨U+202E⟩ 49.00")]
    assert task_lines([]) == []
