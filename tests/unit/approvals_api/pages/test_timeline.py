"""A run's timeline: its spans, its picture with a table, and how little of it grows with a long run."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, update
from support.planted.hostile_texts import EVERYTHING
from support.planted.pages import Pages, PageState, pages_of
from support.planted.text import Filling
from support.stores.sql_census import SqlCensus
from support.stores.stored_requests import AT, live_run, open_requests, request_row

from turngate.approvals_api.pages.pictures.drawing import count_ticks, fitted, lasted, moment, ticks
from turngate.approvals_api.pages.pictures.timeline import BINS, MOST_ROWS, Window, note, picture_of, rows_of
from turngate.approvals_api.runs.timeline import RecordedRun, Timeline, timeline_of
from turngate.store import tables
from turngate.store.clock import as_text
from turngate.store.database import Connection, Database
from turngate.store.runs import runs
from turngate.store.runs.timeline import CallTimes, Interruption, RequestTimes, RunTimes, StepTimes

MOST_MARKS = 200


def at(seconds: float) -> str:
    return as_text(AT + timedelta(seconds=seconds))


def step(number: int, created: float, closed: float | None) -> StepTimes:
    closed_at = None if closed is None else at(closed)
    tokens = {"input_tokens": 90, "output_tokens": 10}
    return StepTimes(step=number, model="m", created_at=at(created), closed_at=closed_at, **tokens)


def call(number: int, name: str, *, began: float | None, ended: float | None, **more: Any) -> CallTimes:
    usual: dict[str, Any] = {
        "step": number,
        "position": 0,
        "tool_call_id": f"{number} {name}",
        "tool_name": name,
        "disposition": "ask",
        "child_run_id": None,
        "settled_at": None if ended is None else at(ended),
        "state": None if began is None else "executing" if ended is None else "succeeded",
        "started_at": None if began is None else at(began),
        "ended_at": None if ended is None else at(ended),
        "attempts": None if began is None else 1,
    }
    return CallTimes(**{**usual, **more})


def request(call_id: str, opened: float, decided: float | None, **more: Any) -> RequestTimes:
    usual: dict[str, Any] = {
        "id": f"rq {opened}",
        "tool_call_id": call_id,
        "kind": "approval",
        "created_at": at(opened),
    }
    answer = {"status": "approved", "verb": "approve", "decided_by": "ann"} if decided is not None else {}
    pending = {"status": "pending", "verb": None, "decided_by": None}
    return RequestTimes(
        **{**usual, **pending, **answer, "decided_at": None if decided is None else at(decided), **more}
    )


@pytest.fixture
async def run(sqlite: Database) -> runs.Run:
    """A live run whose clock starts at ``AT``."""
    async with sqlite.write() as conn:
        run = await live_run(conn, "run_1")
    return replace(run, created_at=at(0))


def drawn(run: runs.Run, *, now: float, **times: Any) -> Timeline:
    rows = RunTimes(**{"steps": [], "calls": [], "requests": [], "interruptions": [], **times})
    return timeline_of(RecordedRun(run=run, times=rows, now=AT + timedelta(seconds=now)))


def rows_in_words(timeline: Timeline) -> list[tuple[str, str]]:
    return [(row.name, note(row)) for row in rows_of(timeline.spans)]


async def test_each_response_and_call_says_what_it_waited_for(run: runs.Run) -> None:
    """The model's time ends with its response; a call waits for a person, who is named, and then runs."""
    timeline = drawn(
        run,
        now=400,
        steps=[step(1, 2, 190), step(2, 195, None)],
        calls=[call(1, "refund", began=182, ended=182.12), call(2, "mail", began=200, ended=None)],
        requests=[request("1 refund", 2, 182)],
    )
    assert rows_in_words(timeline) == [
        ("step 1", "2 s, 100 tokens"),
        ("refund", "approved by ann after 3 min, 120 ms"),
        ("step 2", "5 s, 100 tokens"),
        ("mail", "runs, 3 min 20 s so far"),
    ]
    assert timeline.seconds == pytest.approx(400)


async def test_what_went_wrong_is_counted_and_marked(run: runs.Run) -> None:
    """Failed requests to the model, repeated starts, refusals and calls that never ran are marked, and say so in words."""
    timeline = drawn(
        run,
        now=100,
        steps=[step(1, 30, 90)],
        calls=[
            call(1, "fetch", began=30, ended=40, attempts=3),
            call(1, "pay", began=None, ended=50),
            call(1, "nothing", began=None, ended=30, disposition="closed"),
        ],
        requests=[request("1 pay", 30, 50, status="rejected", verb="reject", decided_by="bob")],
        interruptions=[Interruption(kind="model.retrying", at=at(each), step=1, by=None) for each in (5, 10)],
    )
    assert rows_in_words(timeline)[:4] == [
        ("step 1", "30 s, 100 tokens, failed attempts: 2"),
        ("fetch", "succeeded in 10 s, 3 attempts"),
        ("pay", "rejected by bob after 20 s"),
        ("nothing", "not run"),
    ]
    assert [each.is_bad for each in timeline.spans][:4] == [False, False, True, True]
    assert [each.was_repeated for each in timeline.spans][:4] == [True, True, False, False]
    kinds = [each.kind for each in picture_of(timeline).drawing.boxes]
    assert kinds.count("mark failure") == 2
    assert [sum(mark in each for each in kinds) for mark in ("bad", "again")] == [2, 2]


