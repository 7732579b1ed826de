"""The frame of every page of a logged-in person: name, form token, the inbox's count, the newest event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fastapi import Request, Response

from turngate.approvals_api.http import authentication
from turngate.approvals_api.http.authentication import form_token, session_secret
from turngate.approvals_api.pages.templating import Frame
from turngate.approvals_api.policy.proposals import may_confirm
from turngate.approvals_api.principal import Principal
from turngate.domain.errors import InvalidInputError
from turngate.domain.policy.terms import YEAR_SECONDS
from turngate.store.database import Connection
from turngate.store.live import badges

MAX_FIELDS: Final = 2_000
MOST_DIGITS: Final = 9
"""Of a record's number, which has 31 bits in the store."""

# What a person chose for a browser: a cookie each, so that it works without JavaScript.

OPENS_NEXT: Final = "turngate_opens_next"
"""The next request opens by itself after each decision."""
COMPACT: Final = "turngate_compact"
"""Lists and panels are dense."""
SOUND: Final = "turngate_sound"
"""A new request makes a sound while a page is open."""


def has_chosen(request: Request, choice: str) -> bool:
    """Tell whether this browser's person made the choice."""
    return authentication.cookie_name(request, choice) in request.cookies


def keep_choice(request: Request, response: Response, choice: str, *, wanted: bool) -> None:
    """Keep the choice in the browser, or forget it."""
    if wanted:
        authentication.set_cookie(request, response, choice, "yes", max_age=YEAR_SECONDS)
    else:
        authentication.delete_cookie(request, response, choice)


async def frame_of(conn: Connection, request: Request, principal: Principal) -> Frame:
    """Return the frame. Call it first on the connection: everything that the page reads then is as new as ``last_seq``.

    So a browser that follows the events from there misses nothing between the page and the stream.
    """
    around = await badges.read(conn)
    secret = session_secret(request)
    return Frame(
        operator=principal.name,
        form_token="" if secret is None else form_token(secret),
        pending=around.pending,
        grants=around.grants,
        to_confirm=int(around.rules_proposed_by is not None and may_confirm(principal, around.rules_proposed_by)),
        role=principal.role,
        last_seq=around.last_seq,
        compact=has_chosen(request, COMPACT),
        sound=has_chosen(request, SOUND),
        playground=hasattr(request.app.state, "playground"),
    )


def number_of(typed: Mapping[str, str], name: str) -> int | None:
    """Return the number of a record that a form sent: a version, a revision. None: there is none, or no record can have it."""
    text = typed.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS else None


async def typed_of(request: Request) -> Mapping[str, str]:
    """Return what a form sent: control name → text; files are left out.

    Raises InvalidInputError when a name is there twice: no form of these pages sends that, and readers disagree which counts.
    """
    sent = (await request.form(max_fields=MAX_FIELDS)).multi_items()
    typed = {name: text for name, text in sent if isinstance(text, str)}
    if len({name for name, _ in sent}) != len(sent):
        message = "the form sends a name twice: reload the page and send it again"
        raise InvalidInputError(message, errors=[{"pointer": "", "message": message}])
    return typed
