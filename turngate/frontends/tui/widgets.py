"""Widgets: the controls of a form, and a scrolled text that knows what of it was on screen.

Each control has the name of its control in the form and holds a text, as the page's do; see :class:`Held`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final, Protocol, runtime_checkable

from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input, Select, Static, TextArea

from turngate.frontends.tui.form_model import Control
from turngate.frontends.tui.texts import escape_hidden, line, plain, plain_line

MOST_SIDE_BY_SIDE: Final = 8
WIDEST_SIDE_BY_SIDE: Final = 160
LABEL_CHARS: Final = 120
Option = tuple[str, str]
"""A value, and what a person reads for it, made harmless by the control."""


@runtime_checkable
class Held(Protocol):
    """A control: its name, and the text in it."""

    control_name: str

    @property
    def held(self) -> str:
        """Its content."""


class SafeInput(Input):
    """A line of text. What is pasted into it shows whatever it hides; ``pasteable`` False: nothing can be pasted."""

    def __init__(self, value: str, *, pasteable: bool = True, control_name: str = "") -> None:
        super().__init__(value, select_on_focus=False)
        self._pasteable = pasteable
        self.control_name = control_name
        self.cursor_position = len(value)

    @property
    def held(self) -> str:
        """Its content."""
        return self.value

    def put(self, text: str) -> None:
        """Replace its content by a text."""
        self.value = text
        self.cursor_position = len(text)

    def on_paste(self, event: events.Paste) -> None:
        """Take the first line of a paste."""
        event.prevent_default()
        event.stop()
        if self._pasteable:
            self.insert_text_at_cursor(plain(event.text.partition("\n")[0].strip()))


class SafeArea(TextArea):
    """Text of many lines. What is pasted into it shows whatever it hides: in JSON as escapes, which mean the same."""

    def __init__(self, text: str, *, is_json: bool, control_name: str = "") -> None:
        super().__init__(text, soft_wrap=True, tab_behavior="focus", show_line_numbers=False)
        self._is_json = is_json
        self.control_name = control_name

    @property
    def held(self) -> str:
        """Its content."""
        return self.text

    def put(self, text: str) -> None:
        """Replace its content by a text."""
        self.text = text
        self.move_cursor(self.document.end)

    def on_paste(self, event: events.Paste) -> None:
        """Take a paste."""
        event.prevent_default()
        event.stop()
        text = event.text.replace("\r\n", "\n")
        self.replace(escape_hidden(text) if self._is_json else plain(text), *self.selection)


class Pick(Static, can_focus=True):
    """One of a few, side by side: what is picked is a word and a mark, not a colour. True or false is one of these."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("right,space", "move(1)", "Next"),
        Binding("left", "move(-1)", "The one before"),
    ]

    class Changed(Message):
        """A person picked another one."""

        def __init__(self, pick: Pick) -> None:
            super().__init__()
            self.pick = pick

        @property
        def control(self) -> Pick:
            """The control."""
            return self.pick

    def __init__(self, control_name: str, options: Sequence[Option], held: str) -> None:
        super().__init__(Text())
        self.control_name = control_name
        self._options = list(options)
        self._at = next((at for at, (value, _label) in enumerate(self._options) if value == held), None)

    def on_mount(self) -> None:
        """Draw."""
        self._draw()

    @property
    def held(self) -> str:
        """The value that is picked; empty when none is."""
        return "" if self._at is None else self._options[self._at][0]

    def put(self, value: str) -> None:
        """Pick a value without telling anyone."""
        self._at = next((at for at, each in enumerate(self._options) if each[0] == value), self._at)
        self._draw()

    def action_move(self, by: int) -> None:
        """Pick the next one, or the one before."""
        first = 0 if by > 0 else len(self._options) - 1
        self._at = first if self._at is None else (self._at + by) % len(self._options)
        self._draw()
        self.post_message(self.Changed(self))

    def _draw(self) -> None:
        text = Text()
        for at, (_value, label) in enumerate(self._options):
            mark, style = ("(•) ", "bold") if at == self._at else ("( ) ", "")
            text.append_text(line("  " if at else "", (mark, style), (plain_line(label, LABEL_CHARS), style)))
        self.update(text)


class PickList(Select[str]):
    """One of many, in a list that opens."""

    def __init__(self, control_name: str, options: Sequence[Option], held: str) -> None:
        known = held in {value for value, _label in options}
        super().__init__(
            [(line(plain_line(label, LABEL_CHARS)), value) for value, label in options],
            allow_blank=not known,
            value=held if known else Select.NULL,
            compact=True,
        )
        self.control_name = control_name

    @property
    def held(self) -> str:
        """The value that is picked; empty when none is."""
        return self.value if isinstance(self.value, str) else ""


class Press(Static, can_focus=True):
    """A button: Enter or Space presses it. ``does``: what, in the words of the form's model."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter,space", "press", "Press")]

    class Pressed(Message):
        """It was pressed."""

        def __init__(self, does: str) -> None:
            super().__init__()
            self.does = does

    def __init__(self, label: str, does: str) -> None:
        super().__init__(line(f"[ {label} ]"))
        self.does = does

    def action_press(self) -> None:
        """Press it."""
        self.post_message(self.Pressed(self.does))


def picker(control_name: str, options: Sequence[Option], held: str) -> Pick | PickList:
    """Return the control for one of these: side by side while they are few and short."""
    width = sum(len(label) + 6 for _value, label in options)
    few = len(options) <= MOST_SIDE_BY_SIDE and width <= WIDEST_SIDE_BY_SIDE
    return Pick(control_name, options, held) if few else PickList(control_name, options, held)


def control_for(control: Control, text: str) -> Widget:
    """Return the control of one value, with a text in it."""
    if control.kind == "choice":
        return picker(control.name, [(each.value, each.label) for each in control.choices], text)
    if control.kind in {"text", "lines", "json"}:
        return SafeArea(text, is_json=control.kind == "json", control_name=control.name)
    return SafeInput(text, control_name=control.name)


class ScrolledText(VerticalScroll):
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

    def seen_percent(self, lines: int) -> int:
        """Return how much of the first so many lines has been on screen, 0 to 100."""
        return 100 if self.has_seen(lines) else int(100 * self.seen_to / lines)

    def shows(self, first: int, height: int) -> bool:
        """Tell whether lines are on screen now: all of them, or as many as fill most of it."""
        top = max(first, self.scroll_y)
        bottom = min(first + height, self.scroll_y + self.size.height)
        return bottom - top >= min(height, self.size.height * 0.4)
