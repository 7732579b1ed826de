"""Schedules over HTTP, from Python, from a terminal and on their pages."""

from __future__ import annotations

import asyncio
import json
import secrets
from datetime import timedelta
from typing import Any

import httpx
import pytest
from support.api.api_server import Api, token_for
from support.engine.stack import until
from typer.testing import CliRunner

from turngate.cli.main import app
from turngate.client import TurngateClient
from turngate.domain.agents.schedules import Timetable, next_fires
from turngate.domain.errors import ConflictError, NotFoundError
from turngate.store.clock import from_text
from turngate.store.events import events
from turngate.wire.orders import ScheduleChange, ScheduleOrder

SELDOM = {"cron": "0 8 1 jan *", "time_zone": "Europe/Berlin"}


def named() -> str:
    return f"s-{secrets.token_hex(4)}"


async def post(client: httpx.AsyncClient, key: str | None = None, **body: Any) -> httpx.Response:
    whole = {"name": named(), "agent": "agent", "input": "hello", "timetable": SELDOM, **body}
    headers = {} if key is None else {"Idempotency-Key": key}
    return await client.post("/api/v1/schedules", json=whole, headers=headers)


async def audited(api: Api, schedule_id: str) -> list[tuple[str, str | None]]:
    async with api.stack.database.read() as conn:
        recorded = await events.after(conn, 0, run_id=events.SYSTEM, limit=5_000)
    return [(each.type, each.payload.get("by")) for each in recorded if each.payload.get("schedule_id") == schedule_id]


async def test_a_schedule_is_created_paused_fired_and_deleted(api: Api) -> None:
    """Each change returns the schedule as it is then, takes effect in Temporal, and is in the log with its author."""
    name, key = named(), secrets.token_hex(4)
    created = await post(api.agent, key, name=name, notes="n", unattended="deny")
    assert created.status_code == 201, created.text
    schedule = created.json()
    path = f"/api/v1/schedules/{schedule['id']}"
    assert created.headers["Location"] == path
    assert (schedule["in_force"], schedule["says"]) == (True, "at 0 8 1 jan * (Europe/Berlin)")
    assert [each[4:] for each in schedule["next_fires"]] == ["-01-01T07:00:00.000000+00:00"] * 5
    assert (await post(api.agent, key, name=name, notes="n", unattended="deny")).json()["id"] == schedule["id"]
    reused = await post(api.agent, key, name=name)
    taken = await post(api.agent, name=name)
    assert [(each.status_code, each.json()["code"]) for each in (reused, taken)] == [
        (409, "idempotency_key_reused"),
        (409, "name_taken"),
    ]
    held = (await api.operator.post(f"{path}/pause", json={"reason": "holiday"})).json()
    assert (held["paused_by"], held["pause_reason"], held["next_fires"], held["in_force"]) == (
        f"ada-{api.name}",
        "holiday",
        [],
        True,
    )
    assert (await api.agent.post(f"{path}/pause")).json()["pause_reason"] == "holiday"
    first = await api.operator.post(f"{path}/run", headers={"Idempotency-Key": key})
    again = await api.operator.post(f"{path}/run", headers={"Idempotency-Key": key})
    run = first.json()
    assert (first.status_code, run["id"], run["schedule_id"]) == (201, again.json()["id"], schedule["id"])
    assert (run["attended"], run["unattended_asks"], run["started_by"]) == (False, "deny", f"bot-{api.name}")
    on = (await api.agent.post(f"/api/v1/schedules/{name}/resume")).json()
    assert (on["paused_at"], len(on["next_fires"]), on["opened"], on["fires"][0]["run_id"]) == (None, 5, 1, run["id"])
    gone = await api.agent.delete(path)
    assert (gone.status_code, gone.json()["deleted_by"], gone.json()["in_force"]) == (200, f"bot-{api.name}", True)
    for late in (api.agent.delete(path), api.agent.post(f"{path}/run"), api.agent.post(f"{path}/resume")):
        refused = await late
        assert (refused.status_code, refused.json()["code"]) == (409, "schedule_deleted")
    assert (await api.agent.get(f"/api/v1/schedules/{name}")).status_code == 404
    assert (await api.agent.get(path)).json()["opened"] == 1
    bot, ada = f"bot-{api.name}", f"ada-{api.name}"
    assert await audited(api, schedule["id"]) == [
        ("schedule.created", bot),
        ("schedule.paused", ada),
        ("schedule.fired", ada),
        ("schedule.resumed", bot),
        ("schedule.deleted", bot),
    ]


