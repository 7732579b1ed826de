"""``turngate erase``: a conversation's content, or what is stored of a person. It needs the store, and no server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated

import typer

from turngate.approvals_api.retention.erase import ErasureOrder, checked_reason
from turngate.approvals_api.retention.erase import erase as erase_conversation
from turngate.approvals_api.retention.erase import preview as preview_conversation
from turngate.approvals_api.retention.overview import CONVERSATION
from turngate.approvals_api.retention.people import PersonErasure, erase_person, preview_person
from turngate.cli import stores, terminal
from turngate.cli.errors import EXIT_WENT_WRONG
from turngate.cli.options import AsJson, DataDir
from turngate.domain.errors import ConfigurationError
from turngate.runtime.settings import Settings, load_stack_settings
from turngate.store.database import Database
from turngate.store.retention.erase_content import KINDS
from turngate.text.plain_text import plain_line
from turngate.wire.retention import ErasurePreview, ErasureResult


def erase(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="CONVERSATION|PERSON",
            help="A conversation's id, the id of a run in it, or a user's name.",
            show_default=False,
        ),
    ] = None,
    reason: Annotated[str, typer.Option("--reason", help="Why: the audit log keeps it. Name no one in it.")] = "",
    yes: Annotated[
        bool, typer.Option("--yes", help="Erase. Without it the command only prints what would go.")
    ] = False,
    with_forks: Annotated[
        bool, typer.Option("--with-forks", help="Erase its forks and dry runs, too: they share its messages.")
    ] = False,
    interrupt: Annotated[
        bool, typer.Option("--interrupt", help="Interrupt live runs first, and wait for their end.")
    ] = False,
    scrub: Annotated[
        bool, typer.Option("--scrub", help="Only rewrite the database's files, so that they hold no old bytes.")
    ] = False,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Erase what was said in a conversation, or what is stored of a person.

    Of a conversation: messages, arguments, results, comments and all other content.

    Ids, times, verdicts, digests and the audit log stay, and `turngate audit verify` still passes. It can't be undone. Of a
    person, it erases the account, sessions, tokens and subscriptions. Without --yes it prints what would go.

    Exit code: 0, or 1 without --yes if something keeps it: a legal hold, a live run, a fork.
    """
    settings = load_stack_settings(data_dir=data_dir)
    if scrub:
        _say(asyncio.run(_scrub(settings)))
        terminal.line("The database's files are rewritten.")
        return
    if target is None:
        raise ConfigurationError("name a conversation, a run or a person: `turngate erase CONVERSATION --reason …`")
    if yes:
        checked_reason(reason)
    if not target.startswith(CONVERSATION):
        _person(settings, target, reason, yes=yes)
        return
    seen = asyncio.run(_preview(settings, target, with_forks=with_forks))
    if not yes:
        if as_json:
            terminal.document(seen.model_dump_json())
        else:
            _show(seen)
        blocked = seen.holds or seen.forks or (seen.live_run_ids and not interrupt)
        raise typer.Exit(EXIT_WENT_WRONG if blocked else 0)
    order = ErasureOrder(target=target, by="", reason=reason, with_forks=with_forks, interrupt=interrupt)
    result = asyncio.run(_erase(settings, order))
    if as_json:
        terminal.document(result.model_dump_json())
        return
    for erasure in result.erasures:
        terminal.line(("✓ ", "bold"), f"{erasure.conversation_id}: {_counted(erasure.counts)} erased ({erasure.id})")
    _say(result.remains)


def _show(seen: ErasurePreview) -> None:
    terminal.line(
        f"Erasing {seen.conversation_id} would empty: {_counted({KINDS.get(k, k): n for k, n in seen.counts.items()})}"
    )
    terminal.table(
        ("RUN", "AGENT", "STATUS", "CONVERSATION"),
        [(each.id, plain_line(each.agent), each.status, each.conversation_id) for each in seen.runs],
    )
    if seen.pending_requests:
        terminal.line(f"{seen.pending_requests} request(s) still wait for a person.")
    if seen.live_run_ids:
        terminal.line(f"Still live: {', '.join(seen.live_run_ids)}. Wait for their end, or use --interrupt.")
    for fork in seen.forks:
        terminal.line(
            f"Run {fork.id} in {fork.conversation_id} shares its messages: use --with-forks to erase it, too."
        )
    for shared in seen.shared_with:
        terminal.line(f"Its past belongs to {shared}, and stays.")
    for name in seen.schedules:
        terminal.line(f"The schedule {plain_line(name)} continues it, and will start no more runs.")
    for hold in seen.holds:
        why = f"{plain_line(hold.target)} by {plain_line(hold.created_by)}: {plain_line(hold.reason)}"
        terminal.line(f"A legal hold keeps it ({hold.id}), on {why}")
    if seen.erased is not None:
        terminal.line(plain_line(seen.erased.says))
    terminal.note("nothing was erased: add --yes")


def _person(settings: Settings, name: str, reason: str, *, yes: bool) -> None:
    erasure = asyncio.run(_erase_person(settings, name, reason, yes=yes))
    if yes:
        terminal.line(("✓ ", "bold"), f"{plain_line(name)}: {_counted(erasure.counts)} erased")
    else:
        terminal.line(f"Erasing {plain_line(name)} would remove: {_counted(erasure.counts)}")
    terminal.note(erasure.says)
    if not yes:
        terminal.note("nothing was erased: add --yes")


async def _preview(settings: Settings, target: str, *, with_forks: bool) -> ErasurePreview:
    async with stores.opened_store(settings) as database:
        return await preview_conversation(database, target, with_forks=with_forks)


async def _erase(settings: Settings, order: ErasureOrder) -> ErasureResult:
    async with stores.opened_store(settings) as database, stores.signing_log(settings, database):
        return await erase_conversation(database, replace(order, by=await stores.actor(database)))


async def _erase_person(settings: Settings, name: str, reason: str, *, yes: bool) -> PersonErasure:
    async with stores.opened_store(settings) as database, stores.signing_log(settings, database):
        if not yes:
            return await preview_person(database, name)
        return await erase_person(database, name, by=await stores.actor(database), reason=reason)


async def _scrub(settings: Settings) -> Sequence[str]:
    database: Database
    async with stores.opened_store(settings) as database:
        return await database.scrub()


def _counted(counts: Mapping[str, int]) -> str:
    listed = ", ".join(f"{number:,} {kind}" for kind, number in sorted(counts.items(), key=lambda each: -each[1]))
    return listed or "nothing"


def _say(sentences: Sequence[str]) -> None:
    for sentence in sentences:
        terminal.note(sentence)
