"""I15: a row that someone changed in the database does not agree with the log, and the first difference is named."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import delete, insert, select, update
from support.engine import OPERATOR, Cast, ListModel, Script, call, says, stack
from support.tools import Amount, Bench, Name
from temporalio.client import Client

from approvals_api.runs import send_message
from turngate import (
    Agent,
    Failure,
    Limits,
    Ok,
    Policy,
    Presentation,
    Rule,
    TextBlock,
    Toolkit,
    interaction_tool,
    sub_agent,
    tool,
)
from turngate.domain.errors import ConflictError
from turngate.store import evidence
from turngate.store.database import Database
from turngate.store.requests import requests as stored_requests
from turngate.store.runs import calls as stored_calls
from turngate.store.runs import messages as stored_messages
from turngate.store.runs.runs import Run
from turngate.store.tables import (
    approvals,
    calls,
    decisions,
    events,
    executions,
    messages,
    published_policies,
    queued_messages,
    requests,
    whole_results,
)
from turngate.toolkits.control_calls import finish
from turngate.wire.orders import MessageOrder

CHANGES: list[tuple[Any, dict[str, Any], str]] = [
    (requests, {"input": '{"cents": 5}'}, "not as it was shown"),
    (requests, {"agent_words": "All fine."}, "not as it was shown"),
    (requests, {"preview": "nothing changes", "preview_kind": "text"}, "not as it was shown"),
    (requests, {"risk": "high"}, "not as it was shown"),
    (requests, {"not_by": "eve"}, "not as it was shown"),
    (requests, {"manifest": "{}"}, "not as it was shown"),
    (requests, {"origins": "{}"}, "not as it was shown"),
    (requests, {"origins": None}, "not as it was shown"),
    (requests, {"summary": "Pay nothing"}, "not as it was shown"),
    (requests, {"summary": None}, "not as it was shown"),
    (requests, {"digest": "0" * 64}, "the digest of request"),
    (requests, {"rule": "another"}, "the rule of request"),
    (requests, {"terms": '{"quorum":1,"starter_may_decide":false}'}, "the terms of request"),
    (requests, {"rungs_climbed": 1}, "has not climbed"),
    (requests, {"status": "rejected"}, "its status is 'rejected'"),
    (requests, {"status": "pending", "decided_by": None, "decision_id": None, "verb": None}, "its status is 'pending'"),
    (requests, {"decided_by": "eve"}, "its by is 'eve'"),
    (requests, {"verb": "approve"}, "its verb is 'approve'"),
    (requests, {"decision_id": "another"}, "its decision_id is 'another'"),
    (calls, {"input": '{"cents": 5}'}, "call c5000 is not as it was stored"),
    (calls, {"tool_name": "look"}, "call c5000 is not as it was stored"),
    (calls, {"policy_version": "another"}, "call c5000 is not as it was stored"),
    (calls, {"effect": "read"}, "call c5000 is not as it was stored"),
    (calls, {"disposition": "run"}, "call c5000 is not as it was stored"),
    (calls, {"verdict": '{"answer":"allow","rule":"mine"}'}, "call c5000 is not as it was stored"),
    (calls, {"recorded_call_id": "another"}, "call c5000 is not as it was stored"),
    (
        calls,
        {"signal": '{"signal":"finish","answer":"Paid."}'},
        "no event accounts for what call c5000 asks of its run",
    ),
    (calls, {"child_run_id": "run_another"}, "the run that answers call c5000"),
    (calls, {"result": '{"tag":"ok","value":{"paid":9000}}'}, "the result of call c5000 is not as it was stored"),
    (calls, {"result": None}, "the result of call c5000 is missing"),
    (calls, {"presentation": "[]"}, "the result of call c5000 is not as it was stored"),
    (calls, {"whole_result": "0" * 64}, "the result of call c5000 is not as it was stored"),
    (calls, {"edited_input": '{"cents": 9000}'}, "is not the one that was edited"),
    (decisions, {"args": '{"cents": 9000}'}, "the digest of the edit of request"),
    (decisions, {"digest": "0" * 64}, "is not the one that was decided"),
    (decisions, {"decided_by": "eve"}, "the by of decision"),
    (decisions, {"verb": "approve"}, "the verb of decision"),
    (decisions, {"credential": "token:another"}, "the decision of request"),
    (decisions, {"message": "As the owner wished."}, "the decision of request"),
    (decisions, {"grant_wanted": "{}"}, "the decision of request"),
    (decisions, {"looked_ms": 60_000}, "the decision of request"),
    (decisions, {"looked_ms": None}, "the decision of request"),
    (decisions, {"seen_percent": 100}, "the decision of request"),
    (decisions, {"created_at": "2026-01-01T00:00:00.000000+00:00"}, "the decision of request"),
    (executions, {"digest": "0" * 64}, "the digest of the execution"),
    (executions, {"decision_id": None}, "the decision_id of the execution"),
]


STORY: list[tuple[Any, dict[str, Any], dict[str, Any], str]] = [
    (messages, {"role": "user", "step": None}, {"parts": '[{"type":"text","text":"Do more."}]'}, "message msg_"),
    (messages, {"role": "assistant", "step": 1}, {"parts": '[{"type":"text","text":"I look."}]'}, "message msg_"),
    (messages, {"role": "assistant", "step": 1}, {"provider_options": '{"a":1}'}, "message msg_"),
    (messages, {"role": "assistant", "step": 2}, {"parent_id": None}, "message msg_"),
    (messages, {"role": "assistant", "step": 2}, {"step": 9}, "message msg_"),
    (messages, {"role": "assistant", "step": 2}, {"role": "user"}, "message msg_"),
    (messages, {"role": "tool", "step": 1}, {"parts": "[]"}, "the results of step 1 are not those of its calls"),
    (messages, {"role": "tool", "step": 1}, {"parts": "no JSON"}, "the results of step 1 are not those of its calls"),
    (messages, {"role": "tool", "step": 1}, {"parent_id": None}, "the results of step 1 are not those of its calls"),
    (messages, {"role": "user", "step": 3}, {"parts": '[{"type":"text","text":"Pay."}]'}, "message msg_"),
    (
        messages,
        {"role": "assistant", "step": 5},
        {"parts": '[{"type":"text","text":"Nothing is paid."}]'},
        "message msg_",
    ),
    (queued_messages, {}, {"text": "Pay twice."}, "the queued message msg_"),
    (queued_messages, {}, {"sent_by": "eve"}, "the queued message msg_"),
    (queued_messages, {}, {"while_running": "queue"}, "the queued message msg_"),
    (whole_results, {}, {"text": "All is well."}, "the whole result of call r is not the one that was stored"),
    (calls, {"tool_call_id": "r"}, {"whole_result": None}, "the result of call r is not as it was stored"),
    (calls, {"tool_call_id": "r"}, {"presentation": None}, "the result of call r is not as it was stored"),
    (
        calls,
        {"tool_call_id": "h"},
        {"child_run_id": None},
        "the run that answers call h is not the one that was started",
    ),
    (calls, {"tool_call_id": "f"}, {"signal": '{"signal":"finish","answer":"No."}'}, "what call f asks of its run"),
    (calls, {"tool_call_id": "q"}, {"result": '{"tag":"ok","value":{"cents":9}}'}, "the result of call q is not what"),
]
"""Table, row, change, problem: in a run with a message, a large result, a correction, a question, a sub-agent and an answer."""


async def difference(database: Database, run: Run) -> str:
    """Return the first difference in words; "" when the rows agree with the log."""
    async with database.read() as conn:
        different = await evidence.first_difference(conn, run.id)
    return "" if different is None else str(different)


def paying(*cents: int) -> ListModel:
    return ListModel(
        *(says("I pay.", call("pay", json.dumps({"cents": each}), f"c{each}")) for each in cents), says("Done.")
    )


async def test_i15_every_change_of_an_edited_call_is_found(client: Client, database: Database, bench: Bench) -> None:
    """I15: each changed column of request, call, decision and execution is named, and undone agrees again."""
    async with stack(client, database, bench.pay, model=paying(5_000)) as engine:
        run = await engine.start()
        edit = {"args": json.dumps({"cents": 70}), "looked_ms": 4_000, "seen_percent": 80}
        await engine.decide(await engine.request(run), "edit", **edit)
        await engine.ended(run)
    assert bench.paid == [70]
    assert await difference(database, run) == ""
    for table, changed, problem in CHANGES:
        async with database.write() as conn:
            before = (await conn.execute(table.select())).mappings().one()
            await conn.execute(update(table).values(**changed))
        assert problem in await difference(database, run), changed
        async with database.write() as conn:
            await conn.execute(update(table).values(**{name: before[name] for name in changed}))
        assert await difference(database, run) == ""


async def test_no_digest_tells_what_it_is_of_without_the_nonce(client: Client, sqlite: Database, bench: Bench) -> None:
    """Who knows all but a small amount can't try amounts against the log once the nonce is gone; with it, each agrees."""
    async with stack(client, sqlite, bench.pay, model=paying(5_000)) as engine:
        run = await engine.start()
        await engine.decide(await engine.request(run), "edit", args='{"cents": 70}', message="Less.")
        await engine.ended(run)
    async with sqlite.read() as conn:
        (request,) = await stored_requests.of_run(conn, run.id)
        (planned,) = await stored_calls.of_run(conn, run.id)
        decision = await stored_requests.decision(conn, str(request.decision_id))
        logged = "\n".join((await conn.execute(select(events.c.payload))).scalars())
        rows = await stored_messages.rows_of_run(conn, run.id)
    assert decision is not None
    nonces = {run.nonce, request.nonce, planned.nonce}
    assert len(nonces) == 1
    assert len(run.nonce) == 32

    def digests_with(nonce: str) -> list[str]:
        """Return those that the log has of rows that everyone knows but for the nonce."""
        keyed, of_call = replace(request, nonce=nonce), replace(planned, nonce=nonce)
        about_call = [evidence.call_row_digest(of_call), stored_calls.result_digest(of_call)]
        of_messages = [stored_messages.digest_of_row(row, nonce) for row in rows if row["role"] != "tool"]
        of_tool = [
            replace(of_call, edited_input=text).digest_with(bench.pay) for text in (planned.input, '{"cents": 70}')
        ]
        return [
            evidence.request_digest(keyed),
            evidence.decision_digest(decision, nonce),
            *about_call,
            *of_messages,
            *of_tool,
        ]

    # The request's digest is part of its row: without the nonce, the true one would have to be known, too.
    assert [each for each in digests_with(run.nonce) if each not in logged] == []
    assert [each for each in digests_with("") if each in logged] == []
    assert run.nonce not in logged


