"""The names that a model may have, and which model a run continues with."""

from __future__ import annotations

from turngate.domain.agents.model_profiles import Profile, Profiles
from turngate.store import agents
from turngate.store.database import Database
from turngate.store.runs import runs
from turngate.store.runs.runs import Run


def named(*names: str, model: str = "p:m") -> Profiles:
    return Profiles({name: Profile(name=name, model=model) for name in names})


async def published(database: Database) -> list[tuple[str, str, str]]:
    async with database.read() as conn:
        return [(each.kind, each.name, each.model) for each in await agents.every_model_name(conn)]


async def test_a_task_queues_workers_replace_its_names(database: Database) -> None:
    """Each name once, with its latest model; a profile hides a provider of its name; other queues keep their own."""
    async with database.write() as conn:
        await agents.publish_model_names(conn, named("slow"), ["openai"], task_queue="other")
        await agents.publish_model_names(conn, named("old", "fast"), ["openai", "fast"], task_queue="own")
        await agents.publish_model_names(conn, named("fast", model="p:new"), ["groq"], task_queue="own")
    assert await published(database) == [
        ("profile", "fast", "p:new"),
        ("profile", "slow", "p:m"),
        ("provider", "groq", ""),
        ("provider", "openai", ""),
    ]


async def test_i13_a_model_that_is_no_longer_declared_is_gone(database: Database) -> None:
    """I13: also one that was published before names had task queues."""
    async with database.write() as conn:
        await agents.publish_model_names(conn, named(), (), task_queue="", declared=["p:former"])
        await agents.publish_model_names(conn, named(), (), task_queue="own", declared=["p:dear", "p:cheap"])
        await agents.publish_model_names(conn, named(), (), task_queue="own", declared=["p:cheap"])
    assert await published(database) == [("declared", "p:cheap", "p:cheap")]


async def test_a_fallback_yields_to_a_person_and_to_the_end(database: Database, run: Run) -> None:
    """It applies only to the model it was decided for; it undoes neither a switch, even to that model, nor an end."""

    async def as_it_is() -> Run:
        async with database.read() as conn:
            stored = await runs.get(conn, run.id)
        assert stored is not None
        return stored

    async def falls(before: Run, to: str) -> bool:
        async with database.write() as conn:
            return await runs.fall_back(conn, before, model=to, instead_of=before.model)

    assert await falls(run, "p:b")
    fallen = await as_it_is()
    assert (fallen.model, fallen.fell_back_from, fallen.chosen_model) == ("p:b", run.model, run.model)
    assert fallen.model_is_fixed
    assert not await falls(run, "p:c")
    async with database.write() as conn:
        assert await runs.switch_model(conn, run.id, model="p:b", by="ada")
    switched = await as_it_is()
    assert (switched.model_chosen_by, switched.fell_back_from, switched.chosen_model) == ("ada", None, "p:b")
    assert not await falls(fallen, "p:c")
    assert await falls(switched, "p:c")
    async with database.write() as conn:
        await runs.end(conn, run.id, runs.Ending(status="failed"))
        assert not await runs.switch_model(conn, run.id, model="p:d", by="ada")
    assert not await falls(await as_it_is(), "p:d")
