"""A person whose name is a rare word, with ids on: the word is in one table, and on every surface until it is erased."""

from __future__ import annotations

import asyncio
import contextlib
import html
import json
import re
import secrets
import subprocess
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from sqlalchemy import select
from support.api.api_server import POLICY, TOOLS, TextScript, serving
from support.api.login_app import PASSWORD
from support.engine.stack import Stack, stack
from support.programs.terminal_process import turngate
from support.servers.notification_receivers import LINKS, receiving, webhook_channel
from temporalio.client import Client, WorkflowExecution

from turngate.approvals_api.app import create_app
from turngate.approvals_api.events.notifier import keep_notifying
from turngate.approvals_api.gateway.client import Gateway
from turngate.approvals_api.settings import ApiSettings
from turngate.domain.person_ids import PERSON_ID
from turngate.domain.policy.terms import Role
from turngate.notifications.email_channel import EmailSender
from turngate.notifications.items import Payload
from turngate.notifications.slack_channel import message_of
from turngate.runtime.workspaces import ANYWHERE
from turngate.store import tables
from turngate.store.access import people, tokens, users
from turngate.store.access.passwords import hash_password
from turngate.store.clock import now
from turngate.store.database import Database
from turngate.store.runs import runs
from turngate.store.tables import metadata

RARE, OTHER = "Zyxwa Quillfeather", "Borogove Mimsy"
WORDS = ("zyxwa", "quillfeather")
RAW_ID = re.compile(PERSON_ID.pattern)
SELDOM = {"cron": "0 8 1 jan *", "time_zone": "Europe/Berlin"}
RULES = f"""
[[rule]]
name = "shared"
verdict = "ask"
tools = ["pay_shared"]
starter_may_decide = false
quorum = 2

[[rule]]
name = "asked"
verdict = "ask"
tools = ["ask_person"]
people = ["{RARE}", "{OTHER}"]
"""

WITH_IDS = {"/api/v1/audit", "/api/v1/events", "/api/v1/runs/{run_id}/events"}
"""They show an event's payload as its hash is over it, with the names beside it in ``people``."""
SHOW_NAMES = {
    "/", "/audit", "/audit/export", "/policy", "/requests/{request_id}", "/api/v1/requests/{request_id}", "/runs/{run_id}",
    "/runs", "/schedules", "/retention", "/api/v1/audit", "/api/v1/runs", "/api/v1/requests", "/api/v1/sessions",
    "/api/v1/grants/{grant_id}", "/api/v1/schedules/{schedule_id}", "/api/v1/retention", "/api/v1/policy",
    "/api/v1/requests/{request_id}/comments", "evidence.html", "webhooks", "mail", "slack",
}  # fmt: skip
QUICK = ApiSettings(workspaces=ANYWHERE, sse_ping=timedelta(milliseconds=50))
EVENTS, QUIET_PIECES = "event-stream", 3
LISTS_IDS = "turngate people list"
NOT_READ = {"/login/oidc", "/login/oidc/callback", "/openapi.json", "/api/v1/openapi.json"}


pytestmark = pytest.mark.usefixtures("own_names")


def has_name(text: str) -> bool:
    folded = html.unescape(text).casefold()
    return any(word in folded for word in WORDS)


async def stored(database: Database) -> dict[str, str]:
    """Return "table.column" → all that is in it."""
    cells: dict[str, str] = {}
    async with database.read() as conn:
        for name, table in metadata.tables.items():
            for row in (await conn.execute(select(table))).mappings():
                for column, value in row.items():
                    where = f"{name}.{column}"
                    cells[where] = cells.get(where, "") + f" {value!r}"
    return cells


