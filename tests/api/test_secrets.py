"""Secrets of calls on every surface of the API and the pages, and what reaches the tool, the model and the log."""

from __future__ import annotations

import asyncio
import html
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from pydantic import BaseModel, Field, SecretStr, ValidationInfo, field_validator
from support.api.api_server import Api, api_on, planned_on, serving, session_for, token_for
from support.engine.stack import call, says, stack
from support.programs.tui_person import person_at
from support.stores.users import added
from temporalio.client import Client
from typer.testing import CliRunner, Result

from turngate import Preview, ToolFailure, tool
from turngate.approvals_api.app import create_app
from turngate.approvals_api.gateway.client import Gateway
from turngate.approvals_api.settings import ApiSettings
from turngate.cli.main import app as commands
from turngate.domain.conversation.messages import ModelResponse
from turngate.models.port import ModelRequest
from turngate.store.access import access, tokens
from turngate.store.database import Database
from turngate.store.events import events
from turngate.store.runs import runs

PASSWORD, TOKEN, COOKIE, PIN, DEFAULT = "hunter2-Zx9", "tok/~en-“ü”-77", "c00kie-41", "83910274", "d3fault-word"
PLANTED = (PASSWORD, TOKEN, COOKIE, PIN, DEFAULT)


class Account(BaseModel):
    user: str
    password: SecretStr


class Login(BaseModel):
    accounts: list[Account]
    token: str = DEFAULT
    pin: int = Field(default=0, json_schema_extra={"writeOnly": True})
    note: str = ""

    @field_validator("note")
    @classmethod
    def check(cls, note: str, info: ValidationInfo) -> str:
        if note == "bad":
            raise ValueError(f"not with {info.data['token']}")
        return note


class Session(BaseModel):
    cookie: str
    used: str


class Refused(ToolFailure):
    reason: str


received: list[Login] = []


def depends_on(params: Login) -> dict[str, str]:
    return {"token": params.token}


@tool(
    effect="once",
    ask=True,
    secret=["/token", "/cookie"],
    failures=[Refused],
    preview=lambda params, _workspace: Preview(
        kind="text", text=f"Log in with {params.accounts[0].password.get_secret_value()} and {params.token!r}"
    ),
    precondition=depends_on,
)
async def log_in(params: Login) -> Session:
    """Log in somewhere."""
    received.append(params)
    if params.note == "refuse":
        raise Refused(reason=f"the service does not know {params.token} and {params.pin}")
    return Session(cookie=COOKIE, used=params.accounts[0].password.get_secret_value())


@tool(effect="once", ask=True, secret=["/cookie"])
async def renew() -> Session:
    """Renew the session."""
    return Session(cookie=COOKIE, used="nothing")


LOGIN = {"accounts": [{"user": "ada", "password": PASSWORD}], "token": TOKEN, "pin": int(PIN)}


class Plans:
    """Makes the call that the task names in JSON, then answers with what it read."""

    name = "scripted:test"

    def __init__(self) -> None:
        self.seen: list[ModelRequest] = []

    async def generate(self, request: ModelRequest) -> ModelResponse:
        self.seen.append(request)
        last = request.messages[-1]
        if last.role != "user":
            return says("Renewed." if request.messages[0].text == "renew" else f"Logged in with {PASSWORD}: {TOKEN}.")
        if last.text == "renew":
            return says("I renew it.", call("renew", "{}"))
        return says(f"I log in with {PASSWORD}.", call("log_in", json.dumps({**LOGIN, "note": last.text.split()[0]})))

    async def aclose(self) -> None:
        return None


@pytest.fixture
def model() -> Plans:
    received.clear()
    return Plans()


@pytest.fixture
async def vault(client: Client, sqlite: Database, model: Plans) -> AsyncIterator[Api]:
    async with stack(client, sqlite, log_in, renew, model=model) as engine, api_on(engine, Gateway(client)) as api:
        yield api


@pytest.fixture
async def waiting(sqlite: Database, model: Plans) -> AsyncIterator[Api]:
    """An API whose calls with secrets wait, and never run."""
    async with planned_on(sqlite, log_in, renew, model=model) as api:
        yield api


