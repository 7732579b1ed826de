"""`turngate requests` and `turngate decide` over a store with requests in it."""

from __future__ import annotations

import asyncio
import inspect
import json
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from support.api.api_server import serving
from support.api.store_app import MANIFEST
from support.stores.stored_requests import live_run, open_requests, request_row
from support.stores.users import added
from temporalio.client import Client
from typer.testing import CliRunner, Result

from turngate.approvals_api.app import create_app
from turngate.approvals_api.gateway.client import Gateway
from turngate.approvals_api.settings import ApiSettings
from turngate.cli.commands.requests.requests import requests as list_command
from turngate.cli.main import app as commands
from turngate.domain.runs.inbox import UNCLAIMED, InboxFilter
from turngate.store.access import access, tokens
from turngate.store.database import Database
from turngate.store.requests import requests
from turngate.store.runs import calls, runs

Turngate = Callable[..., Awaitable[Result]]
TERMS = json.dumps({"quorum": 2})


@pytest.fixture
async def turngate(sqlite: Database) -> AsyncIterator[Turngate]:
    """Four alike calls of which one differs, one that two people approve, and the commands of a person."""
    await added(sqlite, "grace")
    usual = {"order": "A-1", "cents": 5, "speed": "normal", "note": "x"}
    async with sqlite.write() as conn:
        run = await live_run(conn, "run_1", task="Refund what was paid twice.")
        for number in range(4):
            arguments = {**usual, "speed": "express"} if number == 2 else usual
            row = request_row(run, f"rq_{number}", manifest=MANIFEST, input=json.dumps(arguments))
            await open_requests(conn, [row])
        shared = request_row(run, "rq_two", tool_name="share", manifest=MANIFEST, quorum=2, terms=TERMS)
        await open_requests(conn, [shared])
        scopes: list[access.Scope] = ["requests:read", "requests:decide"]
        token = await tokens.issue(conn, tokens.NewToken(name="desk", scopes=scopes, owner="grace"))
    nowhere = await Client.connect("127.0.0.1:1", lazy=True)
    async with serving(create_app(database=sqlite, gateway=Gateway(nowhere), settings=ApiSettings())) as url:

        async def turngate(*words: str) -> Result:
            environment = {"TURNGATE_TOKEN": token, "TURNGATE_API_URL": url, "NO_COLOR": "1"}
            return await asyncio.to_thread(CliRunner().invoke, commands, list(words), env=environment)

        yield turngate


async def test_requests_in_groups(turngate: Turngate) -> None:
    """Alike calls come under one title, the one that differs first; with ``--json``, too."""
    printed = await turngate("requests", "--group", "alike")
    assert printed.exit_code == 0, printed.output
    lines = printed.stdout.splitlines()
    assert "pay: 3 alike; 1 differs" in lines
    after = lines[lines.index("pay: 3 alike; 1 differs") + 1].split("\t")
    assert (after[0], after[-1]) == ("rq_2", "differs in speed")
    groups = json.loads((await turngate("requests", "--group", "alike", "--json")).stdout)
    assert {each["group"]: len(each["requests"]) for each in groups} == {
        "pay: 3 alike; 1 differs": 4,
        "1 call that is like no other": 1,
    }
    assert "run_1: 5 requests, Refund what was paid twice." in (await turngate("requests", "--group", "run")).stdout


