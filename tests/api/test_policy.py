"""Stored rules over HTTP: read, changed by admins only, one change at a time, and explained."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import BaseModel, Field
from support.api.api_server import Api, token_for
from support.engine.stack import stack
from support.engine.tools import Bench
from support.stores.changed_rows import planted_calls
from temporalio.client import Client
from typer.testing import CliRunner

from turngate import Policy, Rule, tool
from turngate.approvals_api.policy import grants
from turngate.approvals_api.policy import rules as policy_rules
from turngate.approvals_api.principal import Principal
from turngate.cli.commands.policy.policy import show_explanation
from turngate.cli.main import app
from turngate.client import TurngateClient
from turngate.domain.errors import ConflictError, InvalidInputError
from turngate.domain.identity import ALL_SCOPES
from turngate.domain.policy.grants import GrantPattern, WantedGrant
from turngate.domain.policy.policy import ShadowVerdict, Verdict
from turngate.domain.policy.totals import Share, Total
from turngate.domain.tools.known_tools import KnownTool, known
from turngate.store.clock import from_text
from turngate.store.database import Database
from turngate.store.events import events
from turngate.store.policy import policies, totals
from turngate.store.runs import calls, runs
from turngate.wire.orders import GrantOrder, PolicyQuestion
from turngate.wire.policy import Explanation

ADMIN = Principal(name="root", via="session", scopes=ALL_SCOPES, role="admin")
ONE = '[[rule]]\nname = "one"\nverdict = "deny"\ntools = ["pay"]\n'
TWO = '[[rule]]\nname = "two"\nverdict = "ask"\ntools = ["pay"]\n'


@pytest.fixture
async def admin(idle: Api) -> AsyncIterator[httpx.AsyncClient]:
    headers = await token_for(idle.stack.database, "root", "admin")
    async with httpx.AsyncClient(base_url=idle.url, headers=headers, trust_env=False) as client:
        yield client


async def put(client: httpx.AsyncClient, source: str, version: int, comment: str = "") -> httpx.Response:
    body = {"source": source, "if_version": version, "comment": comment}
    # Escaped, so that half a surrogate pair arrives.
    return await client.put("/api/v1/policy", content=json.dumps(body), headers={"Content-Type": "application/json"})


async def audited(database: Database) -> list[dict[str, Any]]:
    async with database.read() as conn:
        assert await events.chain_break(conn, events.SYSTEM) is None
        recorded = await events.after(conn, 0, run_id=events.SYSTEM)
    return [each.payload for each in recorded if each.type == "policy.changed"]


async def test_rules_are_stored_in_versions_and_each_change_is_audited(idle: Api, admin: httpx.AsyncClient) -> None:
    """Each change is a version with its author; a repeat is none; going back is one; the event names the rules."""
    empty = (await idle.operator.get("/api/v1/policy")).json()
    assert (empty["version"], empty["stored"]) == (0, None)
    (file,) = empty["files"]
    assert ([each["name"] for each in file["rules"]], file["agents"], file["file"]) == (["four-eyes"], ["agent"], "")
    first = await put(admin, ONE, 0, "no payments")
    assert first.status_code == 200, first.text
    assert (first.json()["version"], first.json()["changed_by"], first.json()["source"]) == (1, "root", ONE)
    assert (await put(admin, ONE, 0, "no payments")).json() == first.json()  # its answer was lost, so it is sent again
    assert (await put(admin, ONE, 1)).json() == first.json()  # nothing to change
    changed = ONE.replace("deny", "ask") + TWO
    assert (await put(admin, changed, 1)).json()["version"] == 2
    assert (await put(admin, TWO + ONE.replace("deny", "ask"), 2)).json()["version"] == 3
    back = await admin.post("/api/v1/policy/revert", json={"version": 1, "if_version": 3})
    assert (back.json()["version"], back.json()["source"], back.json()["comment"]) == (4, ONE, "Back to version 1.")
    assert [
        {name: each[name] for name in ("version", "by", "added", "removed", "changed")}
        for each in await audited(idle.stack.database)
    ] == [
        {"version": 1, "by": "root", "added": ["one"], "removed": [], "changed": []},
        {"version": 2, "by": "root", "added": ["two"], "removed": [], "changed": ["one"]},
        {"version": 3, "by": "root", "added": [], "removed": [], "changed": []},
        {"version": 4, "by": "root", "added": [], "removed": ["two"], "changed": ["one"]},
    ]
    changes = await audited(idle.stack.database)
    assert (changes[2]["reordered"], changes[3]["reverted_to"], changes[0]["digest"]) == (
        True,
        1,
        first.json()["digest"],
    )
    newest = (await idle.operator.get("/api/v1/policy/versions?limit=3")).json()
    older = (await idle.operator.get("/api/v1/policy/versions", params={"cursor": newest["next_cursor"]})).json()
    assert [each["version"] for each in (*newest["items"], *older["items"])] == [4, 3, 2, 1]
    assert (await idle.operator.get("/api/v1/policy/versions/2")).json()["source"] == changed
    assert [each["name"] for each in (await idle.operator.get("/api/v1/policy")).json()["stored"]["rules"]] == ["one"]


async def test_i10_only_an_admin_changes_rules(idle: Api) -> None:
    """I10: neither an agent's token nor an operator; reading takes requests:read."""
    starter = await token_for(idle.stack.database, "starter-bot", "runs:write")
    for client, options in ((idle.agent, {}), (idle.operator, {}), (idle.stranger, {"headers": starter})):
        refused = await client.put("/api/v1/policy", json={"source": ONE, "if_version": 0}, **options)
        assert (refused.status_code, refused.json()["code"]) == (403, "missing_scope")
        back = await client.post("/api/v1/policy/revert", json={"version": 1}, **options)
        assert back.status_code == 403
    for path in ("policy", "policy/versions", "policy/shadow", "grants"):
        assert (await idle.stranger.get(f"/api/v1/{path}", headers=starter)).status_code == 403
    explained = await idle.stranger.post("/api/v1/policy/explain", json={"tool": "pay"}, headers=starter)
    assert explained.status_code == 403
    assert (await idle.operator.get("/api/v1/policy")).json()["version"] == 0


