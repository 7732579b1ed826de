"""A request says what else its step wants, and what people decided about calls like it."""

from __future__ import annotations

from typing import Any

from support.api.api_server import Api, api_on, planned_on
from support.api.store_app import desk_on
from support.engine.stack import Script, call, person, says, stack, until
from support.engine.tools import Bench
from support.pages.html_forms import PostedPage
from support.planted.precedents import caught_up
from support.stores.changed_rows import changed
from temporalio.client import Client

from turngate.approvals_api.gateway.client import Gateway
from turngate.approvals_api.principal import Principal
from turngate.approvals_api.requests.decide import submit
from turngate.store import tables
from turngate.store.database import Database
from turngate.store.runs import runs
from turngate.wire.orders import DecisionOrder

REASON = "Not without an invoice."


async def decided(api: Api, text: str, verb: str, **body: Any) -> dict[str, Any]:
    """Decide a new request, and return it when it has become a precedent."""
    request = await api.gated(text)
    answer = await api.decide(request, verb, **body)
    assert answer.status_code == 200, answer.text
    await caught_up(api.stack.database)
    return request


async def ended(api: Api, request: dict[str, Any]) -> None:
    async with api.stack.database.read() as conn:
        run = await runs.get(conn, request["run_id"])
    assert run is not None
    await api.stack.ended(run)


async def test_a_request_shows_what_was_decided_about_calls_like_it(api: Api) -> None:
    """The same call first, with who decided what, why, and how it ended; then others, with what differs."""
    approved = await decided(api, "pay 714", "approve")
    rejected = await decided(api, "pay 714", "reject", message=REASON)
    edited = await decided(api, "pay 715", "edit", args={"cents": 714, "note": ""})
    for each in (approved, rejected, edited):
        await ended(api, each)
    precedent = (await api.gated("pay 714"))["precedent"]
    nearest = {each["request_id"]: each for each in precedent["nearest"]}
    assert set(nearest) == {each["id"] for each in (approved, rejected, edited)}
    same, no, other = (nearest[each["id"]] for each in (approved, rejected, edited))
    assert (same["same"], same["verb"], same["execution"], same["decided_by"]) == (
        True, "approve", "succeeded", f"ada-{api.name}",
    )  # fmt: skip
    assert (no["same"], no["verb"], no["execution"], no["message"]) == (True, "reject", "not_started", REASON)
    assert (other["same"], other["verb"]) == (False, "edit")
    assert other["differences"] == [{"at": "/cents", "was": "715", "now": "714"}]
    assert precedent["last_rejection"]["message"] == REASON
    assert precedent["edited"] >= 1 <= precedent["rejected"]
    assert precedent["ran"] >= 2 <= precedent["approved"]


async def test_the_same_call_is_marked_where_it_waits_and_where_it_ran(api: Api) -> None:
    """One that waits, too, is named at once; so is one that ran a moment ago in another run, with how it ended. Not its own."""
    first, second = await api.gated("pay 931"), await api.gated("pay 931")
    other = await api.gated("pay 932")

    async def same_calls() -> dict[str, list[tuple[str, str | None]]]:
        items = (await api.operator.get("/api/v1/requests?limit=200")).json()["items"]
        return {each["id"]: [(one["state"], one["request_id"]) for one in each["same_calls"]] for each in items}

    marked = await same_calls()
    assert (marked[first["id"]], marked[second["id"]]) == ([("waits", second["id"])], [("waits", first["id"])])
    assert marked[other["id"]] == []
    answer = await api.decide(first, "approve")
    assert answer.status_code == 200, answer.text
    assert next(state for state, _id in (await same_calls())[second["id"]]) in {"approved", "executing", "succeeded"}
    await ended(api, first)
    assert (await same_calls())[second["id"]] == [("succeeded", None)]
    page = (await api.operator.get(f"/api/v1/requests/{second['id']}")).json()
    assert [each["state"] for each in page["same_calls"]] == ["succeeded"]


async def test_a_request_does_not_count_itself_as_waiting_or_as_a_precedent(planned: Api) -> None:
    """Two requests for one call count each other, and one of them that was decided is no precedent of itself."""
    first, second = await planned.gated("pay 81726"), await planned.gated("pay 81726")
    assert (first["precedent"]["waiting_alike"], second["precedent"]["waiting_alike"]) == (0, 1)
    one = await decided(planned, "pay 99817", "approve")
    again = (await planned.operator.get(f"/api/v1/requests/{one['id']}")).json()
    assert one["id"] not in [each["request_id"] for each in again["precedent"]["nearest"]]


async def test_i13_an_agents_token_reads_no_precedents(planned: Api) -> None:
    """A token that may read only its own runs sees the other calls of its step, and nothing that was decided about others."""
    await decided(planned, "pay 5151", "approve")
    request = await planned.gated("pay 5151")
    assert request["precedent"]["nearest"]
    answer = await planned.agent.get(f"/api/v1/requests/{request['id']}")
    assert (answer.status_code, answer.json()["precedent"], answer.json()["siblings"]) == (200, None, [])


async def test_an_approval_that_was_taken_back_is_no_precedent(planned: Api) -> None:
    """Not if it is taken back before it was added, and not after that."""
    database = planned.stack.database
    for added_first in (False, True):
        request = await planned.gated("pay 60606")
        async with changed(database, tables.requests, {"id": request["id"]}, terms='{"grace_seconds": 3600}'):
            assert (await planned.decide(request, "approve")).status_code == 200
            if added_first:
                await caught_up(planned.stack.database)
            answer = await planned.operator.delete(f"/api/v1/requests/{request['id']}/approval")
            assert answer.status_code == 204, answer.text
            old = (await planned.operator.get(f"/api/v1/requests/{request['id']}")).json()
            again = (await planned.operator.get(f"/api/v1/requests/{old['replaced_by']}")).json()
            assert (await planned.decide(again, "reject")).status_code == 200
        await caught_up(planned.stack.database)
        precedent = (await planned.gated("pay 60606"))["precedent"]
        assert request["id"] not in [each["request_id"] for each in precedent["nearest"]]
        assert again["id"] in [each["request_id"] for each in precedent["nearest"]]