@pytest.fixture
async def person(client: Client, vault: Api) -> AsyncIterator[httpx.AsyncClient]:
    """A browser without JavaScript, logged in."""
    app = create_app(database=vault.stack.database, gateway=Gateway(client), settings=ApiSettings())
    cookies = await session_for(vault.stack.database, "ada")
    async with (
        serving(app) as url,
        httpx.AsyncClient(base_url=url, cookies=cookies, headers={"Origin": url}, trust_env=False, timeout=30) as http,
    ):
        yield http


def assert_masked(text: str, where: str) -> None:
    forms = [(each, form) for each in PLANTED for form in {each, json.dumps(each)[1:-1], each.replace("“", "&#34;")}]
    assert [each for each, form in forms if form in text] == [], where


async def surfaces(vault: Api, person: httpx.AsyncClient, run: str, request: str, *, settled: bool) -> dict[str, str]:
    """What is read of a run on each surface."""
    detail = (await vault.operator.get(f"/api/v1/runs/{run}")).json()
    call_id = detail["steps"][0]["calls"][0]["tool_call_id"]
    api = [
        f"/requests/{request}", "/requests", "/requests?status=all", f"/runs/{run}", "/runs", f"/runs/{run}/explanation",
        f"/conversations/{detail['conversation_id']}/messages", "/audit", "/grants",
        "/policy", "/agents", "/stuck-runs", "/requests/count",
    ]  # fmt: skip
    pages = [
        "/", "/?status=decided", f"/requests/{request}", f"/runs/{run}", "/runs", f"/runs/{run}/conversation", "/audit",
        "/grants", f"/requests/bulk?run_id={run}",
    ]  # fmt: skip
    if settled:
        api.append(f"/runs/{run}/calls/{call_id}/result")
        pages += [
            f"/runs/{run}/result?call={call_id}",
            f"/runs/{run}/result.txt?call={call_id}",
            f"/runs/{run}/fork?step=1",
        ]
    answers = {f"/api/v1{path}": await vault.operator.get(f"/api/v1{path}") for path in api}
    answers |= {path: await person.get(path) for path in pages}
    assert {path: answer.status_code for path, answer in answers.items() if answer.status_code != 200} == {}
    return {path: answer.text for path, answer in answers.items()}


async def finished(vault: Api, started: dict[str, Any]) -> runs.Run:
    async with vault.stack.database.read() as conn:
        run = await runs.get(conn, started["id"])
    assert run is not None
    return await vault.stack.ended(run)


async def events_of(vault: Api, run: str) -> str:
    async with vault.stack.database.read() as conn:
        return json.dumps([dict(each.payload) for each in await events.after(conn, 0, run_id=run)])


@pytest.mark.parametrize(("note", "verb"), [("plain", "approve"), ("refuse", "approve"), ("plain", "reject")])
async def test_no_surface_shows_a_secret(
    vault: Api, person: httpx.AsyncClient, model: Plans, note: str, verb: str
) -> None:
    """While a call waits and after it ran, failed or was rejected; the tool and the model get what was sent."""
    started = await vault.start(f"{note} use {PASSWORD} to log in")
    request = await vault.request(started)
    assert request["input"].count("⟦secret ") == 3
    for path, text in (await surfaces(vault, person, started["id"], request["id"], settled=False)).items():
        assert_masked(text, f"{path} while it waits")
    answer = await vault.decide(request, verb, message=f"I know {TOKEN}.")
    assert answer.status_code == 200, answer.text
    await finished(vault, started)
    for path, text in (await surfaces(vault, person, started["id"], request["id"], settled=True)).items():
        assert_masked(text, f"{path} afterwards")
    assert_masked(await events_of(vault, started["id"]), "events")
    assert PASSWORD in model.seen[-1].messages[-2].calls[0].input
    if verb == "approve":
        assert (received[-1].token, received[-1].pin) == (TOKEN, int(PIN))


@pytest.mark.unencrypted
async def test_a_search_does_not_confirm_a_guess(waiting: Api) -> None:
    """A word that is only in a secret, or in the task of a call with secrets, finds nothing; others do."""
    await waiting.gated(f"plain use {PASSWORD} to log in")

    async def matches(word: str) -> int:
        return len((await waiting.operator.get("/api/v1/requests", params={"search": word})).json()["items"])

    assert [await matches(word) for word in ("ada", "hunter2", PIN, TOKEN, "~/en-", "log_in")] == [1, 0, 0, 0, 0, 1]