async def test_an_approval_is_withdrawn(turngate: Turngate, sqlite: Database) -> None:
    """``decide REQUEST withdraw`` takes back one's approval of a call that two people approve, or before its call starts.

    ``decide REQUEST approve`` says when the call starts and how to take that back; ``withdraw`` names the new request.
    """
    assert (
        "rq_two is still pending: 1 more person must approve it: "
        in (await turngate("decide", "rq_two", "approve")).stdout
    )
    again = await turngate("decide", "rq_two", "approve")
    assert "You approved this. One more person must approve it." in " ".join(again.stderr.split())

    async def approvals() -> int:
        async with sqlite.read() as conn:
            stored = await requests.get(conn, "rq_two")
        assert stored is not None
        assert stored.status == "pending"
        return stored.approvals

    assert await approvals() == 1
    printed = await turngate("decide", "rq_two", "withdraw")
    assert "rq_two no longer has your approval" in printed.stdout
    assert await approvals() == 0
    async with sqlite.write() as conn:
        run = await runs.get(conn, "run_1")
        assert run is not None
        slow = request_row(run, "rq_slow", tool_call_id="slow", manifest=MANIFEST, terms='{"grace_seconds": 3600}')
        await open_requests(conn, [slow])
        call = calls.Call(
            run_id=run.id, tool_call_id="slow", step=1, position=0, tool_name=slow.tool_name, input=slow.input,
            repeat_key="", disposition="ask", verdict="", digest=slow.digest, policy_version="p", effect="once",
        )  # fmt: skip
        await calls.insert_planned(conn, [call])
    printed = await turngate("decide", "rq_slow", "approve")
    assert "until then `turngate decide rq_slow withdraw` takes your approval back" in printed.stdout
    assert "the call starts at" in (await turngate("show", "rq_slow")).stdout
    printed = await turngate("decide", "rq_slow", "withdraw")
    again = requests.again_id(slow)
    assert f"rq_slow no longer has your approval; {again} asks about the call again" in printed.stdout
    assert "grace took an approval of this call back." in (await turngate("decide", again, "reject", "--show")).stdout


async def test_a_long_call_is_folded_unless_it_will_run(turngate: Turngate, sqlite: Database) -> None:
    """``show`` and ``decide`` fold it, after its tool's preview; ``--whole`` prints all, and so does what lets it run.

    An operator at a terminal sees the result of a decision first, with the call on a line; ``--show`` has the whole request.
    """
    arguments = json.dumps({"note": "x" * 5_000 + "END", "order": "A-1"})
    preview = "\n".join(["begin", *["same"] * 80, "end"])
    async with sqlite.write() as conn:
        run = await runs.get(conn, "run_1")
        assert run is not None
        of_call = {"manifest": MANIFEST, "preview_kind": "text", "preview": preview, "input": arguments}
        rows = [request_row(run, request_id, **of_call) for request_id in ("rq_read", "rq_no", "rq_yes")]
        await open_requests(conn, rows)
    folded = await turngate("show", "rq_read")
    assert "some of the call is folded; --whole prints all of it" in folded.stderr
    places = [
        folded.stdout.index(words)
        for words in ("begin", "… 62 more lines", "… 3,015 more characters", '"order": "A-1"')
    ]
    assert places == sorted(places)
    assert "END" not in folded.stdout
    whole = await turngate("show", "rq_read", "--whole")
    rejected, approved = (
        await turngate("decide", "rq_no", "reject", "--show"),
        await turngate("decide", "rq_yes", "approve", "--show"),
    )
    assert ["END" in each.stdout for each in (whole, rejected, approved)] == [True, False, True]
    assert "folded" not in whole.stderr + approved.stderr
    async with sqlite.write() as conn:
        of_call = {"manifest": MANIFEST, "input": json.dumps({"note": "\x1b[2J" + "x" * 5_000, "order": "A-1"})}
        await open_requests(conn, [request_row(run, name, **of_call) for name in ("rq_short", "rq_shown")])
    (line,) = (await turngate("decide", "rq_short", "reject")).stdout.splitlines()
    assert line.startswith("✗ rq_short is rejected: ")
    assert "\x1b" not in line
    assert len(line) < 400
    output = (await turngate("decide", "rq_shown", "approve", "--show")).stdout
    assert output.startswith("✓ rq_shown is approved: ")
    assert "what it does" in output
    assert "x" * 5_000 in output.replace("\n", "").replace(" ", "")


