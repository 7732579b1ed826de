"""Tool calls as planned: raw input, verdict and, once settled, the one result."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from pydantic_core import PydanticSerializationError
from sqlalchemy import Select, bindparam, func, insert, select, tuple_, update

from turngate.domain.digest import call_digest, repeat_key
from turngate.domain.runs.budgets import AFTER_THE_STEP
from turngate.domain.tools.defaults import Defaults, constant_text, for_readers, read_stored
from turngate.domain.tools.results import TOOL_RESULT, Failure, Ok
from turngate.domain.tools.tool import Tool, ToolManifest
from turngate.store.clock import as_text, now
from turngate.store.database import Connection
from turngate.store.events.row_digests import row_digest
from turngate.store.storable import storable
from turngate.store.tables import calls
from turngate.store.together import Together, Writes

Disposition = Literal["run", "ask", "closed"]

# Statements of the hot path are built once: building one and finding its compiled form costs five times its execution.
_INSERT = insert(calls)
_BY_ID = select(calls).where(calls.c.run_id == bindparam("run"), calls.c.tool_call_id == bindparam("call"))
_OF_STEP = (
    select(calls)
    .where(calls.c.run_id == bindparam("run"), calls.c.step == bindparam("at_step"))
    .order_by(calls.c.position)
)
_OPEN: Select[tuple[str]] = (
    select(calls.c.tool_call_id)
    .where(calls.c.run_id == bindparam("run"), calls.c.step == bindparam("at_step"), calls.c.result.is_(None))
    .limit(1)
)
SETTLE: Final = (
    update(calls)
    .where(calls.c.run_id == bindparam("run"), calls.c.tool_call_id == bindparam("call"), calls.c.result.is_(None))
    .values(
        result=bindparam("written"),
        settled_at=bindparam("at"),
        presentation=bindparam("shown"),
        whole_result=bindparam("whole"),
    )
)
_SETTLE_ALONE = Together(SETTLE)


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call. ``input``: the exact text the model sent. ``result``: JSON of the result, None while open.

    ``verdict``: JSON of the policy's verdict (empty for a call that never reached policy). ``edited_input``: the exact
    text that runs in place of ``input`` when an operator edited the call. ``signal``: JSON of what the call asks of the
    run. ``child_run_id``: the sub-agent's run that answers it. ``presentation``: JSON of what people are shown of it.
    ``defaults``: JSON of what the running input leaves out (:mod:`turngate.domain.tools.defaults`); None: nothing.
    ``whole_result``: digest of the whole result, where the model is shown a part.
    ``recorded_call_id``: in a dry run, the call of the other run whose result this one was given. ``manifest``: JSON of its
    tool's declaration, if that declares secrets.
    """

    run_id: str
    tool_call_id: str
    step: int
    position: int
    tool_name: str
    input: str
    repeat_key: str
    disposition: Disposition
    verdict: str
    digest: str
    policy_version: str
    effect: str
    result: str | None = None
    edited_input: str | None = None
    settled_at: str | None = None
    signal: str | None = None
    child_run_id: str | None = None
    presentation: str | None = None
    whole_result: str | None = None
    recorded_call_id: str | None = None
    manifest: str | None = None
    defaults: str | None = None
    nonce: str = ""

    @property
    def tool(self) -> ToolManifest | None:
        """The declaration of its tool, if that declares secrets."""
        return None if self.manifest is None else ToolManifest.model_validate_json(self.manifest)

    @property
    def masked_input(self) -> str | None:
        """What will run as people see it, if it holds secrets."""
        masked = None if self.tool is None else self.tool.masked_input(self.running_input)
        return masked.text if masked is not None and masked.secrets else None

    @property
    def running_input(self) -> str:
        """The exact text that runs: an operator's, when the call was edited, or else the model's own."""
        return self.edited_input or self.input

    @property
    def running_key(self) -> str:
        """What is equal for calls that mean the same, by the text that runs."""
        if not self.edited_input:
            return self.repeat_key
        return repeat_key(self.tool_name, constant_text(self.edited_input, self.left_out))

    @property
    def left_out(self) -> Defaults:
        """What its handler gets besides the text that runs."""
        return read_stored(self.defaults)

    def decoded_by(self, tool: Tool) -> Any:
        """Return what a tool's handler gets. Raises InvalidToolInput."""
        return tool.decode(self.running_input, self.left_out)

    def digest_with(self, tool: Tool) -> str:
        """Return the digest of the call as it runs: the tool as it is in this process, the policy it was judged by."""
        return call_digest(
            tool_name=tool.name,
            manifest_digest=tool.manifest.digest,
            raw_input=self.running_input,
            run_id=self.run_id,
            tool_call_id=self.tool_call_id,
            policy_version=self.policy_version,
            nonce=self.nonce,
            defaults=self.defaults,
        )

    @property
    def result_kind(self) -> str | None:
        """``ok``, or the kind of the failure; None: it has no result yet."""
        result = self.settled_result
        if result is None:
            return None
        return "ok" if isinstance(result, Ok) else result.kind

    @property
    def settled_result(self) -> Ok | Failure | None:
        """The result, decoded; None while the call is open."""
        return None if self.result is None else TOOL_RESULT.validate_json(self.result)


