"""Grants over HTTP: created by themselves, listed, previewed, revoked; and from a terminal."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import update
from support.api.api_server import Api, token_for
from support.engine.stack import until
from typer.testing import CliRunner

from turngate.cli.main import app
from turngate.client import TurngateClient
from turngate.domain.errors import ConflictError
from turngate.domain.policy.grants import GrantPattern, WantedGrant
from turngate.domain.policy.totals import Share, Total
from turngate.store import tables
from turngate.store.clock import as_text, now
from turngate.store.events import events
from turngate.store.policy import totals

PATTERN = {"fixed": {"cents": 5}, "open": ["note"]}
FOR_AGENT = {"tool": "pay", "pattern": PATTERN, "scope": "agent", "agent": "agent"}


async def post(client: httpx.AsyncClient, key: str | None = None, **body: Any) -> httpx.Response:
    headers = {} if key is None else {"Idempotency-Key": key}
    return await client.post("/api/v1/grants", json={**FOR_AGENT, **body}, headers=headers)


async def audited(api: Api) -> list[str]:
    async with api.stack.database.read() as conn:
        assert await events.chain_break(conn, events.SYSTEM) is None
        recorded = await events.after(conn, 0, run_id=events.SYSTEM)
    return [each.type for each in recorded if each.type.startswith("grant.")]


async def test_a_grant_is_created_listed_and_revoked(idle: Api) -> None:
    """201 with the pattern in words; it is listed until it is revoked, once; every change is audited once."""
    created = await post(idle.operator, key="g1", max_uses=3, note="batch", expires_after_seconds=60)
    assert created.status_code == 201, created.text
    grant = created.json()
    assert (grant["says"], grant["uses"], grant["max_uses"], grant["ended"]) == (
        "pay with cents exactly 5, any note, and no other argument",
        0,
        3,
        None,
    )
    assert (await post(idle.operator, key="g1", max_uses=3, note="batch", expires_after_seconds=60)).json() == grant
    reused = await post(idle.operator, key="g1", max_uses=4)
    assert (reused.status_code, reused.json()["code"]) == (409, "idempotency_key_reused")
    others = [(await post(idle.operator)).json()["id"] for _ in range(2)]
    first = (await idle.operator.get("/api/v1/grants?limit=2")).json()
    rest = (await idle.operator.get("/api/v1/grants", params={"cursor": first["next_cursor"]})).json()
    assert [each["id"] for each in (*first["items"], *rest["items"])] == [*reversed(others), grant["id"]]
    revoked = await idle.operator.delete(f"/api/v1/grants/{grant['id']}")
    assert (revoked.status_code, revoked.json()["ended"]) == (200, "revoked")
    again = await idle.operator.delete(f"/api/v1/grants/{grant['id']}")
    assert (again.status_code, again.json()["code"], again.json()["ended"]) == (409, "grant_ended", "revoked")
    assert again.json()["revoked_by"] == revoked.json()["revoked_by"]
    assert grant["id"] not in {each["id"] for each in (await idle.operator.get("/api/v1/grants")).json()["items"]}
    every = (await idle.operator.get("/api/v1/grants?status=all")).json()["items"]
    assert {each["id"]: each["ended"] for each in every} == {grant["id"]: "revoked", others[0]: None, others[1]: None}
    assert (await idle.operator.get(f"/api/v1/grants/{grant['id']}")).json()["used_by"] == []
    assert (await idle.operator.delete("/api/v1/grants/none")).status_code == 404
    assert (await idle.operator.get("/api/v1/grants/none")).status_code == 404
    assert await audited(idle) == ["grant.created"] * 3 + ["grant.revoked"]


@pytest.mark.parametrize(("column", "value", "ended"), [("uses", 1, "used_up"), ("expires_at", None, "expired")])
async def test_what_ended_by_itself_cannot_be_revoked(idle: Api, column: str, value: Any, ended: str) -> None:
    """409 says how it ended."""
    grant = (await post(idle.operator)).json()
    async with idle.stack.database.write() as conn:
        past = as_text(now() - timedelta(seconds=1))
        await conn.execute(update(tables.grants).values(**{column: value or past}))
    refused = await idle.operator.delete(f"/api/v1/grants/{grant['id']}")
    assert (refused.status_code, refused.json()["ended"]) == (409, ended)
    assert (await idle.operator.get(f"/api/v1/grants/{grant['id']}")).json()["ended"] == ended


async def test_i10_who_may_grant_what(idle: Api) -> None:
    """I10: an agent's token creates and revokes none; an operator none for everyone; an admin does."""
    grant = (await post(idle.operator)).json()
    for refused in (await post(idle.agent), await idle.agent.delete(f"/api/v1/grants/{grant['id']}")):
        assert (refused.status_code, refused.json()["code"]) == (403, "missing_scope")
    everyone = {"scope": "everyone", "agent": None}
    by_operator = await post(idle.operator, **everyone)
    assert (by_operator.status_code, by_operator.json()["code"]) == (403, "not_eligible")
    admin = await token_for(idle.stack.database, "root", "admin")
    body = {**FOR_AGENT, **everyone}
    assert (await idle.stranger.post("/api/v1/grants", json=body, headers=admin)).status_code == 201
    assert await audited(idle) == ["grant.created"] * 2


