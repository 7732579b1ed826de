"""Families of runs: what is found of them, in which order, and how little of a large one."""

from __future__ import annotations

from support.stores.sql_census import SqlCensus

from turngate.store.database import Database
from turngate.store.runs import runs
from turngate.store.runs.families import MOST_ABOVE, MOST_RUNS, Family, family_of


async def of(database: Database, run_id: str) -> Family:
    """The family, as a page finds it."""
    async with database.read() as conn:
        run = await runs.get(conn, run_id)
        assert run is not None
        return await family_of(conn, run)


async def forked(new_run, origin: str, number: int) -> list[str]:
    """Ids of so many forks of a run."""
    return [(await new_run(forked_from_run_id=origin, forked_from_step=1)).id for _ in range(number)]


async def test_a_family_is_found_from_each_of_its_runs(database: Database, new_run) -> None:
    """A fork of a fork, its sibling and the origin are one family; others aren't in it, and a run alone has none."""
    origin, other = (await new_run()).id, (await new_run()).id
    first, second = await forked(new_run, origin, 2)
    (below,) = await forked(new_run, first, 1)
    for run_id in (origin, first, second, below):
        family = await of(database, run_id)
        ids = [run.id for run in family.runs]
        assert sorted(ids) == sorted([origin, first, second, below])
        for run in family.runs:
            assert run.forked_from_run_id is None or run.forked_from_run_id in ids[: ids.index(run.id)]
        assert family.forks == {origin: 2, first: 1}
    assert await of(database, other) == Family(runs=[], forks={})


async def test_a_large_family_is_cut_around_the_run(database: Database, new_run) -> None:
    """Its own line and forks stay, whatever else there is; each run says how many forks it has in all."""
    origin = (await new_run()).id
    many = await forked(new_run, origin, MOST_RUNS + 5)
    (below,) = await forked(new_run, many[-1], 1)
    lowest = await forked(new_run, below, 2)
    family = await of(database, below)
    ids = [run.id for run in family.runs]
    assert len(ids) == MOST_RUNS
    assert ids[:3] == [origin, many[-1], below]
    assert set(lowest) < set(ids)
    assert family.forks == {origin: MOST_RUNS + 5, many[-1]: 1, below: 2}


async def test_a_long_line_is_cut_at_its_beginning(database: Database, new_run) -> None:
    """Of a chain of forks the nearest are found, by as many statements as for a short one."""
    counts = []
    for length in (3, MOST_RUNS * 2):
        last = (await new_run()).id
        for _ in range(length):
            (last,) = await forked(new_run, last, 1)
        with SqlCensus(database) as census:
            family = await of(database, last)
        counts.append([len(each.statements) for each in census.transactions])
        assert family.runs[min(length, MOST_ABOVE)].id == last
    assert counts[0] == counts[1]
    assert family.runs[0].forked_from_run_id is not None
