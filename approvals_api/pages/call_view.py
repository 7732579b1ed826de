"""A call as a page draws it: what is shown, what is folded, what must be opened before it is approved, what is left out.

A page has room for some HTML of a call. What doesn't fit is left out and said so; the page of the whole call has it.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from turngate.approvals_api.pages import arguments
from turngate.approvals_api.pages.arguments import ArgumentsView
from turngate.domain.origins.origin import Origin, Origins
from turngate.domain.text.diff import read_diff
from turngate.domain.text.folds import HEAD_CHARS, FoldedDiff, FoldedText, cut_text, fold_diff, fold_text
from turngate.domain.text.hidden_text import pieces
from turngate.domain.tools.defaults import Default, default_rows
from turngate.domain.tools.preview import command_words, split_warning

ROOM: Final = 48_000
"""Characters of HTML that a request's page has for its call. With all the rest, the page stays below 100 KB."""
ROOM_OF_SEVERAL: Final = 20_000
"""The same for each call on the page for several."""
_MARK: Final = 100
"""At most so many characters of HTML are written for one hidden character."""
_HEAD: Final = 6_000
_ROW: Final = 160
_ORIGIN: Final = 260
_LINK: Final = 160
"""To the message of a place."""
_LINE: Final = 130
_FIELD: Final = 500
MAX_DOUBLED: Final = 8


class Room:
    """Room for HTML. Without a number it never ends."""

    def __init__(self, left: float = inf) -> None:
        self.left = left

    def take(self, *texts: str, markup: int = 0) -> bool:
        """Take room for texts and the elements around them; False, and nothing is taken, if there isn't enough."""
        needs = markup + sum(len(text) for text in texts)
        if needs <= self.left < inf:
            needs = markup + sum(_html_chars(text) for text in texts)
        if needs > self.left:
            return False
        self.left -= needs
        return True


@dataclass(frozen=True, kw_only=True)
class ShownText:
    """A text. ``rest`` is folded, ``more`` says how much it is. ``left_out``: it is not on the page.

    ``must_open``: no one can approve the call before it was open and on the screen. ``why``: why it may stay folded.
    """

    head: str
    rest: str = ""
    more: str = ""
    must_open: bool = False
    left_out: bool = False
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class ShownRow:
    """An argument, and where its values come from."""

    name: str
    kind: str
    text: ShownText
    origins: Sequence[Origin]


@dataclass(frozen=True, kw_only=True)
class LeftOutRow:
    """What the agent left out. ``text`` is empty where it is made when the call runs. ``words``: why it isn't written."""

    name: str
    text: ShownText
    words: str


@dataclass(frozen=True, kw_only=True)
class ShownArguments:
    """Arguments. ``rows`` None: they are no JSON object, and ``whole`` is what was sent. ``more_rows``: not on the page.

    ``defaults``: what they leave out, in rows whose ``origins`` are none.

    ``exact``: their text and that with a member per line are shown, too. ``note``: what the search for origins knows.
    """

    view: ArgumentsView
    rows: Sequence[ShownRow] | None
    whole: ShownText
    defaults: Sequence[LeftOutRow] = ()
    more_rows: int = 0
    exact: bool = True
    note: str = ""

    @property
    def doubled(self) -> Sequence[str]:
        """The first of the keys that are there twice."""
        return self.view.doubled[:MAX_DOUBLED]

    @property
    def left_out(self) -> bool:
        """Whether a part of them is not on the page."""
        texts = [self.whole] if self.rows is None else [row.text for row in self.rows]
        texts += [row.text for row in self.defaults]
        return self.more_rows > 0 or any(text.left_out for text in texts)


@dataclass(frozen=True, kw_only=True)
class ShownPreview:
    """A tool's preview. ``diff`` or ``text``; ``words``: of a command that is short enough to show each apart.

    ``warning``: with which it begins; empty: with none.

    ``unchanged_left_out``: lines of the diff that stay as they are, far from a change, are not on the page.
    ``rest_left_out``: nor is what follows the diff's first screen.
    """

    kind: str
    text: ShownText | None = None
    diff: FoldedDiff | None = None
    words: Sequence[str] = ()
    warning: str = ""
    unchanged_left_out: bool = False
    rest_left_out: bool = False

    @property
    def left_out(self) -> bool:
        """Whether a part of it that must be read is not on the page."""
        return self.rest_left_out or (self.text is not None and self.text.left_out)


@dataclass(frozen=True, kw_only=True)
class ShownCall:
    """A call. ``editable``: the page has room for the forms that edit it."""

    preview: ShownPreview | None
    arguments: ShownArguments
    editable: bool = True

    @property
    def left_out(self) -> bool:
        """Whether a part of the call is not on the page, so that it can't be approved there."""
        return self.arguments.left_out or (self.preview is not None and self.preview.left_out)


def show_call(
    raw: str,
    preview: tuple[str | None, str | None],
    origins: Origins | None,
    *,
    risk: str | None,
    room: Room,
    defaults: Sequence[Default] = (),
) -> ShownCall:
    """Return a call to draw.

    Args:
        raw: the exact arguments.
        preview: its kind and text.
        origins: where the arguments come from.
        risk: of the call; None: it does not wait for an approval, so nothing must be opened.
        room: what the page has for it; what is drawn is taken from it.
        defaults: what the arguments leave out.
    """
    shown_preview = _preview(*preview, must_open=risk is not None, room=room)
    diff = None if shown_preview is None or shown_preview.left_out else shown_preview.diff
    shown_arguments = show_arguments(raw, origins, risk=risk, diff=diff, room=room, defaults=defaults)
    call = ShownCall(preview=shown_preview, arguments=shown_arguments)
    fields = 2 + shown_arguments.view.pretty.count("\n")
    return call if not call.left_out and room.take(raw, raw, markup=_FIELD * fields) else replace(call, editable=False)