async def test_i15_every_change_of_messages_and_results_is_found(
    client: Client, database: Database, bench: Bench
) -> None:
    """I15: what the run was asked, what its model and people answered, and what its calls returned, are compared."""

    def present(params: Name, result: Ok | Failure) -> Presentation:
        del result
        return (TextBlock(text=params.name),)

    @tool(effect="read", ask=False, present=present)
    async def report(params: Name) -> str:
        """Write a report."""
        return params.name * 4_000

    choose = interaction_tool(name="choose", description="Ask how much.", params=Name, answer=Amount)
    helper = Agent(name="helper", instructions="Help.", toolkit=Toolkit.of(), model="scripted:helper")
    parent = ListModel(
        says("I pay.", call("pay", '{"cents": 5}', "p")),
        says("I report.", call("report", '{"name": "long"}', "r")),
        says("I…").model_copy(update={"malformed": "it ended in the middle of a word"}),
        says(call("helper", '{"task": "Help."}', "h"), call("choose", '{"name": "How much?"}', "q")),
        says(call("finish", '{"answer": "All is paid."}', "f")),
    )
    models = Cast(test=parent, helper=Script(says("Gladly.")))
    tools = bench.pay, report, choose, sub_agent(helper), finish
    async with stack(client, database, *tools, model=models, limits=Limits(result_chars=1_000)) as engine:
        run = await engine.start()
        request = await engine.request(run)
        order = MessageOrder(input="And report.", while_running="inject")
        await send_message.send(engine.services, OPERATOR, run.id, order)
        await engine.decide(request, "approve")
        await engine.decide(await engine.request(run, kind="question"), "respond", args='{"cents": 5}')
        assert (await engine.ended(run)).status == "completed"
    for table, row, changed, problem in STORY:
        only = [table.c[name] == value for name, value in row.items()]
        only += [table.c.run_id == run.id] if "run_id" in table.c else []
        async with database.write() as conn:
            before = (await conn.execute(table.select().where(*only))).mappings().first()
            assert before is not None, row
            this = [column == before[column.name] for column in table.primary_key]
            await conn.execute(update(table).where(*this).values(**changed))
        assert problem in await difference(database, run), (row, changed)
        async with database.write() as conn:
            await conn.execute(update(table).where(*this).values(**before))
        assert await difference(database, run) == ""
    async with database.write() as conn:
        row = dict((await conn.execute(messages.select().where(messages.c.run_id == run.id))).mappings().first() or {})
        await conn.execute(insert(messages).values(**{**row, "id": "msg_planted"}))
    assert "no event accounts for message msg_planted" in await difference(database, run)


