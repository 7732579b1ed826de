"""What looks like a credential is shown to the person who may decide the call, and to no one else (I6)."""

from __future__ import annotations

import asyncio
import html
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from pydantic import BaseModel, SecretStr
from support.api.api_server import Api, Planned, planned_on, serving, session_for, token_for
from support.engine.stack import call, says
from support.planted.disguised_payloads import PAYLOADS
from support.programs.tui_person import person_at
from support.stores.users import added
from temporalio.client import Client
from typer.testing import CliRunner

from turngate import Preview, tool
from turngate.approvals_api.app import create_app
from turngate.approvals_api.gateway.client import Gateway
from turngate.approvals_api.settings import ApiSettings
from turngate.cli.main import app as commands
from turngate.domain.conversation.messages import ModelResponse
from turngate.domain.policy.policy import Policy, Rule
from turngate.models.port import ModelRequest
from turngate.store.access import access, tokens
from turngate.store.database import Database
from turngate.store.runs import calls

PASSWORD = "hunter2-Zx9"
POLICY = Policy(rule=[Rule(name="four-eyes", verdict="ask", tools=["run"], starter_may_decide=False)])
DECIDES: list[access.Scope] = ["requests:read", "requests:decide"]


class Command(BaseModel):
    command: str
    password: SecretStr
    more: dict[str, Any] = {}
    note: str = "password=a1B2c3D4e5F6"


@tool(
    effect="once",
    ask=True,
    preview=lambda params, _workspace: Preview.command(params.command, params.password.get_secret_value()),
    summary="Run {command}",
)
async def run(params: Command) -> dict[str, str]:
    """Run a command."""
    return {"ran": params.command}


def arguments(payload: str) -> str:
    more = {"inner": json.dumps({"password": payload}), payload: [payload]}
    return json.dumps({"command": payload, "password": PASSWORD, "more": more})


class Script:
    """Makes a call with each of as many payloads as its task says; then says that it is done."""

    name = "scripted:test"

    async def generate(self, request: ModelRequest) -> ModelResponse:
        if request.messages[-1].role != "user":
            return says("Done.")
        chosen = PAYLOADS[: int(request.messages[-1].text)]
        return says("I run it.", *(call("run", arguments(each), f"c{n}") for n, each in enumerate(chosen)))

    async def aclose(self) -> None:
        return None


@pytest.fixture
async def api(sqlite: Database) -> AsyncIterator[Planned]:
    async with planned_on(sqlite, run, model=Script(), policy=POLICY) as api:
        yield api


async def own_token(api: Api, person: str, *scopes: access.Scope) -> str:
    async with api.stack.database.write() as conn:
        return await tokens.issue(conn, tokens.NewToken(name=f"{person}s", scopes=scopes, owner=person))


async def started(api: Planned, task: str) -> list[dict[str, Any]]:
    """Start a run as ada, who may not decide its calls; return its requests as a list has them."""
    query = {"run_id": (await api.start(task, by_operator=True))["id"], "limit": 100}
    return (await api.operator.get("/api/v1/requests", params=query)).json()["items"]


@pytest.mark.parametrize("number", [8, len(PAYLOADS)])
async def test_i6_the_decider_sees_every_payload_in_full(api: Planned, number: int) -> None:
    """Arguments, defaults, preview and summary, as value, key and inside a text; the declared secret stays masked."""
    items = await started(api, str(number))
    assert len(items) == number
    await added(api.stack.database, "grace")
    grace = await own_token(api, "grace", *DECIDES)
    headers = {"Authorization": f"Bearer {grace}"}
    hidden = 0
    for item in items:
        answer = await api.stranger.get(f"/api/v1/requests/{item['id']}", headers=headers)
        seen = answer.json()
        payload = json.loads(seen["input"])["command"]
        assert payload in PAYLOADS
        assert seen["input"] == arguments(payload).replace(json.dumps(PASSWORD), '"\u27e6secret 1\u27e7"')
        assert json.loads(seen["preview"])[0] == payload
        assert [each["value"] for each in seen["defaults"]] == ["password=a1B2c3D4e5F6"]
        assert "\u27e6secret" in payload or "\u27e6secret" not in seen["summary"]
        assert seen["unseen_secrets"] == ["/password"]
        assert PASSWORD not in answer.text
        hidden += json.loads(item["input"])["command"] != payload
    assert hidden >= 20 * number // len(PAYLOADS), (
        "the payloads are no disguise: the finder takes too few of them for credentials"
    )


async def test_i6_pages_and_terminals_show_it_to_the_decider(client: Client, api: Planned) -> None:
    """The request's page with its edit form, the page of several requests, `turngate show` and the terminal UI."""
    (item,) = await started(api, "1")
    await added(api.stack.database, "grace")
    grace = await own_token(api, "grace", *DECIDES)
    payload = PAYLOADS[0]
    environment = {"TURNGATE_TOKEN": grace, "TURNGATE_API_URL": api.url, "NO_COLOR": "1", "COLUMNS": "400"}
    printed = await asyncio.to_thread(CliRunner().invoke, commands, ["show", item["id"]], env=environment)
    async with person_at(api, size=(200, 80), name="desk", owner="grace", scopes=DECIDES) as person:
        await person.sees("1 waits")
        await person.opens()
        screen = await person.sees("base64 -d")
    app = create_app(database=api.stack.database, gateway=Gateway(client), settings=ApiSettings())
    cookies = await session_for(api.stack.database, "grace")
    async with serving(app) as url, httpx.AsyncClient(base_url=url, cookies=cookies, trust_env=False) as http:
        pages = [(await http.get(f"/requests/{each}")).text for each in (item["id"], f"bulk?run_id={item['run_id']}")]
    views = [("show", printed.output), ("the terminal UI", screen)]
    views += [
        (name, html.unescape(re.sub("<[^>]+>", "", page))) for name, page in zip(("page", "bulk"), pages, strict=True)
    ]
    for where, text in views:
        assert payload in text, where
        assert "You don't see what is secret here: /password" in " ".join(text.split()), where
        assert PASSWORD not in text, where


