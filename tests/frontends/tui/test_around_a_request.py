"""What is around a request in the terminal UI: comments, claims, approvals by several people, and grants."""

from __future__ import annotations

import asyncio

import pytest
from support.api.api_server import Api
from support.planted.precedents import caught_up
from support.programs.tui_person import calling, person_at
from support.stores.changed_rows import changed
from support.stores.users import added
from textual.widgets import Input, TextArea

from turngate.store import tables

DESK = ("requests:read", "requests:decide")
SHARE = calling("share", {"street": "Rue", "floor": 1})


@pytest.mark.exhaustive
async def test_people_talk_claim_and_approve_together(api: Api) -> None:
    """`w` comments and `c` claims, both seen by all; of two approvals the first is counted and named, the second runs it."""
    await added(api.stack.database, "grace")
    request = await api.gated(SHARE)
    async with person_at(api, size=(100, 60), name="desk", owner="grace", scopes=DESK) as person:
        await person.sees("0 of 2 approvals")
        await person.opens()
        await person.sees("0 of 2, by different people; one rejection ends it")
        comment = {"text": "careful\u202e [b]now[/b]"}
        assert (await api.operator.post(f"/api/v1/requests/{request['id']}/comments", json=comment)).status_code == 201
        await person.sees("careful⟨U+202E⟩ [b]now[/b]")
        await person.press("w")
        await person.dialog_field(TextArea).fill("half a thought")
        await person.press("escape", "w")
        assert await person.dialog_field(TextArea).text() == "half a thought", "what was typed is lost when it is left"
        await person.dialog_field(TextArea).fill("I know them.")
        await person.press("ctrl+s")
        screen = await person.sees("┊ I know them.")
        assert screen.index("careful") < screen.index("I know them.")
        await person.press("c")
        await person.sees("You have claimed this; it ends in 9 min")
        await person.press("c")
        await person.sees("You gave it back")
        await person.twice("a")
        await person.sees("Counts as one of 2 approvals")
        await person.sees("1 of 2 approvals: grace")
        await person.sees("You approved it. More people must.")
        assert (await person.request(request))["status"] == "pending"
        await person.twice("a")
        await person.until(lambda: not person.app.screen.refresher._is_running, "the answer")
        assert (await person.request(request))["approvals"] == 1
        assert (await api.decide(request)).status_code == 200
        await person.sees(f"approved by ada-{api.name}")
    comments = (await api.operator.get(f"/api/v1/requests/{request['id']}/comments")).json()["items"]
    assert [(each["author"], each["text"]) for each in comments] == [
        (f"ada-{api.name}", comment["text"]),
        ("grace", "I know them."),
    ]


@pytest.mark.exhaustive
async def test_a_grant_is_displayed_before_it_is_saved(api: Api) -> None:
    """`g` displays what would run without asking; only then it can be saved; `3` lists it, with the calls that it allowed."""
    request = await api.gated(calling("write", {"text": "a\u202e[b]b[/b]"}))
    async with person_at(api, size=(100, 40)) as person:
        await person.sees("1 waits")
        await person.opens()
        await person.press("g")
        await person.sees('exactly "a⟨U+202E⟩[b]b[/b]"')
        await person.put("grant-3", "0")
        await person.press("ctrl+s")
        await person.until(lambda: "1 to 10,000" in person.beside("grant-3"), "complaint about the uses")
        await person.put("grant-3", "2")
        await person.press("ctrl+s")
        screen = await person.sees("This is what would run without asking")
        assert 'with text exactly "a⟨U+202E⟩[b]b[/b]"' in screen
        assert "in this run, at most 2 times, for 1 h." in screen
        await person.press("escape")
        await person.sees("Not confirmed; nothing was sent")
        assert (await api.operator.get("/api/v1/grants")).json()["items"] == []
        await person.at("grant-0-0")
        await person.press("right")
        await person.at("grant-1")
        await person.press("right")
        await person.press("ctrl+s")
        screen = await person.sees("with text anything at all")
        assert "in every run of this agent" in screen
        await person.twice("a")
        await person.sees("approved by ada")
        assert (await person.decided(request))["status"] == "approved"

        await api.start("write whatever")
        await person.press("3")
        await person.sees("used 1 of 2")
        await person.press("enter")
        await person.sees("WHAT IT LET THROUGH")
    grants = (await api.operator.get("/api/v1/grants")).json()["items"]
    assert [(each["pattern"]["open"], each["scope"], each["created_by"]) for each in grants] == [
        (["text"], "agent", "ada")
    ]


async def test_a_grant_with_a_range_and_a_total_is_displayed_before_it_is_saved(api: Api) -> None:
    """The dialog takes both in one line each; what can't be read is complained about, and nothing is sent."""
    request = await api.gated("pay 42")
    async with person_at(api, size=(100, 40)) as person:
        await person.sees("1 waits")
        await person.opens()
        await person.press("g")
        await person.sees("exactly 42")
        await person.at("grant-0-0")
        await person.press("right")
        await person.press("right")
        await person.put("grant-5-0", "40")
        await person.press("ctrl+s")
        await person.sees("a range is written as FROM..TO")
        await person.put("grant-5-0", "40..50")
        await person.put("grant-6", "cents=99.5/week")
        await person.press("ctrl+s")
        screen = await person.sees("with cents from 40 to 50")
        assert "up to a total of 99.5 at /cents per week (UTC)," in screen
        await person.twice("a")
        await person.sees("approved by ada")
        assert (await person.decided(request))["status"] == "approved"
    (grant,) = (await api.operator.get("/api/v1/grants")).json()["items"]
    assert (grant["pattern"]["within"], grant["total_used"]) == ({"cents": {"op": "between", "value": [40, 50]}}, "0")