@dataclass(frozen=True, kw_only=True)
class ResultView:
    """How a result is shown. ``presentation``: JSON blocks for people.

    ``whole_result``: digest of the stored whole, if the result is a part of it.
    """

    presentation: str | None = None
    whole_result: str | None = None


PLAIN_VIEW: Final = ResultView()


async def insert_planned(conn: Connection, planned: Sequence[Call]) -> None:
    """Insert the calls of one step, as planned."""
    if planned:
        await conn.execute(_INSERT, [vars(call) for call in planned])


async def get(conn: Connection, run_id: str, tool_call_id: str) -> Call | None:
    """Return one call, or None."""
    row = (await conn.execute(_BY_ID, {"run": run_id, "call": tool_call_id})).mappings().one_or_none()
    return Call(**row) if row else None


async def of_step(conn: Connection, run_id: str, step: int) -> list[Call]:
    """Return the calls of one step in the model's order."""
    rows = (await conn.execute(_OF_STEP, {"run": run_id, "at_step": step})).mappings()
    return [Call(**row) for row in rows]


async def of_steps(conn: Connection, wanted: Mapping[str, int]) -> dict[str, list[Call]]:
    """Return the calls of one step of each of these runs (run → step), by run, in the model's order."""
    of_step = tuple_(calls.c.run_id, calls.c.step).in_(list(wanted.items()))
    by_run: dict[str, list[Call]] = {run_id: [] for run_id in wanted}
    for row in (await conn.execute(select(calls).where(of_step).order_by(calls.c.position))).mappings():
        by_run[row["run_id"]].append(Call(**row))
    return by_run


async def any_open(conn: Connection, run_id: str, step: int) -> bool:
    """Tell whether a call of this step has no result yet."""
    return (await conn.execute(_OPEN, {"run": run_id, "at_step": step})).first() is not None


async def ids_taken(conn: Connection, run_id: str, wanted: Sequence[str]) -> set[str]:
    """Return which of these call ids the run has already."""
    query = select(calls.c.tool_call_id).where(calls.c.run_id == run_id, calls.c.tool_call_id.in_(wanted))
    return set((await conn.execute(query)).scalars())


async def ids_like(conn: Connection, run_id: str, stem: str) -> set[str]:
    """Return the run's call ids that begin so. Looks at all of its calls."""
    begins = calls.c.tool_call_id.startswith(stem, autoescape=True)
    return set((await conn.execute(select(calls.c.tool_call_id).where(calls.c.run_id == run_id, begins))).scalars())


async def by_engine(conn: Connection, run_id: str, step: int, tool_name: str) -> list[Call]:
    """Return the calls that the engine itself made after this step, in order."""
    of_engine = calls.c.run_id == run_id, calls.c.step == step, calls.c.position >= AFTER_THE_STEP
    query = select(calls).where(*of_engine, calls.c.tool_name == tool_name).order_by(calls.c.position)
    return [Call(**row) for row in (await conn.execute(query)).mappings()]


async def count(conn: Connection, run_id: str) -> int:
    """Return how many calls the run's model made."""
    of_model = calls.c.run_id == run_id, calls.c.position < AFTER_THE_STEP
    query = select(func.count()).select_from(calls).where(*of_model)
    return int((await conn.execute(query)).scalar_one())


async def of_run(conn: Connection, run_id: str) -> list[Call]:
    """Return all calls of a run, by step and position."""
    query = select(calls).where(calls.c.run_id == run_id).order_by(calls.c.step, calls.c.position)
    return [Call(**row) for row in (await conn.execute(query)).mappings()]


async def with_secrets(conn: Connection, run_ids: Collection[str]) -> list[Call]:
    """Return the calls of these runs whose tools declare secrets; an index has them."""
    query = select(calls).where(calls.c.run_id.in_(run_ids), calls.c.manifest.is_not(None))
    return [Call(**row) for row in (await conn.execute(query)).mappings()]


async def defaults_of_runs(conn: Connection, run_ids: Collection[str]) -> dict[tuple[str, str], Defaults]:
    """Return by run and call in what its handler gets something else than the model wrote, as readers see it.

    Without calls that were edited.
    """
    query = select(calls.c.run_id, calls.c.tool_call_id, calls.c.defaults).where(
        calls.c.run_id.in_(run_ids), calls.c.defaults.is_not(None), calls.c.edited_input.is_(None)
    )
    return {(row.run_id, row.tool_call_id): for_readers(read_stored(row.defaults)) for row in await conn.execute(query)}


async def with_repeat_keys(conn: Connection, run_id: str, keys: Sequence[str], *, after_step: int = 0) -> list[Call]:
    """Return the calls of a run after a step that have one of these repeat keys, by step and position."""
    query = (
        select(calls)
        .where(calls.c.run_id == run_id, calls.c.repeat_key.in_(keys), calls.c.step > after_step)
        .order_by(calls.c.step, calls.c.position)
    )
    return [Call(**row) for row in (await conn.execute(query)).mappings()]


