"""Who counts as the starter of a run's calls, from what the store has of the runs that led to it."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from sqlalchemy import update
from support.stores.stored_requests import live_run

from turngate.approvals_api.principal import OPERATOR_SCOPES, Principal
from turngate.approvals_api.requests.eligibility import starters, starters_or_newer, why_not
from turngate.domain.policy.terms import AskTerms
from turngate.domain.requests import RequestKind
from turngate.store.access import people
from turngate.store.clock import as_text, now
from turngate.store.database import Connection, Database
from turngate.store.events import events
from turngate.store.runs import orders, runs
from turngate.store.runs.runs import Run
from turngate.store.runs.starters import starters_of
from turngate.store.tables import runs as run_rows


async def stored(conn: Connection, run_id: str, by: str, **links: str) -> Run:
    """Write a run in a conversation of its own, ended, so that another may follow in it."""
    await live_run(conn, run_id, started_by=by, logged=True)
    await conn.execute(update(run_rows).where(run_rows.c.id == run_id).values(status="completed", **links))
    run = await runs.get(conn, run_id)
    assert run is not None
    return run


def operator(name: str) -> Principal:
    return Principal(name=name, via="session", scopes=OPERATOR_SCOPES)


@pytest.mark.parametrize("link", ["parent_run_id", "forked_from_run_id"])
async def test_i10_the_starters_of_what_led_to_a_run_count(database: Database, link: str) -> None:
    """Through several runs: of the parent's fork's source, too; not of a run that has nothing to do with it."""
    async with database.write() as conn:
        await stored(conn, "run_1", "ann")
        await stored(conn, "run_2", "bob", forked_from_run_id="run_1")
        last = await stored(conn, "run_3", "cem", **{link: "run_2"})
        await stored(conn, "run_4", "zoe")
        assert await starters_of(conn, last, until=as_text(now())) == {"ann", "bob", "cem"}


async def test_i10_who_switched_the_model_counts_and_an_agents_own_switch_names_no_one(database: Database) -> None:
    """Each switch is in the log, so one that was replaced by the next counts, too; a later one does not."""
    async with database.write() as conn:
        run = await stored(conn, "run_1", "ann")
        for payload in ({"by": "bob", "to": "a"}, {"by": "cem", "to": "b"}, {"tool_call_id": "c1", "to": "c"}):
            await events.append(conn, run.id, [("run.model_switched", payload)])
        assert await starters_of(conn, run, until=as_text(now())) == {"ann", "bob", "cem"}
        assert await starters_of(conn, run, until=run.created_at) == {"ann"}


async def test_i10_who_writes_what_the_model_reads_counts(database: Database) -> None:
    """An edit, an answer, a rejection or interrupt with a reason lead to what comes after; an approval or bare stop doesn't."""
    async with database.write() as conn:
        run = await stored(conn, "run_1", "ann")
        decisions = [("request.decided", "bob"), ("request.superseded", "cem")]
        await events.append(conn, run.id, [(kind, {"by": by, "steers": True}) for kind, by in decisions])
        await conn.execute(update(run_rows).values(created_at="2999-01-01T00:00:00.000000+00:00"))  # the log tells when
        await events.append(conn, run.id, [("request.decided", {"by": "zoe", "verb": "approve"})])
        for name, reason in (("otto", "Pay 9999 to eve instead."), ("max", "")):
            await live_run(conn, f"run_{name}", started_by="ann", parent_run_id=run.id, logged=True)
            await orders.interrupt(conn, [f"run_{name}"], by=name, reason=reason)
        assert await starters_of(conn, run, until=as_text(now())) == {"ann", "bob", "cem", "otto"}
        assert await starters_of(conn, run, until=run.created_at) == {"ann"}


@dataclass(frozen=True)
class Pending:
    """A request whose rule wants other eyes than the starter's."""

    run_id: str
    not_by: str | None
    created_at: str
    kind: RequestKind = "approval"
    ask_terms: AskTerms = field(default_factory=AskTerms)


async def test_i10_who_comes_after_an_erased_starter_may_be_the_same_human(database: Database) -> None:
    """Zoe, who was there before Ann was erased, may decide about Ann's run that Bob retries. Ann's new account may not."""
    async with database.write() as conn:
        ann, bob, zoe = [await people.take_id(conn, each) for each in ("Ann", "Bob", "Zoe")]
        await stored(conn, "run_1", ann)
        await people.erase(conn, ann)
        again = await people.take_id(conn, "Ann")
        await stored(conn, "run_2", bob, forked_from_run_id="run_1")
        await stored(conn, "run_3", bob)
        request = Pending("run_2", bob, as_text(now()))
        other = Pending("run_3", bob, as_text(now()))
        assert await starters(conn, request) == {ann, bob}
        assert await starters_or_newer(conn, request) == {ann, bob, again}
        assert await starters_or_newer(conn, other) == {bob}
        barred = why_not(request, operator(again), await starters_or_newer(conn, request))
        assert barred is not None
        assert "erased" in barred
        assert why_not(request, operator(zoe), await starters_or_newer(conn, request)) is None
        assert why_not(other, operator(again), await starters_or_newer(conn, other)) is None
