"""Erasing a conversation: what would go, and its going, for people and for programs.

The functions take a database, not a process's services: the command line erases without a server, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from turngate.approvals_api.lookups import existing_conversation
from turngate.domain.errors import ConflictError, InvalidInputError
from turngate.domain.text.instants import in_utc
from turngate.store.database import Connection, Database
from turngate.store.retention import erase_content, erasures
from turngate.store.retention.erasures import Erasure, Hold, Reach, Wish
from turngate.store.runs import orders, recovery, runs
from turngate.store.runs.runs import Run
from turngate.wire.retention import ErasurePreview, ErasureResult, ErasureView, HoldView, RunToErase

MAX_REASON_CHARS: Final = 2_000
STOP_SECONDS: Final = 60.0
"""How long live runs have to end after they were interrupted."""
LOOK_AGAIN_SECONDS: Final = 0.1
BEYOND: Final = (
    "Files that tools wrote, other systems they wrote to, backups that were made before, and Temporal's own history are not "
    "Turngate's store: they stay."
)

OnInterrupt = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class ErasureOrder:
    """Who erases which conversation, and why.

    ``with_forks``: its forks and dry runs, too. ``interrupt``: end its live runs first. ``scrub``: rewrite the database's files.
    """

    target: str
    by: str
    reason: str
    with_forks: bool = False
    interrupt: bool = False
    scrub: bool = True
    rule: str = ""
    """The retention rule that wants it; "": a person does."""


async def preview(database: Database, target: str, *, with_forks: bool = False) -> ErasurePreview:
    """Return what erasing would empty; changes nothing. ``target``: a conversation's id, or a run's.

    Raises NotFoundError.
    """
    async with database.read() as conn:
        conversation_id = await existing_conversation(conn, target)
        reached = await erasures.reach(conn, conversation_id, with_forks=with_forks)
        earlier = await erasures.newest_of(conn, conversation_id)
        return ErasurePreview(
            conversation_id=conversation_id,
            conversation_ids=list(reached.conversation_ids),
            runs=[_run(each) for each in reached.runs],
            live_run_ids=[each.id for each in reached.live],
            pending_requests=reached.pending,
            forks=[_run(each) for each in reached.forks],
            shared_with=list(reached.shared_with),
            schedules=list(reached.schedules),
            holds=[hold_view(each) for each in await erasures.holds_on(conn, reached)],
            counts=await erase_content.count(conn, reached.conversation_ids),
            erased=None if earlier is None else erasure_view(earlier),
        )


async def erase(database: Database, order: ErasureOrder, *, on_interrupt: OnInterrupt | None = None) -> ErasureResult:
    """Erase a conversation's content, and return what went. Safe to repeat: a repeat erases what was added since.

    Each conversation goes in one transaction, the named one last, so that a repeat after a crash does the rest.

    Args:
        database: the store.
        order: what goes, by whose wish.
        on_interrupt: called with each run that was interrupted, to tell its workflow at once.

    Raises:
        NotFoundError: no such conversation or run.
        InvalidInputError: the reason is empty or too long.
        ConflictError: ``run_live``, ``held`` (details name the holds), ``forked`` (details name the forks).
        UnavailableError: the database is away.
    """
    checked_reason(order.reason)
    async with database.read() as conn:
        conversation_id = await existing_conversation(conn, order.target)
        reached = await _allowed(conn, conversation_id, order)
    if order.interrupt:
        await _stop(database, reached.live, order, on_interrupt)
    async with database.read() as conn:
        changed = await erasures.evidence_of(conn, reached.runs)
    done: list[Erasure] = []
    for each in reversed(reached.conversation_ids):
        async with database.write() as conn:
            await _lock(conn, each)
            await _allowed(conn, each, order, again=True)
            wish = Wish(by=order.by, reason=order.reason, rule=order.rule)
            erased = await erasures.erase(conn, each, wish, changed=changed)
        if erased is not None:
            done.append(erased)
    remains = await database.scrub() if order.scrub else ()
    return ErasureResult(erasures=[erasure_view(each) for each in reversed(done)], remains=[*remains, BEYOND])


async def _lock(conn: Connection, conversation_id: str) -> None:
    """Take the write lock of its live run's row, if it has one, before anything is read that decides."""
    await runs.hold_live(conn, conversation_id)


async def _allowed(conn: Connection, conversation_id: str, order: ErasureOrder, *, again: bool = False) -> Reach:
    """Return what the erasure reaches. Raises ConflictError when something has to stay, or to end first.

    ``again``: for one of the conversations, just before its content goes.
    """
    reached = await erasures.reach(conn, conversation_id, with_forks=order.with_forks)
    holds = await erasures.holds_on(conn, reached)
    if holds:
        raise held(holds)
    if reached.live and (again or not order.interrupt):
        raise _live(reached.live)
    if reached.forks:
        raise _forked(reached.forks)
    return reached


