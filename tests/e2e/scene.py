"""What a crash test says and sees: runs and decisions through the public API, starts in the ledger, rows in the store."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import crash_app
from processes import DEADLINE_SECONDS, PAUSE_SECONDS, Processes, running, until

from turngate.client import SyncTurngateClient
from turngate.domain.errors import UnavailableError
from turngate.domain.history import is_reconciled
from turngate.domain.messages import Message
from turngate.domain.requests import Outcome, RequestKind, Verb
from turngate.store import events, executions, requests
from turngate.store.database import Database
from turngate.wire.decisions import DecisionResult
from turngate.wire.requests import RequestDetail, RequestItem
from turngate.wire.runs import RunDetail

Answer = TypeVar("Answer")


def order(tool: str, name: str, **details: Any) -> dict[str, Any]:
    """A tool call of a script; ``details``: of crash_app.Order."""
    return {"tool": tool, "input": {"name": name, **details}}


class Scene:
    """One data directory with its processes, and a client that tries again while the API or Temporal is away."""

    def __init__(self, processes: Processes, ledger: Path) -> None:
        self.processes = processes
        self._ledger = ledger
        self._client: SyncTurngateClient | None = None
        self._decided: set[str] = set()

    async def ask(self, question: Callable[[SyncTurngateClient], Answer]) -> Answer:
        """Ask the API, once."""
        if self._client is None:
            self._client = self.processes.client()
        return await asyncio.to_thread(question, self._client)

    async def insist(self, question: Callable[[SyncTurngateClient], Answer]) -> Answer:
        """Ask the API until it answers, whatever it answers; every other error than being away is a failure."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            try:
                return await self.ask(question)
            except UnavailableError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(PAUSE_SECONDS)

    async def start(self, name: str, *steps: list[dict[str, Any]]) -> str:
        """Start a run that makes these calls, step by step, then ends; returns its id. Sent again until it is taken."""
        script = self._ledger.with_name(f"{name}.json")
        responses = [{"text": "I go on.", "calls": calls} for calls in steps]
        script.write_text(json.dumps({"responses": [*responses, {"text": "Done."}]}))
        run = await self.insist(
            lambda client: client.start_run(
                agent="clerk", text=name, model=f"scripted:{script}", idempotency_key=f"start-{name}"
            )
        )
        return run.id

    async def run(self, run_id: str) -> RunDetail:
        return await self.insist(lambda client: client.get_run(run_id))

    async def requests(self, run_id: str | None = None) -> list[RequestItem]:
        """What is pending."""
        return (await self.insist(lambda client: client.list_requests(run_id=run_id, limit=200))).items

    async def request(self, run_id: str, kind: RequestKind = "approval") -> RequestItem:
        async def look() -> RequestItem | None:
            return next((each for each in await self.requests(run_id) if each.kind == kind), None)

        return await until(look, f"pending {kind} request of {run_id}")

    async def detail(self, request_id: str) -> RequestDetail:
        return await self.insist(lambda client: client.get_request(request_id))

    async def decide(
        self,
        request: RequestItem,
        verb: Verb,
        *,
        outcome: Outcome | None = None,
        args: str | None = None,
        key: str | None = None,
    ) -> DecisionResult:
        """Decide, again and again under one key until the API takes it. ``status`` None in the answer: recorded."""
        key = key or f"decide-{request.id}"
        self._decided.add(request.id)
        return await self.insist(
            lambda client: client.decide(
                request.id, verb=verb, digest=request.digest, outcome=outcome, args=args, decision_id=key
            )
        )

    async def approve(self, run_id: str) -> DecisionResult:
        return await self.decide(await self.request(run_id), "approve")

    # The world outside

    def starts(self, name: str) -> list[dict[str, Any]]:
        """Starts of handlers for this order, in order."""
        return [line for line in self.ledger() if line["name"] == name]

    def ledger(self) -> list[dict[str, Any]]:
        if not self._ledger.exists():
            return []
        return [json.loads(line) for line in self._ledger.read_text().splitlines()]

    async def started(self, name: str, times: int = 1) -> None:
        """Wait until this order's handler has been started so often."""

        async def look() -> bool:
            return len(self.starts(name)) >= times

        await until(look, f"start {times} of {name}")

    def go(self, *names: str) -> None:
        """Let these orders' handlers go on."""
        for name in names:
            self._ledger.with_name(f"go-{name}").touch()

    # Endings

    async def completed(self, run_id: str, outcome: Outcome = "happened") -> RunDetail:
        """The run, once it is completed; any other ending is a failure.

        ``outcome``: what to answer when the engine asks what became of a call. It may ask although nobody was killed: a
        worker without processor time, or a Temporal that is away, for longer than the heartbeat timeout looks the same.
        """

        async def look() -> RunDetail | None:
            run = await self.run(run_id)
            if run.status == "running":
                for request in await self.requests(run_id):
                    # One that is decided already waits for a worker (202).
                    if request.kind == "outcome" and request.id not in self._decided:
                        await self.decide(request, "respond", outcome=outcome)
                return None
            assert run.status == "completed", f"{run.task}: {run.status}, {run.reason}"
            return run

        return await until(look, f"end of run {run_id}")

    async def audit(self, run_ids: Iterable[str]) -> None:
        """Hold every run against the ledger: reconciled, its hash chain whole, and no start without a person's word."""
        database = Database(f"sqlite:///{self.processes.data_dir}/turngate.db")
        try:
            for run_id in run_ids:
                await self._reconciled(run_id)
                await self._authorized(database, run_id)
        finally:
            await database.close()

    async def _reconciled(self, run_id: str) -> None:
        run = await self.run(run_id)
        told = await self.insist(lambda client: client.list_messages(run.conversation_id))
        history = [Message(role=message.role, parts=message.parts) for message in told]
        assert is_reconciled(history), f"{run.task}: {history}"
        assert history[-1].text == "Done."
        calls = [call.tool_call_id for message in history for call in message.calls]
        assert calls == [call.tool_call_id for step in run.steps for call in step.calls]
        assert all(call.result is not None for step in run.steps for call in step.calls)

    async def _authorized(self, database: Database, run_id: str) -> None:
        async with database.read() as conn:
            assert await events.chain_break(conn, run_id) is None
            noted = [event for event in await events.after(conn, 0, run_id=run_id) if event.type == "execution.started"]
            asked = await requests.of_run(conn, run_id)
            executed = {each.tool_call_id: each for each in await executions.of_run(conn, run_id)}
            words = {each.id: await requests.decision(conn, each.decision_id or "") for each in asked}
        assert all(request.status != "pending" for request in asked)
        lines = [line for line in self.ledger() if line["run"] == run_id]
        for call_id in {line["call"] for line in lines}:
            started = [line for line in lines if line["call"] == call_id]
            of_call = [request for request in asked if request.tool_call_id == call_id]
            approvals = [each for each in of_call if each.kind == "approval" and each.status == "approved"]
            repeats = [
                each
                for each in of_call
                if each.kind == "outcome" and (word := words[each.id]) and word.outcome == "did_not_happen"
            ]
            assert len({line["key"] for line in started}) == 1, started
            assert len(started) <= sum(event.payload["tool_call_id"] == call_id for event in noted), started
            if started[0]["tool"] in {"pay", "reserve"}:
                assert len(approvals) == 1, f"started without an approval: {started}"
                deciders = {each.decision_id for each in (*approvals, *repeats)}
                assert executed[call_id].decision_id in deciders
            if started[0]["tool"] in {"pay", "post"}:
                assert len(started) <= 1 + len(repeats), f"started more often than people said: {started}"


@asynccontextmanager
async def scene(directory: Path) -> AsyncIterator[Scene]:
    """Three processes over a new data directory in ``directory``, which exists; at the end each must have lived until then."""
    ledger = directory / "ledger.jsonl"
    async with running(directory, {crash_app.LEDGER: str(ledger)}) as processes:
        made = Scene(processes, ledger)
        yield made
        processes.check_alive()
        if made._client is not None:
            made._client.close()