@pytest.mark.parametrize("is_known", [True, False])
async def test_i15_an_edit_that_was_asked_about_again_agrees(
    client: Client, sqlite: Database, bench: Bench, *, is_known: bool
) -> None:
    """I15: after an edit for which a rule wants other people, the bytes of the second request are those that may run.

    The API knows that rule and does not take the edit, or only the worker does.
    """
    large = {"at": "/cents", "op": "gt", "value": 1000}
    rules = [
        Rule.model_validate({"name": "large", "verdict": "ask", "tools": ["pay"], "args": [large], "quorum": 2}),
        Rule(name="small", verdict="ask", tools=["pay"]),
    ]
    async with stack(client, sqlite, bench.pay, model=paying(51), policy=Policy(rule=rules)) as engine:
        run = await engine.start()
        if not is_known:
            async with sqlite.write() as conn:
                await conn.execute(delete(published_policies))
        with pytest.raises(ConflictError) if is_known else nullcontext():
            await engine.decide(await engine.request(run), "edit", args='{"cents": 5000}', message="Five more.")
        assert await difference(sqlite, run) == ""
        for name, value in {"message": "Five more.", "decided_by": "operator", "args": '{"cents": 5000}'}.items():
            async with sqlite.write() as conn:
                await conn.execute(update(decisions).values({name: "another"}))
            assert await difference(sqlite, run) != "", name
            async with sqlite.write() as conn:
                await conn.execute(update(decisions).values({name: value}))
        assert await difference(sqlite, run) == ""
        again = await engine.request(run)
        assert await difference(sqlite, run) == ""
        async with sqlite.write() as conn:
            await conn.execute(update(calls).values(edited_input='{"cents": 9000}'))
        assert "is not the one that was edited" in await difference(sqlite, run)
        async with sqlite.write() as conn:
            await conn.execute(update(calls).values(edited_input=again.input))
        for name in ("ann", "bob"):
            await engine.decide(again, "approve", by=replace(OPERATOR, name=name))
        await engine.ended(run)
    assert bench.paid == [5_000]
    assert await difference(sqlite, run) == ""


