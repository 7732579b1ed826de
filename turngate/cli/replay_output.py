"""What ``turngate replay-check`` does: gather histories, replay one after the other, say which cannot go on.

Importing this module imports Temporal and the workflow's code; the command itself (``replay_commands``) does not.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import typer
from temporalio.client import WorkflowHistory

from turngate.cli import history_files, replaying, terminal
from turngate.cli.failing import EXIT_WENT_WRONG
from turngate.cli.replaying import MEANING, Checked, Failing
from turngate.cli.temporal_link import find_address
from turngate.runtime.settings import Settings
from turngate.runtime.temporal_client import connect
from turngate.runtime.workflow_code import build_replayer
from workflows.agent_turn import AgentTurn
from workflows.scheduled_start import ScheduledStart

PROGRESS_EVERY: Final = 100


def replay_and_report(
    settings: Settings,
    *,
    run_ids: list[str],
    every: bool,
    limit: int | None,
    files: list[Path],
    save: Path | None,
    as_json: bool,
) -> None:
    """Replay these runs, or without ``run_ids`` and ``files`` the open ones (``every``: all that Temporal has).

    Raises typer.Exit when some cannot go on, and what finding and reading histories raises.
    """

    async def checked() -> list[Checked]:
        replayer = build_replayer(AgentTurn, ScheduledStart)
        done: list[Checked] = []
        async for history in _histories(settings, run_ids, files, every=every, limit=limit):
            if save is not None:
                history_files.save_history(history, save)
            one = await replaying.check(history, replayer)
            done.append(one)
            if one.failing is not None and not as_json:
                _show(one, one.failing)
            if len(done) % PROGRESS_EVERY == 0:
                terminal.note(f"{_runs(len(done))} replayed …")
        return done

    with _quiet_sdk():
        found = asyncio.run(checked())
    if as_json:
        terminal.raw(json.dumps([one.for_programs() for one in found]))
    failing = sum(one.failing is not None for one in found)
    if failing:
        terminal.note(f"{failing} of {_runs(len(found))} cannot go on with this release")
        raise typer.Exit(EXIT_WENT_WRONG)
    if found:
        terminal.note(
            f"{_runs(len(found))} replayed: this release can go on with {'it' if len(found) == 1 else 'them'}"
        )
    else:
        terminal.note("there is no such run in Temporal, so nothing to replay")


async def _histories(
    settings: Settings, run_ids: list[str], files: list[Path], *, every: bool, limit: int | None
) -> AsyncIterator[WorkflowHistory]:
    for history in history_files.read_histories(files):
        yield history
    if files and not run_ids:
        return
    client = await connect(settings, find_address(settings))
    if run_ids:
        chosen = replaying.named_histories(client, run_ids)
    else:
        chosen = replaying.listed_histories(client, replaying.EVERY if every else replaying.OPEN, limit=limit)
    async for history in chosen:
        yield history


@contextmanager
def _quiet_sdk() -> Iterator[None]:
    """Keep the SDK from logging each failing replay, at length, unless debugging is asked for."""
    logger = logging.getLogger("temporalio")
    before = logger.level
    if not terminal.wants_traceback():
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def _show(one: Checked, failing: Failing) -> None:
    terminal.line((one.run_id, "bold"), f"  fails at event {failing.event_id}, {failing.event}")
    terminal.line("  ", MEANING[failing.kind])
    terminal.line("  Temporal's SDK says: ", failing.reason)


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"
