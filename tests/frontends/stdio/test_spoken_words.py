"""A model's words as an editor hears them, also when a response breaks off and is made again."""

from __future__ import annotations

from typing import Any

from turngate.domain.conversation.messages import Delta
from turngate.frontends.acp.turn import AGAIN, Turn
from turngate.wire.events import DeltaView
from turngate.wire.runs import StepView


class Heard:
    """The editor's end: what it was told, as text."""

    def __init__(self) -> None:
        self.words = self.thoughts = ""

    async def tell(self, *updates: Any) -> None:
        for update in updates:
            if update.session_update == "agent_thought_chunk":
                self.thoughts += update.content.text
            else:
                self.words += update.content.text


def heard_by(heard: Heard) -> Turn:
    turn = Turn(None, heard, None, None, set(), None)
    turn._run_id = "run_1"
    return turn


def said(*deltas: Delta, attempt: int = 1, reset: str | None = None, run_id: str = "run_1") -> DeltaView:
    return DeltaView(
        run_id=run_id,
        step=1,
        attempt=attempt,
        n=1,
        deltas=deltas,
        reset=reset,
        dropped=0,
        created_at="2026-01-01T00:00:00Z",
    )


def word(text: str, kind: str = "text") -> Delta:
    return Delta(kind=kind, part=0, text=text)


def step(text: str, reasoning: str = "") -> StepView:
    return StepView(
        step=1, model="m", finish_reason="stop", input_tokens=0, output_tokens=0, text=text, reasoning=reasoning, calls=[],
        created_at="2026-01-01T00:00:00Z", closed_at=None,
    )  # fmt: skip


async def test_what_was_heard_is_not_said_again() -> None:
    """Of a complete response only the rest is told, of its words and of its thoughts."""
    turn = heard_by(heard := Heard())
    await turn._speak(said(word("Let", "reasoning"), word("Good "), word('{"a"', "tool-call")))
    await turn._say(step("Good morning", "Let me"), "")
    assert (heard.words, heard.thoughts) == ("Good morning", "Let me")


async def test_a_response_that_is_made_again_says_so() -> None:
    """Nobody takes two attempts for one text; nothing is announced when nothing was heard yet."""
    for change in ({"attempt": 2}, {"reset": "the stream broke"}):
        turn = heard_by(heard := Heard())
        await turn._speak(said(reset="a fresh start"))
        await turn._speak(said(word("Good mor")))
        await turn._speak(said(word("Good evening"), **change))
        await turn._say(step("Good evening"), "")
        assert heard.words == f"Good mor{AGAIN}Good evening"


async def test_a_response_that_was_stopped_is_not_made_again() -> None:
    """Whoever cancels in the editor is not told of another attempt, which nobody makes."""
    turn = heard_by(heard := Heard())
    await turn._speak(said(word("Good mor")))
    await turn._speak(said(reset="interrupted"))
    assert heard.words == "Good mor"
    await turn._speak(said(reset="once more", attempt=2))
    await turn._say(step("Good evening"), "")
    assert heard.words == f"Good mor{AGAIN}Good evening"


async def test_words_that_were_lost_on_the_way_are_said_in_full() -> None:
    """A gap in what was heard is made good with the stored response, which is the one that counts."""
    turn = heard_by(heard := Heard())
    await turn._speak(said(word("od morning")))
    await turn._say(step("Good morning"), "")
    assert heard.words.endswith("Good morning")
    assert "In full" in heard.words


async def test_a_sub_agent_thinks() -> None:
    """Its words are told as thoughts behind its name, and not word by word: two that talk at once cannot be read."""
    turn = heard_by(heard := Heard())
    await turn._speak(said(word("Psst"), run_id="run_2"))
    await turn._say(step("I looked."), "agent \u203a helper")
    assert (heard.words, heard.thoughts) == ("", "agent \u203a helper: I looked.\n\n")