UNFIT: list[tuple[dict[str, Any], str]] = [
    ({"agent": None}, "/agent"),
    ({"run_id": "run_1"}, "/run_id"),
    ({"scope": "run", "agent": None}, "/run_id"),
    ({"scope": "run", "agent": None, "run_id": "run_none"}, "/run_id"),
    ({"agent": "missing"}, "/agent"),
    ({"pattern": {"fixed": {"a": 1}, "open": ["a"]}}, "/pattern"),
    ({"pattern": {"open": ["a", "a"]}}, "/pattern"),
    ({"max_uses": 0}, "/max_uses"),
    ({"max_uses": 10_001}, "/max_uses"),
    ({"expires_after_seconds": 90 * 86_400 + 1}, "/expires_after_seconds"),
    ({"tool": "no tool"}, "/tool"),
    ({"pattern": {"fixed": {"a": 1}, "closed": []}}, "/pattern/closed"),
    ({"pattern": {"within": {"command": {"op": "starts_with", "value": "git "}}}}, "/pattern"),
    ({"pattern": {"within": {"a": {"op": "le", "value": "x"}}}}, "/pattern/within/a"),
    ({"pattern": {"within": {"a": {"op": "glob", "value": "x"}}}}, "/pattern/within/a/op"),
    ({"pattern": {"open": ["a"], "total": {"at": "/b", "most": 1, "per": "day"}}}, "/pattern"),
    ({"pattern": {"open": ["a"], "total": {"at": "/a", "most": 0, "per": "day"}}}, "/pattern/total/most"),
]
TAKEN_APART = ['{"a": 1, "a": 2}', '{"a": {"b": 1, "b": 2}}', '{"a": 1e999}', '{"a": NaN}']


async def test_a_grant_that_does_not_fit_is_refused(idle: Api) -> None:
    """422 with the place, also for a name twice and for numbers that are no JSON; nothing is stored."""
    for body, pointer in UNFIT:
        refused = await post(idle.operator, **body)
        assert refused.status_code == 422, refused.text
        assert [each["pointer"] for each in refused.json()["errors"]] == [pointer]
    for fixed in TAKEN_APART:
        text = f'{{"tool": "pay", "pattern": {{"fixed": {fixed}}}, "scope": "agent", "agent": "agent"}}'
        headers = {"Content-Type": "application/json"}
        refused = await idle.operator.post("/api/v1/grants", content=text, headers=headers)
        assert refused.status_code == 422, refused.text
    assert (await idle.operator.get("/api/v1/grants?status=all")).json()["items"] == []
    assert await audited(idle) == []


