"""Comments over HTTP: stored once however often they are sent, by people who may decide, and hidden from every model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from support.api.api_server import Api
from support.api.store_app import Desk, desk_on
from support.engine.stack import until

from turngate.store.database import Database
from turngate.store.events import events
from turngate.store.requests import comments


@pytest.fixture
async def desk(database: Database) -> AsyncIterator[Desk]:
    async with desk_on(database) as desk:
        yield desk


async def test_a_comment_sent_again_is_stored_once(desk: Desk) -> None:
    """Twelve times at once and again later with one key: one comment, one event, one answer; other words are refused."""
    run = await desk.run()
    address, other = await desk.put(run), await desk.put(run, "other")
    ann, bob = await desk.person("ann"), await desk.person("bob")
    key = {"Idempotency-Key": "k1"}

    async def say(text: str = "Is this the right account?", at: str = address) -> tuple[int, object]:
        answer = await ann.post(f"{at}/comments", json={"text": text}, headers=key)
        return answer.status_code, answer.json()

    answers = await asyncio.gather(*(say() for _ in range(12)))
    assert {status for status, _comment in answers} == {201}
    assert all(comment == answers[0][1] for _status, comment in [*answers, await say()])
    for status, problem in (await say("Other words"), await say(at=other)):
        assert (status, problem["code"]) == (409, "idempotency_key_reused")  # type: ignore[index]
    theirs = await bob.post(f"{address}/comments", json={"text": "Yes."}, headers=key)
    assert theirs.status_code == 201  # each person's keys are their own
    elsewhere = await desk.person("ann")  # in another browser
    anns = await elsewhere.post(f"{address}/comments", json={"text": "Hurry."}, headers=key)
    assert anns.status_code == 201
    listed = (await bob.get(f"{address}/comments")).json()["items"]
    assert [(each["author"], each["text"]) for each in listed] == [
        ("ann", "Is this the right account?"),
        ("bob", "Yes."),
        ("ann", "Hurry."),
    ]
    recorded = await desk.events()
    assert [(kind, payload["by"]) for kind, payload in recorded] == [
        ("request.commented", "ann"),
        ("request.commented", "bob"),
        ("request.commented", "ann"),
    ]
    assert "account" not in str(recorded)


async def test_comments_come_in_pages(desk: Desk) -> None:
    """Oldest first, each once; without a key the same words are stored as often as they are sent."""
    address = await desk.put(await desk.run())
    ann = await desk.person("ann")
    for number in range(5):
        assert (await ann.post(f"{address}/comments", json={"text": f"no. {number // 2}"})).status_code == 201
    seen, cursor = [], None
    while True:
        params = {"limit": 2} | ({"cursor": cursor} if cursor else {})
        page = (await ann.get(f"{address}/comments", params=params)).json()
        seen += [each["text"] for each in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == ["no. 0", "no. 0", "no. 1", "no. 1", "no. 2"]


async def test_only_people_who_may_decide_comment(desk: Desk) -> None:
    """An agent's token could write to operators in its name, so it may not; a text that is no comment is refused too."""
    address = await desk.put(await desk.run())
    bot, vic = await desk.machine("starter", "runs:write", "requests:read"), await desk.person("vic", "viewer")
    for who in (bot, vic):
        assert (await who.post(f"{address}/comments", json={"text": "approved by security"})).status_code == 403
        assert (await who.get(f"{address}/comments")).json()["items"] == []
    ann = await desk.person("ann")
    for body in ({"text": ""}, {"text": " \n"}, {"text": "x" * 10_001}, {"text": "a\u0000"}, {"text": 1}, {}):
        refused = await ann.post(f"{address}/comments", json=body)
        assert refused.status_code == 422, body
    assert (await ann.post(f"{address}/comments", json={"text": "x" * 10_000})).status_code == 201
    for bad in ("", "k" * 256):
        refused = await ann.post(f"{address}/comments", json={"text": "x"}, headers={"Idempotency-Key": bad})
        assert refused.status_code == 422, bad
    assert (await ann.get("/api/v1/requests/none/comments")).status_code == 404
    assert (await ann.post("/api/v1/requests/none/comments", json={"text": "x"})).status_code == 404


async def test_no_model_reads_comments(api: Api) -> None:
    """A run that continues after a comment does not have it in any message of its conversation."""
    request = await api.gated()
    address = f"/api/v1/requests/{request['id']}"
    assert (await api.operator.post(f"{address}/comments", json={"text": "between us"})).status_code == 201
    assert (await api.decide(request)).status_code == 200

    async def ended() -> bool:
        return (await api.operator.get(f"/api/v1/runs/{request['run_id']}")).json()["status"] != "running"

    await until(ended, "end of the run")
    spoken = await api.operator.get(f"/api/v1/conversations/{request['run']['conversation_id']}/messages")
    assert len(spoken.json()["items"]) == 4
    assert "between us" not in spoken.text
    async with api.stack.database.read() as conn:
        assert len(await comments.of_request(conn, request["id"], limit=9)) == 1


async def test_credentials_in_what_people_write_are_masked(desk: Desk) -> None:
    """In a comment, the reason of a pause, and that of changed rules: in the API, on the page and in the log."""
    key = "ghp_" + "a1B2c3D4e5F6" * 3
    run = await desk.run()
    address = await desk.put(run)
    ada = await desk.person("ada", "admin")
    written = await ada.post(f"{address}/comments", json={"text": f"Try {key} first."})
    assert (written.status_code, written.json()["text"]) == (201, "Try ⟦secret⟧ first.")
    assert (await ada.post(f"/api/v1/runs/{run.id}/pause", json={"reason": f"not with {key}"})).is_success
    rules = {"source": "", "comment": f"no {key}", "if_version": 0}
    assert (await ada.put("/api/v1/policy", json=rules)).status_code == 200
    surfaces = ("/comments", "", "/../../audit", "/../../policy", f"/../../runs/{run.id}")
    read = [(await ada.get(f"{address}{each}")) for each in surfaces]
    read += [await ada.get(each) for each in ("/requests/rq", f"/runs/{run.id}", "/audit", "/policy")]
    assert [(each.status_code, str(each.url)) for each in read if key[8:] in each.text or each.status_code != 200] == []
    assert "Try ⟦secret⟧ first." in read[0].text
    async with desk.database.read() as conn:
        assert key[8:] not in str([each.payload for each in await events.after(conn, 0)])
