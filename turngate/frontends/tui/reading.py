"""A scrolled text that knows what of it has been on screen."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widget import Widget


class Reading(VerticalScroll):
    """Scrolls by the page's keys. ``seen_to``: how many lines from the top have been on screen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "scroll_down", "Down"),
        Binding("k", "scroll_up", "Up"),
        Binding("space", "page_down", "Page down"),
    ]

    def __init__(self, *children: Widget, classes: str | None = None) -> None:
        super().__init__(*children, classes=classes)
        self.seen_to = 0.0

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Take note of what is on screen now."""
        super().watch_scroll_y(old_value, new_value)
        # What is jumped over was not seen: a jump past the part below what was seen does not count.
        if new_value <= self.seen_to:
            self.seen_to = max(self.seen_to, new_value + self.size.height)

    def start_again(self) -> None:
        """Another text is shown: nothing of it was seen but what is on screen."""
        self.seen_to = self.size.height if self.scroll_y == 0 else 0.0

    def on_resize(self) -> None:
        """More of the text may be on screen."""
        if self.scroll_y <= self.seen_to:
            self.seen_to = max(self.seen_to, self.scroll_y + self.size.height)

    @property
    def was_read(self) -> bool:
        """Whether all of it has been on screen."""
        return self.has_seen(self.virtual_size.height)

    def has_seen(self, lines: int) -> bool:
        """Tell whether the first so many lines have been on screen."""
        return self.seen_to >= lines

    def shows(self, first: int, height: int) -> bool:
        """Tell whether lines are on screen now: all of them, or as many as fill most of it."""
        top = max(first, self.scroll_y)
        bottom = min(first + height, self.scroll_y + self.size.height)
        return bottom - top >= min(height, self.size.height * 0.4)
