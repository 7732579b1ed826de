"""Signed heads (I15): what the chains themselves cannot show, because an attacker can compute every hash again."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, text
from support.engine.stack import until
from support.stores.audit_store import in_store, turngate
from support.stores.event_guards import take_guards_away
from support.stores.stored_requests import live_run

from turngate.cli import stores
from turngate.cli.commands.setup import doctor
from turngate.cli.commands.setup.doctor import Finding
from turngate.domain.errors import ConfigurationError
from turngate.domain.runs.event_chain import chain_hash
from turngate.runtime import signed_heads
from turngate.runtime.settings import load_settings
from turngate.store.database import Connection, Database
from turngate.store.events import events
from turngate.store.tables import events as events_table

RUNS = ("run_a", "run_b")


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """The private key's file; its public half is in ``key.pub``."""
    file = tmp_path / "keys" / "key"
    file.parent.mkdir()
    (file.parent / "key.pub").write_text(turngate("keygen", str(file))[0])
    return file


@pytest.fixture
def heads(tmp_path: Path) -> Path:
    return tmp_path / "heads.jsonl"


@pytest.fixture(scope="module")
def filled_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with two runs of three events each, to copy: to migrate one takes longer than most tests here."""

    async def fill(conn: Connection) -> None:
        for run_id in RUNS:
            await live_run(conn, run_id, logged=True)
        for number in range(1, 3):
            for run_id in RUNS:
                await events.append(conn, run_id, [("thing.happened", {"by": "ann", "number": number})])

    data_dir = tmp_path_factory.mktemp("filled") / "data"
    in_store(data_dir, fill)
    return data_dir


@pytest.fixture
def store(filled_store: Path, tmp_path: Path) -> Path:
    """The same of one test."""
    return shutil.copytree(filled_store, tmp_path / "data")


async def more(conn: Connection, run_id: str = "run_a") -> None:
    await events.append(conn, run_id, [("thing.happened", {"by": "ann"})])


def signing(
    store: Path, key: Path, heads: Path, meanwhile: Callable[[Database], Awaitable[None]] | None = None, **more: Any
) -> None:
    """Run what signs, as ``turngate api`` does, until ``meanwhile`` is over."""

    async def run() -> None:
        settings = load_settings(data_dir=store, audit_key_file=key, audit_heads=heads, **more)
        async with stores.opened_store(settings) as database, signed_heads.signing_log(settings, database):
            if meanwhile is not None:
                await meanwhile(database)

    asyncio.run(run())


def verified(store: Path, key: Path, heads: Path, *, code: int = 0) -> str:
    return turngate("verify", "--against", str(heads), "--key", f"{key}.pub", store=store, code=code)[1]


def lines_of(heads: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in heads.read_text().splitlines()]


async def rewrite(conn: Connection, forge: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    """Replace the log by another, and compute every hash, head and number again, as an administrator of the database can."""
    await take_guards_away(conn)
    rows = (await conn.execute(text("SELECT * FROM events ORDER BY seq"))).mappings().all()
    ends = dict.fromkeys(RUNS, (0, ""))
    await conn.execute(text("DELETE FROM events"))
    log = forge([dict(row) for row in rows])
    for seq, event in enumerate(log, start=1):
        length, previous = ends[event["run_id"]]
        event |= {"seq": seq, "run_seq": length + 1, "previous_hash": previous}
        event["hash"] = chain_hash(
            previous, event["run_id"], length + 1, event["type"], event["payload"], event["created_at"]
        )
        ends[event["run_id"]] = length + 1, event["hash"]
        await conn.execute(insert(events_table), event)
    for run_id, (length, last) in ends.items():
        end = {"id": run_id, "length": length, "last": last}
        await conn.execute(text("UPDATE runs SET event_count = :length, event_hash = :last WHERE id = :id"), end)
    for table in ("runs", "messages") if not log else ():
        await conn.execute(text(f"DELETE FROM {table}"))  # noqa: S608 - a constant
    await conn.execute(text("UPDATE event_counter SET last_seq = :last WHERE id = 1"), {"last": len(log)})


def changed(log: list[dict[str, Any]]) -> list[dict[str, Any]]:
    log[2]["payload"] = '{"by":"eve"}'
    return log


FORGERIES: dict[str, tuple[Callable[[list[dict[str, Any]]], list[dict[str, Any]]], str]] = {
    "an event is another": (changed, "the events numbered 1 to 6 are not those signed at"),
    "an event is gone": (lambda log: log[:2] + log[3:], "the log ends with event 5; events up to 6 were signed at"),
    "an event is replaced": (lambda log: [*log[:2], *log[3:], log[2]], "the events numbered 1 to 6 are not those"),
    "the end is gone": (lambda log: log[:-1], "the log ends with event 5; events up to 6 were signed at"),
    "everything is gone": (lambda _log: [], "the log ends with event 0; events up to 6 were signed at"),
    "two runs' events changed places": (lambda log: [log[1], log[0], *log[2:]], "the events numbered 1 to 6 are not"),
}


def test_i15_a_log_that_was_rewritten_as_a_whole_is_found(store: Path, key: Path, heads: Path, tmp_path: Path) -> None:
    """I15: with every hash computed again the chains hold, and only the signed heads show it; in the store and in an export."""
    signing(store, key, heads)
    assert "signs it up to event 6 of 6" in verified(store, key, heads)
    for forgery, (forge, problem) in FORGERIES.items():
        forged, export = shutil.copytree(store, tmp_path / forgery), tmp_path / f"{forgery}.jsonl"
        in_store(forged, lambda conn, forge=forge: rewrite(conn, forge))
        turngate("verify", store=forged)
        assert problem in verified(forged, key, heads, code=1), forgery
        if "log ends" in problem:
            continue  # an export says when it was made, and may be older than the newest signature
        turngate("export", "-o", str(export), store=forged)
        turngate("verify", str(export))
        trusted = "--against", str(heads), "--key", f"{key}.pub"
        assert problem in turngate("verify", str(export), *trusted, code=1)[1], forgery


def several(store: Path, key: Path, heads: Path) -> None:
    """Sign four times, so that there are four lines."""
    signing(store, key, heads)
    for _each in range(3):
        in_store(store, more)
        signing(store, key, heads)
    assert [line["number"] for line in lines_of(heads)] == [1, 2, 3, 4]


def edited(number: int, **members: Any) -> Callable[[list[str]], list[str]]:
    def edit(lines: list[str]) -> list[str]:
        line = json.loads(lines[number]) | members
        lines[number] = json.dumps(line, sort_keys=True, separators=(",", ":")) + "\n"
        return lines

    return edit


DAMAGES: dict[str, tuple[Callable[[list[str]], list[str]], str]] = {
    "a line in the middle is gone": (lambda lines: [lines[0], *lines[2:]], "line 2: it is not the line after line 1"),
    "the first line is gone": (lambda lines: lines[1:], "line 1: it is not the line after line 0"),
    "lines changed places": (
        lambda lines: [lines[0], lines[2], lines[1], lines[3]],
        "line 2: it is not the line after",
    ),
    "the last line is cut": (
        lambda lines: [*lines[:3], lines[3][:-20]],
        "line 4: this is not a signed head, or is cut",
    ),
    "the last end of line is cut": (
        lambda lines: [*lines[:3], lines[3][:-1]],
        "line 4: this is not a signed head, or is",
    ),
    "nothing is left": (lambda _lines: [], "it is empty"),
    "a line says another number": (edited(1, last_seq=8), "line 2: its signature is wrong"),
    "a line is over other events": (edited(0, events="0" * 64), "line 1: its signature is wrong"),
    "a signature is of another line": (
        lambda lines: edited(1, signature=json.loads(lines[0])["signature"])(lines),
        "line 2",
    ),
    "a signature is no signature": (edited(1, signature="?"), "line 2: its signature is wrong"),
    "a line has more to say": (edited(1, note="fine"), "line 2: this is not a signed head"),
    "a line is spelled otherwise": (
        lambda lines: [lines[0].replace(",", ", ", 1), *lines[1:]],
        "line 1: this is not a",
    ),
    "a line is no JSON": (
        lambda lines: [lines[0], "[" * 100_000 + "\n", *lines[1:]],
        "line 2: this is not a signed head",
    ),
    "an earlier line comes again": (lambda lines: [*lines, lines[1]], "line 5: it is not the line after line 4"),
}


def test_i15_a_changed_file_of_heads_is_found(store: Path, key: Path, heads: Path) -> None:
    """I15: no line can be changed, left out, moved or cut; the message says which one is wrong.

    Of a file that lost its newest lines the command says how far it reaches: no one can know what came later. What a crash left
    of a line is removed, and the next one follows the last whole one.
    """
    several(store, key, heads)
    verified(store, key, heads)
    signed = heads.read_text()
    for damage, (do, problem) in DAMAGES.items():
        heads.write_text("".join(do(signed.splitlines(keepends=True))))
        assert problem in verified(store, key, heads, code=1), damage
    heads.write_text("".join(signed.splitlines(keepends=True)[:2]))
    assert "signs it up to event 7 of 9" in verified(store, key, heads)
    heads.write_text(signed + '{"at":"20')
    in_store(store, more)
    signing(store, key, heads)
    assert "signs it up to event 10 of 10" in verified(store, key, heads)


def test_i15_heads_by_another_key_are_refused(store: Path, key: Path, heads: Path, tmp_path: Path) -> None:
    """I15: an attacker who signs the rewritten log with another key is found by the key, in a file of their own and in ours."""
    several(store, key, heads)
    own = tmp_path / "keys" / "own"
    turngate("keygen", str(own))
    (forger,) = signed_heads.read_keys(own)
    ours = heads.read_text().splitlines(keepends=True)
    head = signed_heads.SignedHead.model_validate_json(ours[3])
    for key_text in (head.key, signed_heads.public_text(forger)):
        line = head.model_copy(update={"events": "0" * 64, "key": key_text})
        signature = base64.b64encode(forger.sign(line.signed_bytes)).decode()
        heads.write_text("".join(ours[:3]) + line.model_copy(update={"signature": signature}).line + "\n")
        assert "line 4: its" in verified(store, key, heads, code=1)
    forged = tmp_path / "forged.jsonl"
    in_store(store, lambda conn: rewrite(conn, changed))
    signing(store, own, forged)
    assert "which is none of those you trust" in verified(store, key, forged, code=1)


def test_i15_a_key_hands_over_to_the_next(store: Path, key: Path, heads: Path, tmp_path: Path) -> None:
    """I15: after a rotation the first public key still leads through the whole file, and the old key counts no more."""
    several(store, key, heads)
    old = key.read_text()
    turngate("keygen", str(key), "--rotate")
    assert len(signed_heads.read_keys(key)) == 2
    in_store(store, more)
    signing(store, key, heads)
    handover, first = lines_of(heads)[-2:]
    assert (handover["next_key"], handover["first_seq"], handover["last_seq"]) == (first["key"], 10, 9)
    assert handover["key"] != first["key"]
    assert "signs it up to event 10 of 10" in verified(store, key, heads)

    # The old key's file alone cannot sign on. Its lines are refused.
    stolen = tmp_path / "keys" / "stolen"
    stolen.write_text(old)
    stolen.chmod(0o600)
    in_store(store, more)
    with pytest.raises(ConfigurationError, match="cannot follow"):
        signing(store, stolen, heads)
    (thief,) = signed_heads.read_keys(stolen)
    head = signed_heads.SignedHead.model_validate_json(json.dumps(first))
    line = head.model_copy(update={"key": signed_heads.public_text(thief)})
    signature = base64.b64encode(thief.sign(line.signed_bytes)).decode()
    lines = heads.read_text().splitlines(keepends=True)
    forged = tmp_path / "forged.jsonl"
    forged.write_text("".join(lines[:-1]) + line.model_copy(update={"signature": signature}).line + "\n")
    assert "should sign here" in verified(store, key, forged, code=1)

    # A second rotation drops the first key; the file can begin with either public key's text on the command line.
    turngate("keygen", str(key), "--rotate")
    assert len(signed_heads.read_keys(key)) == 2
    signing(store, key, heads)
    assert "signs it up to event 11 of 11" in verified(store, key, heads)
    by_text = "--key", lines_of(heads)[0]["key"]
    turngate("verify", "--against", str(heads), *by_text, store=store)


def test_the_log_is_signed_every_so_many_events_and_at_the_end(store: Path, key: Path, heads: Path) -> None:
    """With ``audit_every`` 2, four more events are signed while the process runs; the fifth when it stops."""
    signing(store, key, heads)

    async def happen(database: Database) -> None:
        async with database.write() as conn:
            for _each in range(4):
                await more(conn)

        async def signed() -> bool:
            return lines_of(heads)[-1]["last_seq"] == 10

        await until(signed, "two signatures")
        async with database.write() as conn:
            await more(conn)

    signing(store, key, heads, happen, audit_every=2)
    assert lines_of(heads)[-1]["last_seq"] == 11
    assert stat.S_IMODE(heads.stat().st_mode) == 0o600
    assert "signs it up to event 11 of 11" in verified(store, key, heads)


def test_i15_a_log_that_was_set_back_is_not_signed(
    store: Path, key: Path, heads: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """I15: neither a cut log nor one with a gap gets a signature; the process's log says why, once."""
    several(store, key, heads)
    before = heads.read_text()
    copy = Path(shutil.copytree(store, store.parent / "copy"))

    async def cut(conn: Connection) -> None:
        await rewrite(conn, lambda log: log[:5])

    async def gap(conn: Connection) -> None:
        await more(conn)
        await more(conn)
        await take_guards_away(conn)
        await conn.execute(text("DELETE FROM events WHERE seq = 10"))

    for place, act, problem in ((store, cut, "it was cut, or set back"), (copy, gap, "1 events are numbered 10 to 11")):
        in_store(place, act)
        caplog.clear()
        signing(place, key, heads)
        assert heads.read_text() == before
        assert [problem in record.message for record in caplog.records if record.name.endswith("signed_heads")] == [
            True
        ]