UNREADABLE = [
    ("[[rule]\n", "line 1"),
    (ONE + ONE, "two rules are called 'one'"),
    (ONE.replace("deny", "maybe"), "rule.0.verdict"),
    ('[[rule]]\nname = "x"\nverdict = "deny"\ntools = ["x"]\ncommand = ["rm |"]\n', "rule.0.command"),
    ("x = " + "[" * 5_000, "TOML"),
    ("x = " + "1" * 5_000, "TOML"),
    ("#" * 200_001, "200"),
    ('x = "\ud800"', "unicode"),
]


async def test_rules_that_cannot_be_read_are_refused_whole(idle: Api, admin: httpx.AsyncClient) -> None:
    """422 with the place; nothing is stored, nothing is audited."""
    for source, words in UNREADABLE:
        refused = await put(admin, source, 0)
        assert refused.status_code == 422, refused.text
        assert words in refused.json()["detail"]
        assert [each["pointer"] for each in refused.json()["errors"]] == ["/source"]
    assert await audited(idle.stack.database) == []


async def test_of_ten_changes_at_once_one_wins_and_the_others_learn_whose(
    client: Client, database: Database, bench: Bench
) -> None:
    """409 names the version in force, its author and its time; the versions have no gap."""
    async with stack(client, database, bench.pay, model=None, working=False) as engine:  # type: ignore[arg-type]
        people = [Principal(name=f"admin-{n}", via="session", scopes=ALL_SCOPES, role="admin") for n in range(10)]
        answers = await asyncio.gather(
            *(
                policy_rules.store_rules(engine.services, each, source=f"# {each.name}\n{ONE}", if_version=0)
                for each in people
            ),
            return_exceptions=True,
        )
        (won,) = [each for each in answers if not isinstance(each, ConflictError)]
        lost = [each for each in answers if isinstance(each, ConflictError)]
        assert len(lost) == 9
        assert {(each.error_code, each.details["changed_by"], each.details["version"]) for each in lost} == {
            ("policy_changed", won.changed_by, 1)
        }
        assert {each.details["changed_at"] for each in lost} == {won.created_at}
        assert len(await audited(database)) == 1


