"""Two runs as a tree: what they share, where each goes its own way, and few nodes however long they are."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.planted.pages import STATES, pages_of
from support.planted.text import Filling

from turngate.approvals_api.pages.pictures.tree import MOST_NODES, nodes_of, tree_of
from turngate.approvals_api.runs.compare import compare
from turngate.wire.comparison import CallPair, ComparedStep, Comparison, StepPair

STEP = ComparedStep(run_id="run_1", step=1, model="m", text="t", corrective=None)
SAME = StepPair(run=STEP, other=STEP, same=True, text_differs=False, calls=[])
REWORDED = StepPair(run=STEP, other=STEP, same=False, text_differs=True, calls=[])
ONLY_A = StepPair(run=STEP, other=None, same=False, text_differs=False, calls=[])
ONLY_B = StepPair(run=None, other=STEP, same=False, text_differs=False, calls=[])
CALLED = StepPair(
    run=STEP,
    other=STEP,
    same=False,
    text_differs=False,
    calls=[CallPair(run=None, other=None, differs=["arguments", "result"])],
)


@pytest.fixture
async def comparison(sqlite_template: Path, tmp_path: Path) -> Comparison:
    async with pages_of(Filling("pay"), sqlite_template, tmp_path / "pages") as served:
        return await compare(served.database, "run_completed", "run_failed")


def test_a_node_says_what_differs() -> None:
    """The model's words, calls and their aspects, and steps that only one run has."""
    nodes = nodes_of([SAME, REWORDED, ONLY_A, ONLY_B])
    assert [(each.state, each.in_a, each.in_b, each.words) for each in nodes] == [
        ("same", True, True, "the same"),
        ("differs", True, True, "what the model says"),
        ("alone", True, False, "only in A"),
        ("alone", False, True, "only in B"),
    ]
    (called,) = nodes_of([CALLED])
    assert called.words.endswith("arguments, result")


def test_a_long_comparison_has_few_nodes() -> None:
    """Each node of many steps leads to the first that differs, and no difference is lost."""
    pairs = [SAME] * 5_000
    pairs[3_210] = REWORDED
    nodes = nodes_of(pairs)
    assert len(nodes) <= MOST_NODES
    (differing,) = [each for each in nodes if each.state != "same"]
    assert differing.first <= differing.place == 3_211 <= differing.last
    assert [nodes[0].first, nodes[-1].last] == [1, 5_000]
    assert [each.last + 1 for each in nodes[:-1]] == [each.first for each in nodes[1:]]


async def test_the_tree_has_both_runs_and_their_past(comparison: Comparison) -> None:
    """Both runs are links, each step is a node of the branches that have it, and the marks stay few."""
    pairs = [SAME, REWORDED, ONLY_A, *[ONLY_B] * 200]
    drawing = tree_of(comparison.model_copy(update={"steps": pairs}))
    links = {each.href for each in drawing.words if each.href}
    assert {"/runs/run_completed", "/runs/run_failed"} <= links
    assert len(drawing.boxes) <= 2 * MOST_NODES + 1
    assert all(each.x >= 0 and each.x + each.width <= 700 for each in drawing.boxes)
    kinds = {each.kind for each in tree_of(comparison.model_copy(update={"steps": pairs[:3]})).boxes}
    assert {"mark same", "mark differs", "mark alone"} <= kinds


async def test_the_page_has_the_tree_and_its_table(sqlite_template: Path, tmp_path: Path) -> None:
    """The picture's nodes lead to the steps on the page, and the table says the same."""
    async with pages_of(Filling("pay"), sqlite_template, tmp_path / "pages") as served:
        html = await served.html(STATES["runs compared"])
    assert 'href="#pair-1"' in html
    assert 'id="pair-1"' in html
    assert 'aria-label="The tree as a table"' in html
