"""``turngate audit``: what is exported is the log, whole or from somewhere on; what was changed or cut off is found, offline."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from support.stores.audit_store import in_store, turngate
from support.stores.event_guards import take_guards_away
from support.stores.stored_requests import live_run, request_row

from turngate.domain.runs.event_chain import ChainedEvent, chain_hash
from turngate.store.clock import as_text, now
from turngate.store.database import Connection
from turngate.store.events import audit, events
from turngate.store.requests import requests
from turngate.store.runs import new_run, runs

RUNS = ("run_a", "run_b", "run_c")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A data directory with three runs of four events each, told in turn, and two events of no run. The last run is gone.

    For all tests of this module: who changes it takes a copy.
    """
    data_dir = tmp_path_factory.mktemp("audit")
    with pytest.MonkeyPatch.context() as environment:
        for name in ("TURNGATE_DATA_DIR", "TURNGATE_DATABASE_URL"):
            environment.delenv(name, raising=False)
        in_store(data_dir, fill)
        yield data_dir


async def fill(conn: Connection) -> None:
    """Tell everything."""
    for run_id in RUNS:
        await live_run(conn, run_id, logged=True)
    for number in range(1, 4):
        for run_id in RUNS:
            await events.append(conn, run_id, [("thing.happened", {"by": "ann", "number": number, "é": "\u2028"})])
    await events.append(conn, events.SYSTEM, [("thing.added", {"name": "bob", "by": "ann"}), ("thing.gone", {})])
    await events.store_head(conn, "run_c")
    await new_run.remove_unstarted(conn, "run_c")


def exported(store: Path, *words: str) -> list[dict[str, Any]]:
    stdout, _ = turngate("export", *words, store=store)
    return [json.loads(line) for line in stdout.splitlines()]


def written(lines: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(line) + "\n" for line in lines)


def test_an_export_is_the_whole_log_and_holds_without_the_store(store: Path, tmp_path: Path) -> None:
    """Each event with all its hash needs, each chain's end, a removed run's too; checked offline, and from a pipe."""
    file = tmp_path / "log.jsonl"
    _, notes = turngate("export", "-o", str(file), store=store)
    assert "exported 14 event(s) of 4 chain(s)" in notes
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert lines[0]["turngate_audit"] == 1
    assert [line["seq"] for line in lines[1:15]] == list(range(1, 15))
    assert {line["chain"]: line["length"] for line in lines[15:-1]} == {
        "run_a": 4,
        "run_b": 4,
        "run_c": 4,
        events.SYSTEM: 2,
    }
    assert lines[-1] == {"end": {"events": 14, "chains": 4}}
    first, later = lines[1], lines[4]
    assert first["hash"] == chain_hash("", "run_a", 1, first["type"], first["payload"], first["created_at"])
    assert json.loads(later["payload"]) == {"by": "ann", "number": 1, "é": "\u2028"}
    for source, stdin in ((str(file), None), ("-", file.read_text())):
        _, notes = turngate("verify", source, stdin=stdin)
        assert "the log is intact: 14 event(s) in 4 chain(s)" in notes


def test_an_export_for_spreadsheets_says_what_happened(store: Path) -> None:
    """One line an event, oldest first, with a sentence; a run's alone; no cell is a formula."""
    rows = list(csv.DictReader(io.StringIO(turngate("export", "--format", "csv", store=store)[0])))
    assert [row["seq"] for row in rows] == [str(number) for number in range(1, 15)]
    assert (rows[0]["run"], rows[0]["type"], rows[0]["actor"]) == ("run_a", "run.started", "starter")
    assert rows[0]["what"] == "starter started a run of agent"
    assert (rows[3]["type"], rows[3]["actor"]) == ("thing.happened", "ann")
    own = list(csv.DictReader(io.StringIO(turngate("export", "--format", "csv", "--run", "run_b", store=store)[0])))
    assert [row["seq"] for row in own] == [row["seq"] for row in rows if row["run"] == "run_b"]
    assert "there is no run" in turngate("export", "--format", "csv", "--run", "no", store=store, code=1)[1]


