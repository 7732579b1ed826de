"""What a gated turn costs a database: its statements and its write transactions, counted on the real engine (DESIGN §10)."""

from __future__ import annotations

from typing import Final

from sqlalchemy.engine import make_url
from support.engine.stack import Script, call, says, stack
from support.engine.tools import Bench
from support.stores.sql_census import SqlCensus
from temporalio.client import Client

from turngate.store.database import Database

MOST_STATEMENTS: Final = {"sqlite": 45, "postgresql": 16}
"""Without BEGIN and COMMIT. SQLite takes no trip for any of them; PostgreSQL takes one for each."""
MOST_TRIPS: Final = 16
"""To PostgreSQL, with BEGIN and COMMIT where a transaction writes more than once."""
MOST_WRITES: Final = 6
"""Transactions that write. Each waits for a disk once."""


async def test_a_gated_turn_stays_within_its_round_trips(client: Client, database: Database, bench: Bench) -> None:
    """Start, request, approval, a ``once`` tool and the answer take no more statements and write transactions than these.

    None of them is compiled each time it runs.
    """
    model = Script(says("I will pay.", call("pay", '{"cents": 5}', "c1")), says("Done."))
    async with stack(client, database, bench.pay, model=model) as engine:
        warm = await engine.start()  # the first turn of a process looks up what later ones keep in memory
        await engine.decide(await engine.request(warm), "approve")
        await engine.ended(warm)
        with SqlCensus(database) as census:
            run = await engine.start()
            await engine.decide(await engine.request(run), "approve")
            ended = await engine.ended(run)
        assert ended.status == "completed"
    statements = sum(len(each.statements) for each in census.of_product)
    writes = sum(each.kind == "write" for each in census.of_product)
    kind = make_url(database.url).get_backend_name()
    assert statements <= MOST_STATEMENTS[kind], census.listing()
    assert writes <= MOST_WRITES, census.listing()
    if kind == "postgresql":
        assert census.trips <= MOST_TRIPS, census.listing()
    assert [each.compiled for each in census.of_product if each.compiled] == []  # that takes milliseconds
