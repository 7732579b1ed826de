"""Outcome requests at the keys, a screen without colour, and how the command refuses to start."""

from __future__ import annotations

import json
import sys
from typing import Any

import httpx
import pytest
from support.api.api_server import token_for
from support.api.store_app import URL, desk_on
from support.programs.tui_person import Person
from support.stores.users import added
from textual.widgets import Input, TextArea
from typer.testing import CliRunner

from turngate.approvals_api.settings import ApiSettings
from turngate.cli.main import app as commands
from turngate.client import Retries, TurngateClient
from turngate.frontends.tui.app import TurngateTui
from turngate.store.access import access, tokens
from turngate.store.database import Database
from turngate.store.requests import requests


class RecordingTransport(httpx.AsyncBaseTransport):
    """Passes requests on, and records the decisions; these get the answer of an API whose store is away."""

    def __init__(self, to: httpx.AsyncBaseTransport) -> None:
        self.to, self.decisions, self.keys = to, [], []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/decisions"):
            self.decisions.append(json.loads(request.content))
            self.keys.append(request.headers["Idempotency-Key"])
            return httpx.Response(503, json={"code": "unavailable", "detail": "The store is away.", "status": 503})
        return await self.to.handle_async_request(request)


@pytest.mark.exhaustive
async def test_resolutions_are_sent_again_as_the_same_decision(
    sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`h`, `d` and `t` say what happened to a call; without colour, risk and marks are words. An unsent text stays typed."""
    monkeypatch.setenv("NO_COLOR", "1")
    async with desk_on(sqlite) as desk:
        run = await desk.run()
        await desk.put(run, kind="outcome", risk="high", tool_name="pay", input='{"cents": 5}')
        header = await token_for(sqlite, "ada", "requests:read", "requests:decide")
        recorder = RecordingTransport(desk.transport)
        token = header["Authorization"].removeprefix("Bearer ")
        async with TurngateClient(URL, token=token, retries=Retries(attempts=1), transport=recorder) as client:
            app = TurngateTui(client)
            async with app.run_test(size=(80, 24)) as pilot:
                person = Person(app, pilot, None)
                await person.sees("HIGH pay")
                await person.opens()
                screen = await person.sees("h it happened")
                assert "Did this happen?" in screen
                await person.press("a")
                await person.sees("This kind of request takes: respond.")
                await person.press("h")
                await person.dialog_field(TextArea).fill('{"receipt": 1.10}')
                await person.press("ctrl+s")
                await person.sees("Send it again")
                await person.press("ctrl+s")
                await person.until(lambda: len(recorder.decisions) == 2, "the decision again")
                await person.press("escape", "d")
                await person.dialog_field(Input).fill("pay")
                await person.press("enter")
                await person.until(lambda: len(recorder.decisions) == 3, "third decision")
                await person.press("escape")
                await person.twice("t")
                await person.until(lambda: len(recorder.decisions) == 4, "fourth decision")
    assert [each["outcome"] for each in recorder.decisions] == ["happened", "happened", "did_not_happen", "tell_model"]
    assert recorder.decisions[0]["args"] == {"receipt": 1.10}
    assert len(set(recorder.keys)) == 3
    assert recorder.keys[0] == recorder.keys[1], "the same decision sent again has another key, so it may count twice"


class Hour:
    """A clock that a test moves."""

    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.exhaustive
async def test_many_approvals_take_a_breath_and_a_word(sqlite: Database) -> None:
    """`a` `a` within seconds of another approval says how long to wait; after some it asks for the tool's name, typed."""
    hour = Hour()
    async with desk_on(sqlite, ApiSettings(approval_pace=1)) as desk:
        desk.services.pace.clock = hour
        run = await desk.run()
        every = [f"rq_{number}" for number in range(3)]
        for request_id in every:
            await desk.put(run, request_id)
        await added(sqlite, "grace")
        async with sqlite.write() as conn:
            scopes: list[access.Scope] = ["requests:read", "requests:decide"]
            token = await tokens.issue(conn, tokens.NewToken(name="desk", scopes=scopes, owner="grace"))
        async with TurngateClient(URL, token=token, retries=Retries(attempts=1), transport=desk.transport) as client:
            app = TurngateTui(client)
            async with app.run_test(size=(100, 40)) as pilot:
                person = Person(app, pilot, None)
                await person.sees("3 wait for a person")
                await person.opens()
                await person.twice("a")
                await person.sees("approved by grace")
                await person.press("n")
                await person.sees_ready("THE EXACT CALL")
                await person.sees("waits")
                await person.twice("a")
                await person.sees("Take a breath")
                hour.now += 10
                await person.twice("a")
                await person.sees("approved by grace")
                hour.now += 10
                await person.press("n")
                await person.sees("waits")
                await person.sees_ready("THE EXACT CALL")
                await person.twice("a")
                await person.sees("Many in a short time")
                await person.dialog_field(Input).fill("pay")
                await person.press("enter")
                await person.sees("approved by grace")
        async with sqlite.read() as conn:
            stored = await requests.get_listed(conn, every)
    assert {each.status for each in stored.values()} == {"approved"}


@pytest.mark.parametrize(("missing", "why"), [(False, "needs a terminal"), (True, "the extra 'tui' is not installed")])
def test_the_command_says_what_it_lacks(missing: bool, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its package or without a terminal, the command names the fix, with the exit code of a wrong configuration."""
    if missing:
        gone: Any = None
        for name in [each for each in sys.modules if each.startswith(("textual", "turngate.frontends.tui"))]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "textual", gone)
    answer = CliRunner().invoke(commands, ["tui"])
    assert answer.exit_code == 2
    assert why in " ".join(answer.output.split())
