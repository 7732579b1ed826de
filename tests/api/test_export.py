"""`turngate export`: a run as a fixture, in the terminal and in a file, and the runs it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from click.testing import Result
from support.api.api_server import Api, token_for
from support.engine.sub_agent_app import step, task
from typer.testing import CliRunner

from turngate.cli.main import app
from turngate.domain.runs.fixtures import parse_fixture
from turngate.store.runs import runs

Export = Callable[..., Awaitable[Result]]


@pytest.fixture
async def export(office: Api, monkeypatch: pytest.MonkeyPatch) -> Export:
    token = await token_for(office.stack.database, "cli", "admin")
    monkeypatch.setenv("TURNGATE_TOKEN", token["Authorization"].removeprefix("Bearer "))

    async def run(*arguments: str) -> Result:
        return await asyncio.to_thread(CliRunner().invoke, app, ["export", *arguments, "--url", office.url])

    return run


async def begun(api: Api, *steps: dict) -> runs.Run:
    started = await api.start(task(*steps))
    async with api.stack.database.read() as conn:
        run = await runs.get(conn, started["id"])
    assert run is not None
    return run


async def test_a_run_is_printed_or_written_as_a_fixture(office: Api, export: Export, tmp_path: Path) -> None:
    """Terminal and file have the same text: what was decided, by whom as a role, and what happened to the calls."""
    run = await begun(office, step(("pay", {"cents": 5}), words="I pay."))
    assert "still live: export it when it has ended" in (await export(run.id)).output
    await office.stack.decide(await office.stack.request(run), "reject", message="Not today.")
    await office.stack.ended(run)
    file = tmp_path / "run.json"
    printed = await export(run.id)
    assert (await export(run.id, "-o", str(file))).exit_code == 0
    assert printed.stdout == file.read_text(encoding="utf-8")
    (call,) = parse_fixture(printed.stdout, "stdout").calls.values()
    assert call.request is not None
    assert [(each.verb, each.message, each.by) for each in call.request.decisions] == [
        ("reject", "Not today.", "operator")
    ]
    refused = await export(run.id, "-o", str(tmp_path))
    assert (refused.exit_code, "cannot be written" in refused.output) == (2, True)


@pytest.mark.exhaustive
async def test_a_run_that_cannot_be_played_again_is_refused_with_the_reason(office: Api, export: Export) -> None:
    """A sub-agent's answer, a wait, a hand-off and an interrupt are refused by name; so is a run that does not exist."""
    inner = task(step())
    cases = (
        (("researcher", {"task": inner}), "was answered by a sub-agent's run"),
        (("wait_until", {"seconds": 0}), "held the run on a timer"),
        (("hand_off", {"agent": "researcher"}), "handed the run over to another agent"),
    )
    for call, says in cases:
        run = await begun(office, step(call))
        await office.stack.ended(run)
        refused = await export(run.id)
        assert (refused.exit_code, says in " ".join(refused.output.split())) == (1, True), refused.output
    run = await begun(office, step(("pay", {"cents": 1})))
    await office.stack.request(run)
    await office.stack.interrupt(run)
    await office.stack.ended(run)
    assert "was interrupted" in (await export(run.id)).output
    assert (await export("run_none")).exit_code == 1
