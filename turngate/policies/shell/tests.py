"""``[ … ]`` and ``[[ … ]]``: the first is a command like others, the second is syntax that may evaluate its text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from turngate.policies.shell.words import UnreadableError

_DOUBLE = re.compile(rb"\[\[[ \t].*[ \t]\]\]", re.DOTALL)
_EVALUATES = re.compile(rb"\$\(|`|-(?:eq|ne|lt|le|gt|ge|v|R)\b|\[.*\[.*\[", re.DOTALL)


def check_double(written: bytes) -> str | None:
    """Check ``[[ … ]]``, its substitutions taken out. Return a doubt, or None.

    A numeric operator evaluates its text and ``-v`` its subscript: ``[[ 'a[$(rm x)]' -eq 1 ]]`` runs ``rm``.
    """
    if not _DOUBLE.fullmatch(written) or b"]]" in written[2:-2]:
        raise UnreadableError("'[[' is joined with other text")
    return "'[[' with a test that may evaluate its text" if _EVALUATES.search(written) else None


def single_words(src: bytes, start: int, end: int, holes: Mapping[int, int]) -> Iterator[tuple[int, int]]:
    """Yield where the words of ``[ … ]`` stand, by the blanks outside quotations: the tree's nodes in it are not words."""
    if src[start + 1 : start + 2] not in {b" ", b"\t"}:
        raise UnreadableError("'((' evaluates arithmetic, which may run commands")
    at = start
    while at < end:
        if src[at] in b" \t":
            at += 1
        elif src.startswith(b"\\\n", at):
            at += 2
        else:
            begin = at
            while at < end and src[at] not in b" \t":
                at = holes.get(at) or _past_quotation(src, at, end)
            yield begin, at


def _past_quotation(src: bytes, at: int, end: int) -> int:
    quote = src[at : at + 1]
    if quote not in {b"'", b'"'}:
        return at + (2 if quote == b"\\" else 1)
    closing = src.find(quote, at + 1, end)
    if closing < 0 or b"\\" in src[at:closing] or b"$(" in src[at:closing]:
        raise UnreadableError("a test holds a quotation that is not judged")
    return closing + 1
