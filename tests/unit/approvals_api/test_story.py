"""The audit log as sentences, in chapters of a run and a day, and as files that spreadsheets can open safely."""

from __future__ import annotations

import csv
import io
import json
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path

import pytest
from support.planted.hostile_texts import EVERYTHING
from support.planted.pages import pages_of
from support.planted.text import Filling
from support.stores.stored_requests import AT, live_run, request_row

from turngate.approvals_api.events import export
from turngate.approvals_api.events.story import chapters_of, sentences_of
from turngate.approvals_api.principal import Principal
from turngate.domain.errors import ForbiddenError, InvalidInputError
from turngate.domain.text.hidden_text import has_hidden
from turngate.store.clock import as_text
from turngate.store.database import Database
from turngate.store.events import audit, events
from turngate.store.requests import requests
from turngate.wire.events import AuditFilter, AuditItem

READER = Principal(name="ann", via="session", role="viewer", scopes=frozenset({"requests:read"}))
EVERY = AuditFilter()


def item(
    kind: str, *, actor: str | None = None, run_id: str = "run_1", seconds: float = 0.0, **payload: object
) -> AuditItem:
    named = {**payload, **({} if actor is None else {"by": actor})}
    at = as_text(AT + timedelta(seconds=seconds))
    fields = {"seq": 1, "run_seq": 1, "hash": "h", "actor": actor, "payload": named, "created_at": at}
    return AuditItem.model_validate({**fields, "run_id": run_id, "type": kind})


async def plant(database: Database) -> None:
    async with database.write() as conn:
        run = await live_run(conn, "run_1", task="Refund order A-113")
        refund = request_row(run, "rq_1", tool_name="refund", summary="Refund 12.50 EUR for order A-113")
        await requests.insert_all(conn, [refund, request_row(run, "rq_2", tool_name="mail")])
        run_2 = await live_run(conn, "run_2")
        await events.append(conn, run.id, [("request.opened", {"request_id": "rq_1", "tool": "refund", "rule": "ask"})])
        await events.append(conn, run.id, [("request.viewed", {"request_id": "rq_2", "by": "ann"})])
        await events.append(conn, run_2.id, [("execution.started", {"tool": "mail"})])
        await events.append(conn, run.id, [("request.decided", {"request_id": "rq_1", "by": "Ann", "verb": "approve"})])
        await events.append(conn, events.SYSTEM, [("policy.changed", {"by": "boss"})])


async def sentences(database: Database, *items: AuditItem) -> list[str]:
    async with database.read() as conn:
        return [each.text for each in await sentences_of(conn, items)]


async def test_an_event_says_who_did_what_to_which_call(database: Database) -> None:
    """A decision names the person, what the call does, and how long it was waited for."""
    await plant(database)
    decided = item("request.decided", actor="Ann", seconds=3, request_id="rq_1", verb="approve")
    rejected = item("request.decided", actor="Bob", seconds=7_300, request_id="rq_2", verb="reject")
    assert await sentences(database, decided, rejected) == [
        "Ann approved Refund 12.50 EUR for order A-113 3 s after it was asked",
        "Bob rejected mail 2 h after it was asked",
    ]
    async with database.read() as conn:
        (sentence,) = await sentences_of(conn, [decided])
    assert [(each.kind, each.request_id) for each in sentence.pieces] == [
        ("person", None),
        ("words", None),
        ("words", None),
        ("words", None),
        ("request", "rq_1"),
        ("words", None),
    ]
    assert sentence.tool == "refund"


async def test_an_event_without_a_sentence_says_its_type(database: Database) -> None:
    """A type that has no sentence, or lacks what its sentence names, says what its type says."""
    assert await sentences(
        database,
        item("policy.changed", actor="boss"),
        item("thing.happened"),
        item("run.handed_off", tool="a"),
        item("request.decided", actor="Ann", verb=["approve"], request_id="gone"),
        item("execution.finished", tool="refund", ok=False),
        item("execution.finished", tool="bash", ok=True, warned=True),
        item("run.started", actor=None, agent=7),
        item("run.started", actor="Ann", agent="clerk", forked_from={"run_id": "run_1", "step": 2, "retry": True}),
        item("run.started", actor="Ann", agent="clerk", forked_from={"run_id": "run_1", "step": 2}),
    ) == [
        "boss changed the policy",
        "Thing happened",
        "Run handed off",
        "Ann decided the request",
        "refund failed",
        "bash ended with a warning",
        "Turngate started a run of 7",
        "Ann retried a run of clerk",
        "Ann started a run of clerk",
    ]


async def test_events_are_in_chapters_of_a_run_and_a_day(database: Database) -> None:
    """What follows each other in one run and one day is one chapter, under the run's agent and task."""
    await plant(database)
    day = 86_400
    items = [
        item("run.paused", actor="ann", seconds=2 * day),
        item("run.resumed", actor="ann", seconds=2 * day),
        item("run.paused", actor="ann", run_id="run_2", seconds=2 * day),
        item("policy.changed", actor="boss", run_id=events.SYSTEM, seconds=day),
        item("run.ended", status="failed", run_id="gone", seconds=0),
    ]
    async with database.read() as conn:
        chapters = await chapters_of(conn, items, str.upper)
    assert [(each.run_id, len(each.sentences), each.begins_day, each.task) for each in chapters] == [
        ("run_1", 2, True, "REFUND ORDER A-113"),
        ("run_2", 1, False, "GO"),
        (None, 1, True, ""),
        ("gone", 1, True, ""),
    ]


