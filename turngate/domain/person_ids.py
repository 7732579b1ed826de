"""What rows, events and models call a person whose name is in the table of people only (docs/adr/0056)."""

from __future__ import annotations

import re
from typing import Final

PERSON_ID: Final = re.compile(r"p-[0-9a-f]{16}")
"""No name looks like it."""
ERASED_PREFIX: Final = "erased person "
"""Begins what pages call an erased person."""


def is_person_id(text: str) -> bool:
    """Tell whether a text is a person's id."""
    return PERSON_ID.fullmatch(text) is not None


def for_model(by: str) -> str:
    """Return who did something, for a model, which has no use for a person's id. ``by``: their terminal's name, too."""
    return "A person" if is_person_id(by.rpartition(":")[2]) else by