async def test_a_grant_with_limits_says_how_much_of_its_total_is_used(idle: Api) -> None:
    """Limits and total are stored as they were sent, in words too; the list and the grant's page say what is used."""
    total = {"at": "/cents", "most": 100.5, "per": "week"}
    within = {"cents": {"op": "between", "value": [1, 50]}, "to": {"op": "starts_with", "value": "acct-"}}
    grant = (await post(idle.operator, pattern={"within": within, "open": ["note"], "total": total})).json()
    assert grant["says"] == (
        'pay with cents from 1 to 50, to beginning with "acct-", any note, and no other argument, '
        "up to a total of 100.5 at /cents per week (UTC)"
    )
    assert (grant["pattern"]["within"], grant["pattern"]["total"], grant["total_used"]) == (within, total, "0")
    week = Total.model_validate(total)
    async with idle.stack.database.write() as conn:
        share = Share(meter=week.meter(f"grant:{grant['id']}"), total=week, units=90_250_000)
        assert await totals.take(conn, share)
    listed = (await idle.operator.get("/api/v1/grants")).json()["items"]
    assert [each["total_used"] for each in listed] == ["90.25"]
    assert (await idle.operator.get(f"/api/v1/grants/{grant['id']}")).json()["total_used"] == "90.25"
    body = {"tool": "pay", "args": {"cents": 11, "to": "acct-1"}, "agent": "agent"}
    explained = (await idle.operator.post("/api/v1/policy/explain", json=body)).json()
    assert (explained["answer"], explained["grants"][0]["covers"]) == ("ask", False)
    assert explained["grants"][0]["why"].endswith("of which 90.25 is used")
    body["args"] = {"cents": 10, "to": "acct-1"}
    assert (await idle.operator.post("/api/v1/policy/explain", json=body)).json()["grant_id"] == grant["id"]


@pytest.mark.exhaustive
async def test_a_preview_says_what_would_be_granted(api: Api) -> None:
    """The exact pattern in words and JSON, and how many recorded calls of the tool it covers, by scope."""
    await api.decide(await api.gated("pay 777"), "reject")
    request = await api.gated("pay 777")

    async def previewed(status: int = 200, **body: Any) -> dict[str, Any]:
        answer = await api.operator.post("/api/v1/grants/preview", json={"request_id": request["id"], **body})
        assert answer.status_code == status, answer.text
        return answer.json()

    exact = await previewed()
    assert exact["pattern"] == {"tool": "pay", "fixed": {"cents": 777}, "within": {}, "open": [], "total": None}
    assert exact["says"] == "pay with cents exactly 777, and no other argument"
    assert exact["would_have_covered"] == {"run": 1, "agent": 2, "everyone": 2}
    assert exact["ungrantable"] is None
    free = await previewed(open=["cents"])
    assert free["says"] == "pay with any cents, and no other argument"
    assert free["would_have_covered"]["everyone"] == free["looked_at"] >= 2
    assert (await previewed(422, open=["nothing"]))["errors"][0]["pointer"] == "/open"
    limits = {"cents": {"op": "between", "value": [700, 800]}}
    limited = await previewed(within=limits, total={"at": "/cents", "most": 2_000, "per": "day"})
    says = "pay with cents from 700 to 800, and no other argument, up to a total of 2000 at /cents per day (UTC)"
    assert (limited["says"], limited["would_have_covered"]["everyone"]) == (says, 2)
    assert (await previewed(422, within={"nothing": limits["cents"]}))["errors"][0]["pointer"] == "/within"
    shared = await api.gated("pay_shared 5")
    refused = await api.operator.post("/api/v1/grants/preview", json={"request_id": shared["id"]})
    assert "four-eyes" in refused.json()["ungrantable"]
    missing = await api.operator.post("/api/v1/grants/preview", json={"request_id": "rq_none"})
    assert missing.status_code == 404
    run = {"scope": "run", "agent": None, "run_id": request["run_id"]}
    assert (await post(api.operator, **run)).status_code == 201
    await api.decide(request, "reject")
    await until(lambda: _ended(api, request["run_id"]), "end of the run")
    late = await post(api.operator, **run)
    assert (late.status_code, late.json()["code"]) == (409, "run_ended")


