"""``turngate evidence``: what auditors get about a period in which people really decided, and what a forger can't do to it."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from support.engine.stack import ListModel, Stack, call, says, stack
from temporalio.client import Client
from typer.testing import CliRunner

from turngate import tool
from turngate.approvals_api.retention.erase import ErasureOrder, erase
from turngate.cli.main import app
from turngate.store.database import Database

HOSTILE = "<script>alert(1)</script>\u202e\x1b[31m"
KEY_VARIABLES = ("TURNGATE_AUDIT_KEY_FILE", "TURNGATE_AUDIT_HEADS")


class Payment(BaseModel):
    note: str


@tool(effect="once", ask=True)
async def pay(params: Payment) -> dict[str, str]:
    """Pay."""
    return {"paid": params.note}


def turngate(*words: str, code: int = 0, **env: str) -> tuple[str, str]:
    outcome = CliRunner().invoke(app, words, env=env)
    assert outcome.exit_code == code, (outcome.output, outcome.stderr, outcome.exception)
    return outcome.stdout, " ".join(outcome.stderr.split())


class Office:
    """A data directory with decided requests, its key, and the package of it."""

    def __init__(self, home: Path) -> None:
        self.home, self.data = home, home / "data"
        self.key = home / "keys" / "key"
        self.public = ""

    @cached_property
    def plain(self) -> Path:
        """The package as it is by default."""
        return self.package()

    @property
    def env(self) -> dict[str, str]:
        return dict(zip(KEY_VARIABLES, (str(self.key), str(self.home / "heads.jsonl")), strict=True))

    def package(self, *words: str, data: Path | None = None, code: int = 0, name: str = "evidence.json") -> Path:
        file, source = self.home / name, data or self.data
        turngate(
            "evidence", "--from", "1h", "-o", str(file), *words, "--data-dir", str(source), code=code, **self.env
        )  # fmt: skip
        return file


@pytest.fixture(scope="module")
async def office(client: Client, tmp_path_factory: pytest.TempPathFactory) -> Office:
    """Four requests: approved, edited, rejected, and one of a conversation that was erased."""
    home = Office(tmp_path_factory.mktemp("office"))
    home.data.mkdir()
    home.key.parent.mkdir()
    database = Database(f"sqlite:///{home.data}/turngate.db")
    await database.migrate()
    script = []
    for note in ("first", HOSTILE, "third", "fourth"):
        script += [says("paying", call("pay", json.dumps({"note": note}))), says("done")]
    async with stack(client, database, pay, model=ListModel(*script)) as engine:
        await _work(engine, database)
    await database.close()
    await asyncio.to_thread(turngate, "token", "add", "robot", "--scope", "runs:write", "--data-dir", str(home.data))
    home.public = (await asyncio.to_thread(turngate, "audit", "keygen", str(home.key)))[0].strip()
    return home


async def _work(engine: Stack, database: Database) -> None:
    for verb, more in (
        ("approve", {}),
        ("edit", {"args": '{"note":"less"}'}),
        ("reject", {"message": "no"}),
        ("approve", {}),
    ):
        run = await engine.start("pay")
        await engine.decide(await engine.request(run), verb, **more)
        await engine.ended(run)
    await erase(database, ErasureOrder(target=run.id, by="root", reason="asked for"))


def read(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text())


def test_the_counts_agree_and_the_package_verifies(office: Office) -> None:
    """Rows and log are counted apart and agree; the package verifies without a store, and against an export of the log."""
    file = office.plain
    document = read(file)
    counts = document["counts"]
    assert counts["from_events"] == counts["from_rows"]
    assert counts["from_events"]["decisions"] == {"approve": 2, "edit": 1, "reject": 1}
    assert counts["from_events"]["requests opened"] == {"approval: pay": 4}
    assert counts["from_events"]["executions started"] == {"pay": 3}
    assert counts["difference_count"] == 0
    assert document["chain"]["problem"] is None
    assert document["drills_missing"] == ["restore", "stop"]
    turngate("audit", "export", "-o", str(office.home / "log.jsonl"), "--data-dir", str(office.data))
    message = turngate(
        "evidence", "verify", str(file), "--key", office.public, "--log", str(office.home / "log.jsonl")
    )[1]
    assert "the package is intact" in message
    assert "3 of 4 sampled" in message


def test_the_sample_is_drawn_alike_by_anyone(office: Office) -> None:
    """The same period gives the same sample, a part of a larger one; another seed gives another order."""
    of_four = [each["request_id"] for each in read(office.plain)["sample"]["requests"]]
    seeded = read(office.package("--seed", "dice", "--sample", "4", name="seeded.json"))["sample"]
    again = read(office.package("--seed", "dice", "--sample", "2", name="seeded.json"))["sample"]["requests"]
    assert [each["request_id"] for each in again] == [each["request_id"] for each in seeded["requests"]][:2]
    assert seeded["seed_was_given"]
    assert len(of_four) == 4


def test_erased_content_is_shown_as_erased_with_its_reason(office: Office) -> None:
    """Of an erased request the package has no content, and says who erased it and why."""
    sample = read(office.plain)["sample"]["requests"]
    [erased] = [each for each in sample if each["erased"]]
    assert "asked for" in erased["erased"]
    assert erased["row"] is None
    assert erased["nonce"] is None
    assert "fourth" not in json.dumps(erased)


def test_a_hostile_value_is_only_text_on_the_page(office: Office) -> None:
    """Markup, a bidi override and an escape sequence of an agent's arguments are text on the page, and it loads nothing."""
    page = office.home / "hostile.html"
    office.package("--page", str(page), name="with_a_page.json")
    text = page.read_text()
    assert "<script" not in text
    assert "\u202e" not in text
    assert "\x1b" not in text
    assert "&lt;script&gt;" in text
    assert "default-src 'none'" in text


