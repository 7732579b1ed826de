"""Two runs as a tree: the past that they share, and the branch of each with the steps that differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from turngate.approvals_api.pages.pictures.drawing import Box, Drawing, Line, Words, fitted
from turngate.wire.comparison import ComparedRun, Comparison, StepPair

MOST_NODES: Final = 24
"""Of each branch. Where there are more steps, each node is several of them."""
WIDTH: Final = 960
HEIGHT: Final = 132
TRUNK: Final = 66
BRANCHES: Final = {"A": 30, "B": 102}
LEFT: Final = 6
FORK: Final = 190
FIRST: Final = 236
LAST: Final = 690
NODE: Final = 20
WIDEST: Final = 46
NOTE_LETTERS: Final = 38
SHARED_LETTERS: Final = 26

State = Literal["same", "differs", "alone"]


@dataclass(frozen=True, kw_only=True)
class Node:
    """Steps at one place of both branches. ``first``, ``last``: their pairs, from 1. ``place``: the pair that it leads to.

    ``in_a``, ``in_b``: whether the run has any of them. ``words``: what differs.
    """

    first: int
    last: int
    place: int
    state: State
    in_a: bool
    in_b: bool
    words: str


def nodes_of(pairs: Sequence[StepPair]) -> list[Node]:
    """Return the nodes of two branches, at most :data:`MOST_NODES`."""
    size = max(1, -(-len(pairs) // MOST_NODES))
    return [_node(first + 1, pairs[first : first + size]) for first in range(0, len(pairs), size)]


def tree_of(comparison: Comparison) -> Drawing:
    """Return the tree. A click on a node leads to its step on the page, one on a name to the run."""
    drawing = Drawing(width=WIDTH, height=HEIGHT)
    nodes = nodes_of(comparison.steps)
    _draw_past(drawing, comparison)
    for letter, run in (("A", comparison.run), ("B", comparison.other)):
        y = BRANCHES[letter]
        drawing.lines.append(Line(points=((FORK, TRUNK), (FORK + 24, y), (LAST, y)), kind="branch"))
        drawing.words.append(Words(x=FORK - 6, y=y + 5, text=letter, kind="strong", href=f"/runs/{run.id}"))
        drawing.words.append(Words(x=LAST + 14, y=y + 4, text=fitted(end_words(run), NOTE_LETTERS), kind="dim"))
    wide = min(WIDEST, (LAST - FIRST) / max(len(nodes), 1))
    for index, node in enumerate(nodes):
        x = round(FIRST + index * wide, 1)
        for letter, is_there in (("A", node.in_a), ("B", node.in_b)):
            if is_there:
                drawing.boxes.append(_box(node, x, BRANCHES[letter], min(NODE, wide - 3)))
    return drawing


def end_words(run: ComparedRun) -> str:
    """Return which run a branch is, and how it ended."""
    return f"{run.agents}: {run.how_it_ended or run.status}"


def _draw_past(drawing: Drawing, comparison: Comparison) -> None:
    shared = comparison.shared
    if shared is None:
        drawing.words.append(Words(x=LEFT, y=TRUNK + 4, text="no shared past", kind="dim"))
        return
    steps = "step 1" if shared.through_step == 1 else f"steps 1 to {shared.through_step}"
    drawing.lines.append(Line(points=((LEFT, TRUNK), (FORK, TRUNK)), kind="branch"))
    text = fitted(f"{steps}, shared", SHARED_LETTERS)
    href = f"/runs/{shared.run_id}#step-{shared.through_step}"
    drawing.words.append(Words(x=LEFT, y=TRUNK - 10, text=text, href=href))
    drawing.boxes.append(
        Box(x=FORK - NODE / 2, y=TRUNK - NODE / 2, width=NODE, height=NODE, kind="mark past", title=text, href=href)
    )


def _box(node: Node, x: float, y: float, wide: float) -> Box:
    title = f"{_numbers(node)}: {node.words}"
    return Box(
        x=x,
        y=y - NODE / 2,
        width=round(wide, 1),
        height=NODE,
        kind=f"mark {node.state}",
        title=title,
        href=f"#pair-{node.place}",
    )


def _node(first: int, pairs: Sequence[StepPair]) -> Node:
    states = [_state(each) for each in pairs]
    different = next((index for index, state in enumerate(states) if state != "same"), 0)
    words = list(dict.fromkeys(word for each in pairs for word in _words(each)))
    return Node(
        first=first,
        last=first + len(pairs) - 1,
        place=first + different,
        state=max(states, key=("same", "alone", "differs").index),
        in_a=any(each.run is not None for each in pairs),
        in_b=any(each.other is not None for each in pairs),
        words=", ".join(words) or "the same",
    )


def _state(pair: StepPair) -> State:
    if pair.run is None or pair.other is None:
        return "alone"
    return "same" if pair.same else "differs"


def _words(pair: StepPair) -> Iterator[str]:
    """Yield what differs between two steps, in the words of the page."""
    if pair.run is None or pair.other is None:
        yield "only in B" if pair.run is None else "only in A"
        return
    if pair.text_differs:
        yield "what the model says"
    for call in pair.calls:
        if call.run is None or call.other is None:
            yield "a call only in B" if call.run is None else "a call only in A"
        yield from call.differs


def _numbers(node: Node) -> str:
    return f"pair {node.first}" if node.first == node.last else f"pairs {node.first} to {node.last}"