async def test_i6_an_edit_that_leaves_the_marks_runs_with_the_secrets(vault: Api) -> None:
    """Only what was typed changes, and the new secret is as hidden as the old ones."""
    request = await vault.gated("plain log in")
    args: dict[str, Any] = {**json.loads(request["input"]), "note": "edited", "token": "n3w-token-99"}
    moved = {**args, "note": args["accounts"][0]["password"]}
    refused = await vault.decide(request, "edit", args=moved)
    assert (refused.status_code, "a masked value may only be where it was" in refused.text) == (422, True)
    assert (await vault.decide(request, "edit", args=args)).status_code == 200
    run = (await vault.operator.get(f"/api/v1/runs/{request['run_id']}")).json()
    await finished(vault, run)
    (ran,) = received
    assert (ran.accounts[0].password.get_secret_value(), ran.token, ran.note) == (PASSWORD, "n3w-token-99", "edited")
    for path in (f"/runs/{run['id']}", f"/requests/{request['id']}"):
        text = (await vault.operator.get(f"/api/v1{path}")).text
        assert_masked(text, path)
        assert "n3w-token-99" not in text


async def test_a_grant_neither_holds_a_secret_nor_tells_what_it_is(waiting: Api) -> None:
    """The pattern of a call with secrets has marks: such a grant is refused, with the fix.

    No argument with a secret can have a limit, and no past calls are counted: either would tell, guess by guess.
    """
    request = await waiting.gated("plain log in")
    preview = await waiting.operator.post("/api/v1/grants/preview", json={"request_id": request["id"]})
    assert_masked(preview.text, "grant preview")
    grant = {"pattern": preview.json()["pattern"], "scope": "run", "expires_after_seconds": 600, "max_uses": 2}
    refused = await waiting.decide(request, "approve", grant=grant)
    assert (refused.status_code, "leave that argument open" in refused.text) == (422, True), refused.text
    fixed = preview.json()["pattern"]["fixed"]
    secret = [name for name, value in fixed.items() if "⟦secret" in json.dumps(value, ensure_ascii=False)]
    assert secret
    free = [name for name in fixed if name != secret[0]]
    for guess in (PASSWORD[:1], "~"):
        within = {secret[0]: {"op": "starts_with", "value": guess}}
        body = {"request_id": request["id"], "open": free, "within": within}
        limited = (await waiting.operator.post("/api/v1/grants/preview", json=body)).json()
        assert (limited["looked_at"], limited["would_have_covered"]["everyone"]) == (0, 0)
        assert "trying limits would tell what it is" in limited["ungrantable"]
        pattern = {"tool": request["tool_name"], "open": free, "within": within}
        refused = await waiting.decide(request, "approve", grant={"pattern": pattern, "scope": "run", "max_uses": 1})
        assert (refused.status_code, "trying limits would tell" in refused.text) == (422, True), refused.text


async def test_arguments_that_do_not_fit_are_masked_too(vault: Api, person: httpx.AsyncClient) -> None:
    """A call that planning closed keeps its tool's declaration: the complaint quotes the secret, the page does not."""
    run = await finished(vault, await vault.start("bad log in"))
    for answer in (await vault.operator.get(f"/api/v1/runs/{run.id}"), await person.get(f"/runs/{run.id}")):
        assert "not with ⟦secret⟧" in answer.text
        assert_masked(answer.text, str(answer.url))