async def test_show_prints_the_commands_that_decide_it(turngate: Turngate, sqlite: Database) -> None:
    """An approval, a question and an outcome each get theirs, and each works as it is printed; a decided one has none."""
    question = json.loads(MANIFEST) | {
        "kind": "interaction",
        "success": {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]},
    }
    async with sqlite.write() as conn:
        run = await runs.get(conn, "run_1")
        assert run is not None
        which = request_row(run, "rq_which", kind="question", manifest=json.dumps(question))
        lost = [request_row(run, f"rq_lost_{number}", kind="outcome", manifest=MANIFEST) for number in range(3)]
        await open_requests(conn, [which, *lost])
    offered = {
        "rq_0": ["approve", 'reject --message "…"'],
        "rq_which": ['respond --args \'{"answer": "…"}\'', 'reject --message "…"'],
        "rq_lost_0": [f"respond --outcome {each}" for each in ("happened", "did_not_happen", "tell_model")],
    }
    for request, endings in offered.items():
        printed = (await turngate("show", request)).stderr.splitlines()
        assert [line.strip() for line in printed] == [f"turngate decide {request} {ending}" for ending in endings]
    for command in [
        "turngate decide rq_0 approve",
        'turngate decide rq_1 reject --message "…"',
        'turngate decide rq_which respond --args \'{"answer": "…"}\'',
        *(f"turngate decide rq_lost_{number} {ending}" for number, ending in enumerate(offered["rq_lost_0"])),
    ]:
        answer = await turngate(*shlex.split(command)[1:])
        assert answer.exit_code == 0, answer.output
    assert (await turngate("show", "rq_0")).stderr == ""


@pytest.mark.parametrize(
    ("options", "listed"),
    [
        (["--tool", "share"], {"rq_two"}),
        (["--risk", "high"], {"rq_high"}),
        (["--kind", "question"], {"rq_high"}),
        (["--agent", "other"], {"rq_high"}),
        (["--rule", "careful"], {"rq_high"}),
        (["--run", "run_2"], set()),
        (["--step", "3"], set()),
        (["--claimed", "me"], {"rq_high"}),
        (["--claimed", UNCLAIMED, "--tool", "share"], {"rq_two"}),
        (["--parked"], {"rq_high"}),
        (["--not-parked", "--search", "share"], {"rq_two"}),
        (["--status", "rejected"], {"rq_no"}),
        (["--status", "decided"], {"rq_no"}),
        (["--all", "--rule", "refused"], {"rq_no"}),
    ],
    ids=" ".join,
)
async def test_requests_has_the_filters_of_the_inbox(
    turngate: Turngate, sqlite: Database, options: list[str], listed: set[str]
) -> None:
    """Each condition of the inbox is an option, and several have to match together."""
    later = "2999-01-01T00:00:00.000000+00:00"
    about = {"agent": "other", "rule": "careful", "risk": "high", "manifest": MANIFEST}
    held = {"claimed_by": "grace", "claimed_until": later, "parked_at": "2026-01-01T00:00:00.000000+00:00"}
    ended = {"status": "rejected", "rule": "refused", "decided_at": "2026-01-01T00:00:00.000000+00:00"}
    async with sqlite.write() as conn:
        run = await runs.get(conn, "run_1")
        assert run is not None
        high = request_row(run, "rq_high", kind="question", **about, **held)
        await open_requests(conn, [high, request_row(run, "rq_no", manifest=MANIFEST, **ended)])
    printed = await turngate("requests", *options)
    assert {line.split("\t")[0] for line in printed.stdout.splitlines()} == listed
    assert ("no request matches" in printed.stderr) == (not listed)


def test_every_condition_of_the_inbox_is_an_option() -> None:
    """A new condition of the filter is one of the command, too."""
    names = {parameter.replace("every", "status") for parameter in inspect.signature(list_command).parameters}
    assert set(InboxFilter.model_fields) - {"order"} <= names