async def test_a_pause_is_no_time_of_the_model(run: runs.Run) -> None:
    """While a run is paused no model is asked: the pause has its own row, and the next response starts after it."""
    paused = Interruption(kind="run.paused", at=at(10), step=None, by="ann")
    resumed = Interruption(kind="run.resumed", at=at(70), step=None, by="bob")
    steps = [step(1, 2, 5), step(2, 75, 80)]
    ended = replace(run, ended_at=at(80), status="completed")
    rows = dict(rows_in_words(drawn(ended, now=999, steps=steps, interruptions=[paused, resumed])))
    assert rows["pause"] == "resumed by bob after 1 min"
    assert rows["step 2"] == "5 s, 100 tokens"
    live = drawn(replace(run, paused_at=at(10)), now=40, steps=steps[:1], interruptions=[paused])
    assert rows_in_words(live)[-1] == ("pause", "waits for a person, 30 s so far")


async def test_what_the_engine_asks_after_a_step_is_no_time_of_the_model(run: runs.Run) -> None:
    """More of a budget is asked for after a step is closed, and the model is asked after that."""
    steps = [step(1, 2, 5), step(2, 65, 70)]
    extend = call(1, "extend", began=60, ended=60, position=1_000_000)
    rows = dict(rows_in_words(drawn(run, now=70, steps=steps, calls=[extend], requests=[request("1 extend", 5, 60)])))
    assert rows["step 2"] == "5 s, 100 tokens"


async def test_the_picture_of_a_part_has_what_is_in_it(run: runs.Run) -> None:
    """A window shows the rows that touch it; the part after a run has none, and a window next to it only where one is."""
    timeline = drawn(run, now=1000, steps=[step(n, n * 100, n * 100 + 50) for n in range(1, 10)])
    part = picture_of(timeline, Window(begin=290, end=440))
    assert [row.name for row in part.rows] == ["step 3", "step 4"]
    later, earlier = part.moved(1.0), part.moved(-1.0)
    assert (later, earlier) == (Window(begin=440, end=590), Window(begin=140, end=290))
    assert picture_of(timeline, Window(begin=0, end=1e9)).is_whole
    assert not picture_of(timeline, Window(begin=5_000, end=6_000)).rows
    assert picture_of(timeline, Window(begin=0, end=50)).moved(-0.8) is None
    assert picture_of(timeline, Window(begin=950, end=1_000)).moved(1.0) is None


async def test_a_long_run_is_counted_instead_of_drawn(run: runs.Run) -> None:
    """2,000 steps are at most 200 boxes, each leads to a part, and a part that is short enough has its rows."""
    many = 2_000
    timeline = drawn(
        run,
        now=many * 10,
        steps=[step(n, n * 10 - 5, n * 10) for n in range(1, many + 1)],
        calls=[call(n, EVERYTHING, began=n * 10 - 4, ended=n * 10 - 1) for n in range(1, many + 1)],
        requests=[request(f"{n} {EVERYTHING}", n * 10 - 5, n * 10 - 4) for n in range(1, many + 1)],
    )
    whole = picture_of(timeline)
    assert whole.rows == ()
    assert len(whole.bins) == BINS
    assert len(whole.drawing.boxes) <= MOST_MARKS
    assert whole.drawing.marks <= MOST_MARKS + 40
    assert all(each.href.startswith("/runs/run_1/timeline?from=") for each in whole.drawing.boxes)
    assert sum(each.counts["tool"] for each in whole.bins) >= many
    part = picture_of(timeline, Window(begin=10_000, end=10_100))
    assert 0 < len(part.rows) <= MOST_ROWS
    assert len(part.drawing.boxes) <= MOST_MARKS


async def test_the_most_rows_have_the_most_marks(run: runs.Run) -> None:
    """As many rows as are drawn at all, each with failed requests, stay within 200 boxes."""
    failing = [
        Interruption(kind="model.retrying", at=at(n * 10 - 9 + f), step=n, by=None)
        for n in range(1, MOST_ROWS + 1)
        for f in range(6)
    ]
    steps = [step(n, n * 10 - 1, n * 10) for n in range(1, MOST_ROWS + 1)]
    ended = replace(run, ended_at=at(400), status="completed")
    picture = picture_of(drawn(ended, now=400, steps=steps, interruptions=failing))
    assert len(picture.rows) == MOST_ROWS
    assert len(picture.drawing.boxes) <= MOST_MARKS