@dataclass
class Office:
    """An API with its pages, an engine, and two people in it. ``types_all``: they type each command that shows anything."""

    database: Database
    engine: Stack
    app: FastAPI
    url: str
    directory: Path
    types_all: bool
    ids: dict[str, str] = field(default_factory=dict)
    also: list[str] = field(default_factory=list)
    answers: dict[str, str] = field(default_factory=dict)

    def browser(self) -> httpx.AsyncClient:
        """A browser, of whose orders all answers are kept."""

        async def keep(answer: httpx.Response) -> None:
            if answer.request.method != "GET":
                where = f"{answer.request.url.path} {answer.request.method} {answer.status_code}"
                self.answers[where] = (await answer.aread()).decode()

        headers = {"Sec-Fetch-Site": "same-origin", "Origin": self.url}
        hooks = {"response": [keep]}
        return httpx.AsyncClient(base_url=self.url, headers=headers, event_hooks=hooks, trust_env=False, timeout=60)

    async def add(self, name: str, role: Role = "admin") -> None:
        hashed = await hash_password(PASSWORD)
        async with self.database.write() as conn:
            await users.add(conn, users.User(name=name, role=role, password_hash=hashed), by="cli:owner")

    async def log_in(self, name: str) -> httpx.AsyncClient:
        browser = self.browser()
        wrong = await browser.post("/login", data={"name": name, "password": f"not {PASSWORD}"})
        assert wrong.status_code in {401, 403, 422}, wrong.status_code
        done = await browser.post("/login", data={"name": name, "password": PASSWORD})
        assert done.status_code == 303, done.text[-500:]
        return browser

    async def start(self, who: httpx.AsyncClient, text: str) -> dict[str, Any]:
        run: dict[str, Any] = await ok(who.post("/api/v1/runs", json={"agent": "agent", "input": text}))
        return run

    async def gated(self, who: httpx.AsyncClient, text: str) -> dict[str, Any]:
        return await self.request(await self.start(who, text))

    async def request(self, run: Mapping[str, Any]) -> dict[str, Any]:
        async with self.database.read() as conn:
            row = await runs.get(conn, run["id"])
        assert row is not None
        return dict(vars(await self.engine.request(row)))

    async def ended(self, run_id: str) -> None:
        async with self.database.read() as conn:
            row = await runs.get(conn, run_id)
        assert row is not None
        await self.engine.ended(row)

    async def commands(self, *lines: Sequence[str], token: str = "") -> list[tuple[int, str]]:
        """Type commands, each in a process of its own, which knows no names yet; return exit code and output of each."""
        environment = {
            "TURNGATE_DATA_DIR": str(self.directory),
            "TURNGATE_DATABASE_URL": self.database.url,
            "TURNGATE_API_URL": self.url,
            "NO_COLOR": "1",
            "COLUMNS": "400",
            **({"TURNGATE_TOKEN": token} if token else {}),
        }
        typed = [asyncio.to_thread(turngate, *words, cwd=self.directory, **environment) for words in lines]
        return [(done.returncode, done.stdout + done.stderr) for done in [await each for each in typed]]

    async def id_of(self, name: str) -> str:
        async with self.database.read() as conn:
            return await people.id_of(conn, name)

    async def temporal(self) -> bytes:
        """Return all that Temporal has of the runs and schedules: histories, memos, search attributes, schedules."""
        messages = b""
        client = self.engine.client
        async for each in client.list_workflows(f"TaskQueue = '{self.engine.task_queue}'"):
            messages += each.raw_info.SerializeToString() + await self._history(each)
        async for schedule in await client.list_schedules():
            described = await client.get_schedule_handle(schedule.id).describe()
            if described.raw_description.schedule.action.start_workflow.task_queue.name == self.engine.task_queue:
                messages += described.raw_description.SerializeToString()
        return messages

    async def _history(self, execution: WorkflowExecution) -> bytes:
        handle = self.engine.client.get_workflow_handle(execution.id, run_id=execution.run_id)
        history = await handle.fetch_history()
        return b"".join(event.SerializeToString() for event in history.events)


async def ok(sending: Awaitable[httpx.Response]) -> Any:
    answer = await sending
    assert answer.status_code < 300, (str(answer.request.url), answer.status_code, answer.text[:600])
    return answer.json() if answer.content else None