async def test_schedules_are_listed_in_pages(idle: Api) -> None:
    """Newest first, without deleted ones; the cursor continues where the page ended."""
    ids = [(await post(idle.agent)).json()["id"] for _ in range(3)]
    first = (await idle.operator.get("/api/v1/schedules?limit=2")).json()
    rest = (await idle.operator.get("/api/v1/schedules", params={"cursor": first["next_cursor"]})).json()
    assert [each["id"] for each in (*first["items"], *rest["items"])] == ids[::-1]
    assert all(each["next_fire_at"] for each in first["items"])
    for each in ids[1:]:
        await idle.agent.delete(f"/api/v1/schedules/{each}")
    left = (await idle.operator.get("/api/v1/schedules")).json()
    assert [each["id"] for each in left["items"]] == ids[:1]


@pytest.mark.parametrize(
    ("pointer", "message", "body"),
    [
        ("/timetable/cron", "minute: 61", {"timetable": {"cron": "61 * * * *"}}),
        ("/timetable", "either", {"timetable": {}}),
        ("/timetable/every_seconds", "integer", {"timetable": {"every_seconds": "5"}}),
        ("/timetable/starts_at", "RFC 3339", {"timetable": {"every_seconds": 5, "starts_at": "tomorrow"}}),
        ("/timetable/ends_at", "a string", {"timetable": {"every_seconds": 5, "ends_at": 5}}),
        ("/timetable/time_zone", "Europe/Berlin", {"timetable": {"cron": "0 8 * * *", "time_zone": "CEST/x"}}),
        ("/agent", "there is no agent", {"agent": "missing"}),
        ("/overlap", "one live run", {"conversation": "continue", "overlap": "allow"}),
        ("/catch_up_seconds", "10", {"catch_up_seconds": 1}),
        ("/name", "pattern", {"name": "a b"}),
    ],
)
async def test_what_does_not_fit_is_reported_with_its_place(
    api: Api, pointer: str, message: str, body: dict[str, Any]
) -> None:
    """422 with a pointer to the member that does not fit; nothing was saved."""
    name = named()
    refused = await post(api.agent, **{"name": name, **body})
    assert (refused.status_code, refused.headers["content-type"]) == (422, "application/problem+json")
    (problem,) = refused.json()["errors"]
    assert problem["pointer"] == pointer
    assert message in problem["message"]
    assert (await api.agent.get(f"/api/v1/schedules/{name}")).status_code == 404


async def test_only_the_newest_revision_of_a_schedule_can_be_changed(api: Api) -> None:
    """The sent members change, in Temporal too; an older revision is refused, and so is a member that does not fit the rest."""
    schedule = (await post(api.agent, conversation="continue", notes="n")).json()
    path = f"/api/v1/schedules/{schedule['id']}"
    new = {
        "revision": 1,
        "name": named(),
        "input": "more",
        "timetable": {"every_seconds": 86_400},
        "overlap": "buffer_one",
    }
    root = f"root-{secrets.token_hex(3)}"
    admin = await token_for(api.stack.database, root, "admin")
    changed = (await api.stranger.patch(path, json=new, headers=admin)).json()
    unchanged = ("agent", "notes", "conversation_id", "created_by", "unattended")
    assert {name: changed[name] for name in unchanged} == {name: schedule[name] for name in unchanged}
    assert (changed["revision"], changed["name"], changed["input"], changed["says"], changed["overlap"]) == (
        *(2, new["name"], "more", "every 1d", "buffer_one"),
    )
    assert changed["in_force"]
    assert changed["next_fires"][0][11:19] == "00:00:00"
    late = await api.agent.patch(path, json={"revision": 1, "notes": "m"})
    assert (late.status_code, late.json()["code"], late.json()["revision"]) == (409, "revision_differs", 2)
    beside = await api.agent.patch(path, json={"revision": 2, "overlap": "allow"})
    assert (beside.status_code, beside.json()["errors"][0]["pointer"]) == (422, "/overlap")
    taken = await api.agent.patch(path, json={"revision": 2, "name": (await post(api.agent)).json()["name"]})
    assert (taken.status_code, taken.json()["code"]) == (409, "name_taken")
    same = (await api.agent.patch(path, json={"revision": 2, "notes": "n"})).json()
    assert same["revision"] == 2
    assert await audited(api, schedule["id"]) == [
        ("schedule.created", f"bot-{api.name}"),
        ("schedule.changed", root),
    ]


