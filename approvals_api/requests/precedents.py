"""What is around a request: the other calls of its step, and decided requests like it. For one request, never for a list.

The store's index only proposes precedents; they are compared here, by their own rows. :func:`keep_adding` fills it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from typing import Final

from turngate.approvals_api.principal import Principal
from turngate.approvals_api.runs.masks import Masks
from turngate.approvals_api.runs.ownership import only_own
from turngate.approvals_api.services import Services
from turngate.domain.digest import repeat_key
from turngate.domain.errors import UnavailableError
from turngate.domain.likeness import Comparison, compare, features, shape_of
from turngate.domain.requests import ExecutionState
from turngate.domain.text.folds import cut_line
from turngate.domain.text.hidden_text import has_hidden
from turngate.domain.tools.defaults import constant_text, for_readers
from turngate.store.database import Connection, Database
from turngate.store.events import events
from turngate.store.requests import precedents
from turngate.store.requests.precedents import Case, Reason
from turngate.store.runs import calls, executions
from turngate.store.runs.executions import SIBLING_CHARS, Sibling
from turngate.wire.precedents import CallState, DifferenceView, PrecedentCase, PrecedentView, SiblingView
from turngate.wire.requests import RequestDetail

logger = logging.getLogger(__name__)

NEAREST: Final = 3
MOST_DIFFERENCES: Final = 8
MOST_SIBLINGS: Final = 64
MOST_REASONS: Final = 6
PAUSE_SECONDS: Final = 2.0
PAUSE_BETWEEN_SECONDS: Final = 0.05
"""While it catches up with earlier decisions, which others are not to wait for."""
EVENTS_AT_ONCE: Final = 500
"""Of which the decisions are added in one transaction."""
_RAN: Final[dict[ExecutionState, CallState]] = {
    "executing": "running", "succeeded": "ran", "failed": "failed", "unknown": "unknown",
}  # fmt: skip


async def with_precedents(conn: Connection, principal: Principal, detail: RequestDetail) -> RequestDetail:
    """Return a request with the other calls of its step, and what was decided about calls like it.

    A principal that may read only its own runs gets no precedents: they are mostly of others' runs, and it decides nothing.
    """
    siblings = await executions.siblings(conn, detail.run_id, detail.tool_call_id, limit=MOST_SIBLINGS)
    masks = await Masks.of(conn, [detail.run_id])
    is_compared = detail.kind == "approval" and not only_own(principal)
    text = constant_text(detail.input_for_readers, for_readers(detail.defaults))
    precedent = await precedent_of(conn, detail.id, detail.tool_name, text) if is_compared else None
    reasons: list[str] = []
    if "reject" in detail.allowed_verbs and not only_own(principal):
        if is_compared:
            stored = await precedents.reasons(conn, detail.tool_name)
        else:
            stored = await precedents.latest_reasons(conn, [detail.tool_name])
        reasons = await _different(conn, principal, stored)
    return detail.model_copy(
        update={
            "siblings": [await _masked(conn, detail.run_id, _sibling(each), masks) for each in siblings],
            "precedent": precedent,
            "reject_reasons": reasons,
        }
    )


async def precedent_of(conn: Connection, request_id: str, tool_name: str, raw_input: str) -> PrecedentView:
    """Return what people decided about calls of the same tool, and which of these are most like this one.

    ``raw_input``: the arguments as the tool gets them.
    """
    likely = await precedents.like(conn, tool_name, features(tool_name, raw_input))
    summary = await precedents.summary(conn, tool_name, repeat_key(tool_name, raw_input), besides=request_id)
    rejected = [] if summary.last_rejection is None else [summary.last_rejection]
    cases = await precedents.cases(conn, list(dict.fromkeys([*likely, *rejected])))
    masks = await Masks.of(conn, {each.run_id for each in cases.values()})
    this = shape_of(raw_input)
    compared = {seq: (case, compare(shape_of(case.input), this)) for seq, case in cases.items()}
    others = [each for each in compared.values() if each[0].request_id != request_id]
    last = next((compared[seq] for seq in rejected if seq in compared), None)
    return PrecedentView(
        approved=summary.decisions["approve"] + summary.decisions["edit"],
        edited=summary.decisions["edit"],
        rejected=summary.decisions["reject"],
        answered=summary.decisions["respond"],
        last_rejection=None if last is None else _case(*last, masks),
        waiting_alike=summary.waiting,
        nearest=[_case(*each, masks) for each in _nearest(others)],
        ran=summary.ends["succeeded"],
        failed=summary.ends["failed"],
        unknown=summary.ends["unknown"],
    )


async def reasons_of_tools(conn: Connection, principal: Principal, tool_names: Collection[str]) -> list[str]:
    """Return reasons with which calls of these tools were rejected lately, by as many statements for many tools as for one."""
    return await _different(conn, principal, await precedents.latest_reasons(conn, tool_names))


async def _different(conn: Connection, principal: Principal, stored: Sequence[Reason]) -> list[str]:
    """Return reasons, the principal's own first, then those of others.

    Each once, whatever its capitals and spaces. None of them says a secret or hides a character.
    """
    masks = await Masks.of(conn, {each.run_id for each in stored})
    different: dict[str, str] = {}
    for each in sorted(stored, key=lambda each: each.decided_by != principal.name):
        words = each.message.strip()
        if not has_hidden(words) and masks.text(words) == words and "\n" not in words:
            different.setdefault(" ".join(words.casefold().split()), words)
    return list(different.values())[:MOST_REASONS]


def _nearest(compared: Sequence[tuple[Case, Comparison]]) -> list[tuple[Case, Comparison]]:
    """Return the most alike, the newest of equals first. Of those that are the same call, one of each verb is enough."""
    first: list[tuple[Case, Comparison]] = []
    repeats: list[tuple[Case, Comparison]] = []
    others: list[tuple[Case, Comparison]] = []
    for case, comparison in sorted(compared, key=lambda each: (-each[1].likeness, -each[0].seq)):
        if not comparison.same:
            others.append((case, comparison))
        elif any(case.verb == before.verb for before, _same in first):
            repeats.append((case, comparison))
        else:
            first.append((case, comparison))
    return [*first, *others, *repeats][:NEAREST]


def _case(case: Case, comparison: Comparison, masks: Masks) -> PrecedentCase:
    differences = [DifferenceView.model_validate(each) for each in comparison.differences]
    return PrecedentCase(
        request_id=case.request_id,
        run_id=case.run_id,
        agent=case.agent,
        verb=case.verb,
        decided_by=case.decided_by,
        decided_at=case.decided_at,
        message=masks.text(case.message),
        execution=case.execution or "not_started",
        same=comparison.same,
        differences=differences[:MOST_DIFFERENCES],
        more_differences=max(0, len(differences) - MOST_DIFFERENCES),
    )


async def _masked(conn: Connection, run_id: str, sibling: SiblingView, masks: Masks) -> SiblingView:
    """Return a sibling as people see it. What is known of its arguments is only their beginning: they are read whole."""
    call = None
    if (run_id, sibling.tool_call_id) in masks.tools:
        call = await calls.get(conn, run_id, sibling.tool_call_id)
    if call is None:
        return masks.view(sibling, "input")
    visible = call.masked_input or call.running_input
    return sibling.model_copy(update={"input": cut_line(visible, SIBLING_CHARS)})


def _sibling(call: Sibling) -> SiblingView:
    return SiblingView(
        tool_call_id=call.tool_call_id,
        tool_name=call.tool_name,
        input=call.input,
        state=_state(call),
        request_id=call.request_id,
    )


def _state(call: Sibling) -> CallState:
    if call.status == "pending":
        return "waits"
    if call.state in _RAN:
        return _RAN[call.state]
    if call.status is not None:
        return call.status
    if call.disposition == "closed":
        return "closed"
    return "settled" if call.is_settled else "open"


# Adding: what people have decided, after the fact. No decision waits for it.


async def keep_adding(services: Services) -> None:
    """Add each decision to the precedents soon after it was made, and at first those from before. Runs until it is cancelled."""
    seq: int | None = None
    while True:
        try:
            if seq is None:
                async with services.database.glance() as conn:
                    seq = await precedents.newest_added(conn)
            seq, more = await add_after(services.database, seq)
        except UnavailableError as error:
            logger.warning("decisions become precedents later: %s", error)
            more = False
        await asyncio.sleep(PAUSE_BETWEEN_SECONDS if more else PAUSE_SECONDS)


async def add_after(database: Database, seq: int) -> tuple[int, bool]:
    """Add the decisions of the next events after ``seq``; returns the last event seen, and whether there are more.

    Safe to repeat. Raises UnavailableError when the store is away.
    """
    async with database.glance() as conn:
        newest = await events.last_seq(conn)
        upto = min(newest, seq + EVENTS_AT_ONCE)
        decided, taken_back = await precedents.decided_between(conn, seq, upto) if upto > seq else ([], [])
    if decided or taken_back:
        with_features = await asyncio.to_thread(
            lambda: [(each, features(each.tool_name, each.input)) for each in decided]
        )
        async with database.write() as conn:
            await precedents.add(conn, with_features)
            await precedents.remove(conn, taken_back)
    return upto, upto < newest
