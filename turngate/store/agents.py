"""Agents as the workers published them, so that the API knows names, models and limits without the builder's code."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Final, Literal

from sqlalchemy import bindparam, delete, select, text, update

from turngate.domain.agents.app import App, Limits
from turngate.domain.agents.model_profiles import Profiles
from turngate.domain.requests import WhileRunning
from turngate.domain.tools.external import MODEL, is_external
from turngate.store.clock import as_text, from_text, now
from turngate.store.database import Connection
from turngate.store.tables import agents, model_names

PUBLISHED_TOGETHER: Final = timedelta(seconds=1)
"""Agents of one app have one instant; before, each had its own."""

# Both databases know this form, and SQLAlchemy has it only per dialect.
_RESERVE = text(
    "INSERT INTO agents (name, version, model, description, limits, tools, task_queue, published_at) "
    "VALUES (:name, '', '', '', '', '', '', '') ON CONFLICT DO NOTHING"
)
# Built once: the inbox reads them, too, and each start one.
_EVERY = select(agents).order_by(agents.c.name)
_BY_NAME = select(agents).where(agents.c.name == bindparam("agent"))


@dataclass(frozen=True, kw_only=True)
class PublishedAgent:
    """One agent as its worker last published it. ``tools``: names, comma-separated, in order.

    ``sub_agent_of``: the agents whose calls it answers, the same way; empty for one that the app offers to people itself.
    """

    name: str
    version: str
    model: str
    description: str
    limits: str
    tools: str
    task_queue: str
    published_at: str
    sub_agent_of: str = ""
    while_running: WhileRunning = "queue"

    @property
    def run_limits(self) -> Limits:
        """The limits a run of this agent starts with."""
        return Limits.model_validate_json(self.limits)


async def publish(conn: Connection, app: App, *, task_queue: str) -> None:
    """Replace what this app's agents, sub-agents included, published before. Several workers may do so at once."""
    callers, at = app.callers, as_text(now())
    for agent in app.all_agents:
        await conn.execute(_RESERVE, {"name": agent.name})  # the row is there, and ours until this transaction ends
        await conn.execute(
            update(agents)
            .where(agents.c.name == agent.name)
            .values(
                version=agent.version,
                model=agent.model,
                description=agent.description,
                limits=agent.limits.model_dump_json(),
                tools=", ".join(agent.toolkit.names),
                task_queue=task_queue,
                published_at=at,
                sub_agent_of=", ".join(callers.get(agent.name, ())),
                while_running=agent.while_running,
            )
        )


async def get(conn: Connection, name: str) -> PublishedAgent | None:
    """Return one agent, or None. One that represents external calls belongs to the app that was published last."""
    if is_external(name):
        return await _external(conn, name)
    row = (await conn.execute(_BY_NAME, {"agent": name})).mappings().one_or_none()
    return PublishedAgent(**row) if row else None


async def _external(conn: Connection, name: str) -> PublishedAgent | None:
    newest = select(agents).order_by(agents.c.published_at.desc(), agents.c.name).limit(1)
    row = (await conn.execute(newest)).mappings().one_or_none()
    if row is None:
        return None
    own = {"version": "", "model": MODEL, "description": "", "limits": Limits().model_dump_json(), "tools": ""}
    return PublishedAgent(**{**row, **own, "name": name, "sub_agent_of": "", "while_running": "queue"})


async def every(conn: Connection) -> list[PublishedAgent]:
    """Return all published agents by name."""
    return [PublishedAgent(**row) for row in (await conn.execute(_EVERY)).mappings()]


async def current(conn: Connection) -> list[PublishedAgent]:
    """Return the agents to choose from, by name: those that the newest app of each task queue has.

    One that was renamed or removed stays published for its runs, and can be started by its name while an older worker has it.
    """
    published = await every(conn)
    newest = {each.task_queue: each.published_at for each in sorted(published, key=lambda each: each.published_at)}
    return [
        each
        for each in published
        if from_text(newest[each.task_queue]) - from_text(each.published_at) < PUBLISHED_TOGETHER
    ]


# What a model may be called, as the workers published it, so that the API knows without their settings and keys.


NameKind = Literal["profile", "declared", "provider"]

# Both databases know this form, and SQLAlchemy has it only per dialect.
_PUT = text(
    "INSERT INTO model_names (task_queue, name, kind, model, published_at) "
    "VALUES (:task_queue, :name, :kind, :model, :published_at) ON CONFLICT (task_queue, name) "
    "DO UPDATE SET kind = excluded.kind, model = excluded.model, published_at = excluded.published_at"
)
UNKNOWN_QUEUE = ""
"""Of names that were published before each had its task queue. The next worker that publishes removes them."""


@dataclass(frozen=True, kw_only=True)
class ModelName:
    """A profile with its ``model``; a ``declared`` model's spec; or a provider, whose ``name`` comes before the colon."""

    name: str
    kind: NameKind
    model: str
    published_at: str


async def publish_model_names(
    conn: Connection,
    profiles: Profiles,
    providers: Iterable[str],
    *,
    task_queue: str,
    declared: Iterable[str] = (),
) -> None:
    """Replace the names that workers of this task queue published. Several workers may do so at once.

    ``declared``: what the app and the profiles name, as ``provider:name``; runs may be started with these alone.
    """
    rows = [(name, "profile", profiles[name].model) for name in profiles]
    rows += [(spec, "declared", spec) for spec in declared if spec not in profiles]
    rows += [(name, "provider", "") for name in providers if name not in profiles]
    for name, kind, model in sorted(rows):  # in one order, or two workers could wait for each other
        put = {"task_queue": task_queue, "name": name, "kind": kind, "model": model, "published_at": as_text(now())}
        await conn.execute(_PUT, put)
    own = model_names.c.task_queue.in_([task_queue, UNKNOWN_QUEUE])
    is_named = (model_names.c.task_queue == task_queue) & model_names.c.name.in_([name for name, _kind, _model in rows])
    await conn.execute(delete(model_names).where(own, ~is_named))


async def every_model_name(conn: Connection) -> list[ModelName]:
    """Return all of them by kind and name, each once, as it was published last."""
    columns = [model_names.c[each.name] for each in fields(ModelName)]
    rows = (await conn.execute(select(*columns).order_by(model_names.c.published_at))).mappings()
    newest = {row["name"]: ModelName(**row) for row in rows}
    return sorted(newest.values(), key=lambda each: (each.kind, each.name))