async def explained(api: Api, **body: Any) -> dict[str, Any]:
    answer = await api.operator.post("/api/v1/policy/explain", json={"args": {"cents": 5}, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_the_policy_is_explained(idle: Api, admin: httpx.AsyncClient) -> None:
    """The stored rules before the file's, the tool as its worker published it, grants, and rules that are only tried out."""
    explanation = await explained(idle, tool="pay")
    assert (explanation["answer"], explanation["rule"], explanation["agent"]) == ("ask", "tool:ask", "agent")
    assert [(each["name"], each["source"], each["why"]) for each in explanation["rules"]] == [
        ("four-eyes", "file", "it is about the tools pay_shared")
    ]
    shared = await explained(idle, tool="pay_shared", agent="agent")
    assert (shared["rule"], shared["terms"]["starter_may_decide"], shared["rules"][0]["decides"]) == (
        "four-eyes",
        False,
        True,
    )
    assert (await explained(idle, tool="ask_person"))["rule"] == "tool:interaction"
    await put(admin, TWO, 0)
    tried = await explained(idle, tool="pay", policy=ONE)
    assert (tried["answer"], [(each["name"], each["source"]) for each in tried["rules"]]) == (
        "deny",
        [("one", "tried"), ("four-eyes", "file")],
    )
    assert (await explained(idle, tool="pay"))["rule"] == "two"
    assert (await explained(idle, tool="pay", unattended="deny"))["rule"] == "unattended"
    unknown = await explained(idle, tool="refund", agent="missing")
    assert unknown["answer"] == "depends"
    assert any("missing" in note for note in unknown["notes"])
    assert any("refund" in note for note in unknown["notes"])


class Delete(BaseModel):
    path: str
    recursive: bool = True
    keep: list[str] = Field(default_factory=list)


@tool()
async def delete(params: Delete) -> None:
    """Delete a directory."""


async def test_what_a_call_leaves_out_is_judged_and_shown(idle: Api, capsys: pytest.CaptureFixture[str]) -> None:
    """By the schema that the worker published; what only the tool's code knows is named."""
    rule = Rule(name="deep", verdict="deny", tools=["delete"], args=[{"at": "/recursive", "op": "eq", "value": True}])
    tools = [known(delete).model_copy(update={"agents": ("agent",)})]
    async with idle.stack.database.write() as conn:
        await policies.publish(conn, task_queue=idle.stack.task_queue, policy=Policy(rule=[rule]), file="", tools=tools)
    answer = await explained(idle, tool="delete", args={"path": "/srv"})
    assert (answer["answer"], answer["rule"]) == ("deny", "deep")
    assert answer["defaults"] == [{"at": "/recursive", "value": True, "source": "default"}]
    assert any("takes for keep" in note for note in answer["notes"])
    assert (await explained(idle, tool="delete", args={"recursive": False, "keep": []}))["defaults"] == []
    show_explanation(Explanation.model_validate(answer))
    assert "recursive: true  (left out by the agent: the default)" in capsys.readouterr().out


WITH_TOTAL = """
[[rule]]
name = "small"
verdict = "allow"
tools = ["pay"]
total = { at = "/cents", most = 100, per = "week" }
"""


async def test_what_is_used_of_a_total_is_listed_and_explained(idle: Api, admin: httpx.AsyncClient) -> None:
    """The rule says what its calls have come to, and the explanation of a call that would exceed its total says ask."""
    assert (await put(admin, WITH_TOTAL, 0)).status_code == 200
    total = Total(at="/cents", most=100, per="week")

    async def used() -> str:
        return (await idle.operator.get("/api/v1/policy")).json()["stored"]["rules"][0]["total_used"]

    assert await used() == "0"
    async with idle.stack.database.write() as conn:
        assert await totals.take(conn, Share(meter=total.meter("rule:small"), total=total, units=95_500_000))
    assert await used() == "95.5"
    for cents, answer in ((4, "allow"), (5, "ask")):
        explanation = await explained(idle, tool="pay", args={"cents": cents})
        assert (explanation["answer"], explanation["rule"]) == (answer, "small")
        (rule,) = [each for each in explanation["rules"] if each["name"] == "small"]
        assert rule["why"].endswith("of which 95.5 is used")
    assert (await idle.operator.get("/api/v1/policy/versions/1")).json()["rules"][0]["total_used"] is None


async def test_an_explanation_counts_grants_and_reads_arguments_as_the_engine_does(idle: Api) -> None:
    """A standing grant is the answer; a number keeps its digits; an argument twice is refused; nothing changes."""
    pattern = GrantPattern(tool="pay", fixed={"cents": 5, "rate": 0.1})
    order = GrantOrder(grant=WantedGrant(pattern=pattern, scope="everyone", max_uses=1))
    grant = await grants.create(idle.stack.services, ADMIN, order)

    async def explain_args(args: str) -> dict[str, Any]:
        body, headers = f'{{"tool": "pay", "args": {args}}}', {"Content-Type": "application/json"}
        answer = await idle.operator.post("/api/v1/policy/explain", content=body, headers=headers)
        return answer.json()

    answer = await explain_args('{"cents": 5, "rate": 0.10}')
    assert (answer["answer"], answer["grant_id"]) == ("allow", grant.id)
    assert (await explain_args('{"cents": 5, "rate": 0.1000000000000000001}'))["grant_id"] is None
    assert (await explain_args('{"cents": 5, "cents": 6}'))["status"] == 422
    async with idle.stack.database.read() as conn:
        answer = await events.after(conn, 0, run_id=events.SYSTEM)
    assert [each.type for each in answer if each.type.startswith(("grant.", "policy."))] == ["grant.created"]


async def test_a_file_in_the_workspace_allows_nothing_there(idle: Api, tmp_path: Any) -> None:
    """DESIGN §6: an explanation distrusts what the engine distrusts, and says so."""
    file = tmp_path / "policy.toml"
    rules = Policy(rule=[Rule(name="all", verdict="allow", tools=["*"])])
    tools = [KnownTool(name="pay", own_ask="always", agents=("agent",))]
    async with idle.stack.database.write() as conn:
        await policies.publish(conn, task_queue=idle.stack.task_queue, policy=rules, file=str(file), tools=tools)
    assert (await explained(idle, tool="pay", workspace="/"))["answer"] == "ask"
    inside = await explained(idle, tool="pay", workspace=str(tmp_path))
    assert (inside["answer"], inside["rules"]) == ("ask", [])
    assert any("where the agent could change it" in note for note in inside["notes"])
    (tmp_path / "elsewhere").mkdir()
    assert (await explained(idle, tool="pay", workspace=str(tmp_path / "elsewhere")))["rule"] == "all"


async def test_shadow_rules_are_reported(idle: Api) -> None:
    """Counts by rule and answer with the newest calls; one rule, or since a time; calls without a shadow are not counted."""
    run = await idle.start("pay 5")
    shadows = [("deny", "soon")] * 30 + [("ask", "later"), None]
    verdicts = [
        Verdict(
            answer="allow",
            rule="r",
            reason='"shadow":{',
            risk="low",
            shadow=None if each is None else ShadowVerdict(answer=each[0], rule=each[1]),
        )
        for each in shadows
    ]
    rows = [
        calls.Call(
            run_id=run["id"], tool_call_id=f"c{place:02}", step=9, position=place, tool_name="pay", input="{}",
            repeat_key="", disposition="run", verdict=verdict.model_dump_json(exclude_defaults=True), digest="",
            policy_version="", effect="once",
        )
        for place, verdict in enumerate(verdicts)
    ]  # fmt: skip
    async with planted_calls(idle.stack.database, rows):
        report = (await idle.operator.get("/api/v1/policy/shadow")).json()
        assert (report["looked_at"], report["whole"]) == (32, True)
        assert [(each["rule"], each["was"], each["would_be"], each["calls"]) for each in report["changes"]] == [
            ("soon", "allow", "deny", 30),
            ("later", "allow", "ask", 1),
        ]
        assert [each["tool_call_id"] for each in report["changes"][0]["examples"]] == [
            f"c{n:02}" for n in range(29, 9, -1)
        ]
        one = (await idle.operator.get("/api/v1/policy/shadow?rule=later")).json()
        assert [each["rule"] for each in one["changes"]] == ["later"]
        begun = from_text((await stored_run(idle, run["id"])).created_at)
        for moved, number in ((timedelta(0), 32), (timedelta(microseconds=1), 0)):
            since = {"since": (begun + moved).isoformat()}
            assert (await idle.operator.get("/api/v1/policy/shadow", params=since)).json()["looked_at"] == number
        assert (await idle.operator.get("/api/v1/policy/shadow?since=0001-01-01T00:00:00%2B14:00")).status_code == 422


async def stored_run(api: Api, run_id: str) -> runs.Run:
    async with api.stack.database.read() as conn:
        run = await runs.get(conn, run_id)
    assert run is not None
    return run


async def test_the_client_covers_policy(idle: Api) -> None:
    """Every method, and our own errors with their details."""
    token = (await token_for(idle.stack.database, "root", "admin"))["Authorization"].removeprefix("Bearer ")
    async with TurngateClient(idle.url, token=token) as client:
        assert (await client.put_policy(ONE, if_version=0, comment="é")).version == 1
        with pytest.raises(ConflictError) as late:
            await client.put_policy(TWO, if_version=0)
        assert (late.value.error_code, late.value.details["changed_by"]) == ("policy_changed", "root")
        with pytest.raises(InvalidInputError) as wrong:
            await client.put_policy("x", if_version=1)
        assert wrong.value.error_code == "invalid_policy"
        assert (await client.put_policy(TWO, if_version=1)).version == 2
        assert (await client.revert_policy(1)).source == ONE
        assert [each.version async for each in client.iter_policy_versions(limit=2)] == [3, 2, 1]
        assert (await client.get_policy_version(2)).source == TWO
        assert (await client.get_policy()).version == 3
        assert (await client.explain_policy(PolicyQuestion(tool="pay", args='{"cents": 5}', policy=TWO))).rule == "two"
        assert (await client.get_shadow_report(rule="x")).changes == []


@pytest.mark.exhaustive
async def test_rules_are_stored_and_read_in_a_terminal(
    idle: Api, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`policy set`, `show`, `history`, `revert`, `explain` and `shadow` against the running API."""
    token = await token_for(idle.stack.database, "root", "admin")
    monkeypatch.setenv("TURNGATE_TOKEN", token["Authorization"].removeprefix("Bearer "))
    file = tmp_path / "rules.toml"

    async def run(*arguments: str, code: int = 0) -> str:
        answer = await asyncio.to_thread(CliRunner().invoke, app, ["policy", *arguments, "--url", idle.url])
        assert answer.exit_code == code, answer.output
        return answer.output

    file.write_text(ONE)
    assert "version 1 is in force: 1 rule(s)" in await run("set", str(file), "--comment", "no payments")
    file.write_text(TWO)
    assert "version 2 is in force" in await run("set", str(file))
    assert "root saved version 2" in await run("set", str(file), "--if-version", "0", code=1)
    assert "version 3 is in force, with the rules of version 1" in await run("revert", "1")
    assert (await run("show", "--source")).strip() == ONE.strip()
    assert "two" in await run("show", "--version", "2")
    output = await run("show")
    assert "version 3 by root" in output
    assert "four-eyes" in output
    assert [line.split("\t")[0] for line in (await run("history")).splitlines()] == ["3", "2", "1"]
    output = await run("explain", "--tool", "pay", "--args", '{"cents": 5}')
    assert "▶ deny  one (stored)" in output
    assert "no shadow rule would have changed anything" in await run("shadow")
