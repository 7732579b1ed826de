"""Parts of sentences: texts of people, models and tools, and numbers with their nouns."""

from __future__ import annotations

from typing import Final

_ENDS: Final = frozenset(".!?:;\u2026\u203d\u3002\uff01\uff1f\uff61\u0964\u061f\u06d4")
"""Also of Chinese, Japanese, Hindi, Arabic and Urdu."""
_CLOSES: Final = "\"'`)]}*_\u201d\u2019\u00bb\u203a\u300d\u300f\uff09\u3011"
"""May come after the sign that ends a sentence."""


def as_sentence(text: str) -> str:
    """Return a text with a full stop at its end, unless it ends as a sentence does; an empty one as it is."""
    text = text.strip()
    return text if not text or text.rstrip(_CLOSES)[-1:] in _ENDS else f"{text}."


def sentences(*texts: str) -> str:
    """Return texts one after the other, each as a sentence, so that a person's or tool's words don't run into ours."""
    return " ".join(as_sentence(text) for text in texts if text.strip())


def counted(number: int, one: str, several: str = "") -> str:
    """Return a number with its noun: ``1 run``, ``1,200 runs``. ``several``: the noun for more; empty: with an s."""
    return f"{number:,} {one if number == 1 else several or f'{one}s'}"