async def test_the_log_of_a_tool_has_its_calls_and_their_requests(database: Database) -> None:
    """Events that name a tool, and those of requests for its calls, and no other."""
    await plant(database)
    async with database.read() as conn:
        types = {
            tool: [each.type for each in (await audit.page(conn, AuditFilter(tool=tool), limit=10)).events]
            for tool in ("refund", "mail", "refun", "REFUND", '"')
        }
    assert types == {
        "refund": ["request.decided", "request.opened"],
        "mail": ["execution.started", "request.viewed"],
        "refun": [],
        "REFUND": [],
        '"': [],
    }


async def file(database: Database, kind: export.Kind, wanted: AuditFilter = EVERY, **more: str) -> str:
    return "".join([line async for line in await export.lines(database, READER, wanted, kind, **more)])


async def test_a_file_has_every_event_of_the_filter(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Newest first, across batches; CSV and JSON lines say the same."""
    await plant(database)
    monkeypatch.setattr(export, "READ_AT_ONCE", 2)
    rows = list(csv.DictReader(io.StringIO(await file(database, "csv"))))
    members = [json.loads(line) for line in (await file(database, "jsonl")).splitlines()]
    assert [int(row["seq"]) for row in rows] == [each["seq"] for each in members] == [5, 4, 3, 2, 1]
    assert [row["what"] for row in rows] == [each["what"] for each in members]
    assert json.loads(rows[0]["payload"]) == members[0]["payload"] == {"by": "boss"}
    assert (members[1]["tool"], members[1]["request"]) == ("refund", "rq_1")
    only = await file(database, "csv", AuditFilter(tool="mail"))
    assert len(only.splitlines()) == 3


async def test_a_file_is_bounded_and_says_where_it_ends(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is cut off says so in its last line, and the next one continues there."""
    await plant(database)
    monkeypatch.setattr(export, "READ_AT_ONCE", 2)
    monkeypatch.setattr(export, "MOST_EVENTS", 2)
    *seen, cut = [json.loads(line) for line in (await file(database, "jsonl")).splitlines()]
    assert ([each["seq"] for each in seen], cut["type"]) == ([5, 4], export.TRUNCATED)
    following = await file(database, "csv", cursor=str(cut["seq"]))
    assert [row["seq"] for row in csv.DictReader(io.StringIO(following))][:2] == ["3", "2"]


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t=", "\r", "\n", "  =", "\uff1d"])
async def test_a_cell_is_no_formula(database: Database, start: str) -> None:
    """Whatever a name begins with, a spreadsheet shows it and computes nothing."""
    name = f"{start}HYPERLINK(0)"
    async with database.write() as conn:
        await live_run(conn, "run_1")
        await events.append(conn, "run_1", [("execution.started", {"tool": name, "by": name})])
    (row,) = csv.DictReader(io.StringIO(await file(database, "csv")))
    for cell in row.values():
        assert not cell.lstrip(" ").startswith(export._FORMULA)
    assert "HYPERLINK" in row["actor"]


async def test_a_file_hides_nothing(database: Database) -> None:
    """Hidden characters are spelled out in CSV, and escaped in JSON lines."""
    async with database.write() as conn:
        await live_run(conn, "run_1")
        await events.append(conn, "run_1", [("execution.started", {"tool": EVERYTHING, "by": EVERYTHING})])
    for kind in ("csv", "jsonl"):
        text = await file(database, kind)
        assert not has_hidden(text.replace("\r\n", ""))


async def test_a_file_needs_the_rights_of_the_page(database: Database) -> None:
    """Who may not read requests gets nothing, before the first line; logins are in an admin's file only."""
    await plant(database)
    async with database.write() as conn:
        await events.append(conn, events.SYSTEM, [("session.opened", {"name": "x", "by": "x"})])
    with pytest.raises(ForbiddenError):
        await export.lines(database, Principal(name="bot", via="token", scopes=frozenset({"runs:write"})), EVERY, "csv")
    with pytest.raises(InvalidInputError):
        await export.lines(database, READER, EVERY, "csv", cursor="x")
    assert "session.opened" not in await file(database, "csv")


async def test_the_page_offers_the_files(sqlite_template: Path, tmp_path: Path) -> None:
    """The links lead to downloads of the very filter, whose types no browser runs; another format is refused."""
    async with pages_of(Filling("pay"), sqlite_template, tmp_path / "pages") as served:
        page = await served.client.get("/audit?run_id=run_completed&type=request.*")
        assert "/audit/export?run_id=run_completed&amp;type=request.%2A&amp;format=csv" in page.text
        answers = [await served.client.get(f"/audit/export?format={kind}") for kind in ("csv", "jsonl")]
        refused = await served.client.get("/audit/export?format=html")
    for answer, kind in zip(answers, ("csv", "jsonl"), strict=True):
        assert answer.status_code == HTTPStatus.OK
        assert answer.headers["content-disposition"] == f'attachment; filename="audit.{kind}"'
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert answers[0].text.splitlines()[0] == ",".join(f'"{name}"' for name in export.COLUMNS)
    assert refused.status_code == HTTPStatus.UNPROCESSABLE_ENTITY