def test_heads_are_printed_to_be_noted_elsewhere(store: Path, tmp_path: Path) -> None:
    """The same from the store and from its export: run, length and newest hash of each chain."""
    file = tmp_path / "log.jsonl"
    turngate("export", "-o", str(file), store=store)
    noted, _ = turngate("verify", str(file), "--heads")
    assert turngate("verify", "--heads", store=store)[0] == noted
    rows = [line.split("\t") for line in noted.splitlines()]
    assert [(row[0], row[1]) for row in rows] == [("run_a", "4"), ("run_b", "4"), ("run_c", "4"), (events.SYSTEM, "2")]
    assert all(len(row[2]) == 64 for row in rows)


def test_a_part_of_the_log_is_exported_and_checked_alone(store: Path) -> None:
    """One run's chain, and everything from a number or a time on; a chain may begin in its middle there."""
    lines = exported(store, "--run", "run_b")
    assert [line["run_seq"] for line in lines[1:-2]] == [1, 2, 3, 4]
    turngate("verify", "-", stdin=written(lines))
    foreign = [*lines[:2], {**lines[2], "run_id": "run_a"}, *lines[2:]]
    assert "it belongs to another chain than run_b" in turngate("verify", "-", stdin=written(foreign), code=1)[1]
    lines = exported(store, "--since", "8")
    assert [line["seq"] for line in lines if "seq" in line] == list(range(8, 15))
    turngate("verify", "-", stdin=written(lines))

    async def tenth_of(conn: Connection) -> ChainedEvent:
        return [event async for event in audit.every(conn)][9]

    tenth = in_store(store, tenth_of)
    assert exported(store, "--since", tenth.created_at)[1]["seq"] == 10
    assert exported(store, "--since", as_text(now() + timedelta(days=1)))[-1] == {"end": {"events": 0, "chains": 0}}
    assert len(exported(store, "--since", "2020-01-01")) == 14 + 4 + 2
    assert "neither an event's number nor a time" in turngate("export", "--since", "soon", store=store, code=2)[1]
    assert "there is no run 'run_z'" in turngate("export", "--run", "run_z", store=store, code=1)[1]


Lines = list[dict[str, Any]]


def dropped(*numbers: int) -> Callable[[Lines], Lines]:
    return lambda lines: [line for number, line in enumerate(lines) if number not in numbers]


def changed(number: int, **members: Any) -> Callable[[Lines], Lines]:
    return lambda lines: [{**line, **members} if at == number else line for at, line in enumerate(lines)]


def swapped(one: int, other: int, *members: str) -> Callable[[Lines], Lines]:
    def swap(lines: Lines) -> Lines:
        for member in members:
            lines[one][member], lines[other][member] = lines[other][member], lines[one][member]
        return lines

    return swap


def rehashed(number: int) -> Callable[[Lines], Lines]:
    """Change an event and compute its own hash again, as an attacker who knows the rules would."""

    def forge(lines: Lines) -> Lines:
        line = lines[number]
        line["payload"] = '{"by":"eve"}'
        line["hash"] = chain_hash(
            line["previous_hash"], line["run_id"], line["run_seq"], line["type"], line["payload"], line["created_at"]
        )
        return lines

    return forge


