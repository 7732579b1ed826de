"""Approving many calls within seconds, on the page and through the API: the server says why it waits, and for how long."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
from support.api.store_app import Desk, desk_on
from support.pages.html_forms import PostedPage

from turngate.approvals_api.settings import ApiSettings
from turngate.store.database import Database

NOW = 1_000.0


class Hour:
    """A clock that a test moves."""

    now = NOW

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def hour() -> Hour:
    return Hour()


@pytest.fixture
async def desk(sqlite: Database, hour: Hour) -> AsyncIterator[Desk]:
    """Forty requests of one run, and an app in which a person approves three within ten seconds, two of one tool."""
    async with desk_on(sqlite, ApiSettings(approval_pace=3)) as desk:
        desk.services.pace.clock = hour
        run = await desk.run()
        for number in range(40):
            await desk.put(run, f"rq_{number}")
        yield desk


async def decide(by: httpx.AsyncClient, number: int, verb: str = "approve", **more: str) -> httpx.Response:
    body = {"decision": verb, "digest": "d", **more}
    return await by.post(f"/api/v1/requests/rq_{number}/decisions", json=body)


async def press(by: httpx.AsyncClient, number: int, **typed: str) -> httpx.Response:
    """Press Approve on a request's page."""
    form = PostedPage((await by.get(f"/requests/rq_{number}")).text).form("approve")
    return await by.post(f"/requests/rq_{number}", data={**form.sent, **typed})


async def test_the_api_says_how_long_to_wait_and_why(desk: Desk, hour: Hour) -> None:
    """The third approval of one tool is a 429 with the seconds; a rejection is not held up; after the wait it is taken."""
    ann = await desk.person("ann")
    assert [(await decide(ann, number)).status_code for number in range(2)] == [200, 200]
    refused = await decide(ann, 2)
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "10")
    assert (refused.json()["code"], refused.json()["retry_after_seconds"]) == ("too_fast", 10)
    assert "2 calls of pay within 10 seconds" in refused.json()["detail"]
    assert (await decide(ann, 3, "reject")).status_code == 200
    hour.now += 10
    assert (await decide(ann, 2)).json()["status"] == "approved"


async def test_a_word_is_needed_after_many_and_no_script_gets_around_the_breath(desk: Desk, hour: Hour) -> None:
    """Typing the word does not shorten the wait, and waiting alone does not save the word."""
    ann = await desk.person("ann")
    for number in range(4):
        assert (await decide(ann, number)).status_code == 200
        hour.now += 6
    refused = await decide(ann, 4)
    assert (refused.status_code, refused.json()["code"]) == (422, "confirm_needed")
    assert refused.json()["errors"][0]["pointer"] == "/confirm"
    assert (await decide(ann, 4, confirm="pay")).status_code == 200
    assert (await decide(ann, 5, confirm="pay")).status_code == 429


async def test_a_machine_is_not_slowed(desk: Desk) -> None:
    """A token of no person approves any number at once."""
    bot = await desk.machine("bot", "requests:decide")
    assert {(await decide(bot, number)).status_code for number in range(20)} == {200}


async def test_what_is_refused_does_not_count(desk: Desk) -> None:
    """Decisions that come too late or name another digest use up nothing, and a repeat gets its first answer."""
    ann, bot = await desk.person("ann"), await desk.machine("bot", "requests:decide")
    assert (await decide(bot, 0)).status_code == 200
    for _attempt in range(5):
        assert (await decide(ann, 0)).status_code == 409
    key = {"Idempotency-Key": "mine"}
    for number in (1, 2, 2, 2):
        headers = key if number == 2 else {}
        body = {"decision": "approve", "digest": "d"}
        answer = await ann.post(f"/api/v1/requests/rq_{number}/decisions", json=body, headers=headers)
        assert answer.status_code == 200


async def test_several_together_are_one_act(desk: Desk, hour: Hour) -> None:
    """Ten calls that were reviewed together count once; the third such act within seconds waits, and nothing is decided."""
    ann = await desk.person("ann")

    async def together(first: int) -> httpx.Response:
        items = [{"request_id": f"rq_{number}", "digest": "d"} for number in range(first, first + 10)]
        return await ann.post("/api/v1/requests/decisions", json={"decision": "approve", "items": items})

    for first in (0, 10):
        assert {each["status"] for each in (await together(first)).json()["items"]} == {200}
    assert (await together(20)).json()["code"] == "too_fast"
    hour.now += 10
    assert {each["status"] for each in (await together(20)).json()["items"]} == {200}


async def test_the_page_says_why_and_asks_for_the_word(desk: Desk, hour: Hour) -> None:
    """Without JavaScript: the page names the seconds, then has a field for the tool's name, and takes the approval with it."""
    ann = await desk.person("ann")
    for number in range(2):
        assert (await press(ann, number)).status_code == 303
    refused = await press(ann, 2)
    assert refused.status_code == 429
    assert "Take a breath." in refused.text
    assert 'data-wait="10"' in refused.text
    hour.now += 10
    assert (await press(ann, 2)).status_code == 303
    hour.now += 10
    assert (await press(ann, 3)).status_code == 303
    hour.now += 10
    refused = await press(ann, 4)
    assert refused.status_code == 422
    assert "approve-confirm" in PostedPage(refused.text).form("approve").sent
    assert "You approved 4 calls of pay within a minute." in refused.text
    assert (await press(ann, 4, **{"approve-confirm": "pay"})).status_code == 303
