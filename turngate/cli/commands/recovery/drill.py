"""``turngate drill``: record that a restore or a stop was practised, so that ``turngate evidence`` has it."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final, Literal

import typer

from turngate.cli import stores, terminal
from turngate.cli.options import DataDir, seconds_of
from turngate.domain.errors import ConfigurationError
from turngate.domain.tools.secrets import mask_text
from turngate.runtime.settings import Settings, load_stack_settings
from turngate.store.events import events

MAX_NOTE_CHARS: Final = 500


def drill(
    kind: Annotated[Literal["restore", "stop"], typer.Argument(help="What was practised.")],
    took: Annotated[str, typer.Option(metavar="TIME", help="How long it took: 90s, 15m, 2h.")],
    result: Annotated[Literal["passed", "failed"], typer.Option(help="Whether it did what it should.")],
    note: Annotated[str, typer.Option(help="What you saw: the audit log keeps it. Name no one in it.")] = "",
    data_dir: DataDir = None,
) -> None:
    """Record a drill that you have done in the audit log.

    It does nothing else: docs/howto/back-up-and-restore.md says how to do one. `turngate evidence` lists the drills of a period,
    and says which kind is missing.
    """
    if len(note) > MAX_NOTE_CHARS:
        raise ConfigurationError(f"--note has at most {MAX_NOTE_CHARS} characters")
    seconds = seconds_of(took, "--took")
    settings = load_stack_settings(data_dir=data_dir)
    seq = asyncio.run(_record(settings, kind, result, seconds, mask_text(note, ())))
    terminal.line(("✓ ", "bold"), f"{kind} drill recorded: {result}, {took} (event {seq:,})")


async def _record(settings: Settings, kind: str, result: str, seconds: int, note: str) -> int:
    finished = {"kind": str(kind), "seconds": seconds, "result": str(result), "note": note}
    async with stores.opened_store(settings) as database, stores.signing_log(settings, database):
        async with database.write() as conn:
            payload = {**finished, "by": await stores.acting_as(conn)}
            await events.append(conn, events.SYSTEM, [("drill.finished", payload)])
        async with database.read() as conn:
            return await events.last_seq(conn)