async def test_a_schedule_takes_the_scope_of_runs(api: Api) -> None:
    """A token that may only read sees them, and changes nothing."""
    schedule = (await post(api.agent)).json()
    reader = await token_for(api.stack.database, named(), "requests:read")
    path = f"/api/v1/schedules/{schedule['id']}"
    assert (await api.stranger.get(path, headers=reader)).status_code == 200
    for change in ("pause", "resume", "run"):
        assert (await api.stranger.post(f"{path}/{change}", headers=reader)).status_code == 403
    assert (await api.stranger.delete(path, headers=reader)).status_code == 403
    assert (await api.stranger.get(path)).status_code == 401


async def test_a_schedule_can_be_changed_while_temporal_is_away(api: Api, cut_off: Api) -> None:
    """It is stored, and marked as not in force; only a run is refused, with nothing changed."""
    schedule = (await post(cut_off.agent)).json()
    path = f"/api/v1/schedules/{schedule['id']}"
    assert (schedule["in_force"], schedule["next_fires"]) == (None, [])
    assert (await cut_off.agent.post(f"{path}/pause")).json()["paused_by"] == f"bot-{api.name}"
    assert (await cut_off.agent.post(f"{path}/run")).status_code == 503
    seen = (await api.agent.get(path)).json()
    assert (seen["paused_by"], seen["opened"]) == (f"bot-{api.name}", 0)
    assert (await cut_off.agent.get("/api/v1/schedules")).json()["items"][0]["in_force"] is None
    resumed = (await api.agent.post(f"{path}/resume")).json()  # a change while Temporal is there brings all of it
    assert (resumed["in_force"], len(resumed["next_fires"])) == (True, 5)


@pytest.mark.exhaustive
async def test_the_client_covers_schedules(api: Api) -> None:
    """Every method, and our own errors with their details."""
    token = (await token_for(api.stack.database, named(), "runs:write"))["Authorization"].removeprefix("Bearer ")
    name = named()
    async with TurngateClient(api.url, token=token) as client:
        wanted = ScheduleOrder(
            name=name, agent="agent", input="pay 3", timetable=Timetable(every_seconds=86_400), conversation="continue"
        )
        schedule = await client.create_schedule(wanted)
        assert (schedule.conversation_id or "").startswith("conv_")
        run = await client.run_schedule(name)
        with pytest.raises(ConflictError) as live:
            await client.run_schedule(name)
        assert (live.value.error_code, live.value.details["run_id"]) == ("run_live", run.id)
        await api.request({"id": run.id})
        await client.interrupt(run.id)
        assert schedule.id in [each.id async for each in client.iter_schedules(limit=5)]
        assert (await client.change_schedule(name, ScheduleChange(notes="n"), revision=1)).revision == 2
        assert (await client.pause_schedule(name, reason="x")).pause_reason == "x"
        assert (await client.resume_schedule(name)).paused_at is None
        assert [each.outcome for each in (await client.get_schedule(schedule.id)).fires] == ["opened"]
        assert (await client.delete_schedule(name)).deleted_at is not None
        with pytest.raises(NotFoundError):
            await client.get_schedule(name)
        assert name not in [each.name for each in (await client.list_schedules()).items]