async def story(office: Office, ann: httpx.AsyncClient, bob: httpx.AsyncClient) -> None:  # noqa: PLR0915 - one story
    """Ann does everything that a person can do here, and Bob some of it."""
    ids, api = office.ids, "/api/v1"

    async def decide(who: httpx.AsyncClient, request: Mapping[str, Any], verb: str, **body: Any) -> httpx.Response:
        body = {"decision": verb, "digest": request["digest"], **body}
        return await who.post(f"{api}/requests/{request['id']}/decisions", json=body)

    newest = (await ok(ann.get(f"{api}/policy"))).get("version", 0)
    await ok(ann.put(f"{api}/policy", json={"source": RULES, "if_version": newest, "comment": "Two pairs of eyes"}))
    ids["version"] = str((await ok(ann.get(f"{api}/policy")))["version"])
    # Claimed, commented on, edited; then a message, a fork, a dry run, a retry.
    first = await office.gated(ann, "pay 5")
    ids |= {"run_id": first["run_id"], "request_id": first["id"], "tool_call_id": first["tool_call_id"]}
    await ok(ann.post(f"{api}/requests/{first['id']}/claim"))
    refused = await decide(bob, first, "approve")
    assert refused.status_code == 409, refused.text
    assert RARE in refused.text
    assert not RAW_ID.search(refused.text), refused.text
    await ok(ann.post(f"{api}/requests/{first['id']}/comments", json={"text": "Is this the right account?"}))
    await ok(ann.post(f"{api}/requests/{first['id']}/presence"))
    edit = {"args": {"cents": 6}, "looked_ms": 5, "seen_percent": 100}
    assert (await decide(ann, first, "edit", **edit)).status_code == 200
    await office.ended(first["run_id"])
    run = await ok(ann.get(f"{api}/runs/{first['run_id']}"))
    ids["conversation_id"] = run["conversation_id"]
    sent = await ok(ann.post(f"{api}/runs/{first['run_id']}/messages", json={"input": "and now?"}))
    await office.ended(sent["id"])
    fork = await ok(ann.post(f"{api}/runs/{first['run_id']}/fork", json={"step": 1, "text": "again"}))
    dry = await ok(ann.post(f"{api}/runs/{first['run_id']}/replay", json={"dry": True}))
    ids["other_id"] = fork["id"]
    await office.ended(fork["id"])
    await office.ended(dry["id"])
    # Interrupted, paused, switched.
    held = await office.gated(ann, "pay 8")
    await ok(ann.post(f"{api}/runs/{held['run_id']}/pause", json={"reason": "lunch"}))
    await ok(ann.post(f"{api}/runs/{held['run_id']}/model", json={"model": "scripted:other"}))
    await ok(ann.post(f"{api}/runs/{held['run_id']}/resume"))
    await ok(ann.post(f"{api}/runs/{held['run_id']}/interrupt", json={"reason": "enough"}))
    await office.ended(held["run_id"])
    again = await ok(ann.post(f"{api}/runs/{held['run_id']}/retry"))
    await office.ended((await ok(ann.post(f"{api}/runs/{again['id']}/interrupt")) or again).get("id", again["id"]))
    # Two people for a call, of whom the starter is none.
    shared = await office.gated(bob, "pay_shared 7")
    assert (await decide(ann, shared, "approve")).status_code in {200, 202}
    assert (await decide(bob, shared, "approve")).status_code == 403
    await ok(ann.delete(f"{api}/requests/{shared['id']}/approval"))
    assert (await decide(ann, shared, "reject", message="no")).status_code == 200
    own = await office.gated(ann, "pay_shared 9")
    barred = await decide(ann, own, "approve")
    assert barred.status_code == 403, barred.text
    assert not RAW_ID.search(barred.text), barred.text
    ids["own"] = own["id"]
    question = await office.gated(bob, "ask_person who?")
    ids["asked"] = question["id"]
    office.also += [held["run_id"], shared["run_id"], own["run_id"]]
    assert (await decide(ann, question, "respond", args={"answer": "me"})).status_code == 200
    # A grant by itself and one with a decision.
    pattern = {"fixed": {"cents": 77}, "open": ["note"]}
    grant = await ok(
        ann.post(f"{api}/grants", json={"tool": "pay", "pattern": pattern, "scope": "everyone", "max_uses": 3})
    )
    ids["grant_id"] = grant["id"]
    covered = await office.start(bob, "pay 77")
    await office.ended(covered["id"])
    office.also += [question["run_id"], covered["id"]]
    await ok(ann.delete(f"{api}/grants/{grant['id']}"))
    # Schedules, tokens, holds.
    schedule = {"name": f"s-{secrets.token_hex(4)}", "agent": "agent", "input": "hello", "timetable": SELDOM}
    planned = await ok(ann.post(f"{api}/schedules", json=schedule))
    at = f"{api}/schedules/{planned['id']}"
    ids["schedule_id"] = planned["id"]
    await ok(ann.patch(at, json={"notes": "n", "revision": planned["revision"]}))
    await ok(ann.post(f"{at}/run"))
    await ok(ann.post(f"{at}/pause", json={"reason": "holidays"}))
    ids["name"] = "mine"
    token = await ok(
        ann.post(f"{api}/tokens", json={"name": "desk", "scopes": ["requests:read", "runs:write"], "user": RARE})
    )
    bearer = {"Authorization": f"Bearer {token['secret']}"}
    async with httpx.AsyncClient(base_url=office.url, headers=bearer, trust_env=False, timeout=60) as program:
        started = await office.start(program, "hello")
    await office.ended(started["id"])
    hold = await ok(ann.post(f"{api}/retention/holds", json={"target": ids["conversation_id"], "reason": "a lawsuit"}))
    ((code, refused_erasure),) = await office.commands(["erase", ids["conversation_id"]])
    assert (code, RARE in refused_erasure, RAW_ID.search(refused_erasure)) == (1, True, None), refused_erasure
    await ok(ann.post(f"{api}/retention/holds/{hold['id']}/release", json={"reason": "settled"}))
    gone = await ok(bob.get(f"{api}/runs/{started['id']}"))
    erasure = {"target": gone["conversation_id"], "confirm": gone["conversation_id"], "reason": "Ticket 1"}
    await ok(ann.post(f"{api}/retention/erasures", json=erasure))
    # One more of her requests waits, claimed.
    waits = await office.gated(ann, "pay 11")
    await ok(ann.post(f"{api}/requests/{waits['id']}/claim"))
    ids["waits"] = waits["id"]