async def test_i15_rows_that_come_or_go_are_found(client: Client, sqlite: Database, bench: Bench) -> None:
    """I15: a request, a decision or an execution that was removed, and a request that no one opened."""
    async with stack(client, sqlite, bench.pay, model=paying(5_000)) as engine:
        run = await engine.start()
        await engine.decide(await engine.request(run), "edit", args=json.dumps({"cents": 70}))
        await engine.ended(run)
    for table, problem in ((executions, "is missing"), (decisions, "is not the one that was decided")):
        async with sqlite.write() as conn:
            row = (await conn.execute(table.select())).mappings().one()
            await conn.execute(delete(table))
        assert problem in await difference(sqlite, run)
        async with sqlite.write() as conn:
            await conn.execute(insert(table).values(**row))
    async with sqlite.write() as conn:
        row = (await conn.execute(requests.select())).mappings().one()
        more = {"id": "rq_planted", "decision_id": None}
        await conn.execute(insert(requests).values(**{**row, **more}))
    assert "no event opened request rq_planted" in await difference(sqlite, run)


@pytest.mark.unencrypted  # it finds a row by its content
@pytest.mark.parametrize("verb", ["approve", "reject"])
async def test_i15_a_decision_of_another_person_is_found(
    client: Client, sqlite: Database, bench: Bench, verb: str
) -> None:
    """I15: the log knows who decided, though an approval has no content of its own; several steps agree."""
    async with stack(client, sqlite, bench.pay, model=paying(5_000, 6_000)) as engine:
        run = await engine.start()
        for _ in range(2):
            await engine.decide(await engine.request(run), verb)
        await engine.ended(run)
    assert await difference(sqlite, run) == ""
    async with sqlite.write() as conn:
        rows = [dict(row) for row in (await conn.execute(decisions.select())).mappings()]
        await conn.execute(delete(decisions))
    assert "is not the one that was decided" in await difference(sqlite, run)
    async with sqlite.write() as conn:
        await conn.execute(insert(decisions), rows)
        await conn.execute(update(requests).where(requests.c.input.contains("6000")).values(decided_by="eve"))
    assert "its by is 'eve'; the log says" in await difference(sqlite, run)


