"""A text that arrives in pieces, as watchers see it: what may become a secret waits until it is one, or is none. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from turngate.domain.text.credentials import Span, apart, credentials_in, replaced, unfinished_at
from turngate.domain.tools.secrets import MASKED, written_forms

MAX_WAITING: Final = 8 * 1024
"""Characters that may wait. After a longer word (an encoded picture) nothing comes live: the response has it all."""
_CONTEXT: Final = 64
_HEAD: Final = 256
"""Of a secret, compared with the end of the text in order to know whether it may begin there."""


class LiveText:
    """One part of a response while it is written. ``values``: secret texts that are known already."""

    def __init__(self, values: Collection[str]) -> None:
        self._forms = {form for value in values for form in written_forms(value)}
        self._before = ""
        self._waiting = ""
        self._is_cut = False

    def add(self, piece: str) -> str:
        """Take a piece, and return what watchers may see now."""
        if self._is_cut:
            return ""
        text = self._before + self._waiting + piece
        first = len(self._before)
        last = max(first, min([unfinished_at(text), *(_beginning_at(text, form) for form in self._forms)]))
        visible = self._masked(text[:last], first)
        self._before, self._waiting = text[:last][-_CONTEXT:], text[last:]
        self._is_cut = len(self._waiting) > MAX_WAITING
        if self._is_cut:
            self._waiting = ""
            return visible + MASKED
        return visible

    def _masked(self, text: str, first: int) -> str:
        """Return a text from a place on, without secrets."""
        spans = list(credentials_in(text))
        for form in self._forms:
            at = text.find(form)
            while at >= 0:
                spans.append(Span(at, at + len(form)))
                at = text.find(form, at + len(form))
        new = [Span(max(each.start, first) - first, each.end - first) for each in apart(spans) if each.end > first]
        return replaced(text[first:], new, [MASKED] * len(new))


def _beginning_at(text: str, form: str) -> int:
    """Return where the end of a text begins that more of it may make this form; its length: nowhere."""
    head = form[:_HEAD]
    at = text.rfind(head)
    if at >= 0 and len(text) - at < len(form) and form.startswith(text[at:]):
        return at
    at = text.find(head[0], max(0, len(text) - len(head) + 1))
    while at >= 0:
        if head.startswith(text[at:]):
            return at
        at = text.find(head[0], at + 1)
    return len(text)