async def settle(
    conn: Connection,
    run_id: str,
    tool_call_id: str,
    result: Ok | Failure,
    view: ResultView = PLAIN_VIEW,
    *,
    nonce: str,
) -> str | None:
    """Store the one result of a call, and return its digest for the log; None if it has one already (the first stays).

    ``nonce``: the run's, which its calls and requests have, too.
    """
    writes = settle_writes(run_id, tool_call_id, result, view)
    return written_digest(writes, nonce) if await writes.run(conn) == [1] else None


def settle_writes(run_id: str, tool_call_id: str, result: Ok | Failure, view: ResultView = PLAIN_VIEW) -> Writes:
    """Return what :func:`settle` writes."""
    settled = {
        "run": run_id,
        "call": tool_call_id,
        "written": _written(result),
        "at": as_text(now()),
        "shown": view.presentation,
        "whole": view.whole_result,
    }
    return Writes(_SETTLE_ALONE, {}, settled)


def with_result(call: Call, writes: Writes) -> Call:
    """Return the call as it is stored once these writes, of :func:`settle_writes`, are; another call as it is."""
    values = writes.values
    if values["call"] != call.tool_call_id or call.result is not None:
        return call
    return replace(
        call,
        result=storable(values["written"]),
        settled_at=values["at"],
        presentation=values["shown"],
        whole_result=values["whole"],
    )


def written_digest(writes: Writes, nonce: str) -> str:
    """Return the digest of the result that :func:`settle_writes` stores. If the call has one already, the first digest counts."""
    values = writes.values
    return _result_digest(values["written"], values["shown"], values["whole"], nonce)


def result_digest(call: Call) -> str:
    """Return the digest of a call's result, with what people are shown of it."""
    return _result_digest(call.result, call.presentation, call.whole_result, call.nonce)


def _result_digest(result: str | None, presentation: str | None, whole_result: str | None, nonce: str) -> str:
    return row_digest("result", {"result": result, "presentation": presentation, "whole_result": whole_result}, nonce)


def _written(result: Ok | Failure) -> str:
    """Return the result as JSON; the column fixes what cannot be encoded. The tool has run: its result must be kept."""
    try:
        return result.model_dump_json()
    except PydanticSerializationError:  # half a surrogate pair, from a file name that is not UTF-8
        return json.dumps(result.model_dump(mode="json"), ensure_ascii=False, separators=(",", ":"))


async def set_edited_input(
    conn: Connection, run_id: str, tool_call_id: str, edited_input: str | None, *, defaults: str | None
) -> None:
    """Store the arguments that will run in place of the model's own (which stay as they are), and what they leave out."""
    query = update(calls).where(calls.c.run_id == run_id, calls.c.tool_call_id == tool_call_id)
    await conn.execute(query.values(edited_input=edited_input, defaults=defaults))


async def set_disposition(
    conn: Connection, run_id: str, tool_call_id: str, disposition: Disposition, verdict: str
) -> None:
    """Replace how an open call was classified: policy judges it again before it runs, and the verdict may differ."""
    query = update(calls).where(calls.c.run_id == run_id, calls.c.tool_call_id == tool_call_id)
    await conn.execute(query.values(disposition=disposition, verdict=verdict))


async def set_control_call(conn: Connection, run_id: str, tool_call_id: str, control_call: str) -> None:
    """Store what the call asks of the run (JSON of a ControlCall); it is carried out when the step is closed."""
    query = update(calls).where(calls.c.run_id == run_id, calls.c.tool_call_id == tool_call_id)
    await conn.execute(query.values(signal=control_call))


async def set_child(conn: Connection, run_id: str, tool_call_id: str, child_run_id: str) -> None:
    """Store which run answers the call."""
    query = update(calls).where(calls.c.run_id == run_id, calls.c.tool_call_id == tool_call_id)
    await conn.execute(query.values(child_run_id=child_run_id))


async def refusals_by_key(conn: Connection, run_id: str, keys: Sequence[str]) -> dict[str, Failure]:
    """Return repeat key → refusal, for keys this run's rules or operators refused before (I12)."""
    if not keys:
        return {}
    query = select(calls.c.repeat_key, calls.c.result, calls.c.step, calls.c.position).where(
        calls.c.run_id == run_id, calls.c.repeat_key.in_(keys), calls.c.result.is_not(None)
    )
    refused: dict[str, Failure] = {}
    # The refusal itself comes before those that repeat it. Sorted here: SQLite would read all of a run's calls by the
    # index that gives their order, in place of the few by their key.
    for row in sorted(await conn.execute(query), key=lambda row: (row.step, row.position)):
        result = TOOL_RESULT.validate_json(row.result)
        if isinstance(result, Failure) and result.kind in {"rejected", "denied"}:
            refused.setdefault(row.repeat_key, result)
    return refused