async def test_everyone_else_sees_marks(api: Planned) -> None:
    """The starter under four eyes, a viewer, tokens that only read or only run, and everyone in lists, or once it is decided."""
    (item,) = await started(api, "1")
    database = api.stack.database
    await added(database, "vera", role="viewer")
    await added(database, "grace")
    vera = {"Authorization": f"Bearer {await own_token(api, 'vera', 'requests:read')}"}
    grace = {"Authorization": f"Bearer {await own_token(api, 'grace', *DECIDES)}"}
    reads = await token_for(database, "reads", "requests:read")
    path = f"/api/v1/requests/{item['id']}"
    answers = [await api.operator.get(path), await api.agent.get(path)]
    answers += [await api.stranger.get(path, headers=each) for each in (vera, reads)]
    run_path = f"/api/v1/runs/{item['run_id']}"
    conversation = (await api.operator.get(run_path)).json()["conversation_id"]
    messages_path = f"/api/v1/conversations/{conversation}/messages"
    for other in ("/api/v1/requests", run_path, f"{run_path}/explanation", messages_path, "/api/v1/audit"):
        answers += [await api.stranger.get(other, headers=each) for each in (vera, reads, grace)]
    coded = PAYLOADS[0].partition("=")[2].partition(";")[0]
    assert [str(each.url) for each in answers if coded in each.text] == []
    filled_in = [json.dumps(each.json().get("items")) for each in answers if "items" in each.json()]
    assert [each for each in filled_in if "a1B2c3D4e5F6" in each] == []
    assert [each["value"] for each in answers[0].json()["defaults"]] == ["password=\u27e6secret\u27e7"]
    seen = (await api.stranger.get(path, headers=grace)).json()
    assert coded in seen["input"]
    decided = await api.stranger.post(
        f"{path}/decisions", json={"decision": "approve", "digest": seen["digest"]}, headers=grace
    )
    assert decided.status_code == 200, decided.text
    afterwards = await api.stranger.get(path, headers=grace)
    assert (coded in afterwards.text, afterwards.json()["unseen_secrets"]) == (False, [])
    assert afterwards.json()["decision"]["unseen_secrets"] == ["/password"]


async def test_a_decision_says_which_secrets_were_not_revealed(api: Planned) -> None:
    """In the log and the decision, for a program too; who had them revealed has seen them, as one has what one typed."""
    await added(api.stack.database, "grace")
    grace = {"Authorization": f"Bearer {await own_token(api, 'grace', *DECIDES)}"}
    bot = await token_for(api.stack.database, "decider", *DECIDES)
    typed = {"args": {"command": "ls", "password": "n3w-one"}}
    tries: list[tuple[dict[str, str], bool, str, dict[str, Any], list[str]]] = [
        (bot, False, "approve", {}, ["/password"]),
        (grace, False, "approve", {}, ["/password"]),
        (grace, True, "approve", {}, []),
        (grace, False, "edit", typed, []),
        (grace, False, "reject", {}, []),
    ]
    items = await started(api, str(len(tries)))
    for item, (who, reveals, verb, more, unseen) in zip(items, tries, strict=True):
        path = f"/api/v1/requests/{item['id']}"
        if reveals:
            assert (await api.stranger.post(f"{path}/reveal", headers=who)).status_code == 200
            assert (await api.stranger.get(path, headers=who)).json()["unseen_secrets"] == []
        body = {"decision": verb, "digest": item["digest"], **more}
        answer = await api.stranger.post(f"{path}/decisions", json=body, headers=who)
        assert answer.status_code == 200, answer.text
        assert (await api.stranger.get(path, headers=who)).json()["decision"]["unseen_secrets"] == unseen, (
            verb,
            reveals,
        )
        logged = (await api.operator.get("/api/v1/audit", params={"run_id": item["run_id"]})).json()["items"]
        (event,) = [
            each["payload"]
            for each in logged
            if each["type"] == "request.decided" and each["payload"]["request_id"] == item["id"]
        ]
        assert event.get("unseen_secrets", []) == unseen


async def test_i6_an_edit_takes_it_as_text_and_leaves_the_secret(api: Planned) -> None:
    """What looks like a credential is edited like any text; a mark of a list, put in its place, is refused."""
    (item,) = await started(api, "1")
    await added(api.stack.database, "grace")
    grace = {"Authorization": f"Bearer {await own_token(api, 'grace', *DECIDES)}"}
    path = f"/api/v1/requests/{item['id']}"
    seen = json.loads((await api.stranger.get(path, headers=grace)).json()["input"])
    for args, status in (
        (json.loads(item["input"]), 422),
        ({**seen, "command": seen["command"] + " -x"}, 200),
    ):
        body = {"decision": "edit", "digest": item["digest"], "args": args}
        answer = await api.stranger.post(f"{path}/decisions", json=body, headers=grace)
        assert answer.status_code == status, answer.text
    async with api.stack.database.read() as conn:
        stored = await calls.get(conn, item["run_id"], item["tool_call_id"])
    assert stored is not None
    assert json.loads(stored.running_input) == {**seen, "command": PAYLOADS[0] + " -x", "password": PASSWORD}
