"""A model's words as an editor gets them, also when a response breaks off and is repeated."""

from __future__ import annotations

import asyncio
import itertools
import re
from typing import Any

from turngate.domain.conversation.messages import Delta
from turngate.frontends.acp.turn import AGAIN, Turn
from turngate.wire.events import DeltaView
from turngate.wire.runs import StepView


class Transcript:
    """The editor's end: what it got, as text."""

    def __init__(self) -> None:
        self.words = self.thoughts = ""

    async def tell(self, *updates: Any) -> None:
        for update in updates:
            if update.session_update == "agent_thought_chunk":
                self.thoughts += update.content.text
            else:
                self.words += update.content.text


def turn_into(transcript: Transcript) -> Turn:
    turn = Turn(None, transcript, None, None, set(), None)
    turn._run_id = "run_1"
    return turn


NUMBERS = itertools.count(1)


def delta_view(*deltas: Delta, attempt: int = 1, reset: str | None = None, run_id: str = "run_1") -> DeltaView:
    return DeltaView(
        run_id=run_id,
        step=1,
        attempt=attempt,
        n=next(NUMBERS),
        deltas=deltas,
        reset=reset,
        dropped=0,
        created_at="2026-01-01T00:00:00Z",
    )


def word(text: str, kind: str = "text") -> Delta:
    return Delta(kind=kind, part=["text", "reasoning", "tool-call"].index(kind), text=text)


def step(text: str, reasoning: str = "") -> StepView:
    return StepView(
        step=1, model="m", finish_reason="stop", input_tokens=0, output_tokens=0, text=text, reasoning=reasoning, calls=[],
        created_at="2026-01-01T00:00:00Z", closed_at=None,
    )  # fmt: skip


async def test_words_that_were_streamed_are_not_repeated() -> None:
    """Only the rest of a complete response is sent, both of its words and of its thoughts."""
    turn = turn_into(transcript := Transcript())
    await turn._speak(delta_view(word("Let", "reasoning"), word("Good "), word('{"a"', "tool-call")))
    await turn._say(step("Good morning", "Let me"), "")
    assert (transcript.words, transcript.thoughts) == ("Good morning", "Let me")


async def test_a_repeated_response_says_so() -> None:
    """The user can't take two attempts for one text; nothing is announced if nothing was sent yet."""
    for change in ({"attempt": 2}, {"reset": "the stream broke"}):
        turn = turn_into(transcript := Transcript())
        await turn._speak(delta_view(reset="a fresh start"))
        await turn._speak(delta_view(word("Good mor")))
        await turn._speak(delta_view(word("Good evening"), **change))
        await turn._say(step("Good evening"), "")
        assert transcript.words == f"Good mor{AGAIN}Good evening"


async def test_a_stopped_response_is_not_repeated() -> None:
    """A user who cancels in the editor reads of no further attempt, because there is none."""
    turn = turn_into(transcript := Transcript())
    await turn._speak(delta_view(word("Good mor")))
    await turn._speak(delta_view(reset="interrupted"))
    assert transcript.words == "Good mor"
    await turn._speak(delta_view(reset="once more", attempt=2))
    await turn._say(step("Good evening"), "")
    assert transcript.words == f"Good mor{AGAIN}Good evening"


async def test_words_that_were_lost_are_sent_in_full() -> None:
    """A gap in the words is filled with the stored response, which is the one that counts."""
    turn = turn_into(transcript := Transcript())
    await turn._speak(delta_view(word("od morning")))
    await turn._say(step("Good morning"), "")
    assert transcript.words.endswith("Good morning")
    assert "In full" in transcript.words


async def test_a_sub_agents_words_are_thoughts() -> None:
    """Its words are thoughts after its name, and come whole: two agents that stream at once would be unreadable."""
    turn = turn_into(transcript := Transcript())
    await turn._speak(delta_view(word("Psst"), run_id="run_2"))
    await turn._say(step("I looked."), "agent \u203a helper")
    assert (transcript.words, transcript.thoughts) == ("", "agent \u203a helper: I looked.\n\n")


async def test_a_lost_connection_is_one_message() -> None:
    """However often it is tried again; and once that it is back. What the model says is not mixed up with it."""
    turn = turn_into(transcript := Transcript())
    for is_open in (True, False, False, True, True):
        turn._on_link(is_open)
        await asyncio.gather(*turn._telling)
    assert re.fullmatch(r"Not connected since \S+ [\d:+-]+\. .+\n\nConnected again\.\n\n", transcript.thoughts)
    assert transcript.words == ""