async def _ended(api: Api, run_id: str) -> bool:
    return (await api.agent.get(f"/api/v1/runs/{run_id}")).json()["status"] != "running"


@pytest.mark.exhaustive
async def test_a_grant_is_created_and_revoked_in_a_terminal(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """`decide --grant` prints the exact pattern and saves nothing unasked; `grants` lists it, `grants revoke` ends it."""
    token = await token_for(api.stack.database, f"clerk-{api.name}", "admin")
    monkeypatch.setenv("TURNGATE_TOKEN", token["Authorization"].removeprefix("Bearer "))

    async def run(*arguments: str) -> Any:
        return await asyncio.to_thread(CliRunner().invoke, app, [*arguments, "--url", api.url])

    request = await api.gated("pay 888")
    grant = ("decide", request["id"], "approve", "--grant", "run", "--open", "purpose", "--uses", "2", "--for", "2h")
    unknown = await run(*grant, "--yes")
    assert unknown.exit_code == 1
    assert "no argument 'purpose'" in unknown.output
    grant = (*grant[:5], *grant[7:])
    unasked = await run(*grant)
    assert unasked.exit_code == 2
    assert "pay with cents exactly 888" in " ".join(unasked.output.split())
    assert (await api.agent.get(f"/api/v1/requests/{request['id']}")).json()["status"] == "pending"
    done = await run(*grant, "--yes")
    assert done.exit_code == 0, done.output
    assert "it would have approved 1 of the" in done.output
    assert f"{request['id']} is approved" in done.output
    listed = await run("grants")
    (line,) = [line for line in listed.stdout.splitlines() if "exactly 888" in line]
    grant_id = line.split("\t")[0]
    assert line.split("\t")[1:3] == [request["run_id"], "0/2"]
    revoked = await run("grants", "revoke", grant_id)
    assert revoked.exit_code == 0, revoked.output
    assert (await run("grants", "revoke", grant_id)).exit_code == 1
    assert grant_id not in (await run("grants")).stdout
    assert grant_id in (await run("grants", "--all", "--json")).stdout

    request = await api.gated("pay 889")
    ranged = ("decide", request["id"], "approve", "--grant", "run", "--yes", "--range")
    assert "FROM..TO" in (await run(*ranged, "cents=889")).output
    assert "no argument 'pence'" in (await run(*ranged, "pence=1..900")).output
    done = await run(*ranged, "cents=1..900", "--total", "cents=1000.5/day")
    assert done.exit_code == 0, done.output
    says = "cents from 1 to 900, and no other argument, up to a total of 1000.5 at /cents per day (UTC)"
    assert says in done.output
    (line,) = [line for line in (await run("grants")).stdout.splitlines() if "from 1 to 900" in line]
    assert line.split("\t")[2] == "0/1, total 0"


async def test_the_client_covers_grants(idle: Api) -> None:
    """Every method, and our own errors with their details."""
    token = (await token_for(idle.stack.database, "root", "admin"))["Authorization"].removeprefix("Bearer ")
    wanted = WantedGrant(pattern=GrantPattern(tool="pay", fixed={"cents": 0.5}), scope="everyone", max_uses=2, note="é")
    async with TurngateClient(idle.url, token=token) as client:
        grant = await client.create_grant(wanted, idempotency_key="one")
        assert (await client.create_grant(wanted, idempotency_key="one")).id == grant.id
        assert (grant.pattern, grant.max_uses, grant.note) == (wanted.pattern, 2, "é")
        assert (await client.get_grant(grant.id)).used_by == []
        assert [each.id async for each in client.iter_grants(limit=1)] == [grant.id]
        assert (await client.revoke_grant(grant.id)).ended == "revoked"
        with pytest.raises(ConflictError) as late:
            await client.revoke_grant(grant.id)
        assert (late.value.error_code, late.value.details["ended"]) == ("grant_ended", "revoked")
        assert (await client.list_grants()).items == []
