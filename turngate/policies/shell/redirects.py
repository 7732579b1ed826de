"""Redirections: which of them an allow rule lets through, and where a here-document ends.

A here-document is found again as bash finds it: line by line, from the line after the operator.
"""

from __future__ import annotations

import re

from tree_sitter import Node

from turngate.domain.policy.command_line import Word
from turngate.policies.shell.options import names
from turngate.policies.shell.words import UnreadableError

REDIRECTS = names("file_redirect herestring_redirect heredoc_redirect")
OPERATORS = names("< > >> &> &>> <& >& >| <&- >&- <<<")
_DELIMITER = re.compile(rb"(?P<quote>['\"]|\\?)(?P<name>[A-Za-z0-9_.!-]+)(?P<end>['\"]?)")
_FOUND_LATE = re.compile(rb"`|\$[({\[]|\\\n")
_DESCRIPTOR = re.compile(r"[0-9]+-?|-")


def is_harmless(operator: str, target: Word) -> bool:
    """Tell whether a redirection writes nothing and reads only what it names."""
    if operator in {"<&", ">&"} and target.text is not None and _DESCRIPTOR.fullmatch(target.text):
        return True
    if operator == "<<<" or (operator == "<" and target.raw.startswith("<(")):
        return True
    if operator == "<":
        # bash opens a connection for these names (bash(1), REDIRECTION).
        return target.text is not None and not target.text.startswith(("/dev/tcp/", "/dev/udp/"))
    return target.text == "/dev/null"


def what_it_reads(node: Node, written: bytes) -> str | None:
    """Return what a redirection gives a command to read, as part of a sentence; None: nothing.

    Which descriptor it is for is not looked at: another one may be the input of a command later on.
    """
    if node.type == "heredoc_redirect":
        return "a here-document"
    if node.type == "herestring_redirect":
        return "a here-string"
    redirection = written.lstrip(b"0123456789")
    digits = written[: len(written) - len(redirection)]
    operator, _, target = redirection.partition(b"<")
    if operator or target.strip() in {b"/dev/null", b"&-"}:
        is_input = digits != b"" and digits.strip(b"0") == b""
        return "another descriptor" if operator and is_input else None
    return "another descriptor" if target.startswith(b"&") else "a file"


class Heredocs:
    """The here-documents of one text. One line may begin only one: which body is whose is not judged."""

    def __init__(self, src: bytes) -> None:
        self._src = src
        self._lines: set[int] = set()

    def body(self, node: Node) -> tuple[bool, int, int]:
        """Return whether the delimiter is quoted, and where the body begins and ends.

        Raises:
            UnreadableError: the tree lets the body end elsewhere, or the delimiter is of an unusual kind.
        """
        by_type = {child.type: child for child in node.children}
        operator = by_type.get("<<") or by_type.get("<<-")
        start, end = by_type.get("heredoc_start"), by_type.get("heredoc_end")
        if operator is None or start is None or end is None:
            raise UnreadableError("a here-document has no end")
        written = _DELIMITER.fullmatch(self._src, start.start_byte, start.end_byte)
        if written is None or written["end"] != (written["quote"] if written["quote"] in {b"'", b'"'} else b""):
            raise UnreadableError("a here-document has a delimiter that is not judged")
        newline = self._first_newline(node, start.end_byte)
        body_end, line_end = self._end_of_body(newline + 1, written["name"], tabs=operator.type == "<<-")
        end_word = self._src[end.start_byte : end.end_byte].strip(b"\t\n")
        if end_word != written["name"] or not body_end <= end.start_byte <= end.end_byte <= line_end + 1:
            raise UnreadableError("a here-document ends where bash sees no end")
        return bool(written["quote"]), newline + 1, body_end

    def _first_newline(self, node: Node, at: int) -> int:
        newline = self._src.find(b"\n", at)
        others = [child for child in node.children if child.type not in {"heredoc_body", "heredoc_end"}]
        straddled = any(child.start_byte <= newline < child.end_byte for child in others)
        if newline < 0 or newline in self._lines or straddled:
            raise UnreadableError("a here-document begins where that is not judged")
        self._lines.add(newline)
        return newline

    def _end_of_body(self, at: int, delimiter: bytes, *, tabs: bool) -> tuple[int, int]:
        """Return where the delimiter's line begins and ends."""
        while at <= len(self._src):
            end = self._src.find(b"\n", at)
            end = len(self._src) if end < 0 else end
            line = self._src[at:end]
            if (line.lstrip(b"\t") if tabs else line) == delimiter:
                return at, end
            at = end + 1
        raise UnreadableError("a here-document has no end")


def check_expanded(body: bytes) -> None:
    """Check the body of a here-document that bash expands, its substitutions taken out: none must be left."""
    if _FOUND_LATE.search(body):
        raise UnreadableError("a here-document holds a substitution that was not found")
