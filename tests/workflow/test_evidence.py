"""I15: a row that someone changed in the database does not agree with the log, and the first difference is named."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Boolean, Column, Integer, Table, delete, insert, select, update
from sqlalchemy.exc import IntegrityError
from support.engine.stack import OPERATOR, Cast, ListModel, Script, Stack, call, says, stack
from support.engine.tools import Amount, Bench, Name
from support.stores.compared_columns import compared_columns
from temporalio.client import Client

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
from turngate.approvals_api.health import examine
from turngate.approvals_api.policy import proposals, rules
from turngate.approvals_api.principal import Principal
from turngate.approvals_api.requests.comments import comment
from turngate.approvals_api.requests.views import request_detail
from turngate.approvals_api.retention import holds
from turngate.approvals_api.retention.people import erase_person
from turngate.approvals_api.runs import fork, send_message
from turngate.approvals_api.schedules import service as schedules
from turngate.cli.commands.events.audit import check_log
from turngate.domain.agents.schedules import Timetable
from turngate.domain.errors import ConflictError
from turngate.domain.identity import ALL_SCOPES
from turngate.store import evidence
from turngate.store.access import sessions, tokens, users
from turngate.store.clock import now
from turngate.store.database import Database
from turngate.store.events import audit
from turngate.store.events.row_digests import row_digest
from turngate.store.requests import presence
from turngate.store.requests import requests as stored_requests
from turngate.store.runs import calls as stored_calls
from turngate.store.runs import messages as stored_messages
from turngate.store.runs.runs import Run
from turngate.store.schedules import schedule_fires
from turngate.store.tables import (
    approvals,
    decisions,
    events,
    executions,
    messages,
    metadata,
    requests,
    whole_results,
    worlds,
)
from turngate.store.tables.evidence import TABLES
from turngate.toolkits.control_calls import finish
from turngate.wire.orders import ForkOrder, MessageOrder, ScheduleOrder

ADMIN = Principal(name="root", via="session", scopes=ALL_SCOPES, role="admin")
SHADOW = '[[rule]]\nname = "{}"\nverdict = "ask"\ntools = ["look"]\nshadow = true\n'
ALLOW = '[[rule]]\nname = "three"\nverdict = "allow"\ntools = ["pay"]\n'


async def difference(database: Database, run: Run) -> str:
    """Return the first difference in words; "" when the rows agree with the log."""
    async with database.read() as conn:
        different = await evidence.first_difference(conn, run.id)
    return "" if different is None else str(different)


def paying(*cents: int) -> ListModel:
    return ListModel(
        *(says("I pay.", call("pay", json.dumps({"cents": each}), f"c{each}")) for each in cents), says("Done.")
    )


IDA = users.OidcIdentity(issuer="https://login.example", subject="1", name="ida", email="ida@x.example", role="viewer")


async def verified(database: Database) -> str:
    """Return what ``turngate audit verify`` finds; "" when everything agrees."""
    async with database.read() as conn:
        return (await check_log(conn)).broken or ""


async def fill_what_is_of_no_run(engine: Stack) -> None:
    """Write users, tokens, sessions, holds, rules, a proposal and a schedule, as people do."""
    services = engine.services
    async with engine.database.write() as conn:
        await users.add(conn, users.User(name="ann", role="admin", password_hash="$argon2id$1"), by="root")
    async with engine.database.write() as conn:
        await users.set_disabled(conn, "ann", disabled=True, by="root")
    async with engine.database.write() as conn:
        await users.from_oidc(conn, IDA)
    async with engine.database.write() as conn:
        await tokens.issue(conn, tokens.NewToken(name="ci", scopes=["runs:write"]), by="root")
    async with engine.database.write() as conn:
        await tokens.revoke(conn, by="root", name="ci")
    async with engine.database.write() as conn:
        await sessions.begin(conn, "ann", role="admin")
    held = await holds.add(engine.database, "agent", reason="A lawsuit.", by="root")
    await holds.remove(engine.database, held.id, reason="Settled.", by="root")
    await rules.store_rules(services, ADMIN, source=SHADOW.format("one"), comment="The first.")
    four_eyes = replace(services, settings=replace(services.settings, policy_four_eyes=True))
    await rules.store_rules(four_eyes, ADMIN, source=SHADOW.format("two") + ALLOW, comment="Looser.")
    await proposals.refuse(services, ADMIN, 1)
    nightly = ScheduleOrder(name="nightly", agent="agent", input="Go.", timetable=Timetable(cron="0 3 * * *"))
    schedule = await schedules.create(services, OPERATOR, nightly)
    async with engine.database.write() as conn:
        agent = schedule_fires.AgentAtFire(version="1", model="scripted:test")
        await schedule_fires.settle(conn, schedule.id, now(), agent, by="operator")
    await schedules.delete(services, OPERATOR, "nightly")


async def compared(database: Database, ledger: evidence.Ledger) -> str:
    """Return what `verified` does of the rows alone; a chain can't change by a row. ``ledger``: it has read the log."""
    async with database.read() as conn:
        different = await evidence.first_in_store(conn, ledger)
    return "" if different is None else str(different)