def held(holds: Sequence[Hold]) -> ConflictError:
    """Return the error that names the holds which keep a conversation."""
    first = holds[0]
    what = "This conversation" if first.kind == "conversation" else f"Everything of the agent {first.target!r}"
    more = f" ({len(holds) - 1} more hold(s) apply.)" if len(holds) > 1 else ""
    return ConflictError(
        f"{what} is under a legal hold since {in_utc(first.created_at)}, by {first.created_by}: {first.reason}. "
        f"Nothing of it can be erased until an admin removes the hold {first.id}.{more}",
        code="held",
        holds=[each.id for each in holds],
    )


def _live(live: Sequence[Run]) -> ConflictError:
    names = ", ".join(run.id for run in live[:5])
    return ConflictError(
        f"{len(live)} run(s) are still live: {names}. Wait for their end, or erase with --interrupt (API: interrupt).",
        code="run_live",
        run_ids=[run.id for run in live],
    )


def _forked(forks: Sequence[Run]) -> ConflictError:
    names = ", ".join(dict.fromkeys(run.conversation_id for run in forks[:10]))
    return ConflictError(
        f"{len(forks)} fork(s) or dry run(s) share messages or results of this conversation, in {names}. To erase them all "
        "with it, use --with-forks (API: with_forks).",
        code="forked",
        run_ids=[run.id for run in forks],
    )


def checked_reason(reason: str) -> str:
    """Return a reason; raises InvalidInputError when it is empty or too long."""
    if not reason.strip() or len(reason) > MAX_REASON_CHARS:
        message = f"say why, in 1 to {MAX_REASON_CHARS:,} characters: the reason is kept in the audit log"
        raise InvalidInputError(f"/reason: {message}", errors=[{"pointer": "/reason", "message": message}])
    return reason


async def _stop(database: Database, live: Sequence[Run], order: ErasureOrder, on_interrupt: OnInterrupt | None) -> None:
    """Interrupt these runs, and wait for their end. Raises ConflictError when one does not end."""
    for run in live:
        async with database.write() as conn:
            below = [each.id for each in await recovery.runs_below(conn, run.id) if each.status == "running"]
            await orders.interrupt(
                conn, [*reversed(below), run.id], by=order.by, reason="Its conversation is to be erased."
            )
        if on_interrupt is not None:
            on_interrupt(run.id)
    deadline = asyncio.get_running_loop().time() + STOP_SECONDS
    while live:
        async with database.read() as conn:
            still = await runs.live_among(conn, [run.id for run in live])
        if not still:
            return
        if asyncio.get_running_loop().time() > deadline:
            raise ConflictError(
                f"{', '.join(sorted(still))} was interrupted and has not ended yet: nothing was erased. A worker has to run "
                "for that. Try again later.",
                code="run_live",
                run_ids=sorted(still),
            )
        await asyncio.sleep(LOOK_AGAIN_SECONDS)


async def require_content(conn: Connection, erasure_id: str | None, what: str, *, needs_results: bool = False) -> None:
    """Raise ConflictError ``erased`` when the content that ``what`` needs was erased. Reads nothing where nothing was."""
    some = await erasures.get(conn, erasure_id)
    erasure = None if some is None else await erasures.newest_of(conn, some.conversation_id)
    if erasure is not None and (erasure.what == "all" or (erasure.what == "results" and needs_results)):
        raise erased_error(erasure, what)


async def erased_of(conn: Connection, run: Run) -> ErasureView | None:
    """Return what was erased of a run's conversation, if anything was. Reads nothing for most runs."""
    if run.erasure_id is None:
        return None
    erasure = await erasures.newest_of(conn, run.conversation_id)
    return None if erasure is None else erasure_view(erasure)


def erased_error(erasure: Erasure, what: str) -> ConflictError:
    """Return the error that says what was erased, when and why, and what therefore can't be."""
    content = "The content" if erasure.what == "all" else "What tools returned"
    why = f"by the retention rule {erasure.rule!r}" if erasure.rule else f"by {erasure.erased_by}: {erasure.reason}"
    return ConflictError(
        f"{content} of conversation {erasure.conversation_id} was erased at {in_utc(erasure.created_at)} {why}. "
        f"There can't be {what} any more.",
        code="erased",
        erasure_id=erasure.id,
    )


def erasure_view(erasure: Erasure) -> ErasureView:
    """Return an erasure as the API shows it."""
    counts = {erase_content.KINDS.get(name, name): number for name, number in erasure.counted.items()}
    return ErasureView(**{**vars(erasure), "counts": counts})


def hold_view(hold: Hold) -> HoldView:
    """Return a hold as the API shows it."""
    return HoldView(**vars(hold))


def _run(run: Run) -> RunToErase:
    return RunToErase.model_validate(run)
