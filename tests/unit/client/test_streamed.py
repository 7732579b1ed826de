"""What a watcher has of a response, and what it lacks once that is stored."""

from __future__ import annotations

import pytest

from turngate.domain.conversation.messages import Delta, ToolCallPart
from turngate.wire.events import DeltaView
from turngate.wire.streamed import Streamed, as_deltas

CALL = ToolCallPart(tool_call_id="c", tool_name="look", input='{"at": 1}')


def row(n: int, *deltas: tuple[int, str, str], attempt: int = 1, reset: str | None = None) -> DeltaView:
    return DeltaView(
        run_id="r", step=1, attempt=attempt, n=n, reset=reset, dropped=0, created_at="2026-01-01T00:00:00Z",
        deltas=tuple(Delta(kind=kind, part=part, text=text) for part, kind, text in deltas),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "missing"),
    [
        ([], ["Let me see", "It is 9:15", '{"at": 1}']),
        ([row(1, (0, "reasoning", "Let me "), (1, "text", "It is "))], ["see", "9:15", '{"at": 1}']),
        ([row(1, (0, "text", "It is 9:15")), row(2, (1, "tool-call", '{"at'))], ["Let me see", '": 1}']),
        (
            [row(1, (0, "text", "It ")), row(2, (1, "tool-call", "⟦secret⟧"), (0, "text", "is 9:1"))],
            ["Let me see", "5"],
        ),
        ([row(1, (0, "text", "No")), row(1, (0, "text", "It"), attempt=2)], ["Let me see", " is 9:15", '{"at": 1}']),
        ([row(1, (0, "text", "No")), row(2, reset="it broke off")], ["Let me see", "It is 9:15", '{"at": 1}']),
        ([row(2, (0, "text", "is 9:15"))], None),
    ],
)
def test_what_is_missing_completes_what_was_streamed(rows: list[DeltaView], missing: list[str] | None) -> None:
    """Each part gets its rest, in the part that it belongs to; a gap in the text says that all of it is needed."""
    streamed = Streamed()
    assert all(streamed.take(each) for each in rows)
    whole = as_deltas(reasoning="Let me see", text="It is 9:15", calls=[CALL])
    rest = streamed.missing(whole)
    assert missing == (None if rest is None else [each.text for each in rest])
    if rest is not None:
        streamed.take(row(9, attempt=8 if not rows else rows[-1].attempt).model_copy(update={"deltas": rest}))
        assert "".join(part.text for part in streamed.parts.values() if part.kind == "text") == "It is 9:15"
    assert not any(streamed.take(each) for each in rows)