def _edit(document: dict[str, Any], place: str) -> None:
    request = next(each for each in document["sample"]["requests"] if each["row"])
    match place:
        case "count":
            document["counts"]["from_events"]["decisions"]["approve"] = 1
            document["counts"]["from_rows"]["decisions"]["approve"] = 1
        case "content":
            request["row"]["input"] = request["view"]["input"] = '{"note":"harmless"}'
        case "exception":
            document["four_eyes"] = []
            document["made_by"] = "eve"
        case "event":
            request["events"][0]["payload"] = request["events"][0]["payload"].replace("pay", "say")


@pytest.mark.parametrize("place", ["count", "content", "exception", "event"])
def test_i15_a_changed_package_does_not_verify(office: Office, place: str) -> None:
    """Whatever is changed, the signature is wrong; a forger with another key is not trusted."""
    document = read(office.plain)
    _edit(document, place)
    forged = office.home / "forged.json"
    forged.write_text(json.dumps(document))
    message = turngate("evidence", "verify", str(forged), "--key", office.public, code=1)[1]
    assert "changed after it was signed" in message
    other = office.home / "keys" / f"other-{place}"
    public = turngate("audit", "keygen", str(other))[0].strip()
    assert "none of those you trust" in turngate("evidence", "verify", str(forged), "--key", public, code=1)[1]


def _resigned(office: Office, document: dict[str, Any]) -> Path:
    """Sign a changed package with the deployment's own key."""
    from turngate.cli.commands.events import evidence  # noqa: PLC0415 - its private signer is what a forger would have
    from turngate.runtime.settings import load_settings  # noqa: PLC0415
    from turngate.wire.evidence import EvidenceDocument  # noqa: PLC0415

    settings = load_settings(data_dir=office.data, audit_key_file=office.key, audit_heads=office.home / "heads.jsonl")
    forged = office.home / "resigned.json"
    forged.write_text(evidence._signed(settings, EvidenceDocument.model_validate(document)).model_dump_json())
    return forged


