"""The family of a run on its page: a tree with every run's state, who forked it at which step, and a table of the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from support.engine.stack import person
from support.pages.html_text import ShownText
from support.planted.pages import STATES, PageState, pages_of
from support.planted.text import Filling
from support.stores.stored_requests import live_run

from turngate.approvals_api.pages.pictures.family import NOTE, WIDTH, tree_of
from turngate.approvals_api.runs.family import Member, family_for, family_of
from turngate.cli.commands.runs.explain import show_family
from turngate.frontends.tui.run_text import family_lines
from turngate.store.database import Database
from turngate.store.runs import runs

SWITCHED = "evil \u202e<b>"


async def plant(database: Database) -> None:
    """A run that failed, a retry of it, two forks, and a fork of one of these by someone with a hostile name."""
    async with database.write() as conn:
        origin = await live_run(conn, "run_o", task="Pay the invoices.")
        await runs.end(conn, "run_o", runs.Ending(status="failed", error_class="provider_outage"))
        again = {"conversation_id": origin.conversation_id, "after": origin.head_message_id, "is_retry": True}
        await live_run(conn, "run_r", forked_from_run_id="run_o", forked_from_step=2, started_by="bob", **again)
        for run_id, step in (("run_late", 2), ("run_early", 1)):
            await live_run(conn, run_id, forked_from_run_id="run_o", forked_from_step=step, started_by="ann")
        await live_run(conn, "run_x", forked_from_run_id="run_early", forked_from_step=7, started_by=SWITCHED)


async def members_of(database: Database, run_id: str) -> Sequence[Member]:
    async with database.read() as conn:
        return await family_of(conn, run_id)


async def test_the_tree_has_each_run_under_its_origin(sqlite: Database) -> None:
    """In the order of their steps, with who made them how; a retry isn't called a fork, and the page's own run is marked."""
    await plant(sqlite)
    members = await members_of(sqlite, "run_early")
    assert [(each.run.id, each.level, each.came, each.here) for each in members] == [
        ("run_o", 0, "started by starter", False),
        ("run_early", 1, "forked by ann after step 1", True),
        ("run_x", 2, f"forked by {SWITCHED} after step 7", False),
        ("run_r", 1, "retried by bob after step 2", False),
        ("run_late", 1, "forked by ann after step 2", False),
    ]
    drawing = tree_of(members)
    assert [each.kind for each in drawing.boxes][:2] == ["mark failed", "mark running here"]
    assert {each.href for each in drawing.boxes} == {"/runs/run_o", "/runs/run_x", "/runs/run_r", "/runs/run_late", ""}
    assert len(drawing.lines) == 4
    assert "agent: error: provider_outage" in [each.text for each in drawing.words]


async def test_the_tree_says_what_it_leaves_out(sqlite: Database) -> None:
    """A run with many forks says how many are not there, and a long line where it comes from; the picture stays small."""
    async with sqlite.write() as conn:
        await live_run(conn, "run_0")
        for number in range(1, 60):
            await live_run(conn, f"run_{number}", forked_from_run_id=f"run_{number - 1}", forked_from_step=1)
        for number in range(40):
            await live_run(conn, f"run_fork_{number}", forked_from_run_id="run_59", forked_from_step=1)
    members = await members_of(sqlite, "run_59")
    (cut,) = [each for each in members if each.left_out]
    assert (cut.run.id, cut.here) == ("run_59", True)
    drawn = sum(1 for each in members if each.run.forked_from_run_id == "run_59")
    assert cut.left_out == 40 - drawn
    drawing = tree_of(members)
    texts = [each.text for each in drawing.words]
    assert f"{cut.left_out} forks not in this tree" in texts
    assert "forked from an earlier run" in texts
    assert drawing.marks <= 130
    assert drawing.height <= 1_000
    assert all(0 <= each.x <= NOTE for each in drawing.boxes)
    assert all(each.x < WIDTH and each.y < drawing.height for each in drawing.words)


async def test_the_page_has_the_tree_and_its_table(sqlite_template: Path, tmp_path: Path) -> None:
    """Both lead to the other runs, the table compares them with this one, and no name is taken for markup."""
    async with pages_of(Filling("pay"), sqlite_template, tmp_path / "pages") as served:
        await plant(served.database)
        page = await served.html(PageState("/runs/run_early"))
        alone = await served.html(STATES["run of an external call"])
    assert 'aria-label="The forks as a table"' in page
    assert page.count('href="/runs/run_x"') >= 3
    assert 'href="/runs/run_early/compare/run_x"' in page
    assert "<b>" not in page
    text = " ".join(ShownText(page).text.split())
    assert "5 runs that share a past" in text
    assert "forked by evil ⟨U+202E⟩<b> after step 7 compare" in text
    assert "Pay the invoices." in text
    assert 'id="family"' not in alone


async def test_an_explanation_has_the_same_tree_in_the_terminal(
    sqlite: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    """`turngate explain` and the terminal UI print the API's tree; a machine that sees only its own runs gets only those."""
    await plant(sqlite)
    machine = person("bob", "operator", machine=True)
    starter = replace(machine, scopes=frozenset({"runs:write"}))
    async with sqlite.read() as conn:
        family = await family_for(conn, person("ann"), "run_early")
        own = await family_for(conn, starter, "run_r")
    assert [(each.run_id, each.level, each.here) for each in family] == [
        ("run_o", 0, False),
        ("run_early", 1, True),
        ("run_x", 2, False),
        ("run_r", 1, False),
        ("run_late", 1, False),
    ]
    assert [each.run_id for each in own] == ["run_r"]
    show_family(family)
    printed = capsys.readouterr().out
    drawn = "\n".join(f"{each.margin}{each.text.plain}" for each in family_lines(family))
    for text in (printed, drawn):
        assert "▸ run_early  agent: running  forked by ann after step 1" in text
        assert "\u202e" not in text