async def test_i15_a_request_that_waits_is_compared_too(client: Client, sqlite: Database, bench: Bench) -> None:
    """I15: an approval that was written into the table, past the API, is found before and after anything runs by it."""
    async with stack(client, sqlite, bench.pay, model=paying(5_000)) as engine:
        run = await engine.start()
        request = await engine.request(run)
        assert await difference(sqlite, run) == ""
        async with sqlite.write() as conn:
            forged = {"status": "approved", "decided_by": "the-ceo", "verb": "approve", "decision_id": "forged"}
            await conn.execute(update(requests).values(**forged))
        assert f"request {request.id} is approved; the log says pending" in await difference(sqlite, run)
        async with sqlite.write() as conn:
            await conn.execute(update(requests).values(status="pending", decided_by=None, verb=None, decision_id=None))
        await engine.decide(request, "reject")
        await engine.ended(run)


async def test_i15_an_approval_that_no_one_gave_is_found(client: Client, sqlite: Database, bench: Bench) -> None:
    """I15: of two people who must approve, one who is only a row in the table counts as a change."""
    rule = Rule(name="two", verdict="ask", tools=["pay"], quorum=2)
    async with stack(client, sqlite, bench.pay, model=paying(5_000), policy=Policy(rule=[rule])) as engine:
        run = await engine.start()
        request = await engine.request(run)
        await engine.decide(request, "approve", by=OPERATOR)
        assert await difference(sqlite, run) == ""
        async with sqlite.write() as conn:
            forged = {"request_id": request.id, "decided_by": "the-ceo", "decision_id": "forged", "message": ""}
            await conn.execute(insert(approvals).values(**forged, created_at=request.created_at))
        assert "an approval of request" in await difference(sqlite, run)
        async with sqlite.write() as conn:
            await conn.execute(delete(approvals).where(approvals.c.decision_id == "forged"))
        await engine.decide(request, "approve", by=replace(OPERATOR, name="second"))
        await engine.ended(run)
    assert await difference(sqlite, run) == ""
    async with sqlite.write() as conn:
        await conn.execute(update(approvals).where(approvals.c.decided_by == "second").values(decided_by="the-ceo"))
    assert "an approval of request" in await difference(sqlite, run)
