"""A text that arrives in pieces, as watchers see it: what may become a secret waits until it is one, or is none. Pure.

The pieces and :meth:`LiveText.end` add up to the text as :func:`turngate.domain.tools.secrets.mask_text` shows it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from turngate.domain.text.credentials import Span, apart, credentials_in, cut_credential_at, replaced, unfinished_at
from turngate.domain.tools.secrets import MASKED, MIN_CHARS, cut_secret_at, written_forms

MAX_WAITING: Final = 8 * 1024
"""Characters that may wait. After a longer word (an encoded picture) nothing comes live: the response has it all."""
MAX_VALUES: Final = 100
"""Known secret texts from which on no more of them are learned from the text itself."""
_CONTEXT: Final = 64
_HEAD: Final = 256
"""Of a secret, compared with the end of the text in order to know whether it may begin there."""


class LiveText:
    """One part of a response while it is written. ``values``: secret texts that are known already."""

    def __init__(self, values: Collection[str]) -> None:
        self._values: set[str] = set()
        self._forms: set[str] = set()
        self._know(values)
        self._before = ""
        self._waiting = ""
        self._is_cut = False

    def add(self, piece: str) -> str:
        """Take a piece, and return what watchers may see now."""
        if self._is_cut:
            return ""
        text = self._before + self._waiting + piece
        first = len(self._before)
        last = min([unfinished_at(text), *(_beginning_at(text, form) for form in self._forms)])
        spans = self._secrets_in(text) if last > first else []
        while within := [each.start for each in spans if each.start < last < each.end]:
            last = min(within)  # a part of a secret gives nothing away about the rest, which would be shown
        last = max(first, last)
        spans = self._secrets_in(text[:last])
        visible = _masked(text[:last], first, spans)
        if (
            len(self._values) < MAX_VALUES
        ):  # a credential of this text is masked where it is said again, as in the whole
            self._know(text[each.start : each.end] for each in spans)
        self._before, self._waiting = text[:last][-_CONTEXT:], text[last:]
        self._is_cut = len(self._waiting) > MAX_WAITING
        if self._is_cut:
            self._waiting = ""
            return visible + MASKED
        return visible

    def end(self, *, is_cut: bool = False) -> str:
        """Return what still waits: nothing follows that could make more of it a secret. ``is_cut``: something would have."""
        text, first = self._before + self._waiting, len(self._before)
        cuts = [at for value in self._values if (at := cut_secret_at(text, value)) is not None]
        if is_cut and (at := cut_credential_at(text)) is not None:
            cuts.append(at)
        self._waiting = ""
        return _masked(text, first, [*self._secrets_in(text), *(Span(at, len(text)) for at in cuts)])

    def _know(self, values: Iterable[str]) -> None:
        new = {each for each in values if len(each) >= MIN_CHARS} - self._values
        self._values |= new
        self._forms |= {form for value in new for form in written_forms(value)}

    def _secrets_in(self, text: str) -> list[Span]:
        spans = credentials_in(text)
        for form in self._forms:
            at = text.find(form)
            while at >= 0:
                spans.append(Span(at, at + len(form)))
                at = text.find(form, at + len(form))
        return apart(spans)


def _masked(text: str, first: int, spans: Iterable[Span]) -> str:
    """Return a text from a place on, with marks in place of these spans."""
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
