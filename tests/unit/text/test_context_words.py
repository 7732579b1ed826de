"""What the terminal prints about conversations that were cut, and about approvals of several people."""

from __future__ import annotations

from typing import Any

import pytest

from turngate.text.run_words import approval_words, context_words

CUT: dict[str, Any] = {"messages": 12, "tokens_before": 150_000, "tokens_after": 9_000, "forced": False}
NUMBERS = "(about 150,000 tokens before, 9,000 now)"
SKIPPED: dict[str, Any] = {"step": 3, "model": "m:n", "error_class": "", "forced": False}


@pytest.mark.parametrize(
    ("kind", "payload", "words"),
    [
        (
            "compacted",
            {**CUT, "model": "m\x1b:n"},
            "12 earlier messages summarised by m⟨U+001B⟩:n (about 150,000 tokens before, 9,000 now)",
        ),
        (
            "trimmed",
            {**CUT, "messages": 1, "forced": True},
            f"the provider refused the conversation as too long: 1 earlier message left out {NUMBERS}",
        ),
        (
            "carried_over",
            {"from_run_id": "run_1", "step": 4, "messages": 9, "model": "m:n"},
            "begins with a summary of run run_1 up to step 4, written by m:n",
        ),
        (
            "compaction_skipped",
            {**SKIPPED, "reason": "error", "error_class": "unreachable"},
            "the conversation is not summarised: the model failed (unreachable)",
        ),
        (
            "compaction_skipped",
            {**SKIPPED, "reason": "timeout"},
            "the conversation is not summarised: the model took too long",
        ),
    ],
)
def test_each_event_is_one_plain_sentence(kind: str, payload: dict[str, Any], words: str) -> None:
    """No part of it can steer the terminal."""
    assert context_words(f"context.{kind}", payload) == words


def test_an_approval_of_several_and_its_take_back_name_their_counts():
    """Follow and watch print both: who, how many of how many, and that nothing ran."""
    counts = {"by": "ada\u202e", "approvals": 1, "quorum": 2}
    once = approval_words("request.approved_once", counts)
    assert once == "approved by ada⟨U+202E⟩ (1 of 2); it waits for more approvals"
    back = approval_words("request.approval_withdrawn", {**counts, "approvals": 0})
    assert back == "ada⟨U+202E⟩ took the approval back (0 of 2); the call did not run"
    assert "(" not in approval_words("request.approval_withdrawn", {"by": "ada"})