def paths_of(app: FastAPI) -> list[str]:
    """Return every path that answers GET."""
    paths = set()
    for each in iter_route_contexts(app.routes):
        route: Any = each
        if "GET" in (getattr(route, "methods", None) or ()):
            paths.add(route.path)
    return sorted(paths - NOT_READ)


async def stored_part(stream: httpx.Response) -> bytes:
    """Return what a stream sends before it only sends heartbeats."""
    seen, quiet = b"", 0
    async for piece in stream.aiter_bytes():
        seen += piece
        quiet = 0 if b"data:" in piece else quiet + 1
        if quiet == QUIET_PIECES:
            break
    return seen


async def surfaces(office: Office, who: httpx.AsyncClient, *, about: str = RARE) -> dict[str, str]:
    """Read every page and JSON route with the ids of the story; of a stream, what is stored."""
    read: dict[str, str] = {}
    ids = office.ids
    paths = [
        (each, re.sub(r"\{(\w+)(?::\w+)?\}", lambda m: ids.get(m[1], "none"), each)) for each in paths_of(office.app)
    ]
    for also in ("own", "asked", "waits"):
        paths += [
            (each, each.replace("{request_id}", ids[also]))
            for each in ("/requests/{request_id}", "/api/v1/requests/{request_id}")
        ]
    paths += [
        (each, each.replace("{run_id}", run_id))
        for run_id in office.also
        for each in ("/runs/{run_id}", "/api/v1/runs/{run_id}", "/api/v1/runs/{run_id}/explanation")
    ]
    paths += [("/", "/?status=all"), ("/audit", f"/audit?actor={about}"), ("/audit/export", "/audit/export?format=csv")]
    paths += [
        ("/api/v1/requests", "/api/v1/requests?status=all"),
        ("/", f"/?claimed={about}"),
        ("/api/v1/audit", f"/api/v1/audit?actor={about}"),
    ]
    for route, path in paths:
        headers = {} if path.startswith("/api") else {"Accept": "text/html"}
        async with who.stream("GET", path, headers=headers) as answer:
            seen = await (stored_part(answer) if EVENTS in answer.headers.get("content-type", "") else answer.aread())
        assert answer.status_code < 500, (path, seen)
        assert not RAW_ID.search(str(answer.headers)), answer.headers
        read[f"{route} {path}"] = seen.decode(errors="replace")
    return read


