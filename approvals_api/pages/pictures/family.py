"""A run's family as a tree: a row for each run, under the one that it was forked from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from turngate.approvals_api.pages.pictures.drawing import Box, Drawing, Line, Words, fitted
from turngate.approvals_api.runs.family import Member
from turngate.domain.text.sentences import counted
from turngate.wire.people import named

WIDTH: Final = 960
ROW: Final = 28
LEFT: Final = 14
WIDEST: Final = 28
DEEPEST: Final = 280
"""How far to the right the deepest run is."""
NODE: Final = 14
NOTE: Final = 470
NOTE_LETTERS: Final = 66
LETTER: Final = 7.2


def tree_of(members: Sequence[Member]) -> Drawing:
    """Return the tree. A click on a run leads to its page."""
    drawing = Drawing(width=WIDTH, height=0)
    levels = max((each.level for each in members), default=0)
    wide = min(WIDEST, DEEPEST / max(levels, 1))
    line: list[float] = []  # of the run at each level above the next one, where its row is
    y = ROW / 2
    if members and members[0].run.forked_from_run_id is not None:
        origin = members[0].run.forked_from_run_id
        text = "forked from an earlier run"
        drawing.words.append(Words(x=LEFT - NODE / 2, y=y + 4, text=text, href=f"/runs/{origin}"))
        y += ROW
    for each in members:
        x = round(LEFT + each.level * wide, 1)
        _branch(drawing, line, each.level, x - wide, (x, y))
        line[each.level :] = [y]
        _draw(drawing, each, x, y)
        y += ROW
        if each.left_out:
            _branch(drawing, line, each.level + 1, x, (x + wide, y))
            drawing.words.append(Words(x=x + wide + 4, y=y + 4, text=left_out(each), kind="dim"))
            y += ROW
    drawing.height = round(y - ROW / 2 + 4)
    return drawing


def left_out(member: Member) -> str:
    """Return how many forks of a run the tree leaves out."""
    return f"{counted(member.left_out, 'fork')} not in this tree"


def name_of(member: Member) -> str:
    """Return which run it is, and its state."""
    return f"{member.run.agents}: {member.run.how_it_ended or member.run.status}"


def _branch(drawing: Drawing, line: list[float], level: int, above: float, to: tuple[float, float]) -> None:
    """Draw the way from the run of the level above."""
    if level:
        x, y = to
        corner = round(above, 1), y
        points = ((corner[0], line[level - 1] + NODE / 2), corner, (x - NODE / 2, y))
        drawing.lines.append(Line(points=points, kind="branch"))


def _draw(drawing: Drawing, member: Member, x: float, y: float) -> None:
    href = "" if member.here else f"/runs/{member.run.id}"
    state = f"mark {member.run.status}{' here' if member.here else ''}"
    title = fitted(f"{name_of(member)}, {named(member.came)}", NOTE_LETTERS)
    drawing.boxes.append(
        Box(x=x - NODE / 2, y=y - NODE / 2, width=NODE, height=NODE, kind=state, title=title, href=href)
    )
    text = x + NODE
    letters = int((NOTE - text) / LETTER)
    drawing.words.append(
        Words(x=text, y=y + 4, text=fitted(name_of(member), letters), kind="strong" if member.here else "", href=href)
    )
    drawing.words.append(Words(x=NOTE, y=y + 4, text=fitted(named(member.came), NOTE_LETTERS), kind="dim"))
