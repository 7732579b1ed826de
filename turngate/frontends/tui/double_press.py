"""Keys that do something at once take two presses, and neither a held key nor a paste makes two.

A terminal cannot tell a held key from one that is pressed again, nor, without bracketed paste, typed text from pasted
text. So the second press has to come after a pause that no paste leaves, and has to be the last one for a moment: a held
key repeats.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Final

from textual.timer import Timer
from textual.widget import Widget

SHORTEST_PAUSE_SECONDS: Final = 0.3
"""Between the two presses, as on the page. A pasted text comes all at once; a held key repeats within 0.1 s."""
SETTLE_SECONDS: Final = 0.15
"""After the second press, which must be the last one."""
ARMED_SECONDS: Final = 6.0


class DoublePress:
    """One armed key at a time. ``say``: shows a hint; empty: takes it away."""

    def __init__(self, owner: Widget, say: Callable[[str], None]) -> None:
        self._owner = owner
        self._say = say
        self._key = ""
        self._last = 0.0
        self._settling: Timer | None = None

    def press(self, key: str, hint: str, act: Callable[[], object]) -> None:
        """Take one press of a key that does ``act`` when it is pressed again."""
        now = monotonic()
        pause, self._last = now - self._last, now
        if self._settling is not None:
            self.disarm()
            self._say("The key was held down, or text was pasted: nothing was done.")
            return
        if self._key == key and pause < SHORTEST_PAUSE_SECONDS:
            return  # the pause starts again
        if self._key == key and pause < ARMED_SECONDS:
            self._settling = self._owner.set_timer(SETTLE_SECONDS, lambda: self._fire(act))
            return
        self._key = key
        self._say(hint)

    def disarm(self) -> None:
        """Forget a press, and whatever was about to be done."""
        if self._settling is not None:
            self._settling.stop()
        self._settling = None
        if self._key:
            self._say("")
        self._key = ""

    def _fire(self, act: Callable[[], object]) -> None:
        self._settling, self._key = None, ""
        self._say("")
        act()
