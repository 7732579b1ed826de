"""Four eyes: where a rule wants someone else than the starter, everyone whose order led to the call is its starter (I10)."""

from __future__ import annotations

import secrets
from typing import Any

import httpx
import pytest
from support.api.api_server import Api, session_for, token_for
from support.engine.stack import until

SELDOM = {"cron": "0 8 1 jan *", "time_zone": "Europe/Berlin"}


class Person:
    """Someone who is logged in, and the API as they use it."""

    def __init__(self, api: Api, name: str, cookies: dict[str, str]) -> None:
        self.api = api
        self.name = name
        self._cookies = cookies

    async def post(self, url: str, body: dict[str, Any] | None = None) -> httpx.Response:
        async with httpx.AsyncClient(
            base_url=self.api.url, cookies=self._cookies, headers={"Origin": self.api.url}, trust_env=False, timeout=30
        ) as client:
            return await client.post(f"/api/v1/{url}", json=body)

    async def decides(self, request: dict[str, Any], verb: str = "approve") -> tuple[int, str]:
        """Return the status and code of this person's decision."""
        answer = await self.post(f"requests/{request['id']}/decisions", {"decision": verb, "digest": request["digest"]})
        return answer.status_code, answer.json().get("code", "")


async def person(api: Api, name: str) -> Person:
    name = f"{name}-{secrets.token_hex(3)}"
    return Person(api, name, await session_for(api.stack.database, name))


async def started(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code in {200, 201, 202}, answer.text
    body: dict[str, Any] = answer.json()
    return body.get("run") or body


async def over(api: Api, run: dict[str, Any]) -> dict[str, Any]:
    async def look() -> bool:
        return bool((await api.operator.get(f"/api/v1/runs/{run['id']}")).json()["status"] != "running")

    await until(look, "end of the run")
    return run


@pytest.mark.parametrize("how", ["message", "fork"])
async def test_i10_who_began_and_who_continued_are_both_starters(api: Api, how: str) -> None:
    """Eve's run, continued by Ada with a message or a fork: neither may approve what its next run asks for, and Zoe may."""
    eve, ada, zoe = [await person(api, name) for name in ("eve", "ada", "zoe")]
    begun = await over(api, await started(await eve.post("runs", {"agent": "agent", "input": "hello"})))
    if how == "message":
        answer = await ada.post(f"runs/{begun['id']}/messages", {"input": "pay_shared 5"})
    else:
        answer = await ada.post(f"runs/{begun['id']}/fork", {"text": "pay_shared 5"})
    request = await api.request(await started(answer))
    detail = (await api.operator.get(f"/api/v1/requests/{request['id']}")).json()
    assert detail["starters"] == sorted([eve.name, ada.name])
    for barred in (eve, ada):
        assert await barred.decides(request) == (403, "not_eligible"), barred.name
        assert await barred.decides(request, "reject") == (403, "not_eligible"), barred.name
        claim = await barred.post(f"requests/{request['id']}/claim", {})
        assert (claim.status_code, claim.json()["code"]) == (403, "not_eligible")
    assert (await zoe.decides(request))[0] == 200


async def test_i10_who_rewrote_or_fired_a_schedule_is_a_starter(api: Api) -> None:
    """Bob's schedule, changed by Root and fired by Ada: none of them may approve what it does, and Zoe may."""
    bob, ada, zoe = [await person(api, name) for name in ("bob", "ada", "zoe")]
    order = {"name": f"s-{secrets.token_hex(4)}", "agent": "agent", "input": "hello", "timetable": SELDOM}
    schedule = (await bob.post("schedules", order)).json()
    root_name = f"root-{secrets.token_hex(3)}"
    root = await token_for(api.stack.database, root_name, "admin")
    url = f"/api/v1/schedules/{schedule['id']}"
    body = {"input": "pay_shared 5", "revision": schedule["revision"]}
    changed = await api.stranger.patch(url, json=body, headers=root)
    assert changed.status_code == 200, changed.text
    request = await api.request(await started(await ada.post(f"schedules/{schedule['id']}/run")))
    for barred in (bob, ada):
        assert await barred.decides(request) == (403, "not_eligible"), barred.name
    order = {"decision": "approve", "digest": request["digest"]}
    by_root = await api.stranger.post(f"/api/v1/requests/{request['id']}/decisions", json=order, headers=root)
    assert (by_root.status_code, by_root.json()["code"]) == (403, "not_eligible")
    assert (await zoe.decides(request))[0] == 200


async def test_i10_who_messages_or_switches_later_did_not_lead_to_the_call(api: Api) -> None:
    """What is ordered after the request was opened did not lead to it: an operator who writes to a run still decides."""
    eve, ada = [await person(api, name) for name in ("eve", "ada")]
    run = await started(await eve.post("runs", {"agent": "agent", "input": "pay_shared 5"}))
    request = await api.request(run)
    assert (await ada.post(f"runs/{run['id']}/messages", {"input": "hello"})).status_code in {200, 201, 202}
    assert (await ada.decides(request))[0] == 200
