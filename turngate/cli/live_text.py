"""What the model says, on a terminal as it comes: word by word, each line behind a margin that no word can leave."""

from __future__ import annotations

from typing import Final

from turngate.cli import terminal
from turngate.domain.conversation.messages import Delta
from turngate.text.plain_text import plain, plain_line
from turngate.wire.events import DeltaView

TEXT_MARGIN: Final = "  │ "
REASONING_MARGIN: Final = "  ┆ "
LONGEST_NAME: Final = 64


class LiveText:
    """What was printed of one run's response that is still being made."""

    def __init__(self) -> None:
        self._step = 0
        self._attempt = 0
        self._part: int | None = None
        self._text = ""
        self._whole = True
        self._margin, self._style = TEXT_MARGIN, "cyan"
        self._held = ""
        self._line_is_open = False
        self._printed = False

    def show(self, said: DeltaView) -> None:
        """Print what is new."""
        if said.step != self._step:
            self._begin(said)
            terminal.line("")
            terminal.line((f"step {said.step}", "bold"))
        elif said.reset is not None or said.attempt != self._attempt:
            self.break_line()
            if self._printed:
                why = plain_line(said.reset or "it is asked again", 300)
                terminal.line(("  ! ", "yellow"), f"what it said is void: {why}")
            self._begin(said)
        self._whole = self._whole and not said.dropped
        for delta in said.deltas:
            self._show(delta)

    def break_line(self) -> None:
        """End the line that was begun, because something else is printed next."""
        if self._line_is_open:
            terminal.piece("\n")
        self._line_is_open, self._part, self._held = False, None, ""

    def finish(self, step: int, text: str) -> bool:
        """Print what is missing of a step's stored text; False when nothing of the step was printed."""
        if step != self._step:
            return False
        told, whole = self._text.strip(), text.strip()
        if self._whole and told and whole.startswith(told):
            self._held = ""
            if rest := whole[len(told) :]:
                self._say(rest, TEXT_MARGIN, "cyan")
            self.break_line()
        else:
            self.break_line()
            if whole:
                self._say(whole, TEXT_MARGIN, "cyan")
                self.break_line()
        self._step = 0
        return True

    def _begin(self, said: DeltaView) -> None:
        self._step, self._attempt = said.step, said.attempt
        self._part, self._text, self._whole, self._held = None, "", said.n == 1 or said.reset is not None, ""
        self._printed = False

    def _show(self, delta: Delta) -> None:
        self._printed = True
        if delta.part != self._part:
            self.break_line()
            self._part = delta.part
        if delta.kind == "tool-call":
            if delta.tool_name:
                terminal.line(("  … ", "dim"), (f"calls {plain_line(delta.tool_name, LONGEST_NAME)}", "dim"))
        elif delta.kind == "reasoning":
            self._say(delta.text, REASONING_MARGIN, "dim")
        else:
            self._text += delta.text
            self._say(delta.text, TEXT_MARGIN, "cyan")

    def _say(self, text: str, margin: str, style: str) -> None:
        """Print a piece of a part. White space at its end is held back until something follows it."""
        text = self._held + text
        said = text.rstrip()
        self._held = text[len(said) :]
        if not self._line_is_open:
            said = said.lstrip()
        for place, line in enumerate(plain(said).split("\n") if said else []):
            if place:
                terminal.piece("\n")
                self._line_is_open = False
            if not self._line_is_open:
                terminal.piece(margin, style)
                self._line_is_open = True
            terminal.piece(line, style)
