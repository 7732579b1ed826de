"""What the API says about sub-agents, control calls, malformed responses and repeated approval requests."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from support.api.api_server import Api
from support.engine.stack import Stack, until
from support.engine.sub_agent_app import ORIGIN, World, step, task

from turngate.store.requests import requests
from turngate.store.runs import runs


async def fetch(api: Api, path: str) -> dict[str, Any]:
    answer = await api.operator.get(f"/api/v1{path}")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def stored(engine: Stack, run_id: str) -> runs.Run:
    async with engine.database.read() as conn:
        run = await runs.get(conn, run_id)
    assert run is not None
    return run


async def ended(api: Api, run_id: str) -> dict[str, Any]:
    await api.stack.ended(await stored(api.stack, run_id))
    return await fetch(api, f"/runs/{run_id}")


async def waiting(api: Api) -> dict[str, Any]:
    """The one request in the inbox, once it is there."""

    async def look() -> dict[str, Any] | None:
        page = await fetch(api, "/requests")
        return next(iter(page["items"]), None)

    return await until(look, "request in the inbox")


@pytest.mark.exhaustive
async def test_a_sub_agents_request_and_run_say_where_they_belong(office: Api) -> None:
    """Two agents deep: the inbox item and the run have the path; run, call and parent link to each other."""
    deepest = task(step(("pay", {"cents": 5})))
    middle = task(step(("clerk", {"task": deepest})))
    top = await office.start(task(step(("researcher", {"task": middle}))))
    item = await waiting(office)
    assert (item["path"], item["agent"]) == ("agent/researcher/clerk", "clerk")
    request = await fetch(office, f"/requests/{item['id']}")
    assert request["run"]["path"] == "agent/researcher/clerk"
    lowest = await fetch(office, f"/runs/{item['run_id']}")
    parent = lowest["parent"]
    assert (parent["run_id"], parent["tool_call_id"]) == (lowest["parent_run_id"], lowest["parent_tool_call_id"])
    assert (parent["tool_name"], parent["agents"]) == ("clerk", "agent \u203a researcher")
    above = await fetch(office, f"/runs/{parent['run_id']}")
    call = above["steps"][parent["step"] - 1]["calls"][parent["place"] - 1]
    assert call["tool_call_id"] == parent["tool_call_id"]
    assert call["child_run_id"] == lowest["id"]
    assert above["parent"]["run_id"] == top["id"]
    assert (await fetch(office, f"/runs/{top['id']}"))["parent"] is None
    listed = {run["id"]: run for run in (await fetch(office, "/runs"))["items"]}
    assert listed[lowest["id"]]["parent_run_id"] == above["id"]
    assert listed[top["id"]]["path"] == "agent"
    assert (await office.decide(request)).status_code == 200
    assert (await ended(office, top["id"]))["status"] == "completed"


async def test_a_finished_run_has_the_control_calls_answer(office: Api) -> None:
    """The last response made the call and is not the answer; the call's own text is."""
    run = await office.start(task(step(("finish", {"answer": "It is 42."}), words="I will end this.")))
    done = await ended(office, run["id"])
    assert done["final_text"] == "It is 42."
    assert done["steps"][0]["text"] == "I will end this."
    assert done["steps"][0]["calls"][0]["signal"] == {"signal": "finish", "answer": "It is 42."}


async def test_a_wait_says_until_when(office: Api) -> None:
    """A wait for some seconds is reported as the instant of its end, while it lasts and afterwards."""
    run = await office.start(task(step(("wait_until", {"seconds": 3600}))))

    async def look() -> dict[str, Any] | None:
        steps = (await fetch(office, f"/runs/{run['id']}"))["steps"]
        call = steps[0]["calls"][0] if steps and steps[0]["calls"] else None
        return call if call and call["signal"] else None

    call = await until(look, "wait")
    assert call["execution"] == "executing"
    begun = datetime.fromisoformat(call["started_at"])
    assert datetime.fromisoformat(call["waits_until"]) - begun == timedelta(hours=1)
    await office.stack.interrupt(await stored(office.stack, run["id"]))
    assert (await ended(office, run["id"]))["status"] == "interrupted"