async def plant_steps(conn: Connection, run_id: str, count: int) -> None:
    run = await live_run(conn, run_id)
    ended = {"status": "completed", "created_at": at(0), "ended_at": at(count)}
    await conn.execute(update(tables.runs).where(tables.runs.c.id == run_id).values(**ended))
    numbers = range(1, count + 1)
    same: dict[str, Any] = {"run_id": run_id, "model": "m", "finish_reason": "tool_calls"}
    same |= {"input_tokens": 1, "output_tokens": 1, "plan": None, "results_message_id": None}
    await conn.execute(
        insert(tables.steps),
        [
            {**same, "step": n, "assistant_message_id": run.head_message_id, "created_at": at(n), "closed_at": at(n)}
            for n in numbers
        ],
    )
    texts = dict.fromkeys(("input", "repeat_key", "digest", "policy_version"), "{}")
    more = {"disposition": "ask", "verdict": "", "effect": "once", "settled_at": at(count)}
    await conn.execute(
        insert(tables.calls),
        [
            {**texts, **more, "run_id": run_id, "step": n, "position": 0, "tool_call_id": f"c{n}", "tool_name": "pay"}
            for n in numbers
        ],
    )
    decided: dict[str, Any] = {"status": "approved", "verb": "approve", "decided_by": "ann"}
    await open_requests(
        conn,
        [
            request_row(
                run,
                f"rq_{run_id}_{n}",
                tool_call_id=f"c{n}",
                created_at=at(n - 0.5),
                decided_at=at(n),
                decision_id=f"{run_id} {n}",
                **decided,
            )
            for n in numbers
        ],
    )


async def statements(pages: Pages, path: str) -> tuple[int, str]:
    html = await pages.html(PageState(path))
    with SqlCensus(pages.database) as census:
        assert await pages.html(PageState(path)) is not None
    return sum(len(each.statements) for each in census.transactions), html


async def test_a_long_run_costs_no_more_statements(sqlite_template: Path, tmp_path: Path) -> None:
    """The page of 1,000 steps reads the store with as many statements as that of two, and stays small."""
    async with pages_of(Filling("pay"), sqlite_template, tmp_path / "pages") as served:
        async with served.database.write() as conn:
            await plant_steps(conn, "run_short", 2)
            await plant_steps(conn, "run_long", 1_000)
        few, _short = await statements(served, "/runs/run_short/timeline")
        many, long = await statements(served, "/runs/run_long/timeline")
        part, rows = await statements(served, "/runs/run_long/timeline?from=100&to=105")
    assert many == few == part
    assert len(long) < 100_000
    assert 0 < long.count("<rect") <= MOST_MARKS
    assert 'href="/runs/run_long#call-103-1"' in rows


async def test_a_part_that_is_none_is_refused(sqlite_template: Path, tmp_path: Path) -> None:
    """A window has to be a piece of time: anything else is an error page, not a crash."""
    async with pages_of(Filling("pay"), sqlite_template, tmp_path / "pages") as served:
        for query in ("from=5&to=5", "from=nan", "to=-1", "from=1e12", "from=x"):
            answer = await served.client.get(f"/runs/run_completed/timeline?{query}")
            assert answer.status_code == 422, query


def test_ticks_are_round_and_few() -> None:
    """An axis has round numbers, of a time and of a count, whatever its length."""
    assert ticks(0, 60, 8) == [0, 10, 20, 30, 40, 50, 60]
    assert ticks(95, 125, 8) == [95, 100, 105, 110, 115, 120, 125]
    for seconds in (0.0, 0.001, 0.3, 7, 61, 3_601, 90_000, 9e6, 9e8, 1e11):
        assert 1 <= len(ticks(0, seconds, 8)) <= 8
    assert [count_ticks(most) for most in (0, 1, 4, 7, 1_000)] == [
        [0, 1],
        [0, 1],
        [0, 1, 2, 3, 4],
        [0, 2, 4, 6, 8],
        [0, 500, 1_000],
    ]


def test_moments_and_durations_are_short() -> None:
    """Seconds with what matters of them, then the two largest units."""
    assert [moment(each) for each in (0, 0.05, 2.5, 12.4, 90, 3_900, 90_000)] == [
        *("0", "0.05 s", "2.5 s", "12 s", "1 min 30 s", "1 h 5 min", "1 d 1 h"),
    ]
    assert [lasted(each) for each in (0.0123, 1.26, 200)] == ["12 ms", "1.3 s", "3 min 20 s"]


def test_a_text_is_cut_to_its_room() -> None:
    """Whatever a name is made of, it takes no more than its letters, and nothing in it stays hidden."""
    assert fitted("refund", 6) == "refund"
    assert fitted("refunds", 6) == "refun…"
    assert fitted("\u202eevil", 20) == "⟨U+202E⟩evil"
    assert fitted("退款退款", 6) == "退款…"
    assert len(fitted(EVERYTHING, 25)) <= 25