def test_a_command_gets_every_line_in_order(store: Path, key: Path, heads: Path, tmp_path: Path) -> None:
    """While it fails nothing more is signed, so it misses none; it may get one twice, which the check passes over."""
    elsewhere, refuse = tmp_path / "elsewhere.jsonl", tmp_path / "refuse"
    script = tmp_path / "send"
    script.write_text(f'#!/bin/sh\ntest ! -e "{refuse}" && cat >> "{elsewhere}"\n')
    script.chmod(0o700)
    refuse.touch()
    for _each in range(2):
        in_store(store, more)
        signing(store, key, heads, audit_heads_command=str(script))
    assert len(lines_of(heads)) == 1
    assert not elsewhere.exists()
    refuse.unlink()
    for _each in range(2):
        in_store(store, more)
        signing(store, key, heads, audit_heads_command=str(script))
    assert [line["number"] for line in lines_of(elsewhere)] == [1, 2, 2, 3]
    assert "signs it up to event 10 of 10" in verified(store, key, elsewhere)


def test_a_command_that_hangs_is_ended(
    store: Path, key: Path, heads: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The process is gone, and its time limit is in the log."""
    monkeypatch.setattr(signed_heads, "COMMAND_SECONDS", 0.2)
    signing(store, key, heads, audit_heads_command="sleep 600")
    assert "TURNGATE_AUDIT_HEADS_COMMAND took longer than" in caplog.text


def test_i13_the_command_is_not_taken_from_where_runs_work(
    store: Path, key: Path, heads: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I13: a program of its name there, which an agent may have written, is none."""
    programs = tmp_path / "shop" / "bin"
    programs.mkdir(parents=True)
    (programs / "send-heads").write_text("#!/bin/sh\ncat\n")
    (programs / "send-heads").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    with pytest.raises(ConfigurationError, match="'send-heads' is not on PATH, outside"):
        signing(store, key, heads, audit_heads_command="send-heads", workspaces=(programs.parent,))
    assert not heads.exists()


def test_a_key_that_protects_nothing_is_refused(store: Path, key: Path, heads: Path, tmp_path: Path) -> None:
    """A file that others can read, one in the data directory, no key, no file, and half of the settings."""
    inside = store / "key"
    shutil.copy(key, inside)
    other = tmp_path / "keys" / "other"
    shutil.copy(key, other)
    other.chmod(0o644)
    no_key = tmp_path / "keys" / "none"
    no_key.write_text("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
    no_key.chmod(0o600)
    for file, problem in (
        (inside, "lies in the data directory"),
        (other, "can be read by others"),
        (no_key, "holds no Ed25519 key"),
        (tmp_path / "nowhere", "cannot be read"),
    ):
        with pytest.raises(ConfigurationError, match=problem):
            signing(store, file, heads)
    with pytest.raises(ConfigurationError, match="cannot be written"):
        signing(store, key, tmp_path / "no" / "heads")
    with pytest.raises(ConfigurationError, match="set both TURNGATE_AUDIT_KEY_FILE and TURNGATE_AUDIT_HEADS"):
        load_settings(data_dir=store, audit_key_file=key)
    assert "exists: `turngate audit keygen --rotate" in turngate("keygen", str(key), code=2)[1]


def test_what_cannot_be_compared_says_why(store: Path, key: Path, heads: Path, tmp_path: Path) -> None:
    """One run's export has gaps, a key that is none is named, and without any key the file proves nothing."""
    several(store, key, heads)
    trusted = "--against", str(heads), "--key", f"{key}.pub"
    export = tmp_path / "run.jsonl"
    turngate("export", "--run", "run_a", "-o", str(export), store=store)
    assert "export the whole log" in turngate("verify", str(export), *trusted, code=1)[1]
    turngate("export", "--since", "7", "-o", str(export), store=store)
    assert "signs it up to event 9 of 9" in turngate("verify", str(export), *trusted)[1]
    assert "needs --key" in turngate("verify", "--against", str(heads), store=store, code=2)[1]
    bad = tmp_path / "bad.pub"
    for content in ("", "ed25519:AAAA", "hello"):
        bad.write_text(content)
        problem = turngate("verify", "--against", str(heads), "--key", str(bad), store=store, code=2)[1]
        assert "holds no public key" in problem
    gone = turngate("verify", "--against", "nowhere", "--key", f"{key}.pub", store=store, code=2)[1]
    assert "nowhere cannot be read" in gone


def test_an_export_may_be_older_than_the_newest_signature(store: Path, key: Path, heads: Path, tmp_path: Path) -> None:
    """What was signed after its date is not missing from it; what was signed long before is."""
    export = tmp_path / "log.jsonl"
    turngate("export", "-o", str(export), store=store)
    several(store, key, heads)
    trusted = "--against", str(heads), "--key", f"{key}.pub"
    assert "signs it up to event 6 of 6" in turngate("verify", str(export), *trusted)[1]
    header, _, rest = export.read_text().partition("\n")
    later = json.loads(header) | {"exported_at": "2999-01-01T00:00:00+00:00"}
    export.write_text(json.dumps(later) + "\n" + rest)
    assert "the log ends with event 6; events up to 7" in turngate("verify", str(export), *trusted, code=1)[1]


def examined(store: Path, **more: Any) -> Finding:
    """What ``turngate doctor`` says of the signed log."""
    return asyncio.run(doctor._signed_log(load_settings(data_dir=store, **more)))


def test_i15_the_doctor_compares_the_newest_line_with_the_log(store: Path, key: Path, heads: Path) -> None:
    """I15: it says how far the log is signed, writes nothing, and fails for a log that is not the one that was signed."""
    off = examined(store)
    assert off.good
    assert "TURNGATE_AUDIT_KEY_FILE" in off.text
    settings = {"audit_key_file": key, "audit_heads": heads}
    assert "up to event 0 of 6" in examined(store, **settings).text
    assert not heads.exists()
    unsigned = examined(store, **settings, audit_every=5)
    assert (unsigned.good, unsigned.warns) == (True, True)
    signing(store, key, heads)
    with heads.open("a") as file:
        file.write("{")  # a crash, or a line that is being written
    before = heads.read_bytes()
    signed = examined(store, **settings)
    assert (signed.good, signed.warns, heads.read_bytes()) == (True, False, before)
    assert "up to event 6 of 6" in signed.text
    in_store(store, lambda conn: rewrite(conn, changed))
    assert "turngate audit verify --against" in examined(store, **settings).text
    in_store(store, lambda conn: conn.execute(text("UPDATE event_counter SET last_seq = 5")))
    cut = examined(store, **settings)
    assert not cut.good
    assert "the log ends with event 5" in cut.text


def test_the_doctor_says_what_keeps_the_log_from_being_signed(store: Path, key: Path, heads: Path) -> None:
    """A key that others can read, another key, no key, and a file that is none: each with what to do."""
    signing(store, key, heads)
    turngate("keygen", str(key.with_name("other")))
    for audit_key_file, fix in ((key.with_name("other"), "Put that key first"), (key.with_name("none"), "keygen")):
        finding = examined(store, audit_key_file=audit_key_file, audit_heads=heads)
        assert not finding.good
        assert fix in finding.text
    key.chmod(0o644)
    assert "chmod 600" in examined(store, audit_key_file=key, audit_heads=heads).text
    key.chmod(0o600)
    heads.write_text("something else\n")
    assert "move it away" in examined(store, audit_key_file=key, audit_heads=heads).text
