"""``turngate replay-check``: replay the histories of runs. Can this release's workflow code continue them?"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer
from google.protobuf.json_format import ParseError
from pydantic import BaseModel
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHistory
from temporalio.converter import DataConverter, PayloadCodec
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Replayer
from temporalio.workflow import NondeterminismError

from turngate.cli import terminal
from turngate.cli.errors import EXIT_WENT_WRONG
from turngate.cli.options import AsJson, DataDir
from turngate.cli.stores import open_keys
from turngate.cli.temporal_link import find_address
from turngate.domain.contract import AGENT_TURN, SCHEDULED_START, AgentTurnInput, ScheduledStartInput
from turngate.domain.errors import InvalidInputError, NotFoundError, UnavailableError
from turngate.domain.text.sentences import counted
from turngate.runtime.settings import Settings, load_stack_settings
from turngate.runtime.temporal_client import codec_of, connect
from turngate.runtime.workflow_code import build_replayer
from turngate.store.database import Database
from turngate.text_files import read_text
from turngate.workflows.agent_turn import AgentTurn
from turngate.workflows.scheduled_start import ScheduledStart

INPUTS: Final[dict[str, type[BaseModel]]] = {AGENT_TURN: AgentTurnInput, SCHEDULED_START: ScheduledStartInput}
"""The inputs of Turngate's workflows: runs, and fires of schedules, which may wait for the end of a run."""
_OURS: Final = f"WorkflowType IN ({', '.join(repr(name) for name in INPUTS)})"
OPEN: Final = f"{_OURS} AND ExecutionStatus = 'Running'"
EVERY: Final = f"{_OURS} AND ExecutionStatus != 'ContinuedAsNew'"
"""An execution that continued as new never runs again. The newest execution of the run counts for the run."""

Kind = Literal["incompatible", "unreadable", "broken", "other_workflow"]
MEANING: Final[dict[Kind, str]] = {
    "incompatible": (
        "this release's workflow code cannot continue this run: keep a worker of its own release until the run has ended "
        "(`turngate worker --build-id`), or interrupt the run before the deploy"
    ),
    "unreadable": (
        "this release cannot read what the run's workers wrote: run the check with their payload converter and codec, or keep "
        "their release until the run has ended"
    ),
    "broken": (
        "this release's workflow code fails on this run: keep the run's own release until the run has ended, and report this"
    ),
    "other_workflow": f"this is no run of Turngate: use histories of the workflow types {' and '.join(INPUTS)}",
}
_EVENT = re.compile(r"HistoryEvent\(id: (\d+), (\w+)\)")
_MESSAGE = re.compile(r'message: "((?:[^"\\]|\\.)*)"')
"""The SDK gives a failed replay's cause as its core prints it, with nested causes: the innermost comes last."""


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why this release cannot continue a run, and the event of its history (ids count from 1) where that shows."""

    kind: Kind
    reason: str
    event_id: int
    event: str


@dataclass(frozen=True, kw_only=True)
class Checked:
    """One history's check. ``events``: how many there are; ``failing`` None: this release can continue it."""

    run_id: str
    execution_run_id: str
    events: int
    failing: Refusal | None

    def for_programs(self) -> dict[str, Any]:
        """Return this as JSON's values."""
        return {**asdict(self), "ok": self.failing is None}


async def check(history: WorkflowHistory, replayer: Replayer) -> Checked:
    """Replay one history. Its workflow may be running or have ended."""
    return Checked(
        run_id=history.workflow_id,
        execution_run_id=history.run_id,
        events=len(history.events),
        failing=await _find_refusal(history, replayer),
    )


async def _find_refusal(history: WorkflowHistory, replayer: Replayer) -> Refusal | None:
    started = history.events[0].workflow_execution_started_event_attributes
    input_type = INPUTS.get(started.workflow_type.name)
    if input_type is None:
        return Refusal(
            kind="other_workflow",
            reason=f"its workflow type is {started.workflow_type.name!r}",
            event_id=1,
            event="WorkflowExecutionStarted",
        )
    converter = replayer.config().get("data_converter", DataConverter.default)
    try:
        await converter.decode(started.input.payloads, [input_type])
    except Exception as error:  # noqa: BLE001 - a codec is the user's code
        return Refusal(kind="unreadable", reason=_one_line(error), event_id=1, event="WorkflowExecutionStarted")
    if not _count_until_first_task(history):
        return None  # It has not begun: there is nothing to replay, and the SDK would wait forever.
    failure = await _replay_failure(history, replayer)
    return None if failure is None else await _refusal_of(failure, history, replayer)


async def _replay_failure(history: WorkflowHistory, replayer: Replayer) -> Exception | None:
    return (await replayer.replay_workflow(history, raise_on_replay_failure=False)).replay_failure


