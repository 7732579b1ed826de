"""Texts of people, models and tools as part of a sentence."""

from __future__ import annotations


def as_sentence(text: str) -> str:
    """Return a text with a full stop at its end, unless it ends as a sentence does; an empty one as it is."""
    text = text.strip()
    return text if not text or text.endswith((".", "!", "?", "…", ".)", "。")) else f"{text}."
