"""A call as lines of a terminal: what its tool shows of it, then its exact arguments, both folded past a screen.

What is folded follows :mod:`turngate.domain.text.folds`, as on the pages. Nothing in the lines can move the cursor.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

from turngate.domain.text import json_text
from turngate.domain.text.diff import read_diff
from turngate.domain.text.folds import (
    HEAD_LINES,
    SCREEN_CHARS,
    FoldedDiff,
    FoldedText,
    fold_diff,
    fold_text,
    size_in_lines,
)
from turngate.domain.text.json_text import JsonTree
from turngate.domain.tools.defaults import Default
from turngate.domain.tools.preview import command_words, split_warning
from turngate.text.plain_text import Piece, plain, plain_line
from turngate.text.presentation import default_lines, diff_lines, exact_arguments
from turngate.wire.requests import RequestDetail, RequestItem


def preview_line(item: RequestItem, limit: int) -> str:
    """Return what a list shows of a preview in at most ``limit`` characters, with how much more there is; empty: it has none."""
    more = f"… {item.preview_more}" if item.preview_more else ""
    line = plain_line(item.preview_line or "", max(8, limit - len(more) - 1))
    return f"{line} {more}".strip()


@dataclass(kw_only=True)
class FoldedLines:
    """Lines to print. ``is_folded``: there is more. ``must_unfold``: and that has to be seen before the call is approved."""

    pieces: list[Piece] = field(default_factory=list)
    is_folded: bool = False
    must_unfold: bool = False

    def add(self, text: str) -> None:
        """Add the lines of a text."""
        self.pieces.extend(plain(text).split("\n"))

    def fold(self, words: str, *, must_unfold: bool = True) -> None:
        """Add a line that says how much is folded here."""
        self.pieces.append((f"… {words}", "yellow"))
        self.is_folded = True
        self.must_unfold |= must_unfold

    def add_folded(self, text: FoldedText) -> None:
        """Add the beginning of a text, and how much follows."""
        self.add(text.head)
        if text.rest is not None:
            self.fold(text.more)


@dataclass(frozen=True, kw_only=True)
class FoldedCall:
    """``preview``: no lines if the tool has none."""

    preview: FoldedLines
    arguments: FoldedLines

    @property
    def is_folded(self) -> bool:
        """Whether any of it is not in the lines."""
        return self.preview.is_folded or self.arguments.is_folded

    @property
    def must_unfold(self) -> bool:
        """Whether any of that has to be seen before the call is approved."""
        return self.preview.must_unfold or self.arguments.must_unfold


def fold_call(request: RequestDetail, *, whole: bool = False) -> FoldedCall:
    """Return a request's call. ``whole``: nothing of it is folded."""
    preview = request.preview or ""
    if whole:
        return FoldedCall(
            preview=FoldedLines(pieces=_whole_preview(request.preview_kind, preview)),
            arguments=FoldedLines(pieces=[*exact_arguments(request.input), *default_lines(request.defaults)]),
        )
    diff = fold_diff(read_diff(preview)) if preview and request.preview_kind == "diff" else None
    warning, preview = split_warning(request.preview_kind, preview)
    lines = FoldedLines(pieces=[(plain_line(warning, 300), "bold red")] if warning else [])
    if diff is not None:
        _add_diff(lines, diff)
    elif preview:
        lines.add_folded(fold_text(_preview_text(request.preview_kind, preview)))
    arguments = _fold_arguments(request.input, diff, request.risk)
    _add_defaults(arguments, request.defaults)
    return FoldedCall(preview=lines, arguments=arguments)


def _add_defaults(lines: FoldedLines, defaults: Sequence[Default]) -> None:
    """Add what the call leaves out; past a screen, it is folded."""
    pieces = list(default_lines(defaults))
    lines.pieces.extend(pieces[:HEAD_LINES])
    if len(pieces) > HEAD_LINES:
        lines.fold(f"{len(pieces) - HEAD_LINES:,} more values that the agent left out")


def _whole_preview(kind: str | None, preview: str) -> list[Piece]:
    if not preview:
        return []
    if kind == "diff":
        return list(diff_lines(read_diff(preview.rstrip("\n")).lines))
    warning, preview = split_warning(kind, preview)
    lines = plain(_preview_text(kind, preview)).split("\n")
    return [(plain_line(warning, 300), "bold red"), *lines] if warning else list(lines)


def _preview_text(kind: str | None, preview: str) -> str:
    return shlex.join(command_words(preview)) if kind == "command" else preview.rstrip("\n")


def _add_diff(lines: FoldedLines, diff: FoldedDiff) -> None:
    is_folded = bool(diff.rest) or any(part.folded for part in diff.head)
    if is_folded:
        lines.pieces.append((diff.size, "dim"))
    for part in diff.head:
        if part.folded:
            lines.fold(f"{len(part.lines):,} unchanged lines", must_unfold=False)
        else:
            lines.pieces.extend(diff_lines(part.lines))
    if diff.more:
        lines.fold(diff.more)


def _fold_arguments(raw_input: str, diff: FoldedDiff | None, risk: str) -> FoldedLines:
    """Return the arguments, each long one folded; past a screen, the others too. ``diff``: what will change, if that is known."""
    parsed = json_text.parse(raw_input)
    text = fold_text(raw_input if parsed is None else json_text.dump(parsed.tree, indent=2))
    if text.rest is None or (parsed is not None and parsed.doubled):
        return FoldedLines(pieces=list(exact_arguments(raw_input)))
    lines = FoldedLines()
    if parsed is None or not isinstance(parsed.tree, dict):
        lines.add_folded(text)
    else:
        _add_members(lines, parsed.tree, diff, risk)
    return lines


def _add_members(lines: FoldedLines, tree: dict[str, JsonTree], diff: FoldedDiff | None, risk: str) -> None:
    members = [_member(name, value) for name, value in tree.items()]
    chars = 0
    lines.add("{")
    for place, (name, value) in enumerate(tree.items()):
        if len(lines.pieces) >= HEAD_LINES or chars >= SCREEN_CHARS:
            lines.fold(size_in_lines(",\n".join(members[place:]), "more "))
            break
        member = fold_text(members[place])
        chars += len(member.head)
        if member.rest is None:
            lines.add(member.head + ("," if place + 1 < len(members) else ""))
            continue
        lines.add(member.head)
        # A name can be long, too, and the diff says nothing of that.
        why = diff.covers(_value_text(value), risk) if diff and json_text.quote(name) in member.head else ""
        lines.fold(f"{member.more}: {why}" if why else member.more, must_unfold=not why)
    lines.add("}")


def _member(name: str, value: JsonTree) -> str:
    """Return a member as a line, or several, of an object's JSON."""
    return json_text.dump({name: value}, indent=2).removeprefix("{\n").removesuffix("\n}")


def _value_text(value: JsonTree) -> str:
    return value if isinstance(value, str) else json_text.dump(value, indent=2)