async def test_a_request_offers_recent_reasons_to_reject(sqlite: Database) -> None:
    """One's own come first, each once whatever its capitals; none that is long, has lines, hides or may say something."""
    async with planned_on(sqlite) as api:
        secret = await api.gated("pay 1")
        async with changed(sqlite, tables.requests, {"id": secret["id"]}, masked_input="{}"):
            others = [
                "Wrong  account.",
                "WRONG account.",
                "x" * 201,
                "two\nlines",
                "hidden\u202eone",
                "none",
                "",
                "Too early.",
            ]
            for message in others:
                await rejected(api, await api.gated("pay 2"), message, by=person("bob"))
            own = await rejected(api, await api.gated("pay 3"), "Ask the customer first.")
            await rejected(api, secret, "It says s3cr3t.")
            offered = (await api.gated("pay 4"))["reject_reasons"]
            for each in range(6):
                await rejected(api, await api.gated("pay 5"), f"No {each}.")
            many = (await api.gated("pay 6"))["reject_reasons"]
            ended = (await api.operator.get(f"/api/v1/requests/{own['id']}")).json()
        assert offered == ["Ask the customer first.", "Too early.", "none", "WRONG account."]
        assert many == [f"No {each}." for each in (5, 4, 3, 2, 1, 0)]
        assert ended["reject_reasons"] == []


async def test_questions_and_several_requests_offer_recent_reasons(database: Database) -> None:
    """Of the same tools, without waiting for precedents; a reason that is chosen is not one that is typed."""
    async with desk_on(database) as desk:
        run = await desk.run()
        for number, (kind, tool_name) in enumerate([("question", "ask"), ("approval", "pay"), ("approval", "ship")]):
            address = await desk.put(run, f"rq_{number}", kind=kind, tool_name=tool_name)
            ann = await desk.person(f"ann{number}")
            answer = {"decision": "reject", "digest": "d", "message": f"Not {tool_name}."}
            assert (await ann.post(f"{address}/decisions", json=answer)).status_code == 200
        again = await desk.put(run, "rq_again", kind="question", tool_name="ask")
        assert (await ann.get(again)).json()["reject_reasons"] == ["Not ask."]
        await desk.put(run, "rq_pay", tool_name="pay")
        await desk.put(run, "rq_ask", kind="question", tool_name="ask")
        page = (await ann.get("/requests/bulk?kind=approval")).text
        assert ("Not pay." in page, "Not ask." in page, "Not ship." in page) == (True, False, False)
        form = next(each for each in PostedPage(page).forms if "key" in each.sent)
        chosen = {**form.sent, "action": "reject", "recent": "Not pay."}
        refused = await ann.post("/requests/bulk/decide", data={**chosen, "message": "Other words."})
        assert "You typed a reason and chose another one" in refused.text
        assert "recent" in form.sent
        assert "1 of 1 decided" in (await ann.post("/requests/bulk/decide", data=chosen)).text
        decided = (await ann.get("/api/v1/requests/rq_pay")).json()["decision"]
        assert (decided["verb"], decided["message"]) == ("reject", "Not pay.")


async def rejected(api: Api, request: dict[str, Any], message: str, *, by: Principal | None = None) -> dict[str, Any]:
    """Reject a request, and make a precedent of that."""
    if by is None:
        assert (await api.decide(request, "reject", message=message)).status_code == 200
    else:
        order = DecisionOrder(verb="reject", digest=request["digest"], message=message)
        await submit(api.stack.services, by, request["id"], order)
    await caught_up(api.stack.database)
    return request


async def test_only_approvals_have_precedents(planned: Api) -> None:
    """A question has none: its answers are not decisions about calls."""
    assert (await planned.gated("ask_person Which one?"))["precedent"] is None


async def test_the_other_calls_of_a_step_have_their_states(client: Client, sqlite: Database, bench: Bench) -> None:
    """What waits, what ran and what never will, in the model's order; each with its request, if a person was asked."""
    asks = says(
        call("pay", '{"cents": 1}', "c1"),
        call("look", '{"name": "x"}', "c2"),
        call("pay", '{"cents": 2}', "c3"),
        call("pay", '{"cents": "many"}', "c4"),
    )
    model = Script(asks, says("Done."))
    async with (
        stack(client, sqlite, bench.pay, bench.look, model=model) as engine,
        api_on(engine, Gateway(client)) as api,
    ):
        first = await api.gated()

        async def settled() -> list[dict[str, Any]] | None:
            siblings = (await api.operator.get(f"/api/v1/requests/{first['id']}")).json()["siblings"]
            return siblings if siblings[0]["state"] == "ran" else None

        siblings = await until(settled, "the call that needs no one has run")
        assert [(each["tool_call_id"], each["state"]) for each in siblings] == [
            ("c2", "ran"), ("c3", "waits"), ("c4", "closed"),
        ]  # fmt: skip
        assert [each["request_id"] is not None for each in siblings] == [False, True, False]
        other = (await api.operator.get(f"/api/v1/requests/{siblings[1]['request_id']}")).json()
        assert (await api.decide(other, "reject")).status_code == 200
        again = (await api.operator.get(f"/api/v1/requests/{first['id']}")).json()
        assert [each["state"] for each in again["siblings"]] == ["ran", "rejected", "closed"]