# Line 4 is the second event of run_a, line 7 its third; 13 and 14 are those of no run; 15 to 18 close, 19 ends.
TAMPERINGS: dict[str, tuple[Callable[[Lines], Lines], str]] = {
    "payload changed": (
        changed(4, payload="{}"),
        "chain run_a, event 2: its content is not what its hash was made over",
    ),
    "time changed": (
        changed(4, created_at="2026-01-01T00:00:00.000000+00:00"),
        "chain run_a, event 2: its content is not",
    ),
    "type changed": (changed(4, type="other"), "chain run_a, event 2: its content is not"),
    "hash changed": (changed(4, hash="0" * 64), "chain run_a, event 2: its content is not"),
    "rehashed": (
        rehashed(4),
        "chain run_a, event 3: the previous hash it names is not the hash of the event before it",
    ),
    "moved to another run": (changed(4, run_id="run_b"), "chain run_b, event 2: the previous hash it names"),
    "event removed": (dropped(4), "chain run_b, event 2: its number among all events is 5, and 4 before it is missing"),
    "first removed": (dropped(1), "its number among all events is 2, and 1 before it is missing"),
    "renumbered after a removal": (
        lambda lines: [
            {**line, "seq": line["seq"] - 1} if line.get("seq", 0) > 4 else line for line in dropped(4)(lines)
        ],
        "chain run_a, event 2: it is missing; event 3 comes next",
    ),
    "event twice": (lambda lines: [*lines[:5], *lines[4:]], "its number among all events is 4, where 5 should come"),
    "lines swapped": (
        lambda lines: [*lines[:4], lines[7], *lines[5:7], lines[4], *lines[8:]],
        "its number among all events",
    ),
    "numbers swapped": (swapped(4, 7, "seq"), "its number among all events is 7"),
    "contents swapped": (swapped(4, 7, "payload", "created_at"), "chain run_a, event 2: its content is not"),
    "tail of a chain removed": (dropped(10), "its number among all events"),
    "last event removed": (dropped(14), "chain system, event 2: it is missing: 1 of the chain's 2 event(s) are here"),
    "chain's end changed": (changed(15, head="0" * 64), "event 4: its hash is not the one kept as the newest"),
    "chain's end says fewer": (
        changed(15, length=3),
        "event 4: it is one too many: the chain has 3 event(s), and 4 are here",
    ),
    "the last chain removed without a trace": (
        lambda lines: changed(16, end={"events": 12, "chains": 3})(dropped(13, 14, 18)(lines)),
        "the log was changed or is damaged. the events numbered 13 to 14 are missing",
    ),
    "chain's end removed": (dropped(16), "the export should hold"),
    "chain's end and count removed": (
        lambda lines: changed(18, end={"events": 14, "chains": 3})(dropped(16)(lines)),
        "chain run_b, event 5: it may be missing: nothing says how long this chain is",
    ),
    "cut off before the end": (lambda lines: lines[:-1], "the file is cut off"),
    "cut off after the events": (lambda lines: lines[:15], "the file is cut off"),
    "cut off in the middle": (lambda lines: lines[:9], "the file is cut off"),
    "a chain of its own added": (
        lambda lines: [*lines[:15], {**lines[1], "seq": 15, "run_id": "run_x"}, *lines[15:]],
        "chain run_x, event 1: its content is not",
    ),
    "header removed": (dropped(0), "line 1: this is not the header of an audit export"),
    "nothing": (lambda lines: lines[:0], "the file is empty"),
    "another format": (changed(0, turngate_audit=2), "the export's format is 2, and this version of Turngate reads 1"),
    "events after the end": (lambda lines: [*lines, lines[1]], "this comes after the line that ends the export"),
    "a member added": (changed(4, more=1), "line 5: this is neither an event nor a closing line"),
    "a number as text": (changed(4, run_seq="2"), "line 5: this is neither an event nor a closing line"),
}


@pytest.fixture(scope="module")
def log(store: Path) -> list[str]:
    """The lines of one export."""
    return turngate("export", store=store)[0].splitlines()


@pytest.mark.parametrize("tampering", list(TAMPERINGS))
def test_the_first_thing_that_is_wrong_in_an_export_is_named(log: list[str], tampering: str) -> None:
    """Exit code 1 and one sentence: which chain, which event, what differs."""
    tamper, message = TAMPERINGS[tampering]
    lines = [json.loads(line) for line in log]
    _, error = turngate("verify", "-", stdin=written(tamper(lines)), code=1)
    assert message in error


