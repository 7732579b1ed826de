"""The stored rules, whole versions with the newest in force, and the file rules that each worker published.

Changing the stored rules writes a version; nothing is ever overwritten. A version that waits for a second admin is a proposal,
and no version yet: what reads versions never sees it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from pydantic import TypeAdapter
from sqlalchemy import bindparam, delete, exists, func, insert, select, update

from turngate.domain.policy.policy import Policy
from turngate.domain.tools.known_tools import KnownTool
from turngate.store.clock import as_text, now
from turngate.store.database import Connection
from turngate.store.policy.grants import is_active
from turngate.store.tables import policy_proposals, policy_versions, published_policies

Outcome = Literal["confirmed", "refused"]

_TOOLS = TypeAdapter(list[KnownTool])

# One round trip per plan, or a part of one: stored rules and grants are only read when there is something to read.
GLANCE: Final = (
    select(func.max(policy_versions.c.version)).scalar_subquery(),
    exists().where(*is_active(bindparam("at"))),
)
"""The columns of :func:`glance`. ``at``: the instant."""
_GLANCE = select(*GLANCE)
_CONFIRMED_BY = (
    select(func.max(policy_proposals.c.ended_by))
    .where(policy_proposals.c.version == policy_versions.c.version, policy_proposals.c.outcome == "confirmed")
    .scalar_subquery()
)
_VERSIONS = select(policy_versions, _CONFIRMED_BY.label("confirmed_by"))
_LAST_PROPOSAL = select(func.max(policy_proposals.c.number)).scalar_subquery()
_IN_FORCE = select(func.coalesce(func.max(policy_versions.c.version), 0)).scalar_subquery()
_WAITS = (
    policy_proposals.c.number == _LAST_PROPOSAL,
    policy_proposals.c.outcome.is_(None),
    policy_proposals.c.version == _IN_FORCE + 1,
)
WAITING_FOR_ADMIN: Final = select(policy_proposals.c.proposed_by).where(*_WAITS)
"""Who proposed the rules that wait; no row: none do."""


@dataclass(frozen=True, kw_only=True)
class StoredPolicy:
    """One version of the stored rules. ``version``: from 1, no gaps. ``source``: TOML, as its author wrote it.

    ``created_at``: set when it is stored. ``confirmed_by``: the second admin; None: it took effect without one.
    """

    version: int
    source: str
    digest: str
    changed_by: str
    comment: str
    created_at: str = ""
    confirmed_by: str | None = None


@dataclass(frozen=True, kw_only=True)
class PolicyProposal:
    """Rules that wait, or waited, for a second admin. ``number``: from 1. ``version``: the one that they would become.

    ``why``: what may loosen. ``outcome`` None: no one has confirmed or refused it.
    """

    number: int
    version: int
    source: str
    digest: str
    proposed_by: str
    comment: str
    why: str
    created_at: str
    outcome: Outcome | None = None
    ended_by: str | None = None
    ended_at: str | None = None


@dataclass(frozen=True, kw_only=True)
class PublishedPolicy:
    """What one worker published of its app. ``file``: the path of its rules; empty: they are code. ``rules``, ``tools``: JSON."""

    task_queue: str
    file: str
    version: str
    rules: str
    tools: str
    published_at: str

    @property
    def policy(self) -> Policy:
        """The file's rules. Raises pydantic's ValidationError when another release wrote what this one cannot read."""
        return Policy.model_validate_json(self.rules)

    @property
    def known_tools(self) -> list[KnownTool]:
        """What is known of the app's tools; of one name in several agents, each kind of it once."""
        return _TOOLS.validate_json(self.tools)


async def glance(conn: Connection) -> tuple[int, bool]:
    """Return the newest version of the stored rules (0: there is none), and whether any grant is active."""
    row: Any = (await conn.execute(_GLANCE, {"at": as_text(now())})).one()
    return int(row[0] or 0), bool(row[1])


async def get(conn: Connection, version: int) -> StoredPolicy | None:
    """Return one version, or None."""
    query = _VERSIONS.where(policy_versions.c.version == version)
    row = (await conn.execute(query)).mappings().one_or_none()
    return StoredPolicy(**row) if row else None


async def newest(conn: Connection) -> StoredPolicy | None:
    """Return the version in force, or None while no rules were ever stored."""
    query = _VERSIONS.order_by(policy_versions.c.version.desc()).limit(1)
    row = (await conn.execute(query)).mappings().one_or_none()
    return StoredPolicy(**row) if row else None


async def versions(conn: Connection, *, limit: int, before: int | None = None) -> list[StoredPolicy]:
    """Return versions, newest first. ``before``: only older ones."""
    query = _VERSIONS.order_by(policy_versions.c.version.desc()).limit(limit)
    if before is not None:
        query = query.where(policy_versions.c.version < before)
    return [StoredPolicy(**row) for row in (await conn.execute(query)).mappings()]


async def append_version(conn: Connection, new: StoredPolicy) -> StoredPolicy:
    """Write the next version. Raises sqlalchemy's IntegrityError when someone else has written it first."""
    stored = replace(new, created_at=as_text(now()))
    columns = {name: value for name, value in vars(stored).items() if name in policy_versions.c}
    await conn.execute(insert(policy_versions).values(**columns))
    return stored


async def propose(conn: Connection, new: StoredPolicy, *, why: str) -> PolicyProposal:
    """Write a proposal, which supersedes the one that waits. ``new.version``: the one that it would become.

    Raises sqlalchemy's IntegrityError when someone else proposes at the same time.
    """
    last = (await conn.execute(select(func.max(policy_proposals.c.number)))).scalar_one()
    proposal = PolicyProposal(
        number=(last or 0) + 1,
        version=new.version,
        source=new.source,
        digest=new.digest,
        proposed_by=new.changed_by,
        comment=new.comment,
        why=why,
        created_at=as_text(now()),
    )
    await conn.execute(insert(policy_proposals).values(**vars(proposal)))
    return proposal


async def waiting_proposal(conn: Connection) -> PolicyProposal | None:
    """Return the newest proposal, unless it has an outcome or its version was stored without it. None: no proposal waits."""
    row = (await conn.execute(select(policy_proposals).where(*_WAITS))).mappings().one_or_none()
    return PolicyProposal(**row) if row else None


async def end_proposal(conn: Connection, number: int, *, outcome: Outcome, by: str) -> bool:
    """Write down how a proposal ended; False: it has ended already."""
    query = (
        update(policy_proposals)
        .where(policy_proposals.c.number == number, policy_proposals.c.outcome.is_(None))
        .values(outcome=outcome, ended_by=by, ended_at=as_text(now()))
    )
    return (await conn.execute(query)).rowcount == 1


async def publish(conn: Connection, *, task_queue: str, policy: Policy, file: str, tools: list[KnownTool]) -> None:
    """Replace what the app of this task queue published before."""
    published = PublishedPolicy(
        task_queue=task_queue,
        file=file,
        version=policy.version,
        rules=policy.model_dump_json(exclude_defaults=True),
        tools=_TOOLS.dump_json(tools).decode(),
        published_at=as_text(now()),
    )
    await conn.execute(delete(published_policies).where(published_policies.c.task_queue == task_queue))
    await conn.execute(insert(published_policies).values(**vars(published)))


async def published(conn: Connection) -> list[PublishedPolicy]:
    """Return what every worker published, by task queue."""
    rows = (await conn.execute(select(published_policies).order_by(published_policies.c.task_queue))).mappings()
    return [PublishedPolicy(**row) for row in rows]
