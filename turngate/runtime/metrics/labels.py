"""Labels with a bound: a series costs memory here and in Prometheus, and some names come from models and other programs."""

from __future__ import annotations

import re
from typing import Final

OTHER: Final = "other"
"""The value for every name beyond the bound, and for what is no name."""
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/@+-]{0,99}")
"""ASCII only: a name that looks like another one, or that breaks a line, gets no series."""


class BoundedLabel:
    """The values of one label: the names that come first, up to ``most`` in all."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: set[str] = set()

    def of(self, name: str) -> str:
        """Return the name, or :data:`OTHER`. The same name always gets the same value."""
        if name in self._values:
            return name
        if len(self._values) >= self._most or NAME.fullmatch(name) is None:
            return OTHER
        self._values.add(name)
        return name
