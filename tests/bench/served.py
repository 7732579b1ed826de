"""Two contestants that serve gated turns from processes of their own: ``turngate up``, and a worker of the baseline."""

from __future__ import annotations

import asyncio
import secrets
import sys
import time
from abc import ABC, abstractmethod
from asyncio.subprocess import PIPE, Process
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
from bench import restart_app
from bench.baseline import Approval
from bench.figures import MeasurementError
from httpx_sse import aconnect_sse
from support.programs.terminal_process import TURNGATE, clean_environment
from temporalio.client import Client

from turngate.cli.api_link import read_cli_token
from turngate.runtime import embedded_temporal

TURN_SECONDS = 60.0
"""A turn that takes longer has not completed, and the measurement fails."""
READY_SECONDS = 60.0
QUESTION, END = "request.opened", "run.ended"


class Served(ABC):
    """A contestant as its client sees it. ``pid``: of the process that serves."""

    def __init__(self, name: str, process: Process, ledger: Path) -> None:
        self.name = name
        self.pid = process.pid
        self._ledger = ledger
        self._news: defaultdict[tuple[str, str], asyncio.Future[Any]] = defaultdict(asyncio.Future)

    @abstractmethod
    async def start(self) -> str:
        """Start a turn; returns its id."""

    @abstractmethod
    async def approve(self, turn_id: str, question: Any) -> None:
        """Approve what the turn asks."""

    async def question(self, turn_id: str) -> Any:
        """Return what the turn asks, as soon as the client learns that it does."""
        return await self._news_of(QUESTION, turn_id)

    async def end(self, turn_id: str) -> None:
        """Return as soon as the client learns that the turn has ended; raises MeasurementError unless it completed."""
        status = await self._news_of(END, turn_id)
        if status != "completed":
            raise MeasurementError(f"{self.name}: turn {turn_id} ended as {status!r}")

    def tell(self, what: str, turn_id: str, value: Any) -> None:
        """Pass on what the client has learned."""
        self._news[what, turn_id].set_result(value)

    async def _news_of(self, what: str, turn_id: str) -> Any:
        try:
            async with asyncio.timeout(TURN_SECONDS):
                return await self._news[what, turn_id]
        except TimeoutError:
            raise MeasurementError(f"{self.name}: no {what} of turn {turn_id}") from None

    def handler_starts(self) -> dict[str, float]:
        """Return turn → ``time.time()`` at the first line of its tool; raises MeasurementError if one ran twice."""
        lines = [line.split() for line in self._ledger.read_text(encoding="utf-8").splitlines()]
        starts = {turn_id: float(at) for turn_id, at in lines}
        if len(starts) != len(lines):
            raise MeasurementError(f"{self.name}: {len(lines) - len(starts)} tools ran twice")
        return starts


class ServedTurngate(Served):
    """``turngate up``, driven over HTTP and its stream of events."""

    def __init__(self, name: str, process: Process, ledger: Path, http: httpx.AsyncClient) -> None:
        super().__init__(name, process, ledger)
        self._http = http

    async def start(self) -> str:
        response = await self._http.post("/api/v1/runs", json={"agent": "payer", "input": "Pay."})
        return str(self._good(response).json()["id"])

    async def approve(self, turn_id: str, question: Any) -> None:
        order = {"decision": "approve", "digest": question["digest"]}
        response = await self._http.post(f"/api/v1/requests/{question['request_id']}/decisions", json=order)
        self._good(response)

    def _good(self, response: httpx.Response) -> httpx.Response:
        if not response.is_success:
            raise MeasurementError(f"{self.name}: {response.status_code} of {response.url}: {response.text}")
        return response

    async def watch(self) -> None:
        """Follow every run, until cancelled."""
        async with aconnect_sse(self._http, "GET", "/api/v1/events?progress=none", timeout=None) as source:
            async for sent in source.aiter_sse():
                if sent.event in {QUESTION, END}:
                    event = sent.json()
                    payload = event["payload"]
                    self.tell(sent.event, event["run_id"], payload if sent.event == QUESTION else payload["status"])