async def change_and_find(database: Database, ledger: evidence.Ledger, table: Table, column: Column[Any]) -> None:
    """Change a column of a row, past everything, and find what is said of it; then undo it.

    A change that the database itself refuses, because other rows name this one, can't be made.
    """
    async with database.read() as conn:
        # The oldest first: a message that closes a step has no digest of its own.
        in_order = table.select().order_by(*(each for each in (table.c.get("created_at"),) if each is not None))
        rows = [dict(row) for row in (await conn.execute(in_order)).mappings()]
    assert rows, f"no row of {table} to change"
    row = next((each for each in rows if each[column.name] is not None), rows[0])
    changed = {**row, column.name: other(column, row[column.name])}

    async def write(before: dict[str, Any], after: dict[str, Any]) -> None:
        this = [each == before[each.name] for each in table.primary_key]
        async with database.write() as conn:
            await conn.execute(update(table).where(*this).values({column: after[column.name]}))

    with suppress(IntegrityError):
        await write(row, changed)
        broken = await compared(database, ledger)
        assert f"{table.name} " in broken, (table.name, column.name, broken)
        if column.name not in ("run_id", "request_id", *(TABLES[table.name].key if table.name in TABLES else ())):
            assert f", {column.name}: " in broken, (table.name, column.name, broken)
        await write(changed, row)


async def plant_and_find(database: Database, ledger: evidence.Ledger, run: Run) -> None:
    """Add rows of messages and steps, past everything, and find what is said of each; then remove them."""
    steps, named = metadata.tables["steps"], "msg_planted"
    async with database.read() as conn:
        message, step = [
            dict((await conn.execute(each.select().where(each.c.run_id == run.id))).mappings().first() or {})
            for each in (messages, steps)
        ]
    unplanned = {**step, "step": 99, "plan": None, "assistant_message_id": named}
    planted: tuple[tuple[str, tuple[tuple[Table, dict[str, Any]], ...]], ...] = (
        (f"messages {named}, id: no event accounts for it", ((messages, {**message, "id": named}),)),
        (
            f"messages {named}, run_id: the row is of no run",
            ((messages, {**message, "id": named, "run_id": None, "step": None}),),
        ),
        (
            f"messages {named}, id: no event accounts for it",
            ((messages, {**message, "id": named}), (steps, unplanned)),
        ),
        ("steps 99: no event accounts for this row", ((steps, {**step, "step": 99}),)),
        ("steps 0: no event accounts for this row", ((steps, {**step, "step": 0, "plan": None}),)),
    )
    for problem, rows in planted:
        for table, row in rows:
            async with database.write() as conn:
                await conn.execute(insert(table).values(**row))
        assert problem in await compared(database, ledger)
        for table, row in rows:
            async with database.write() as conn:
                await conn.execute(delete(table).where(*(each == row[each.name] for each in table.primary_key)))
    assert await compared(database, ledger) == ""


def other(column: Column[Any], value: Any) -> Any:
    """Return another value for a column."""
    if isinstance(column.type, Boolean):
        return not value
    if isinstance(column.type, Integer):
        return (value or 0) + 1
    if value and column.name.endswith("_at"):
        return "2026-01-01T00:00:00.000000+00:00"
    return "another" if value != "another" else "one more"


