"""A run's conversation, whole: every message from the first one on, whatever the model is shown of it by now."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Annotated, Final
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse, Response

from turngate.approvals_api.http.dependencies import RunReaderDep, ServicesDep
from turngate.approvals_api.lookups import existing_run
from turngate.approvals_api.pages.frames import frame_of
from turngate.approvals_api.pages.templating import render
from turngate.approvals_api.retention.erase import erased_of
from turngate.approvals_api.runs import views as run_views
from turngate.approvals_api.runs.masks import Masks
from turngate.approvals_api.validation.text import STORABLE
from turngate.domain.errors import NotFoundError
from turngate.store.database import Connection
from turngate.store.runs import messages, steps, summaries
from turngate.store.runs.messages import StoredMessage
from turngate.store.runs.runs import Run
from turngate.store.runs.summaries import Cut

router = APIRouter(include_in_schema=False)

PAGE_SIZE: Final = 100
MAX_ID_CHARS: Final = 64


@dataclass(frozen=True, kw_only=True)
class ConversationPage:
    """Some messages of a path. ``start``: how many come before them. ``previous``, ``next``: where those pages begin."""

    messages: Sequence[StoredMessage]
    start: int
    total: int
    previous: int | None
    next: int | None


def page_at(path: Sequence[StoredMessage], offset: int | None) -> ConversationPage:
    """Return the page that begins after ``offset`` messages; None: the last one."""
    last = max(0, len(path) - PAGE_SIZE)
    start = last if offset is None or offset >= len(path) else offset
    end = min(len(path), start + PAGE_SIZE)
    return ConversationPage(
        messages=path[start:end],
        start=start,
        total=len(path),
        previous=max(0, start - PAGE_SIZE) if start else None,
        next=end if end < len(path) else None,
    )


@router.get("/runs/{run_id}/conversation")
async def conversation_page(
    request: Request,
    services: ServicesDep,
    principal: RunReaderDep,
    run_id: str,
    offset: Annotated[int | None, Query(ge=0)] = None,
    cut: Annotated[int | None, Query(ge=1)] = None,
    message: Annotated[str | None, Query(max_length=MAX_ID_CHARS, pattern=STORABLE)] = None,
) -> Response:
    """Show one page of it, the last one by default.

    ``cut``: the page where the messages end that were cut for this step. ``message``: the page with this message, in the
    conversation of an agent above if it is not in this one.
    """
    async with services.database.read() as conn:
        frame = await frame_of(conn, request, principal)
        run = await existing_run(conn, run_id)
        path = await messages.path_to(conn, await _newest(conn, run))
        places = {each.id: place for place, each in enumerate(path)}
        if message is not None and message not in places:
            return _above(run, message)
        cuts = await _cuts(conn, path)
        masks = await Masks.of_run(conn, run, path)
        erased = await erased_of(conn, run)
    of_step = {each.step: each for each in cuts if each.run_id == run_id}
    if message is not None:
        offset = max(0, places[message] - PAGE_SIZE // 2)
    elif cut in of_step:
        offset = max(0, places.get(of_step[cut].covers, 0) - PAGE_SIZE // 2)
    # A hostile megabyte takes a second to escape: not on the event loop, where every other request would wait.
    return await asyncio.to_thread(
        render,
        "conversation.html",
        frame=frame,
        erased=erased,
        run=masks.view(run_views.run_summary(run), *run_views.RUN_TEXTS),
        page=page_at([masks.message(each) for each in path], offset),
        cut_after={each.covers: replace(each, text=masks.text(each.text)) for each in cuts},
    )


def _above(run: Run, message_id: str) -> RedirectResponse:
    """Return the way to the same message in the conversation of the agent above. Raises NotFoundError when there is none."""
    if run.parent_run_id is None:
        raise NotFoundError(f"there is no message {message_id!r} in this conversation")
    where = urlencode({"message": message_id})
    return RedirectResponse(f"/runs/{run.parent_run_id}/conversation?{where}#{quote(message_id)}", HTTPStatus.SEE_OTHER)


async def _newest(conn: Connection, run: Run) -> str:
    """Return the newest message of the conversation in this run: its last response, or the results after it."""
    taken = await steps.of_run(conn, run.id)
    if run.status != "running" or not taken or taken[-1].closed_at is not None:
        return run.head_message_id
    return taken[-1].assistant_message_id


async def _cuts(conn: Connection, path: Sequence[StoredMessage]) -> list[Cut]:
    """Return the cuts that runs made on this path, in their order."""
    run_ids = list(dict.fromkeys(message.run_id for message in path if message.run_id))
    on_path = {message.id for message in path}
    return [each for each in await summaries.of_runs(conn, run_ids) if each.head_message_id in on_path]