async def _refusal_of(failure: Exception, history: WorkflowHistory, replayer: Replayer) -> Refusal:
    messages = [each.replace('\\"', '"').replace("\\n", " ") for each in _MESSAGE.findall(str(failure))]
    named = _EVENT.search(str(failure))
    event_id, event = (int(named[1]), named[2]) if named else await _first_refused(history, replayer)
    if isinstance(failure, NondeterminismError):
        kind: Kind = "incompatible"
    else:
        kind = "unreadable" if "Failed decoding arguments" in messages else "broken"
    return Refusal(kind=kind, reason=messages[-1] if messages else _one_line(failure), event_id=event_id, event=event)


async def _first_refused(history: WorkflowHistory, replayer: Replayer) -> tuple[int, str]:
    """Return the event from which on the history fails, where the SDK names none. It takes some 10 replays."""
    fits, fails = _count_until_first_task(history) - 1, len(history.events)  # how many events from the start
    while fits + 1 < fails:
        middle = (fits + fails) // 2
        if await _replay_failure(WorkflowHistory(history.workflow_id, history.events[:middle]), replayer) is None:
            fits = middle
        else:
            fails = middle
    event = history.events[fails - 1]
    words = EventType.Name(event.event_type).removeprefix("EVENT_TYPE_").split("_")
    return event.event_id, "".join(word.capitalize() for word in words)


def _count_until_first_task(history: WorkflowHistory) -> int:
    """Return the number of events up to the first completed workflow task; 0 when there is none."""
    done = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    return next((count for count, event in enumerate(history.events, 1) if event.event_type == done), 0)


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


async def named_histories(client: Client, run_ids: Sequence[str]) -> AsyncIterator[WorkflowHistory]:
    """Yield the newest execution's history of each run.

    Raises NotFoundError when Temporal has none, and UnavailableError when it does not answer.
    """
    for run_id in run_ids:
        with _temporal_reported():
            history = await _fetch_history(client, run_id)
        if history is None:
            raise NotFoundError(
                f"Temporal has no workflow of run {run_id}: `turngate runs` lists runs. Temporal forgets ended runs "
                "after the namespace's retention time"
            )
        yield history


async def listed_histories(client: Client, query: str, *, limit: int | None) -> AsyncIterator[WorkflowHistory]:
    """Yield the history of each run that Temporal finds by ``query``; at most ``limit``. Raises UnavailableError."""
    with _temporal_reported():
        async for execution in client.list_workflows(query, limit=limit):
            history = await _fetch_history(client, execution.id, execution.run_id)
            if history is not None:  # else it was deleted meanwhile
                yield history


async def _fetch_history(client: Client, run_id: str, execution_run_id: str | None = None) -> WorkflowHistory | None:
    try:
        return await client.get_workflow_handle(run_id, run_id=execution_run_id).fetch_history()
    except RPCError as error:
        if error.status in {RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT}:
            return None
        raise


@contextmanager
def _temporal_reported() -> Iterator[None]:
    try:
        yield
    except RPCError as error:
        raise UnavailableError(f"Temporal stopped answering: {error.message}. Try again once it does") from error


PROGRESS_EVERY: Final = 100


@dataclass(frozen=True, kw_only=True)
class HistoryChoice:
    """Which histories to check: those of ``run_ids`` and ``files``; without either, those of the open runs.

    ``every``: of all runs that Temporal has, instead of the open ones. ``limit``: at most so many of these.
    """

    run_ids: list[str]
    files: list[Path]
    every: bool
    limit: int | None


def replay_and_report(settings: Settings, choice: HistoryChoice, *, save: Path | None, as_json: bool) -> None:
    """Replay the chosen histories, and print which of them fail. ``save``: also write them into this directory.

    Raises typer.Exit when this release cannot continue some of them, and the errors of reading histories.
    """

    async def checked() -> list[Checked]:
        replayer = build_replayer(AgentTurn, ScheduledStart, codec=await _codec(settings))
        done: list[Checked] = []
        async for history in _histories(settings, choice):
            if save is not None:
                save_history(history, save)
            one = await check(history, replayer)
            done.append(one)
            if one.failing is not None and not as_json:
                _show(one, one.failing)
            if len(done) % PROGRESS_EVERY == 0:
                terminal.note(f"{counted(len(done), 'run')} replayed …")
        return done

    with _quiet_sdk():
        results = asyncio.run(checked())
    if as_json:
        terminal.raw(json.dumps([one.for_programs() for one in results]))
    failing = sum(one.failing is not None for one in results)
    if failing:
        terminal.note(f"this release cannot continue {failing} of {counted(len(results), 'run')}")
        raise typer.Exit(EXIT_WENT_WRONG)
    if results:
        terminal.note(
            f"{counted(len(results), 'run')} replayed: this release can continue {'it' if len(results) == 1 else 'them'}"
        )
    else:
        terminal.note(
            "nothing to replay: none of the chosen runs is in Temporal (without --status all, only live runs are chosen)"
        )


