"""Legal holds: adding, removing, listing. In the API, for admins."""

from __future__ import annotations

from turngate.approvals_api.retention.erase import checked_reason, hold_view
from turngate.domain.errors import ConflictError, NotFoundError
from turngate.domain.text.instants import in_utc
from turngate.store import agents
from turngate.store.database import Database
from turngate.store.retention import erasures
from turngate.wire.retention import HoldView


async def add(database: Database, target: str, *, reason: str, by: str) -> HoldView:
    """Put a hold on a conversation (also: the conversation of a run), or on everything of an agent.

    Raises NotFoundError when there is neither, InvalidInputError for a reason that is empty or too long.
    """
    checked_reason(reason)
    async with database.write() as conn:
        conversation_id = await erasures.conversation_of(conn, target)
        if conversation_id is not None:
            hold = await erasures.add_hold(conn, kind="conversation", target=conversation_id, reason=reason, by=by)
        elif target in {each.name for each in await agents.every(conn)} or await erasures.has_runs(conn, target):
            hold = await erasures.add_hold(conn, kind="agent", target=target, reason=reason, by=by)
        else:
            raise NotFoundError(f"there is no conversation, run or agent {target!r}")
    return hold_view(hold)


async def remove(database: Database, hold_id: str, *, reason: str, by: str) -> HoldView:
    """Remove a hold. Raises NotFoundError, and ConflictError ``hold_ended`` when it was removed already."""
    checked_reason(reason)
    async with database.write() as conn:
        hold = next((each for each in await erasures.holds(conn, every=True) if each.id == hold_id), None)
        if hold is None:
            raise NotFoundError(f"there is no hold {hold_id!r}: `turngate hold list` lists them")
        removed = await erasures.remove_hold(conn, hold, reason=reason, by=by)
        if removed is None:
            when = "just now" if hold.removed_at is None else f"at {in_utc(hold.removed_at)}"
            raise ConflictError(f"{hold.removed_by or 'someone'} removed this hold {when}", code="hold_ended")
    return hold_view(removed)


async def listed(database: Database, *, every: bool = False) -> list[HoldView]:
    """Return the holds that apply, newest first; ``every``: also those that were removed."""
    async with database.read() as conn:
        return [hold_view(each) for each in await erasures.holds(conn, every=every)]
