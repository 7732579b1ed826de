"""Named instants of the engine at which a file can make a process of a chaos run end or pause.

The app module of the chaos runs calls :func:`install`, so this lives in the processes under test and nowhere in the
product. A file ``INSTANT`` in the directory that CHAOS_INSTANTS names holds ``kill`` or ``stop``; the first process that
reaches that instant removes the file, records that it did, and sends itself SIGKILL or SIGSTOP.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from temporalio import activity
from temporalio.bridge.worker import Worker as BridgeWorker

from turngate.activities.call_model import CallModel
from turngate.activities.close_step import CloseStep
from turngate.activities.escalation import Escalation
from turngate.activities.execution.redemption import Redeemed
from turngate.activities.run_tool import RunTool
from turngate.activities.runs.step_boundary import StepBoundary, StepStart
from turngate.approvals_api.gateway.client import Gateway
from turngate.approvals_api.requests import decide
from turngate.domain import contract

DIRECTORY: Final = "CHAOS_INSTANTS"
TAKEN: Final = "taken-"

WORKER: Final = (
    "answered-not-stored",
    "answered-not-planned",
    "planned-not-reported",
    "approved-not-redeemed",
    "redeemed-not-started",
    "effect-not-recorded",
    "unknown-not-asked",
    "asked-not-reported",
    "recorded-not-reported",
    "fused-recorded-not-closed",
    "fused-closed-not-asked",
    "fused-answered-not-stored",
    "fused-answered-not-planned",
    "fused-planned-not-reported",
    "expired-not-reported",
    "before-continue-as-new",
    "after-continue-as-new",
    "completed-not-reported",
    "closed-not-reported",
)
"""Where a worker can be made to end: a model's response about to be stored, planned or not; one stored and not planned, where
these are two transactions; a plan stored and not reported; between approve and start; between effect and record; a call's
outcome unknown before anyone is asked about it, and after; between record and answer; in an activity that takes the next step
after its call: between record and the step's close where these are two transactions, after the close and before the model is
asked, and as above; an expiry stored and not reported; continue-as-new about to be sent, and sent; a run's end stored and not
reported."""
API: Final = ("recorded-not-begun", "offered-not-taken", "taken-not-committed", "decided-not-told", "told-not-answered")
"""Where an API can be made to end: a run stored and its workflow not begun; in the transaction of a decision, before and after
it is written; a decision that is stored and not signalled to its run; and one that is."""
RARE: Final = ("unknown-not-asked", "asked-not-reported", "expired-not-reported", "closed-not-reported")
"""Instants that need a call that takes effect and never says so, a request which expires, or a run that is interrupted."""


def reached(instant: str) -> None:
    """Do what the instant's file says, once; most of the time there is none."""
    directory = Path(os.environ[DIRECTORY])
    # One rename takes the order and records it, so the instant counts even if another signal kills the process here.
    taken = directory / f"{TAKEN}{instant}-{os.getpid()}-{time.monotonic_ns()}"
    try:
        (directory / instant).rename(taken)
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGSTOP if taken.read_text() == "stop" else signal.SIGKILL)


def hits(directory: Path, instant: str) -> list[int]:
    """Return the pids of the processes that came to this instant so far, in order."""
    taken = [file.name.rsplit("-", 2) for file in directory.glob(f"{TAKEN}{instant}-*")]
    return [int(pid) for _instant, pid, _at in sorted(taken, key=lambda each: int(each[2]))]


def append_line(file: Path, line: dict[str, Any]) -> None:
    """Append one JSON line and have it on disk. One write of O_APPEND: processes never mix their lines."""
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, (json.dumps(line) + "\n").encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def install() -> None:
    """Wrap the engine's functions in this process."""
    for fused, only_if in (("", lambda *_arguments: True), ("fused-", _is_fused)):
        stores: dict[str, Any] = {"owner": CallModel, "name": "_store", "only_if": only_if}
        _around(**stores, before=f"{fused}answered-not-stored")
        _around(**stores, after=f"{fused}answered-not-planned", only_after=lambda plan: plan is None)
        _around(**stores, after=f"{fused}planned-not-reported", only_after=lambda plan: plan is not None)
        _around(CallModel, "_plan", after=f"{fused}planned-not-reported", only_if=only_if)
    _around(CallModel, "_finish", after="completed-not-reported")
    _around(RunTool, "_redeem", before="approved-not-redeemed")
    _around(RunTool, "_redeem", after="redeemed-not-started", only_after=lambda came: isinstance(came, Redeemed))
    _around(RunTool, "_record", before="effect-not-recorded", after="recorded-not-reported")
    _around(RunTool, "_find_out", before="unknown-not-asked", after="asked-not-reported")
    _around(StepBoundary, "pass_on", before="fused-recorded-not-closed")
    for closes in ("pass_on_with", "pass_on"):  # with the last result, or after it
        _around(
            StepBoundary,
            closes,
            after="fused-closed-not-asked",
            only_after=lambda came: isinstance(came, StepStart),
        )
    _around(Escalation, "record_expiry", after="expired-not-reported")
    _around(CloseStep, "close_step", after="closed-not-reported")
    _around(
        BridgeWorker,
        "complete_workflow_activation",
        before="before-continue-as-new",
        after="after-continue-as-new",
        only_if=lambda _self, completion: _continues(completion),
    )
    _around(Gateway, "start_run", before="recorded-not-begun")
    _around(decide, "_decide", before="offered-not-taken", after="taken-not-committed")
    _around(Gateway, "_tell_quietly", before="decided-not-told", after="told-not-answered")


def _is_fused(*_arguments: Any) -> bool:
    return activity.info().activity_type == contract.RUN_TOOL


def _continues(completion: Any) -> bool:
    commands = completion.successful.commands
    return any(command.HasField("continue_as_new_workflow_execution") for command in commands)


def _around(
    owner: Any,
    name: str,
    *,
    before: str = "",
    after: str = "",
    only_if: Callable[..., bool] = lambda *_arguments: True,
    only_after: Callable[[Any], bool] = lambda _came: True,
) -> None:
    """Replace an async method by one that comes to these instants on its way. Its activity's definition stays on it."""
    wrapped = getattr(owner, name)

    @functools.wraps(wrapped)
    async def passing(*arguments: Any, **options: Any) -> Any:
        counts = only_if(*arguments)
        if before and counts:
            reached(before)
        came = await wrapped(*arguments, **options)
        if after and counts and only_after(came):
            reached(after)
        return came

    setattr(owner, name, passing)
