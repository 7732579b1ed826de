"""What a run's model says while its response is made, and what its tools say: kept to be shown, and forgotten then."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from turngate.domain.conversation.messages import DeltaKind
from turngate.frontends.tui.texts import Line, at, lines_of, plain_line
from turngate.wire.events import DeltaView, ProgressView

KEPT_CHARS: Final = 20_000
"""Most characters of one part that are shown: the newest."""
KEPT_LINES: Final = 8
"""Most lines of one call's progress."""
STYLES: Final[dict[DeltaKind, str]] = {"text": "cyan", "reasoning": "dim", "tool-call": "dim"}


@dataclass
class _Part:
    kind: DeltaKind
    name: str = ""
    text: str = ""


@dataclass
class Spoken:
    """The response that is being made. ``step``: of which step; 0: of none yet."""

    step: int = 0
    _at: tuple[int, int] = (0, 0)
    _parts: dict[int, _Part] = field(default_factory=dict)
    _void: str = ""
    _progress: dict[str, deque[str]] = field(default_factory=dict)
    _heard: dict[str, int] = field(default_factory=dict)

    def take(self, said: DeltaView) -> None:
        """Take what is new; what was said before another attempt is void."""
        if said.step < self.step:
            return
        if said.step > self.step:
            self.step, self._at, self._parts, self._void = said.step, (0, 0), {}, ""
        if (said.attempt, said.n) <= self._at:
            return
        if said.reset is not None or said.attempt > self._at[0]:
            if said.reset is not None or self._parts:
                self._void = said.reset or "it is asked again"
            self._parts = {}
        self._at = (said.attempt, said.n)
        for delta in said.deltas:
            part = self._parts.setdefault(delta.part, _Part(delta.kind))
            part.name = part.name or delta.tool_name
            part.text = (part.text + delta.text)[-KEPT_CHARS:]

    def forget(self, stored_step: int) -> None:
        """Forget what the stored steps say themselves."""
        if stored_step >= self.step:
            self._parts, self._void = {}, ""

    def take_progress(self, said: ProgressView) -> None:
        """Take what a running tool says, once: all of it is told again on every connection."""
        before = self._heard.get(said.tool_call_id, 0)
        if said.n <= before:
            return
        self._heard[said.tool_call_id] = said.n
        text = said.payload if isinstance(said.payload, str) else json.dumps(said.payload, ensure_ascii=False)
        kept = self._progress.setdefault(said.tool_call_id, deque(maxlen=KEPT_LINES))
        if said.dropped:
            kept.append(f"… {said.dropped:,} not shown")
        kept.append(plain_line(text, 500))

    def progress_of(self, tool_call_id: str) -> tuple[str, ...]:
        """Return the newest lines of a call, made harmless."""
        return tuple(self._progress.get(tool_call_id, ()))

    def lines(self) -> Iterator[Line]:
        """Yield what is shown of it; nothing when nothing is being said."""
        if not self._parts and not self._void:
            return
        yield at("", (f"STEP {self.step}", "bold"), (" is being said", "dim"))
        if self._void:
            yield at("", ("! ", "yellow"), f"what it said before is void: {plain_line(self._void, 300)}")
        for part in self._parts.values():
            if part.kind == "tool-call":
                yield at("", ("… calls ", "dim"), plain_line(part.name or "a tool", 64))
            margin = "┆ " if part.kind == "reasoning" else "│ "
            if part.text:
                yield from lines_of(part.text, margin, STYLES[part.kind])
