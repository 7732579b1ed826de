"""The conversations there are, as an editor lists them: by the names it knows them by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from acp.schema import SessionInfo

from turngate.client import TurngateClient
from turngate.drivers import acp_showing as show
from turngate.wire.runs import RunSummary

LISTED: Final = 50
TITLE_CHARS: Final = 80


async def listed(client: TurngateClient, named: Mapping[str, str], cwd: str | None) -> list[SessionInfo]:
    """Return the newest conversations. ``named``: conversation → session; ``cwd``: those of that project, None: all."""
    page = await client.list_runs(limit=4 * LISTED)
    newest: dict[str, SessionInfo] = {}
    for run in page.items:
        here = run.parent_run_id is None and run.replay_of_run_id is None and cwd in {None, run.workspace}
        if here and run.workspace and run.conversation_id not in newest:
            newest[run.conversation_id] = SessionInfo(
                session_id=named.get(run.conversation_id, run.conversation_id),
                cwd=run.workspace,
                title=title_of(run),
                updated_at=run.created_at,
            )
    return list(newest.values())[:LISTED]


def title_of(run: RunSummary) -> str:
    """Return a run's task as a title: its beginning, on one line, with nothing hidden."""
    return show.marked(" ".join(run.task.split())[:TITLE_CHARS])