def without_payloads(text: str) -> str:
    """Return JSON or a stream of it without the payloads of events, whose ids must all be in ``people`` beside them."""

    def visit(value: Any) -> Any:
        if isinstance(value, list):
            return [visit(each) for each in value]
        if not isinstance(value, dict):
            return value
        known = value.pop("people", {})
        payload = json.dumps(value.pop("payload", None))
        assert set(RAW_ID.findall(payload)) == set(known), (payload, known)
        return {name: visit(each) for name, each in value.items()}

    lines = [each.removeprefix("data: ") for each in text.splitlines()]
    return json.dumps([visit(json.loads(each)) if each.startswith("{") else each for each in lines])


def raw_ids(read: Mapping[str, str]) -> dict[str, str]:
    """Return where an id is, and what is around it."""
    places = {}
    for where, whole in read.items():
        text = without_payloads(whole) if where.split()[0] in WITH_IDS else whole
        match = RAW_ID.search(text)
        if match is not None and where != LISTS_IDS:
            places[where] = text[max(0, match.start() - 200) : match.end() + 80]
    return places


async def messages(database: Database) -> dict[str, str]:
    """Return what mail and chat would say of each delivery."""
    async with database.read() as conn:
        stored = (await conn.execute(select(tables.deliveries.c.payload))).scalars().all()
    payloads = [Payload.of_stored(each) for each in stored]
    post = {"channel": "ops", "host": "mail", "port": 25, "tls": "none", "user": None, "password": None}
    mail = EmailSender(**post, sender="turngate@example.com", to=["ops@example.com"], links=LINKS)
    mails = [mail.message_of("ntf", each, now()).as_string() for each in payloads]
    return {"mail": " ".join(mails), "slack": json.dumps([message_of(each, LINKS) for each in payloads])}


async def read_commands(office: Office, token: str) -> dict[str, str]:
    ids = office.ids
    run, request = ids["run_id"], ids["request_id"]
    page = ["--page", f"{office.directory}/evidence.html", "-o", f"{office.directory}/e.json"]
    lines = [
        ["requests", "--all"], ["explain", run], ["show", request], ["show", ids["own"]], ["watch", run], ["people", "list"],
        ["audit", "export", "--format", "csv"], ["export", run], ["evidence", "--from", "1d", "--unsigned", *page],
        ["audit", "verify"],
    ]  # fmt: skip
    more = [
        ["requests", "--all", "--json"], ["requests", "--group", "run"], ["runs"], ["runs", "--json"],
        ["explain", run, "--json"], ["show", ids["asked"]], ["show", ids["waits"], "--json"],
        ["compare", run, ids["other_id"]], ["schedule", "list"], ["schedule", "show", ids["schedule_id"]], ["grants"],
        ["policy", "show"], ["policy", "history"], ["user", "list"], ["token", "list"], ["session", "list"], ["hold", "list"],
        ["retention"], ["doctor"], ["status"], ["notify", "log"], ["logs", run], ["policy", "explain", "--tool", "ask_person"],
        ["policy", "shadow"], ["runs", "--stuck"], ["fork", run, "--preview"],
    ]  # fmt: skip
    lines += more if office.types_all else []
    answers = await office.commands(*lines, token=token)
    printed = {}
    for words, (code, output) in zip(lines, answers, strict=True):
        assert code == 0 or words[0] in {"doctor", "status"}, (words, output)
        assert "Traceback" not in output, (words, output)
        printed[f"turngate {' '.join(words)}"] = f"{code} {output}"
    printed["evidence.html"] = (office.directory / "evidence.html").read_text()
    return printed