@pytest.mark.unencrypted  # an encrypted store finds a change of content by itself (tests/unit/store/test_encryption.py)
@pytest.mark.parametrize(
    ("database", "every"),
    [("sqlite", 6), *(pytest.param(each, 1, marks=pytest.mark.exhaustive) for each in ("sqlite", "postgresql"))],
    indirect=["database"],
)
async def test_i15_every_change_of_a_compared_column_is_named(
    client: Client, database: Database, bench: Bench, every: int
) -> None:
    """I15: with a row in every compared table, `audit verify` names table and column of each change; undone, it agrees.

    In every table the first column and each sixth, or all of them. That each column is compared, or is listed as one that is not,
    is a fact of ``tests/unit/store/test_evidence_table.py``.
    """

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
        says("I pay.", call("pay", '{"cents": 5000}', "p")),
        says(call("pay", '{"cents": 5}', "twice")),
        says(call("pay", '{"cents": 6}', "granting")),
        says(call("pay", '{"cents": 6}', "granted")),
        says("I report.", call("report", '{"name": "long"}', "r")),
        says("I…").model_copy(update={"malformed": "it ended in the middle of a word"}),
        says(call("helper", '{"task": "Help."}', "h"), call("choose", '{"name": "How much?"}', "q")),
        says(call("finish", '{"answer": "All is paid."}', "f")),
        says("Again."),
    )
    models = Cast(test=parent, helper=Script(says("Gladly.")))
    five = {"at": "/cents", "op": "eq", "value": 5}
    two = Rule.model_validate({"name": "two", "verdict": "ask", "tools": ["pay"], "args": [five], "quorum": 2})
    tools, limits = (bench.pay, report, choose, sub_agent(helper), finish), Limits(result_chars=1_000)
    async with stack(client, database, *tools, model=models, limits=limits, policy=Policy(rule=[two])) as engine:
        await fill_what_is_of_no_run(engine)
        run = await engine.start()
        request = await engine.request(run)
        order = MessageOrder(input="And report.", while_running="inject")
        await send_message.send(engine.services, OPERATOR, run.id, order)
        await comment(engine.services, OPERATOR, request.id, text="Is this right?")
        async with database.write() as conn:
            await presence.note_first(conn, run_id=run.id, request_id=request.id, viewer="operator")
        await engine.decide(request, "edit", args='{"cents": 70}', message="Less.", looked_ms=4_000, seen_percent=80)
        twice = await engine.request(run)
        await engine.decide(twice, "approve", message="Once.")
        await engine.decide(twice, "approve", by=replace(OPERATOR, name="second"), message="Twice.")
        grant = {"pattern": {"tool": "pay", "open": ["cents"]}, "scope": "run", "max_uses": 2, "note": "As always."}
        await engine.decide(await engine.request(run), "approve", grant=grant)
        question = await engine.request(run, kind="question")
        await engine.decide(question, "respond", args='{"cents": 5}')
        assert (await engine.ended(run)).status == "completed"
        again = await fork.fork(engine.services, ADMIN, run.id, ForkOrder(text="Again.", policy=ALLOW))
        assert (await engine.ended(again)).status == "completed"
    assert await verified(database) == ""
    ledger = evidence.Ledger()
    async with database.read() as conn:
        async for event in audit.every(conn):
            ledger.add(event)
    for name in TABLES:
        table = metadata.tables[name]
        columns = sorted(compared_columns(name) - ({"id"} if name == "runs" else set()))  # the chain has a run's id
        for column in columns[::every]:
            await change_and_find(database, ledger, table, table.c[column])
        assert await compared(database, ledger) == "", name
    await change_and_find(database, ledger, whole_results, whole_results.c.text)
    await change_and_find(database, ledger, worlds, worlds.c.content)
    await plant_and_find(database, ledger, run)
    async with database.write() as conn:
        await conn.execute(update(metadata.tables["runs"]).values(started_by="eve"))
    assert "started_by: it is 'eve'; run.started says" in await verified(database)