@pytest.mark.exhaustive
async def test_a_grant_answers_what_waits_already(api: Api) -> None:
    """The same arguments are approved at once, others after a review; how long and how much was looked at is stored and shown."""
    same = [await api.gated("pay 42"), await api.gated("pay 42")]
    async with person_at(api, size=(100, 60)) as person:
        await person.sees("2 wait")
        await person.opens()
        await person.press("g")
        await person.sees("exactly 42")
        await person.at("grant-1")
        await person.press("right")
        await person.at("grant-7")
        await person.press("right")
        await person.press("ctrl+s")
        await person.sees("What waits with exactly these arguments is approved, too")
        await person.twice("a")
        await person.sees("1 of 1 others that waited are approved, too.")
        await person.sees("looked at for")
        looks = [(await person.decided(each))["decision"] for each in same]
        ((seen, looked),) = [
            (each["seen_percent"], each["looked_ms"]) for each in looks if each["looked_ms"] is not None
        ]
        assert (seen, looked > 0) == (100, True)
        assert sorted(each["message"][:6] for each in looks) == ["", "Grant "]

        near = [await api.gated("pay 51"), await api.gated("pay 52")]
        await person.press("u")
        await person.sees("2 wait")
        await person.opens()
        await person.press("g")
        await person.at("grant-0-0")
        await person.press("right")
        await person.press("right")
        await person.put("grant-5-0", "50..60")
        await person.at("grant-1")
        await person.press("right")
        await person.at("grant-7")
        await person.press("right")
        await person.press("ctrl+s")
        await person.sees("Then you review what waits and this covers.")
        await person.twice("a")
        await person.sees("1 requests, each as it would run")
        await person.reads_to_the_end()
        await person.twice("a")
        await person.sees("1 decided, 0 not")
        decisions = [(await person.decided(each))["decision"] for each in near]
    assert sorted(each["message"][:6] for each in decisions) == ["", "Grant "]
    assert [each["seen_percent"] for each in decisions] == [100, 100]
    grants = (await api.operator.get("/api/v1/grants")).json()["items"]
    assert sorted(each["uses"] for each in grants) == [1, 1]


async def test_a_grant_is_revoked_by_two_presses_on_the_same_one(api: Api) -> None:
    """`r r` in the list ends the marked grant; if another one is marked at the second press, nothing ends."""
    for text in ("one\u202e", "two"):
        pattern = {"fixed": {"text": text}, "open": []}
        order = {"tool": "write", "pattern": pattern, "scope": "agent", "agent": "agent", "max_uses": 1}
        answer = await api.operator.post("/api/v1/grants", json={**order, "expires_after_seconds": 600})
        assert answer.status_code == 201, answer.text
    async with person_at(api, size=(100, 40)) as person:
        await person.press("3")
        await person.sees("2 in force")
        await person.press("home", "r")
        await person.sees("Press r again to revoke")
        await asyncio.sleep(0.4)  # a person's pause
        await person.press("j", "r")
        await asyncio.sleep(0.5)  # longer than a second press needs to count
        assert len((await api.operator.get("/api/v1/grants")).json()["items"]) == 2
        await person.press("home")
        await person.twice("r")
        await person.sees("1 in force")
        await person.press("enter")
        await person.sees("WHAT IT LET THROUGH")
        await person.twice("r")
        await person.sees("revoked by ada")
    assert (await api.operator.get("/api/v1/grants")).json()["items"] == []


async def test_an_approval_is_taken_back_before_its_call_starts(api: Api) -> None:
    """The screen says when the call starts; `z` `z` takes the approval back and leads to the request that asks again."""
    request = await api.gated(calling("write", {"text": "slow"}))
    terms = '{"grace_seconds": 3600}'
    async with (
        changed(api.stack.database, tables.requests, {"id": request["id"]}, terms=terms),
        person_at(api, size=(100, 40)) as person,
    ):
        await person.sees("1 waits")
        await person.opens()
        await person.twice("a")
        await person.sees("The call starts in ")
        await person.sees("z z takes your approval back.")
        await person.twice("z")
        await person.sees("You took your approval back.")
        await person.sees("ada took an approval of this call back.")
        again = (await person.request(request))["replaced_by"]
        assert (await api.decide(again and {**request, "id": again}, "reject")).status_code == 200
        await person.sees("rejected by")


async def test_a_recent_reason_is_chosen_with_the_arrows(api: Api) -> None:
    """`r`, then the arrows put recent reasons into the field, and what was typed comes back after the last of them."""
    before = await api.gated(calling("write", {"text": "one"}))
    assert (await api.decide(before, "reject", message="Too early.")).status_code == 200
    await caught_up(api.stack.database)
    request = await api.gated(calling("write", {"text": "two"}))
    async with person_at(api, size=(100, 40)) as person:
        await person.sees("1 waits")
        await person.opens()
        await person.press("r")
        await person.dialog_field(Input).fill("my own")
        await person.press("down")
        assert await person.dialog_field(Input).text() == "Too early."
        await person.press("up")
        assert await person.dialog_field(Input).text() == "my own"
        await person.press("up", "enter")
        await person.sees("rejected by ada")
    assert (await person.request(request))["decision"]["message"] == "Too early."