async def erase(office: Office, ann: httpx.AsyncClient, bob: httpx.AsyncClient) -> None:
    """Erase Ann: not while her run waits, which she could decide as someone else, and not with her name as a reason."""
    at, wish = "/api/v1/retention/erasures", {"target": RARE, "confirm": RARE, "reason": "Ticket 2"}
    early = await bob.post(at, json=wish)
    assert (early.status_code, early.json()["code"]) == (409, "person_involved"), early.text
    for each in ("own", "waits"):
        run_id = (await ok(bob.get(f"/api/v1/requests/{office.ids[each]}")))["run_id"]
        await ok(bob.post(f"/api/v1/runs/{run_id}/interrupt", json={"reason": "she leaves"}))
        await office.ended(run_id)
    async with office.database.read() as conn:
        live = (await conn.execute(select(tables.runs.c.id).where(tables.runs.c.status == "running"))).scalars().all()
    for each in live:
        await ok(bob.post(f"/api/v1/runs/{each}/interrupt"))
        await office.ended(each)
    await ok(bob.delete(f"/api/v1/schedules/{office.ids['schedule_id']}"))
    named = await bob.post(at, json={**wish, "reason": f"{RARE.upper()} asked for it"})
    assert (named.status_code, named.json()["code"]) == (422, "invalid_input"), named.text
    done = await ok(bob.post(at, json=wish))
    assert "names" in done["person"]
    assert (await ann.get("/api/v1/me")).status_code == 401
    again = await bob.post(at, json=wish)
    assert again.status_code == 404


@pytest.mark.parametrize("types_all", [False, True])
@pytest.mark.unencrypted  # its commands run in a process that has no key
async def test_a_name_is_in_one_table_and_goes_from_everywhere(
    database: Database, client: Client, tmp_path: Path, types_all: bool
) -> None:
    """Before the erasure every surface shows the name and no id; after it none shows the name."""
    gateway = Gateway(client)
    async with (
        receiving() as receiver,
        stack(client, database, *TOOLS, model=TextScript(), policy=POLICY) as engine,
        contextlib.AsyncExitStack() as after,
    ):
        app = create_app(database=database, gateway=gateway, settings=QUICK)
        url = await after.enter_async_context(serving(app))
        office = Office(database, engine, app, url, tmp_path, types_all)
        notifying = asyncio.create_task(keep_notifying(database, engine.services.feed, (webhook_channel(receiver),)))
        await office.add(RARE)
        await office.add(OTHER)
        ann, bob = await office.log_in(RARE), await office.log_in(OTHER)
        after.push_async_callback(ann.aclose)
        after.push_async_callback(bob.aclose)
        await story(office, ann, bob)
        cells = await stored(database)
        assert [where for where, text in cells.items() if has_name(text)] == ["people.name"]
        assert has_name(cells["people.name"])
        assert not has_name((await office.temporal()).decode(errors="replace"))
        read = await surfaces(office, bob)
        async with database.write() as conn:
            secret = await tokens.issue(conn, tokens.NewToken(name="auditor", scopes=("admin", "requests:read")))
        read |= await read_commands(office, secret)
        read["webhooks"] = " ".join(each.body.decode() for each in receiver.received)
        read |= await messages(database) | office.answers
        assert raw_ids(read) == {}
        assert read["turngate audit verify"].startswith("0 ")
        assert SHOW_NAMES - {where.split()[0] for where, text in read.items() if has_name(text)} == set()
        ann_id = await office.id_of(RARE)
        await erase(office, ann, bob)
        cells = await stored(database)
        assert [where for where, text in cells.items() if has_name(text)] == []
        assert not has_name((await office.temporal()).decode(errors="replace"))
        await database.scrub()
        if database.url.startswith("sqlite"):
            files = Path(database.url.removeprefix("sqlite:///")).parent.glob("turngate.db*")
            # In a process of its own: closing a file here would drop SQLite's locks, and a command would cut the shared memory.
            read_them = await asyncio.to_thread(subprocess.run, ["cat", *files], capture_output=True, check=True)
            assert not has_name(read_them.stdout.decode("latin-1"))
        after_it = await surfaces(office, bob, about=OTHER) | await read_commands(office, secret)
        after_it |= await messages(database)
        assert [where for where, text in after_it.items() if has_name(text)] == []
        assert raw_ids(after_it) == {}
        marked = [where for where, text in after_it.items() if f"erased person {ann_id[2:8]}" in text]
        assert {"/requests/{request_id}", "/runs/{run_id}", "/audit", "/policy"} <= {each.split()[0] for each in marked}
        assert after_it["turngate audit verify"].startswith("0 ")
        await office.add(RARE)
        assert await office.id_of(RARE) != ann_id
        notifying.cancel()
        await asyncio.gather(notifying, return_exceptions=True)
