"""One word of a command line, with bash's quoting taken off (bash(1), QUOTING and EXPANSION).

The tree says where words and substitutions are. This reads the same bytes again on its own, and refuses where the two
disagree: a parser that takes for one word what bash takes for two must not be believed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from turngate.domain.policy.command_line import Word

META = frozenset(b" \t\n;&|<>()`")
_PLAIN_WORD = re.compile(rb"[A-Za-z0-9_./:@%+,=-]+")
"""Most words by far. Nothing in them means anything to bash, and no substitution can begin in one."""
_PLAIN_QUOTED = re.compile(rb"[^\"\\$`]+")
_NAME = re.compile(rb"\$(?:[A-Za-z_][A-Za-z0-9_]*|[0-9]|[@*#?$!-])")
_ANSI = re.compile(
    rb"\\(?:([abeEfnrtv\\'\"?])|([0-7]{1,3})|x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8}))"
)
_SIMPLE_ESCAPES = dict(zip(b"abeEfnrtv\\'\"?", b"\a\b\x1b\x1b\f\n\r\t\v\\'\"?", strict=True))


class UnreadableError(Exception):
    """The text is not what the tree says, or nothing that can be judged. The message is part of a sentence."""


class WordReader:
    """Reads the word at ``src[start:end]``. ``holes``: where each substitution begins → where it ends."""

    def __init__(self, src: bytes, start: int, end: int, holes: Mapping[int, int]) -> None:
        self._src, self._start, self._end, self._holes = src, start, end, holes
        self._out = bytearray()
        self._known = True
        self._many = False
        self._prefix: bytes | None = None

    def read(self) -> Word:
        """Return the word. Raises UnreadableError when these bytes are not exactly one word."""
        if self._start >= self._end or self._src[self._start] == ord("#"):
            raise UnreadableError("a word or a comment is where the other was expected")
        if _PLAIN_WORD.fullmatch(self._src, self._start, self._end):
            plain = self._src[self._start : self._end].decode()
            return Word(text=plain, raw=plain)
        at = self._start
        while at < self._end:
            at = self._unquoted(at)
        if at != self._end:
            raise UnreadableError("a quotation ends beyond its word")
        raw = self._src[self._start : self._end].decode(errors="replace")
        prefix = _text(bytes(self._out) if self._prefix is None else self._prefix)
        if self._known and prefix is not None:
            return Word(text=prefix, raw=raw)
        return Word(text=None, raw=raw, many=self._many, prefix=prefix or "")

    def _unknown(self, *, many: bool, keep_prefix: bool = True) -> None:
        if not keep_prefix:
            self._prefix = b""  # what a variable holds is split: later words begin with anything
        elif self._prefix is None:
            self._prefix = bytes(self._out)
        self._known = False
        self._many = self._many or many

    def _unquoted(self, at: int) -> int:
        src, char = self._src, self._src[at]
        if at in self._holes:
            many = not src.startswith((b"<(", b">("), at)  # a process substitution is one file name
            self._unknown(many=many, keep_prefix=not many)
            return self._holes[at]
        match char:
            case 0x27:
                return self._single_quoted(at + 1)
            case 0x22:
                return self._double_quoted(at + 1)
            case 0x5C:
                return self._escaped(at)
            case 0x24:
                return self._dollar(at, quoted=False)
            case _ if char in META:
                raise UnreadableError("a word ends, or a substitution begins, where the other was expected")
        self._note_expansion(at, char)
        self._out.append(char)
        return at + 1

    def _note_expansion(self, at: int, char: int) -> None:
        """Note what bash makes of an unquoted character besides taking it as it is."""
        src = self._src
        if char == ord("~") and (at == self._start or src[at - 1] in b"=:"):
            self._unknown(many=False, keep_prefix=at != self._start)
        elif char in b"*?" or (char == ord("[") and src.find(b"]", at, self._end) >= 0) or self._expands_brace(at):
            self._unknown(many=True)

    def _expands_brace(self, at: int) -> bool:
        if self._src[at] != ord("{"):
            return False
        return any(self._src.find(mark, at, self._end) >= 0 for mark in (b",", b".."))

    def _escaped(self, at: int) -> int:
        if at + 1 >= self._end:
            raise UnreadableError("a backslash is at the end")
        if self._src[at + 1] != ord("\n"):
            self._out.append(self._src[at + 1])
        return at + 2

    def _single_quoted(self, at: int) -> int:
        end = self._src.find(b"'", at, self._end)
        if end < 0:
            raise UnreadableError("a single quote is not closed within its word")
        self._out += self._src[at:end]
        return end + 1

    def _double_quoted(self, at: int) -> int:
        src = self._src
        while at < self._end:
            char = src[at]
            if at in self._holes:
                self._unknown(many=src.startswith((b"${@", b"${*"), at), keep_prefix=True)
                at = self._holes[at]
            elif char == ord('"'):
                return at + 1
            elif char == ord("\\") and at + 1 < self._end and src[at + 1] in b'$`"\\\n':
                if src[at + 1] != ord("\n"):
                    self._out.append(src[at + 1])
                at += 2
            elif char == ord("$"):
                at = self._dollar(at, quoted=True)
            elif char == ord("`"):
                raise UnreadableError("a substitution in backquotes was not found")
            else:
                at = self._quoted_text(at)
        raise UnreadableError("a double quote is not closed within its word")

    def _quoted_text(self, at: int) -> int:
        plain = _PLAIN_QUOTED.match(self._src, at, self._end)
        end = plain.end() if plain is not None else at + 1  # a backslash that escapes nothing
        self._out += self._src[at:end]
        return end

    def _dollar(self, at: int, *, quoted: bool) -> int:
        src = self._src
        following = src[at + 1 : at + 2]
        if following in {b"(", b"{", b"["}:
            raise UnreadableError("an expansion was not found")
        if not quoted and following == b"'":
            return self._ansi_quoted(at + 2)
        if not quoted and following == b'"':
            self._unknown(many=False)  # a translated text: what it becomes is in a message catalogue
            return at + 1
        if (name := _NAME.match(src, at, self._end)) is not None:
            self._unknown(many=not quoted or name.group() == b"$@", keep_prefix=quoted and name.group() != b"$@")
            return name.end()
        self._out.append(src[at])
        return at + 1

    def _ansi_quoted(self, at: int) -> int:
        src = self._src
        while at < self._end:
            if src[at] == ord("'"):
                return at + 1
            if src[at] != ord("\\"):
                self._out.append(src[at])
                at += 1
                continue
            if (escape := _ANSI.match(src, at, self._end)) is None:
                raise UnreadableError("a $'…' quotation holds an escape that cannot be read")
            self._out += _ansi_bytes(escape)
            at = escape.end()
        raise UnreadableError("a $'…' quotation is not closed within its word")


def _ansi_bytes(escape: re.Match[bytes]) -> bytes:
    simple, octal, byte, short, long = escape.groups()
    if simple:
        return bytes([_SIMPLE_ESCAPES[simple[0]]])
    if octal or byte:
        value = (int(octal, 8) if octal else int(byte, 16)) & 0xFF
        decoded = bytes([value])
    else:
        value = int(short or long, 16)
        try:
            decoded = chr(value).encode()
        except (ValueError, OverflowError):
            raise UnreadableError("a $'…' quotation holds no character") from None
    if value == 0:
        raise UnreadableError("a $'…' quotation holds NUL, where bash cuts it off")
    return decoded


def _text(read: bytes) -> str | None:
    try:
        return read.decode()
    except UnicodeDecodeError:
        return None