@pytest.mark.exhaustive
async def test_a_hand_off_takes_the_path_along(office: Api) -> None:
    """After a hand-off, the agent that continues is the one that asks; the call says to whom, and the model switch to which."""
    steps = (
        step(("switch_model", {"model": "scripted:other"})),
        step(("hand_off", {"agent": "researcher"})),
        step(("clerk", {"task": task(step(("pay", {"cents": 1})))})),
    )
    run = await office.start(task(*steps))
    item = await waiting(office)
    assert item["path"] == "researcher/clerk"
    above = await fetch(office, f"/runs/{run['id']}")
    assert (above["agent"], above["path"]) == ("researcher", "researcher")
    assert [each["calls"][0]["signal"] for each in above["steps"][:2]] == [
        {"signal": "switch_model", "model": "scripted:other"},
        {"signal": "hand_off", "agent": "researcher"},
    ]
    assert (await office.decide(item)).status_code == 200
    await ended(office, run["id"])


async def test_an_unusable_response_comes_with_its_corrective_message(office: Api) -> None:
    """The step has the corrective message; a good step has none."""
    run = await office.start(task(step(malformed="an unclosed brace")))
    first, second = (await ended(office, run["id"]))["steps"]
    assert "an unclosed brace" in first["corrective"]
    assert "read_log" in first["corrective"]
    assert second["corrective"] is None


@pytest.mark.exhaustive
async def test_an_approval_that_no_longer_holds_links_to_its_successor(office: Api, world: World) -> None:
    """After the approval the state changed: the new request names the old one, and the other way round."""
    run = await office.start(task(step(("deploy", {}))))
    first = await fetch(office, f"/requests/{(await waiting(office))['id']}")
    assert (first["precondition"], first["instead_of"], first["replaced_by"]) == ('{"release": "r1"}', None, None)
    world.release = "r2"
    assert (await office.decide(first)).status_code == 200
    again = await fetch(office, f"/requests/{(await waiting(office))['id']}")
    assert (again["precondition"], again["instead_of"]) == ('{"release": "r2"}', first["id"])
    assert "changed before it could run" in again["reason"]
    assert first["earlier"] is None
    assert again["earlier"] == {
        "request_id": first["id"],
        "decided_by": again["earlier"]["decided_by"],
        "decided_at": (await fetch(office, f"/requests/{first['id']}"))["decided_at"],
        "precondition": '{"release": "r1"}',
    }
    assert (await fetch(office, f"/requests/{first['id']}"))["replaced_by"] == again["id"]
    assert (await office.decide(again)).status_code == 200
    await ended(office, run["id"])
    assert world.deployed == ["r2"]


async def test_a_tool_from_outside_says_where_it_comes_from(office: Api) -> None:
    """The request has the manifest's origin, as it was when the request was opened."""
    await office.start(task(step(("ledger_book", {}))))
    item = await waiting(office)
    assert (await fetch(office, f"/requests/{item['id']}"))["manifest"]["origin"] == ORIGIN


async def test_the_agents_list_marks_sub_agents(office: Api) -> None:
    """Each sub-agent names the agents that call it; the app's own name none."""
    listed = {agent["name"]: agent["sub_agent_of"] for agent in (await fetch(office, "/agents"))["items"]}
    assert listed == {"agent": [], "researcher": ["agent"], "clerk": ["researcher"]}


async def test_requests_of_one_call_are_those_of_its_kind(office: Api) -> None:
    """Approvals are listed by call and kind; another call's are not among them."""
    await office.start(task(step(("pay", {"cents": 1}), ("pay", {"cents": 2}))))

    async def look() -> list[dict[str, Any]] | None:
        items = (await fetch(office, "/requests"))["items"]
        return items if len(items) == 2 else None

    for item in await until(look, "two requests"):
        async with office.stack.database.read() as conn:
            approvals = await requests.of_call(conn, item["run_id"], item["tool_call_id"], kind="approval")
            outcomes = await requests.of_call(conn, item["run_id"], item["tool_call_id"], kind="outcome")
        assert ([each.id for each in approvals], outcomes) == ([item["id"]], [])