async def test_i15_rows_that_come_or_go_are_found_and_no_digest_tells_what_it_is_of(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """I15: a request, a decision or an execution that was removed is found, and so is a request that no one opened.

    Who knows all but a small amount can't try amounts against the log once the nonce is gone; with it, each digest agrees.
    """
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
    await rows_come_and_go(sqlite, run)


async def test_i15_an_erased_person_agrees_and_can_not_be_guessed(sqlite: Database) -> None:
    """I15: rows agree after a person was erased, who had an account or none; no digest tells who they were at their provider."""
    async with sqlite.write() as conn:
        ida = await users.from_oidc(conn, IDA)
    async with sqlite.write() as conn:
        await sessions.begin(conn, "guest", role="viewer")
    for name in (ida.name, "guest"):
        await erase_person(sqlite, name, by="root", reason="They asked for it.", scrub=False)
    assert await verified(sqlite) == ""
    async with sqlite.read() as conn:
        stored = await users.existing(conn, ida.name)
        logged = [json.loads(each.payload) async for each in audit.every(conn) if each.type == "user.added"]
    assert (stored.oidc_subject, stored.nonce) == (None, "")
    digest = logged[0]["digests"]["identity"][ida.name]
    assert row_digest("identity", vars(ida)) != digest == row_digest("identity", vars(ida), ida.nonce)


async def rows_come_and_go(sqlite: Database, run: Run) -> None:
    """Remove rows and plant one, past everything, and find what is said of each."""
    for table, problem in ((executions, "the row is missing"), (decisions, "the row is missing")):
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
    assert "requests rq_planted: no event accounts for this row" in await difference(sqlite, run)


async def test_i15_a_request_that_waits_is_compared_too(client: Client, sqlite: Database, bench: Bench) -> None:
    """I15, I6: an approval that was written past the API is found; a changed request isn't shown and can't be decided."""
    async with stack(client, sqlite, bench.pay, model=paying(5_000)) as engine:
        run = await engine.start()
        request = await engine.request(run)
        assert await difference(sqlite, run) == ""
        async with sqlite.write() as conn:
            forged = {"status": "approved", "decided_by": "the-ceo", "verb": "approve", "decision_id": "forged"}
            await conn.execute(update(requests).values(**forged))
        assert f"requests {request.id}, status: it is 'approved'; request.opened says 'pending'" in await difference(
            sqlite, run
        )
        async with sqlite.write() as conn:
            await conn.execute(update(requests).values(status="pending", decided_by=None, verb=None, decision_id=None))
        for column, value in {
            "input": '{"cents": 5}',
            "summary": "Pay nothing",
            "manifest": "{}",
            "terms": '{"quorum":1,"starter_may_decide":false}',
        }.items():
            async with sqlite.write() as conn:
                await conn.execute(update(requests).values({column: value}))
            with pytest.raises(
                ConflictError, match=rf"changed in the database .*\(column {column}\).* Don't decide it"
            ):
                await engine.decide(request, "approve")
            async with sqlite.read() as conn:
                with pytest.raises(ConflictError, match=f"column {column}"):
                    await request_detail(conn, request.id)
            named = [each for each in (await examine(engine.services)).checks if each.name == "requests"]
            assert request.id in named[0].says
            assert column in named[0].says
            async with sqlite.write() as conn:
                await conn.execute(update(requests).values({column: getattr(request, column)}))
        assert not [each for each in (await examine(engine.services)).checks if each.name == "requests"]
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
        assert "approvals forged: no event accounts for this row" in await difference(sqlite, run)
        async with sqlite.write() as conn:
            await conn.execute(delete(approvals).where(approvals.c.decision_id == "forged"))
        await engine.decide(request, "approve", by=replace(OPERATOR, name="second"))
        await engine.ended(run)
    assert await difference(sqlite, run) == ""
    async with sqlite.write() as conn:
        await conn.execute(update(approvals).where(approvals.c.decided_by == "second").values(decided_by="the-ceo"))
    assert "decided_by: it is 'the-ceo'; request.decided says 'second'" in await difference(sqlite, run)
    async with sqlite.write() as conn:
        await conn.execute(update(approvals).where(approvals.c.decided_by == "the-ceo").values(decided_by="second"))
        await conn.execute(update(requests).values(decided_by="eve"))
    assert "decided_by: it is 'eve'; request.decided says" in await difference(sqlite, run)
