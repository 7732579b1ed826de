"""Who looks at a request: the first look of each person is logged (docs/adr/0013), and who looks now is presence."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Final, Protocol

from turngate.approvals_api.lookups import existing_request
from turngate.approvals_api.principal import Principal
from turngate.approvals_api.services import Services
from turngate.domain.errors import UnavailableError
from turngate.store.database import Connection
from turngate.store.requests import presence
from turngate.store.requests.presence import ActiveViewer

logger = logging.getLogger(__name__)

LOG_SECONDS: Final = 1.0
"""How long a page waits until its first look is logged. The decision itself is logged in any case."""


class Viewed(Protocol):
    """A request, as the store has it or as it is shown."""

    @property
    def id(self) -> str:
        """Its id."""

    @property
    def run_id(self) -> str:
        """Its run."""


@dataclass(frozen=True, kw_only=True)
class FirstLook:
    """A look that is not recorded yet."""

    run_id: str
    request_id: str
    viewer: str


async def first_look(conn: Connection, principal: Principal, request: Viewed) -> FirstLook | None:
    """Return what to record when this request is shown to this principal; None: it is recorded already. One look-up.

    Call it in the transaction that reads the request, then :func:`note` after the transaction.
    """
    if await presence.was_seen(conn, request.id, principal.name):
        return None
    return FirstLook(run_id=request.run_id, request_id=request.id, viewer=principal.name)


async def note(services: Services, look: FirstLook | None) -> None:
    """Record a first look. A store that cannot write now never keeps a person from reading: that is logged instead."""
    if look is None:
        return
    try:
        async with asyncio.timeout(LOG_SECONDS), services.database.write() as conn:
            await presence.note_first(conn, run_id=look.run_id, request_id=look.request_id, viewer=look.viewer)
    except (TimeoutError, UnavailableError) as error:
        says = "%s was shown %s, and the store could not record it: %s"
        ids = {"run_id": look.run_id, "request_id": look.request_id}
        logger.warning(says, look.viewer, look.request_id, error, extra=ids)


async def still_looking(services: Services, principal: Principal, request_id: str) -> list[ActiveViewer]:
    """Record that this principal looks at the request now; returns who else does. Raises NotFoundError."""
    async with services.database.read() as conn:
        request = await existing_request(conn, request_id)
    async with services.database.write() as conn:
        await presence.note_presence(conn, run_id=request.run_id, request_id=request.id, viewer=principal.name)
        return await presence.viewers(conn, request_id, except_for=principal.name)


async def who_looks(services: Services, principal: Principal, request_id: str) -> list[ActiveViewer]:
    """Return who else looks at the request now. Raises NotFoundError."""
    async with services.database.read() as conn:
        await existing_request(conn, request_id)
        return await presence.viewers(conn, request_id, except_for=principal.name)
