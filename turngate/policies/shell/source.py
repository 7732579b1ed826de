"""The bytes of a command line, and what must be true of them for the tree above them to be believed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from tree_sitter import Node

from turngate.policies.shell.options import names
from turngate.policies.shell.words import UnreadableError

MAX_COMMAND_BYTES = 64 * 1024
MAX_SIGNS = 1_500
"""Bytes that are neither blank nor usual in names. The parser's time grows with the square of their number: with so many it
takes a third of a second at worst, with 64 KiB of ``a|`` more than a minute. They are counted wherever they are, inside
quotations and here-documents too: where those begin and end is what the parser has to find out.
"""
_USUAL = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./- \t\n" + bytes(range(0x80, 0x100))

KEYWORDS = names("{ } ! if then elif else fi while until do done for select in case esac function")
_EDGES = frozenset(b" \t\n;&|()<>`")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
_BROKEN_WORD = re.compile(rb"(?:\\[ \t]|(?<![ \t]))\\\n(?![ \t])")
"""Bash takes a backslash and newline away before it reads (``r\\⏎m`` is ``rm``), the tree does so only between words."""
_BLANK = re.compile(rb"(?:[ \t\n]|\\\n)*")
_JOINT = re.compile(rb"(?:\\\n)*")
_LINE_BLANK = re.compile(rb"(?:[ \t]|\\\n)*")


def checked_bytes(text: str) -> bytes:
    """Return the text as bash gets it. Raises UnreadableError for what no command line should hold."""
    if (control := _CONTROL.search(text)) is not None:
        raise UnreadableError(f"it holds the invisible character U+{ord(control.group()):04X}")
    try:
        src = text.encode()
    except UnicodeEncodeError:
        raise UnreadableError("it holds half a surrogate pair") from None
    if len(src) > MAX_COMMAND_BYTES:
        raise UnreadableError(f"it is longer than {MAX_COMMAND_BYTES} bytes")
    if len(src.translate(None, _USUAL)) > MAX_SIGNS:
        raise UnreadableError(f"it has more than {MAX_SIGNS} signs besides its words")
    if src.endswith(b"\\"):
        raise UnreadableError("it ends with a backslash")
    if _BROKEN_WORD.search(src) is not None:
        raise UnreadableError("a line continues inside a word")
    return src


class Source:
    """The bytes, with checks that raise UnreadableError where tree and bytes disagree."""

    def __init__(self, src: bytes) -> None:
        self.src = src

    def of(self, node: Node) -> bytes:
        """Return the bytes of a node."""
        return self.src[node.start_byte : node.end_byte]

    def blank(self, start: int, end: int) -> None:
        """Refuse anything but blanks, newlines and continued lines between two places."""
        if start < end and _BLANK.fullmatch(self.src, start, end) is None:
            raise UnreadableError("there is text between its commands that is no part of them")

    def same_line(self, start: int, end: int) -> None:
        """Refuse anything but blanks and continued lines between two places: a newline ends a command."""
        if start < end and _LINE_BLANK.fullmatch(self.src, start, end) is None:
            raise UnreadableError("there is text between its words that is no part of them")

    def joined(self, start: int, end: int) -> bool:
        """Tell whether bash sees nothing between two places."""
        return _JOINT.fullmatch(self.src, start, end) is not None

    def apart(self, nodes: Sequence[Node]) -> None:
        """Check that the nodes follow one another on one line."""
        for one, other in pairwise(nodes):
            self.same_line(one.end_byte, other.start_byte)

    def parts(self, node: Node) -> Iterator[Node]:
        """Yield the children, after checking that there is nothing but blanks around them."""
        at = node.start_byte
        for child in node.children:
            self.blank(at, child.start_byte)
            at = child.end_byte
            yield child
        self.blank(at, node.end_byte)

    def token(self, node: Node, allowed: frozenset[str]) -> None:
        """Check a piece of syntax: one of those allowed, written so, and alone if it is a keyword."""
        # A token's bytes are not always its type: the tree takes `-rf<<` for the operator of a here-document.
        if node.type not in allowed or self.of(node) != node.type.encode():
            raise UnreadableError(f"it holds {self.of(node).decode(errors='replace')!r} where that is not judged")
        if node.type in KEYWORDS:
            before, after = self._before(node), self.src[node.end_byte : node.end_byte + 1]
            if before not in _EDGES or (after and after[0] not in _EDGES):
                raise UnreadableError(f"{node.type!r} is joined with other text")

    def comment(self, node: Node) -> None:
        """Check that bash begins and ends a comment where the tree does."""
        continued = self.src[: node.start_byte].endswith(b"\\\n")
        if self._before(node) not in _EDGES or continued or b"\n" in self.of(node):
            raise UnreadableError("a comment begins or ends where bash sees none")

    def descriptor(self, node: Node, operator: Node) -> None:
        """Check a descriptor. The tree takes ``-rf2>log`` for a redirection of ``-rf2``; for bash it is an argument and one."""
        if node.type != "file_descriptor":
            return
        digits = self.of(node).isdigit() and self._before(node) in _EDGES
        if not digits or node.end_byte != operator.start_byte:
            raise UnreadableError("a word is joined with a redirection")

    def words(self, nodes: Iterable[Node]) -> list[tuple[int, int]]:
        """Return where words begin and end. Nodes with no blank between them are one word for bash, whatever they are here."""
        places: list[tuple[int, int]] = []
        for node in nodes:
            if places and self.joined(places[-1][1], node.start_byte):
                places[-1] = (places[-1][0], node.end_byte)
            else:
                places.append((node.start_byte, node.end_byte))
        if any(self._redirects(start, end) for start, end in places):
            raise UnreadableError("a word is joined with a redirection")
        return places

    def _redirects(self, start: int, end: int) -> bool:
        """Tell whether bash takes a word for a descriptor: ``2>f`` redirects 2, ``2 >f`` is an argument."""
        written = self.src[start:end]
        return self.src[end : end + 1] in {b"<", b">"} and (written.isdigit() or written.endswith(b"}"))

    def without(self, start: int, end: int, holes: Mapping[int, int]) -> bytes:
        """Return the bytes with an ``x`` in place of each substitution. ``holes``: where each begins → where it ends."""
        out = bytearray()
        at = start
        while at < end:
            if at in holes:
                out += b"x"
                at = holes[at]
            else:
                out.append(self.src[at])
                at += 1
        return bytes(out)

    def _before(self, node: Node) -> int:
        return self.src[node.start_byte - 1] if node.start_byte else 0x20
