"""The frame of every page of a logged-in person: name, form token, the inbox's count, the newest event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fastapi import Request

from approvals_api.http.authentication import form_token, session_secret
from approvals_api.pages.templating import Frame
from approvals_api.principal import Principal
from turngate.domain.errors import InvalidInputError
from turngate.store import badges
from turngate.store.database import Connection

MAX_FIELDS: Final = 2_000


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
        role=principal.role,
        last_seq=around.last_seq,
    )


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