def _misstate(document: dict[str, Any], part: str) -> None:
    request = document["sample"]["requests"][0]
    exception = {"seq": 1, "at": document["made_at"], "by": "Bo", "about": request["request_id"]}
    match part:
        case "a change of policy is left out":
            document["policy_changes"].pop()
        case "a drill is invented":
            drill = {
                "seq": 1,
                "at": document["made_at"],
                "type": "drill.finished",
                "by": "Bo",
                "payload": {"kind": "stop"},
            }
            document["drills"].append(drill)
        case "no drill is missing":
            document["drills_missing"] = []
        case "a wait is invented":
            wait = {"proposal": 1, "proposed_by": "Bo", "proposed_at": document["made_at"], "outcome": None}
            document["loosening_waits"].append(wait | {"ended_by": None, "waited_seconds": None})
        case "a machine is blamed":
            document["four_eyes"].append(exception | {"kind": "machine"})
            document["four_eyes_count"] += 1
        case "a decision is invented":
            document["four_eyes"].append(exception | {"kind": "own_run"})
            document["four_eyes_count"] += 1
        case "exceptions are not counted":
            document["four_eyes_count"] = -1
        case "fewer requests were there":
            document["sample"]["population"] -= 1
        case "other requests were there":
            document["sample"]["population_digest"] = "0" * 64


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        ("a change of policy is left out", "policy changes are not those"),
        ("a drill is invented", "drills are not those"),
        ("no drill is missing", "drills missing are not those"),
        ("a wait is invented", "loosening waits are not those"),
        ("a machine is blamed", "exceptions to four eyes are not those"),
        ("a decision is invented", "that no event shows"),
        ("exceptions are not counted", "counts fewer exceptions"),
        ("fewer requests were there", "was not drawn from all"),
        ("other requests were there", "was not drawn from all"),
    ],
)
def test_i15_the_signer_cannot_misstate_what_the_log_shows(office: Office, part: str, problem: str) -> None:
    """Each section that events alone lead to is made again from an export, whatever the signature says."""
    document = read(office.plain)
    assert document["policy_changes"]
    log = office.home / "log.jsonl"
    turngate("audit", "export", "-o", str(log), "--data-dir", str(office.data))
    words = ("evidence", "verify", "--key", office.public, "--log", str(log))
    turngate(*words, str(_resigned(office, document)))
    _misstate(document, part)
    assert problem in turngate(*words, str(_resigned(office, document)), code=1)[1]


def test_a_chosen_seed_is_pointed_out(office: Office) -> None:
    """Someone who chose the seed may have tried many, until the sample was as they liked."""
    page = office.home / "chosen.html"
    chosen, drawn = office.package("--seed", "dice", "--page", str(page), name="chosen.json"), page.read_text()
    assert "chose it" in drawn
    assert "its maker chose" in turngate("evidence", "verify", str(chosen), "--key", office.public)[1]
    unchosen = office.package("--page", str(page), name="unchosen.json")
    assert "chose it" not in page.read_text()
    assert "its maker chose" not in turngate("evidence", "verify", str(unchosen), "--key", office.public)[1]


@pytest.mark.parametrize("place", ["content", "event"])
def test_i15_the_signer_cannot_change_what_the_log_has_digests_of(office: Office, place: str) -> None:
    """Even signed again with the deployment's own key, content that the log has no digest of is found."""
    document = read(office.plain)
    _edit(document, place)
    forged = _resigned(office, document)
    message = turngate("evidence", "verify", str(forged), "--key", office.public, code=1)[1]
    assert "changed after" not in message
    assert {"content": "not what the log has the digest of", "event": "hash was made over"}[place] in message


def test_i15_a_decision_that_the_log_does_not_have_is_counted_as_a_difference(office: Office) -> None:
    """A row that was changed past the log makes the counts differ: printed, in the package, and exit code 1."""
    data = Path(shutil.copytree(office.data, office.home / "tampered"))
    with sqlite3.connect(data / "turngate.db") as conn:
        conn.execute("UPDATE requests SET verb = 'approve', status = 'approved' WHERE verb = 'reject'")
    conn.close()
    document = read(office.package(data=data, code=1, name="tampered.json"))
    assert document["counts"]["difference_count"] == 1
    assert "'approve' in the store and 'reject' in the log" in document["counts"]["differences"][0]
    message = turngate("evidence", "verify", str(office.home / "tampered.json"), "--key", office.public, code=1)[1]
    assert "differ in 1 place" in message


def test_a_drill_is_evidence(office: Office) -> None:
    """A drill that was recorded is in the package, with who, how long and its result; the other kind is missing."""
    data = Path(shutil.copytree(office.data, office.home / "drilled"))
    turngate("drill", "restore", "--took", "15m", "--result", "passed", "--data-dir", str(data), **office.env)
    document = read(office.package(data=data, name="drilled.json"))
    [drill] = document["drills"]
    assert (drill["payload"]["seconds"], drill["payload"]["result"]) == (900, "passed")
    assert drill["by"].startswith("cli:")
    assert document["drills_missing"] == ["stop"]


def test_nothing_is_written_without_a_key(office: Office) -> None:
    """Without a key the command says how to make one; with --unsigned it writes a package that does not verify."""
    message = turngate("evidence", "--from", "1h", "--data-dir", str(office.data), code=2)[1]
    assert "turngate audit keygen" in message
    text = turngate("evidence", "--from", "1h", "--unsigned", "--data-dir", str(office.data))[0]
    (office.home / "unsigned.json").write_text(text)
    message = turngate("evidence", "verify", str(office.home / "unsigned.json"), "--key", office.public, code=1)[1]
    assert "not signed" in message