def show_arguments(
    raw: str,
    origins: Origins | None = None,
    *,
    risk: str | None = None,
    diff: FoldedDiff | None = None,
    room: Room | None = None,
    defaults: Sequence[Default] = (),
) -> ShownArguments:
    """Return arguments to draw. ``diff``: what the preview shows; other parameters as in :func:`show_call`."""
    view = arguments.view(raw)
    room = Room() if room is None else room
    by_argument = arguments.origins_by_argument(origins)
    note = origins.note if origins is not None and by_argument else ""
    left_out = show_defaults(defaults, room, must_open=risk is not None)
    if view.rows is None:
        whole = _text(raw, room, must_open=risk is not None)
        return ShownArguments(view=view, rows=None, whole=whole, note=note, defaults=left_out)
    rows = list[ShownRow]()
    for row in view.rows:
        of_row = by_argument.get(row.name, [])
        words = [f"{each.part}{each.at}{each.words}" for each in of_row]
        links = sum(1 for each in of_row for _words, place in each.pieces if place is not None)
        if not room.take(row.name, *words, markup=_ROW + _ORIGIN * len(of_row) + _LINK * links):
            break
        text = _value(row.text, risk, diff, room)
        rows.append(ShownRow(name=row.name, kind=row.kind, text=text, origins=of_row))
    return ShownArguments(
        view=view,
        rows=rows,
        whole=ShownText(head=""),
        defaults=left_out,
        more_rows=len(view.rows) - len(rows),
        exact=room.take(view.raw, view.pretty, markup=_FIELD),
        note=note,
    )


def show_defaults(
    defaults: Sequence[Default], room: Room | None = None, *, must_open: bool = False
) -> list[LeftOutRow]:
    """Return what a call leaves out to draw."""
    room = Room() if room is None else room
    return [
        LeftOutRow(name=each.label, text=_text(each.text, room, must_open=must_open), words=each.words)
        for each in default_rows(defaults)
    ]


def _value(text: str, risk: str | None, diff: FoldedDiff | None, room: Room) -> ShownText:
    """Return an argument's value. It may stay folded where the diff, which must be read, shows it or all that it changes."""
    why = "" if risk is None or diff is None else diff.covers(text, risk)
    return _text(text, room, must_open=risk is not None and not why, why=why)


def _text(text: str, room: Room, *, must_open: bool, why: str = "") -> ShownText:
    if room.take(text):
        return _as_text(fold_text(text), must_open=must_open, why=why)
    chars = _affordable(text)
    if chars == len(text):
        room.left = 0
        return ShownText(head=text)
    cut = cut_text(text, chars)
    room.left = max(0, room.left - _HEAD)
    return _as_text(cut, left_out=True)


def _as_text(text: FoldedText, *, must_open: bool = False, left_out: bool = False, why: str = "") -> ShownText:
    return ShownText(
        head=text.head,
        rest="" if left_out else text.rest or "",
        more=text.more,
        must_open=must_open,
        left_out=left_out,
        why=why,
    )


def _preview(kind: str | None, text: str | None, *, must_open: bool, room: Room) -> ShownPreview | None:
    if kind == "diff":
        return _diff(fold_diff(read_diff(text or "")), room)
    if kind == "command":
        words = command_words(text or "")
        line = shlex.join(words)
        drawn = _text(line, room, must_open=must_open)
        apart = words if not drawn.more and room.take(line, markup=20 * len(words)) else ()
        return ShownPreview(kind=kind, text=drawn, words=apart)
    if text is None:
        return None
    warning, rest = split_warning(kind, text)
    return ShownPreview(kind="text", text=_text(rest, room, must_open=must_open), warning=warning)


def _diff(diff: FoldedDiff, room: Room) -> ShownPreview:
    def fits(*, folded: bool, rest: bool) -> bool:
        parts = [*diff.head, *(diff.rest if rest else ())]
        lines = [line.text for part in parts if folded or not part.folded for line in part.lines]
        return room.take(*lines, markup=_LINE * len(lines))

    drawn = ShownPreview(kind="diff", diff=diff)
    if fits(folded=True, rest=True):
        return drawn
    if fits(folded=False, rest=True):
        return ShownPreview(kind="diff", diff=diff, unchanged_left_out=True)
    head = diff.head if fits(folded=False, rest=False) else ()
    less = FoldedDiff(head=head, rest=diff.rest if head else (*diff.head, *diff.rest), whole=diff.whole)
    return ShownPreview(kind="diff", diff=less, unchanged_left_out=True, rest_left_out=True)


def excerpt(text: str) -> ShownText:
    """Return the beginning of a long text for a place that is not about it; all of a short one."""
    folded = fold_text(text)
    return ShownText(head=text) if folded.rest is None else _as_text(cut_text(text, _affordable(text)), left_out=True)


def _affordable(text: str) -> int:
    """Return how many characters make at most a head's HTML."""
    chars = used = 0
    for piece, hidden in pieces(text[:HEAD_CHARS]):
        for char in piece:
            used += _MARK if hidden else _visible_chars(char)
            if used > _HEAD:
                return chars
            chars += 1
    return chars


def _html_chars(text: str) -> int:
    return sum(_MARK if hidden else _visible_chars(piece) for piece, hidden in pieces(text))


def _visible_chars(text: str) -> int:
    return len(text.encode()) + 4 * sum(map(text.count, "<>&\"'"))