async def test_i13_a_person_has_the_secrets_revealed_and_the_log_says_so(vault: Api, person: httpx.AsyncClient) -> None:
    """One click shows them, on that page only; the log has who looked at how many, and none of them.

    A token that belongs to no person gets a 403, also one that may decide, and so does one that may only read. The edit form,
    which works without JavaScript, holds marks.
    """
    request = await vault.gated("plain log in")
    decides = await token_for(vault.stack.database, "decider", "requests:decide")
    at = f"/api/v1/requests/{request['id']}/reveal"
    answers = [await vault.stranger.post(at, headers=decides), await vault.agent.post(at)]
    assert [(each.status_code, each.json()["code"]) for each in answers] == [
        (403, "not_a_person"),
        (403, "missing_scope"),
    ]
    page = (await person.get(f"/requests/{request['id']}")).text
    assert_masked(page, "edit form")
    assert page.count("⟦secret 1⟧") >= 2
    (token,) = set(re.findall(r'name="csrf_token" value="([^"]+)"', page))
    path = f"/requests/{request['id']}/reveal"
    assert (await person.post(path, data={"csrf_token": "x"})).status_code == 403
    assert "request.revealed" not in await types_of(vault, request)
    revealed = await person.post(path, data={"csrf_token": token})
    assert revealed.status_code == 200
    assert [each in html.unescape(revealed.text) for each in (PASSWORD, TOKEN, PIN)] == [True] * 3
    again = await person.get(path)
    assert (again.status_code, again.headers["location"]) == (303, f"/requests/{request['id']}")
    assert_masked((await person.get(f"/requests/{request['id']}")).text, "the page after it")
    assert (await types_of(vault, request)).count("request.revealed") == 1
    assert_masked(await events_of(vault, request["run_id"]), "events")
    answer = (await person.post(f"/api/v1{path}")).json()
    assert {each["pointer"]: json.loads(each["value"]) for each in answer["secrets"]} == {
        "/accounts/0/password": PASSWORD,
        "/token": TOKEN,
        "/pin": int(PIN),
    }


async def test_a_secret_in_the_result_alone_has_a_button_that_reveals_it(vault: Api, person: httpx.AsyncClient) -> None:
    """Before the call ran there is nothing to reveal, and no button; afterwards one click shows what the result hides."""
    started = await vault.start("renew")
    request = await vault.request(started)
    path = f"/requests/{request['id']}"
    assert "Reveal the secrets" not in (await person.get(path)).text
    assert (await vault.decide(request, "approve")).status_code == 200
    await finished(vault, started)
    page = (await person.get(path)).text
    assert (COOKIE in page, "Reveal the secrets" in page) == (False, True)
    (token,) = set(re.findall(r'name="csrf_token" value="([^"]+)"', page))
    revealed = await person.post(f"{path}/reveal", data={"csrf_token": token})
    assert [COOKIE in html.unescape(revealed.text), "in the result" in revealed.text] == [True, True]


async def types_of(vault: Api, request: dict[str, Any]) -> list[str]:
    async with vault.stack.database.read() as conn:
        return [each.type for each in await events.after(conn, 0, run_id=request["run_id"])]


async def test_the_terminal_reveals_them_too(vault: Api) -> None:
    """`turngate show --reveal`, and `m` twice in the terminal UI, for a person; without it, and for a program, marks remain."""
    await added(vault.stack.database, "grace")
    key = "ghp_" + "a1B2c3D4e5F6" * 3
    request = await vault.gated(f"plain {key}")
    async with vault.stack.database.write() as conn:
        scopes: list[access.Scope] = ["requests:read", "requests:decide"]
        own = await tokens.issue(conn, tokens.NewToken(name="own", scopes=scopes, owner="grace"))
        program = await tokens.issue(conn, tokens.NewToken(name="program", scopes=scopes))

    async def show(token: str, *words: str) -> Result:
        environment = {"TURNGATE_TOKEN": token, "TURNGATE_API_URL": vault.url, "NO_COLOR": "1"}
        return await asyncio.to_thread(CliRunner().invoke, commands, ["show", request["id"], *words], env=environment)

    for words in ([], ["--json"]):
        masked = await show(own, *words)
        assert masked.exit_code == 0, masked.output
        assert_masked(masked.output, "turngate show")
        assert key not in masked.output
        revealed = await show(own, "--reveal", *words)
        assert [each in revealed.output for each in (PASSWORD, PIN, key)] == [True] * 3
    refused = await show(program, "--reveal")
    assert (refused.exit_code, "only a person" in " ".join(refused.output.split())) == (1, True), refused.output
    async with person_at(vault, size=(160, 60), name="desk", owner="grace", scopes=scopes) as person:
        await person.sees("1 waits")
        await person.opens()
        assert_masked(await person.sees("\u27e6secret 1\u27e7"), "the terminal UI")
        await person.twice("m")
        assert PIN in await person.sees(PASSWORD)
    assert (await types_of(vault, request)).count("request.revealed") == 3