class ServedBaseline(Served):
    """The hand-written workflow, driven by a Temporal client. Its worker prints who waits."""

    def __init__(self, process: Process, ledger: Path, client: Client, task_queue: str) -> None:
        super().__init__("baseline", process, ledger)
        self._client = client
        self._task_queue = task_queue
        self._ends: set[asyncio.Task[None]] = set()

    async def start(self) -> str:
        turn_id = f"run_{secrets.token_hex(12)}"
        await self._client.start_workflow("MinimalTurn", turn_id, id=turn_id, task_queue=self._task_queue)
        ending = asyncio.create_task(self._watch_end(turn_id))
        self._ends.add(ending)
        ending.add_done_callback(self._ends.discard)
        return turn_id

    async def approve(self, turn_id: str, question: Any) -> None:
        del question
        await self._client.get_workflow_handle(turn_id).signal("approve", Approval(by="operator"))

    async def _watch_end(self, turn_id: str) -> None:
        self.tell(END, turn_id, await self._client.get_workflow_handle(turn_id).result())

    async def watch(self, printed: asyncio.StreamReader) -> None:
        """Read what the worker prints, until cancelled."""
        while line := await printed.readline():
            self.tell(QUESTION, line.decode().strip(), None)


@asynccontextmanager
async def served_turngate(
    name: str, directory: Path, temporal_address: str, database_url: str | None
) -> AsyncIterator[ServedTurngate]:
    """Run ``turngate up`` on this Temporal server; ``database_url`` None: SQLite."""
    ledger, data_dir, port = _new_ledger(directory), directory / "state", embedded_temporal.choose_port()
    own = {
        restart_app.LEDGER: str(ledger),
        "TEMPORAL_ADDRESS": temporal_address,
        "TURNGATE_TASK_QUEUE": f"turngate-{secrets.token_hex(4)}",
        "TURNGATE_RATE_LIMITS": "false",
        "TURNGATE_LOG_LEVEL": "warning",
        **({} if database_url is None else {"TURNGATE_DATABASE_URL": database_url}),
    }
    with (directory / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(TURNGATE, "up", "restart_app:app", "--port", str(port), "--data-dir", data_dir),
            cwd=Path(restart_app.__file__).parent,
            env=clean_environment(**own),
            stdout=log,
            stderr=log,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        await _ready(url, process, directory / "log")
        headers = {"Authorization": f"Bearer {read_cli_token(data_dir)}"}
        # The server closes idle connections after five seconds; one that is used again at that moment fails.
        limits = httpx.Limits(max_connections=200, max_keepalive_connections=200, keepalive_expiry=2)
        async with httpx.AsyncClient(base_url=url, headers=headers, trust_env=False, timeout=60, limits=limits) as http:
            side = ServedTurngate(name, process, ledger, http)
            watching = asyncio.create_task(side.watch())
            yield side
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
    finally:
        await _end(process)


@asynccontextmanager
async def served_baseline(directory: Path, client: Client, temporal_address: str) -> AsyncIterator[ServedBaseline]:
    """Run a worker of the baseline."""
    ledger, task_queue = _new_ledger(directory), f"baseline-{secrets.token_hex(4)}"
    script = Path(__file__).with_name("baseline_worker.py")
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(script), temporal_address, task_queue, str(ledger), stdout=PIPE
    )
    if process.stdout is None:
        raise MeasurementError("the baseline's worker has no output")
    try:
        side = ServedBaseline(process, ledger, client, task_queue)
        watching = asyncio.create_task(side.watch(process.stdout))
        yield side
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    finally:
        await _end(process)


def _new_ledger(directory: Path) -> Path:
    directory.mkdir()
    ledger = directory / "ledger"
    ledger.touch()
    return ledger


async def _ready(url: str, process: Process, log: Path) -> None:
    deadline = time.monotonic() + READY_SECONDS
    async with httpx.AsyncClient(trust_env=False) as http:
        while time.monotonic() < deadline and process.returncode is None:
            with suppress(httpx.TransportError):
                if (await http.get(f"{url}/readyz")).status_code == httpx.codes.OK:
                    return
            await asyncio.sleep(0.05)
    raise MeasurementError(f"turngate up is not ready: see {log}")


async def _end(process: Process) -> None:
    if process.returncode is None:
        process.terminate()
        await process.wait()