@pytest.mark.exhaustive
async def test_a_schedule_in_a_terminal(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Created with a span or an expression, listed, paused, resumed, fired and deleted; a typo names its option and field."""
    token = await token_for(api.stack.database, f"cli-{api.name}", "runs:write")
    monkeypatch.setenv("TURNGATE_TOKEN", token["Authorization"].removeprefix("Bearer "))
    name = named()

    async def run(*words: str) -> Any:
        return await asyncio.to_thread(CliRunner().invoke, app, ["schedule", *words, "--url", api.url])

    for wrong, message in {
        ("--cron", "61 * * * *"): "--cron: minute: 61 is not 0 to 59",
        ("--cron", "* * *"): "--cron: five fields",
        ("--every", "soon"): "--every soon: write it like",
        ("--every", "5s", "--cron", "* * * * *"): "give either --cron or --every",
        ("--every", "5s", "--jitter", "2d"): "--jitter 2d: from 0s to 1d",
        ("--every", "5s", "--catch-up", "1s"): "--catch-up 1s: from 10s to 30d",
        ("--every", "5s", "--ends-at", "7d"): "--ends-at 7d: write it like",
        ("--cron", "0 8 * * *", "--time-zone", "Europe/Berlim"): "'Europe/Berlim' is no time zone",
    }.items():
        refused = await run("create", name, "hello", *wrong)
        assert refused.exit_code in {1, 2}
        assert message in refused.output
    created = await run(
        "create", name, "hello", "--cron", "0 8 1 1 *", "--overlap", "buffer-one", "--conversation", "continue"
    )
    assert created.exit_code == 0, created.output
    assert "fires       at 0 8 1 1 * (UTC)" in created.output
    assert "one waits for the end of the run before" in created.output
    schedule = json.loads((await run("show", name, "--json")).stdout)
    assert (schedule["overlap"], schedule["catch_up_seconds"], schedule["created_by"]) == (
        "buffer_one",
        600,
        f"cli-{api.name}",
    )
    (line,) = [line for line in (await run("list")).stdout.splitlines() if line.startswith(name)]
    assert line.split("\t")[1:3] == ["agent", "at 0 8 1 1 * (UTC)"]
    changed = await run("change", name, "--every", "2d", "--jitter", "1h", "--notes", "seldom")
    assert "fires       every 2d, up to 1h later" in changed.output
    assert "need --cron or --every" in (await run("change", name, "--jitter", "1h")).output
    fired = await run("run", name, "--watch")
    assert (fired.exit_code, "Done." in fired.output) == (0, True), fired.output
    assert f"opened by schedule {schedule['id']}: no one attends it" in fired.output
    assert "is held by" in (await run("pause", name, "--reason", "later")).output
    assert "held        by" in (await run("show", name)).output
    assert "continues; next at" in (await run("resume", name)).output
    gone = await run("delete", name)
    assert "is deleted; it opened 1 run(s), which stay" in gone.output
    assert (await run("show", name)).exit_code == 1
    listed = await asyncio.to_thread(CliRunner().invoke, app, ["runs", "--url", api.url])
    assert f"by schedule {schedule['id']}: hello" in listed.stdout


async def test_a_fire_of_the_clock_reaches_the_run_list(api: Api) -> None:
    """A second later there is a run without anyone asking, with its schedule's name, and the schedule is paused."""
    schedule = (await post(api.agent, timetable={"every_seconds": 1})).json()
    path = f"/api/v1/schedules/{schedule['id']}"

    async def opened() -> list[dict[str, Any]]:
        return (await api.agent.get(path)).json()["fires"]

    fire = (await until(opened, "first fire"))[-1]
    await api.agent.delete(path)
    run = (await api.agent.get(f"/api/v1/runs/{fire['run_id']}")).json()
    assert (run["schedule_id"], run["task"], fire["fired_by"]) == (schedule["id"], "hello", None)


@pytest.mark.parametrize(
    "timetable",
    [
        Timetable(cron="30 2 * * *", time_zone="Europe/Berlin"),
        Timetable(cron="0 8 13 * fri", time_zone="America/New_York"),
        Timetable(cron="*/20 22-23 28-31 feb,dec *"),
        Timetable(every_seconds=5_400),
        Timetable.model_validate({"cron": "0 0 1 * *", "starts_at": "2090-05-01T00:00:00Z"}),
    ],
)
async def test_the_form_and_temporal_agree_on_the_next_fires(idle: Api, timetable: Timetable) -> None:
    """The times that the form shows before a schedule is stored are those at which Temporal then fires."""
    posted = await post(idle.agent, timetable=timetable.model_dump(mode="json", exclude_defaults=True))
    schedule = posted.json()
    fires = [from_text(each) for each in schedule["next_fires"]]
    assert len(fires) == 5
    assert next_fires(timetable, fires[0] - timedelta(seconds=1), 5) == fires
    await idle.agent.delete(f"/api/v1/schedules/{schedule['id']}")