async def _codec(settings: Settings) -> PayloadCodec | None:
    """Return what decrypts histories; None: no key is configured. The store's schema may be of another release."""
    if settings.key is None and settings.key_service is None:
        return None
    database = Database(settings.resolved_database_url)
    try:
        await open_keys(settings, database)
        return codec_of(database)
    finally:
        await database.close()


async def _histories(settings: Settings, choice: HistoryChoice) -> AsyncIterator[WorkflowHistory]:
    for history in read_histories(choice.files):
        yield history
    if choice.files and not choice.run_ids:
        return
    client = await connect(settings, find_address(settings))
    if choice.run_ids:
        chosen = named_histories(client, choice.run_ids)
    else:
        chosen = listed_histories(client, EVERY if choice.every else OPEN, limit=choice.limit)
    async for history in chosen:
        yield history


@contextmanager
def _quiet_sdk() -> Iterator[None]:
    """Keep the SDK from logging each failed replay at length, unless the log level is debug."""
    logger = logging.getLogger("temporalio")
    before = logger.level
    if not terminal.wants_traceback():
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def _show(one: Checked, failing: Refusal) -> None:
    terminal.line((one.run_id, "bold"), f"  fails at event {failing.event_id}, {failing.event}")
    terminal.line("  ", MEANING[failing.kind])
    terminal.line("  Temporal's SDK says: ", failing.reason)


def replay_check(
    run_ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN", show_default=False, help="Check only these runs. Without any, those of --status."
        ),
    ] = None,
    status: Annotated[
        Literal["running", "all"],
        typer.Option(help="`running`: runs whose workflow is open; `all`: also ended runs that Temporal still has."),
    ] = "running",
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Check at most so many runs.", show_default="all of them")
    ] = None,
    files: Annotated[
        list[Path] | None,
        typer.Option(
            "--file",
            metavar="HISTORY.json",
            show_default=False,
            help="A file with a history, or a directory of them, instead of Temporal's; can be repeated.",
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(metavar="DIR", show_default=False, help="Save the histories in this directory, for --file."),
    ] = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Check before a deploy that this release can continue the runs there are.

    Run it with the new release, before its first worker starts. It replays the runs' histories with this release's workflow
    code. Nothing runs and nothing changes. Histories come from Temporal, found as `turngate worker` finds it. They hold ids and
    names, but no conversation. Sub-agents' runs count too.

    Exit code: 0 this release can continue all of the runs · 1 it cannot continue some (each is listed), or Temporal is away.
    """
    replay_and_report(
        load_stack_settings(data_dir=data_dir),
        HistoryChoice(run_ids=run_ids or [], files=files or [], every=status == "all", limit=limit),
        save=save,
        as_json=as_json,
    )


# Histories in files: Temporal's own JSON, as its command line and its pages write it.
# A run's history holds ids, digests, names and reasons, but no conversation (I8).


def read_histories(paths: list[Path]) -> Iterator[WorkflowHistory]:
    """Yield the history in each file, and in each ``*.json`` of a directory.

    Raises InvalidInputError when there is none at a path.
    """
    for path in paths:
        files = sorted(path.glob("*.json")) if path.is_dir() else [path]
        if not files:
            raise InvalidInputError(f"{path} holds no *.json: use the directory that `--save` wrote, or a file")
        yield from map(_read, files)


def _read(path: Path) -> WorkflowHistory:
    try:
        content = json.loads(read_text(path))
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise InvalidInputError(f"{path} is no JSON ({error})") from None
    wrapped = content.get("history") if isinstance(content, dict) else None
    try:
        history = WorkflowHistory.from_json("", content if wrapped is None else wrapped)
    except (ParseError, AttributeError, TypeError, ValueError) as error:
        raise _no_history(path, str(error)) from None
    if not history.events or history.events[0].event_type != EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
        raise _no_history(path, "it does not begin with the start of a workflow")
    # An older server's start does not name the workflow.
    name = history.events[0].workflow_execution_started_event_attributes.workflow_id or path.stem
    return WorkflowHistory(name, history.events)


def save_history(history: WorkflowHistory, directory: Path) -> None:
    """Write a history into the directory, which is created if it is not there.

    Raises InvalidInputError when it cannot be written.
    """
    # In a namespace with other programs, a workflow's id can be any text.
    name = re.sub(r"[^\w-]", "_", f"{history.workflow_id}-{history.run_id}")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"{name}.json").write_text(history.to_json() + "\n", encoding="utf-8")
    except OSError as error:
        raise InvalidInputError(
            f"{directory} cannot be written ({error.strerror}): choose another --save DIR"
        ) from None


def _no_history(path: Path, problem: str) -> InvalidInputError:
    return InvalidInputError(
        f"{path} holds no workflow's history: {problem}. `temporal workflow show --output json` writes one, and --save does too"
    )
