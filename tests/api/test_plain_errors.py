"""Mistakes in a terminal: each gets one plain sentence, the command's or the API's, and nothing of a validator's words."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from support.api.api_server import serving
from support.api.store_app import MANIFEST, desk_on
from support.stores.stored_requests import live_run, open_requests, request_row
from support.stores.users import added
from temporalio.client import Client
from typer.testing import CliRunner, Result

from turngate.approvals_api.app import create_app
from turngate.approvals_api.gateway.client import Gateway
from turngate.approvals_api.settings import ApiSettings
from turngate.cli.main import app as commands
from turngate.store.access import tokens
from turngate.store.database import Database

Turngate = Callable[..., Awaitable[Result]]
LONG = "x" * 100_001
HUGE = "x" * 3_000_000
TOO_LONG = "it has 100,001 characters, and at most 100,000 are allowed"


@pytest.fixture
async def turngate(sqlite: Database) -> AsyncIterator[Turngate]:
    """The commands of a person, over a store with one request of each kind."""
    await added(sqlite, "grace")
    answer = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
    question = json.dumps(json.loads(MANIFEST) | {"kind": "interaction", "success": answer})
    async with sqlite.write() as conn:
        run = await live_run(conn, "run_1")
        kinds = {"approval": MANIFEST, "question": question, "outcome": MANIFEST}
        rows = [request_row(run, f"rq_{kind}", kind=kind, manifest=each) for kind, each in kinds.items()]
        await open_requests(conn, rows)
        wanted = tokens.NewToken(name="desk", scopes=["requests:read", "requests:decide", "runs:write"], owner="grace")
        token = await tokens.issue(conn, wanted)
    nowhere = await Client.connect("127.0.0.1:1", lazy=True)
    async with serving(create_app(database=sqlite, gateway=Gateway(nowhere), settings=ApiSettings())) as url:

        async def turngate(*words: str, stdin: str | None = None) -> Result:
            environment = {"TURNGATE_TOKEN": token, "TURNGATE_API_URL": url, "NO_COLOR": "1"}
            return await asyncio.to_thread(CliRunner().invoke, commands, list(words), env=environment, input=stdin)

        yield turngate


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (["run", "--agent", "a", ""], "the task is empty: write what the agent should do"),
        (["run", "--agent", "a", " "], "the task is empty: write what the agent should do"),
        (["run", "--agent", "a", "-"], "stdin is empty, and there is no task"),
        (["run", "--agent", "a", LONG], f"input: {TOO_LONG}"),
        (["run", "--agent", "a", HUGE], "the body is too large: at most 2,097,152 bytes"),
        (["send", "run_1", ""], "input: it is empty"),
        (["send", "run_1", LONG], f"input: {TOO_LONG}"),
        (["fork", "run_1", ""], "text: it is empty"),
        (
            ["fork", "run_1"],
            'there is no message: write `turngate fork run_1 "…"`, or see the plan first with --preview',
        ),
        (
            ["decide", "rq_approval", "edit"],
            "edit needs the new arguments: add --args '{…}', or --args @FILE, or --args - for stdin",
        ),
        (
            ["decide", "rq_approval", "respond"],
            'respond needs what the agent reads instead of a result: add --message "…"',
        ),
        (
            ["decide", "rq_question", "respond"],
            'respond needs the answer: add --args \'{"answer": "…"}\', or --args @FILE, or --args - for stdin',
        ),
        (
            ["decide", "rq_outcome", "respond"],
            "respond needs what happened: add --outcome happened, or did_not_happen, or tell_model",
        ),
        (
            ["decide", "rq_approval", "approve", "--message", LONG],
            "message: it has 100,001 characters, and at most 10,000 are allowed",
        ),
        (
            ["decide", "rq_approval", "approve", "--args", "{}"],
            "args: approve takes no args; to change the call, use edit",
        ),
        (["decide", "rq_question", "approve"], "this request of kind question takes: respond, reject"),
        (
            ["requests", "--agent", "x" * 300],
            "query parameter agent: it has 300 characters, and at most 255 are allowed",
        ),
    ],
    ids=lambda words: " ".join(word[:20] for word in words) if isinstance(words, list) else "",
)
async def test_a_mistake_gets_one_sentence(turngate: Turngate, command: list[str], sentence: str) -> None:
    """It says what is wrong and what to write, on one line."""
    answer = await turngate(*command)
    assert answer.exit_code in {1, 2}
    assert answer.stderr.strip() == f"error: {sentence}"


async def test_the_api_says_the_same_in_a_problem_document(sqlite: Database) -> None:
    """What a program sends gets `application/problem+json` with the same sentence, and pointers to each member."""
    async with desk_on(sqlite) as desk:
        place = await desk.put(await desk.run())
        bot = await desk.machine("bot", "requests:read", "runs:write")
        person = await desk.person("ann")
        answers = {
            "it is missing": await bot.post("/api/v1/runs", json={"agent": "a"}),
            "no such member; check its spelling": await bot.post(
                "/api/v1/runs", json={"agent": "a", "input": "x", "wrkspace": "/"}
            ),
            "it is missing: send the call's whole arguments as a JSON object": await person.post(
                f"{place}/decisions", json={"decision": "edit", "digest": "d"}
            ),
        }
    for message, answer in answers.items():
        assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
        [error] = answer.json()["errors"]
        assert error["message"] == message
        assert answer.json()["detail"] == f"{error['pointer'].removeprefix('/')}: {message}"
