"""Saved views of the inbox: filters under names, one set for each person."""

from __future__ import annotations

from typing import Final

from sqlalchemy.exc import IntegrityError

from approvals_api.principal import Principal
from approvals_api.services import Services
from turngate.domain.errors import ConflictError, InvalidInputError, NotFoundError
from turngate.domain.runs.inbox import InboxFilter
from turngate.domain.text.hidden_text import is_hidden
from turngate.store.requests import saved_views
from turngate.store.requests.saved_views import MAX_PER_PERSON, SavedView
from turngate.wire.people import id_of

MAX_NAME_CHARS: Final = 100


async def save(services: Services, principal: Principal, name: str, query: str) -> SavedView:
    """Save a filter under a name; it replaces an older one. It is stored in its shortest form.

    Raises:
        InvalidInputError: ``bad_filter``: a condition the inbox does not know; or the name is not 1 to 100 visible characters.
        ConflictError: ``too_many_views``.
    """
    if not _is_name(name):
        message = f"a view's name has 1 to {MAX_NAME_CHARS} visible characters, without / and without spaces around it"
        raise InvalidInputError(message, errors=[{"pointer": "", "message": message}])
    plain = _by_id(InboxFilter.from_query(query)).query
    try:
        async with services.database.write() as conn:
            saved = await saved_views.put(conn, owner=principal.name, name=name, query=plain)
    except IntegrityError:  # the same person saved it at the same moment: now it exists and can be changed
        async with services.database.write() as conn:
            saved = await saved_views.put(conn, owner=principal.name, name=name, query=plain)
    if saved is None:
        raise ConflictError(
            f"you have {MAX_PER_PERSON} saved views: remove one before you save another", code="too_many_views"
        )
    return saved


async def existing(services: Services, principal: Principal, name: str) -> SavedView:
    """Return one of the principal's views. Raises NotFoundError."""
    async with services.database.read() as conn:
        view = await saved_views.get(conn, principal.name, name)
    if view is None:
        raise NotFoundError(f"you have no saved view {name!r}")
    return view


async def every(services: Services, principal: Principal) -> list[SavedView]:
    """Return the principal's views, by name."""
    async with services.database.read() as conn:
        return await saved_views.of_person(conn, principal.name)


async def remove(services: Services, principal: Principal, name: str) -> None:
    """Remove one of the principal's views; safe to repeat."""
    async with services.database.write() as conn:
        await saved_views.remove(conn, principal.name, name)


def _by_id(wanted: InboxFilter) -> InboxFilter:
    return wanted if wanted.claimed is None else wanted.model_copy(update={"claimed": id_of(wanted.claimed)})


def _is_name(name: str) -> bool:
    visible = all(char.isprintable() and not is_hidden(char) and char != "/" for char in name)
    return 1 <= len(name) <= MAX_NAME_CHARS and visible and name == name.strip()
