"""A response while it streams: what watchers have of it, and what they lack once it is stored. Pure.

Everyone who shows live words keeps them here: pages, terminal, editors, the client. The API does, too, in order to send what
is missing when the response is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from turngate.domain.conversation.messages import Delta, DeltaKind, ToolCallPart
from turngate.wire.events import DeltaView

ASKED_AGAIN: Final = "it is asked again"
HAS_GAPS: Final = "what was shown of it has gaps; here it is in full"


@dataclass
class StreamedPart:
    """One part so far. ``in_part``: some of it is not here."""

    kind: DeltaKind
    tool_name: str = ""
    text: str = ""
    in_part: bool = False


@dataclass
class Streamed:
    """The newest response of a run. ``step``: its step; 0: none yet. ``void``: why its earlier words don't count; "": they do.

    ``parts``: by number, in the order in which they began. ``most``: characters of one part that stay, the newest; None: all.
    """

    most: int | None = None
    step: int = 0
    attempt: int = 0
    n: int = 0
    parts: dict[int, StreamedPart] = field(default_factory=dict)
    void: str = ""

    def take(self, row: DeltaView) -> bool:
        """Take what is new; False: it is not new, and changes nothing."""
        if row.step < self.step or (row.step == self.step and (row.attempt, row.n) <= (self.attempt, self.n)):
            return False
        if row.step > self.step:
            self.step, self.attempt, self.n, self.parts, self.void = row.step, 0, 0, {}, ""
        has_gap = row.dropped > 0 or row.n > (self.n if row.attempt == self.attempt else 0) + 1
        if row.reset is not None or row.attempt > self.attempt:
            if row.reset is not None or self.parts:
                self.void = row.reset or ASKED_AGAIN
            self.parts = {}
        self.attempt, self.n = row.attempt, row.n
        for delta in row.deltas:
            self._add(delta, has_gap=has_gap)
        return True

    def forget(self) -> None:
        """Forget the words: the stored response has them."""
        self.parts, self.void = {}, ""

    def missing(self, whole: Sequence[Delta]) -> tuple[Delta, ...] | None:
        """Return what these words lack of a whole response (:func:`as_deltas`); None: its text doesn't begin with them.

        Reasoning and a call's input may be stored in other words than those that were streamed; they stay as they are.
        """
        new = max(self.parts, default=-1) + 1
        calls = iter(self._numbers("tool-call"))
        missing: list[Delta] = []
        for each in whole:
            if each.kind == "tool-call":
                number = next(calls, None)
                numbers = [] if number is None else [number]
            else:
                numbers = self._numbers(each.kind)
            streamed = "".join(self.parts[number].text for number in numbers)
            if each.text.startswith(streamed):
                rest = {"part": numbers[-1] if numbers else new, "text": each.text[len(streamed) :]}
                new += 0 if numbers else 1
                if rest["text"] or not numbers:
                    missing.append(each.model_copy(update=rest | ({"tool_name": ""} if numbers else {})))
            elif each.kind == "text":
                return None
        return tuple(missing)

    def _add(self, delta: Delta, *, has_gap: bool) -> None:
        part = self.parts.setdefault(delta.part, StreamedPart(delta.kind))
        part.tool_name = part.tool_name or delta.tool_name
        text = part.text + delta.text
        part.in_part |= has_gap or (self.most is not None and len(text) > self.most)
        part.text = text if self.most is None else text[-self.most :]

    def _numbers(self, kind: DeltaKind) -> list[int]:
        return [number for number, part in self.parts.items() if part.kind == kind]


def as_deltas(*, reasoning: str, text: str, calls: Iterable[ToolCallPart] = ()) -> list[Delta]:
    """Return a whole response as its deltas: one for all its reasoning, one for all its text, one for each call."""
    texts: list[tuple[DeltaKind, str, str]] = [("reasoning", reasoning, ""), ("text", text, "")]
    texts = [each for each in texts if each[1]] + [("tool-call", call.input, call.tool_name) for call in calls]
    return [Delta(kind=kind, part=n, text=text, tool_name=name) for n, (kind, text, name) in enumerate(texts)]