def test_what_is_not_an_export_is_no_crash(store: Path, tmp_path: Path) -> None:
    """Half a line, bytes that are no text, JSON of many levels, a name twice: each is a sentence."""
    log = turngate("export", store=store)[0]
    head, _, rest = log.partition("\n")
    twice = rest.replace('"type":', '"type":"other","type":', 1)
    for broken, message in (
        (log[: len(log) // 2], "in the middle of this line"),
        (f"{head}\n\udcff\udcfe\n", "line 2: this is not JSON"),
        (f"{head}\n{'[' * 100_000}\n", "line 2: this is not JSON"),
        (f"{head}\n{twice}", "line 2: this is not JSON, or has a member twice"),
        ("[]\n", "line 1: this is not a line of an audit export"),
    ):
        file = tmp_path / "broken"
        file.write_text(broken, errors="surrogateescape")
        assert message in turngate("verify", str(file), code=1)[1]
    assert "cannot be read" in turngate("verify", str(tmp_path / "nowhere"), code=2)[1]
    assert "cannot be written" in turngate("export", "-o", str(tmp_path / "no" / "x"), store=store, code=2)[1]


STORE_TAMPERINGS = {
    "an event changed": ("UPDATE events SET payload = '{}' WHERE seq = 5", "chain run_b, event 2: its content is not"),
    "the tail removed": (
        "DELETE FROM events WHERE seq > 13; UPDATE event_counter SET last_seq = 13",
        "1 of the chain's 2 event(s) are here",
    ),
    "a run with all its events removed": (
        "DELETE FROM events WHERE run_id = 'run_b'",
        "is 3, and 2 before it is missing",
    ),
    "the head of a run changed": ("UPDATE runs SET event_hash = 'x' WHERE id = 'run_b'", "chain run_b, event 4"),
}


@pytest.mark.parametrize("tampering", list(STORE_TAMPERINGS))
def test_the_store_itself_is_checked(store: Path, tmp_path: Path, tampering: str) -> None:
    """Without a file: the same check on the rows, and the heads that are kept apart from them."""
    turngate("verify", store=store)
    copied = Path(shutil.copytree(store, tmp_path / "copy"))
    statement, message = STORE_TAMPERINGS[tampering]

    async def tamper(conn: Connection) -> None:
        await take_guards_away(conn)
        for each in statement.split("; "):
            await conn.execute(text(each))

    in_store(copied, tamper)
    assert message in turngate("verify", store=copied, code=1)[1]


def test_i15_a_row_without_an_event_is_found(store: Path, tmp_path: Path) -> None:
    """I15: a chain that holds does not help a request that was written past it."""
    copied = Path(shutil.copytree(store, tmp_path / "copy"))

    async def plant(conn: Connection) -> None:
        run = await runs.get(conn, "run_a")
        assert run is not None
        await requests.insert_all(conn, [request_row(run, "rq_planted", status="approved", decided_by="the-ceo")])

    in_store(copied, plant)
    assert "requests rq_planted: no event accounts for this row" in turngate("verify", store=copied, code=1)[1]


def test_i15_a_rewritten_message_is_found(store: Path, tmp_path: Path) -> None:
    """I15: the input of a run is compared with the log, and a run whose events have no digests is no run of Turngate's."""
    copied = Path(shutil.copytree(store, tmp_path / "copy"))

    async def begin(conn: Connection) -> None:
        await live_run(conn, "new", task="Pay 5.", logged=True)

    async def plant(conn: Connection) -> None:
        await live_run(conn, "planted")
        payload = {"agent": "agent", "model": "scripted:test", "started_by": "starter"}
        await events.append(conn, "planted", [("run.started", payload)])

    in_store(copied, begin)
    assert "intact" in turngate("verify", store=copied)[1]
    planted = Path(shutil.copytree(copied, tmp_path / "planted"))
    in_store(planted, plant)
    assert "runs planted, id: no event accounts for it" in turngate("verify", store=planted, code=1)[1]

    async def rewrite(conn: Connection) -> None:
        await conn.execute(text("UPDATE messages SET parts = replace(parts, '5', '5000')"))

    in_store(copied, rewrite)
    assert (
        "chain new, event 1: messages msg_new, parts: it is not as run.started wrote it"
        in turngate("verify", store=copied, code=1)[1]
    )
