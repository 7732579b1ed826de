"""What the terminal says about how a request came about."""

from __future__ import annotations

from turngate.text.run_words import lead_lines, look_words
from turngate.wire.decisions import DecisionView
from turngate.wire.requests import LatestMessage, TaskView


def test_each_agent_asked_the_next() -> None:
    """The first task is a person's; every other one names the agent that wrote it. Hidden characters are spelled out."""
    tasks = [TaskView(agent="desk", task="Refund A-113"), TaskView(agent="payer", task="Pay\u202e 49.00")]
    assert lead_lines(tasks, None) == [("the task", "Refund A-113"), ("desk asked payer", "Pay⟨U+202E⟩ 49.00")]
    assert lead_lines([], None) == []


def test_the_last_word_of_a_person_comes_last() -> None:
    """It is cut as a task is."""
    latest = LatestMessage(message_id="m", text="No,\n\u202eA-114", created_at="2026-01-01T00:00:00Z")
    lines = lead_lines([TaskView(agent="desk", task="Refund A-113")], latest)
    assert lines[1:] == [("a person last said", "No, ⏎ ⟨U+202E⟩A-114")]


def test_a_decision_says_how_its_request_was_looked_at() -> None:
    """For how long, and how much of the call was seen where that is known; nothing where neither is."""
    decision = DecisionView(
        id="d", verb="approve", args=None, message="", outcome=None, decided_by="ann", decided_at="2026-01-01T00:00:00Z"
    )
    assert look_words(None) == look_words(decision) == ""
    seen = decision.model_copy(update={"looked_ms": 12_400, "seen_percent": 100})
    assert (
        look_words(seen)
        == "looked at for 12 s, with 100 % of the call on the screen, as their browser or terminal says"
    )
