"""Figures of what a crash costs: real processes are killed while runs wait, started again, and every run is answered.

``turngate temporal``, ``api`` and ``worker`` over one data directory, as a user starts them; the tool's starts are in a
file of their own, which is compared with the runs at the end.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import httpx
from bench import restart_app
from bench.figures import Figure, MeasurementError
from bench.scale import Scale
from support.programs.terminal_process import TURNGATE, clean_environment

from turngate.cli.api_link import read_cli_token
from turngate.client import Retries, TurngateClient
from turngate.runtime import embedded_temporal
from turngate.wire.orders import DecisionOrder
from turngate.wire.requests import RequestItem

NAMES = ("temporal", "api", "worker")
PATIENCE_SECONDS = 900.0
AT_ONCE = 8
"""Requests to the API at a time."""
PAGE = 200
One = TypeVar("One")
Got = TypeVar("Got")


@dataclass
class Stack:
    """The three processes of one data directory, with a client."""

    directory: Path
    port: int = field(default_factory=embedded_temporal.choose_port)
    alive: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @classmethod
    def of(cls, directory: Path) -> Stack:
        """Return a stack over a new directory."""
        directory.mkdir(parents=True)
        return cls(directory)

    @property
    def ledger(self) -> Path:
        return self.directory / "ledger.txt"

    def start(self, *names: str) -> None:
        """Start processes, as a user does."""
        where = ("--data-dir", str(self.directory / "state"))
        more = {"api": ("--port", str(self.port)), "worker": ("restart_app:app",)}
        for name in names:
            with (self.directory / f"{name}.log").open("ab") as log:
                self.alive[name] = subprocess.Popen(
                    [TURNGATE, name, *more.get(name, ()), *where],
                    cwd=Path(restart_app.__file__).parent,
                    env=clean_environment(**{restart_app.LEDGER: str(self.ledger), "TURNGATE_RATE_LIMITS": "false"}),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )

    def kill(self, *names: str) -> None:
        """SIGKILL them, and with ``temporal`` the server under it, all before any is waited for."""
        pids = [pid for name in names for pid in _children(self.alive[name].pid)]
        for pid in [*(self.alive[name].pid for name in names), *pids]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for name in names:
            self.alive.pop(name).wait()

    async def serves(self) -> None:
        """Wait until the API says that it is ready, Temporal and the store included."""
        async with httpx.AsyncClient(trust_env=False) as client:

            async def ready() -> bool:
                try:
                    return (await client.get(f"http://127.0.0.1:{self.port}/readyz")).status_code == httpx.codes.OK
                except httpx.TransportError:
                    return False

            await until(ready, "API that is ready")

    async def works(self, client: TurngateClient) -> None:
        """Wait until a worker has announced its agents, without which no run is started."""

        async def announced() -> bool:
            return bool(await client.list_agents())

        await until(announced, "worker that is ready")

    def client(self) -> TurngateClient:
        """A client with the token that the API left for this user."""
        return TurngateClient(
            f"http://127.0.0.1:{self.port}",
            token=read_cli_token(self.directory / "state"),
            retries=Retries(attempts=20),
        )

    def starts(self) -> Counter[str]:
        """Run → how often its tool was started."""
        lines = self.ledger.read_text(encoding="utf-8").splitlines() if self.ledger.exists() else []
        return Counter(line.split()[0] for line in lines)


async def measure(directory: Path, scale: Scale) -> list[Figure]:
    """Kill the worker under some waiting runs, then everything under more of them."""
    return [
        *await _worker_killed(directory / "worker", scale.waiting_worker),
        *await _all_killed(directory / "all", scale.waiting_all),
    ]


async def _worker_killed(directory: Path, waiting: int) -> list[Figure]:
    async with running(directory) as stack, stack.client() as client:
        await stack.works(client)
        runs = await _start(client, waiting)
        pending = await _pending(client, waiting)
        first = pending.pop()
        untouched = await _decided_to_start(stack, client, first)
        await _ended(
            client, first.run_id
        )  # a worker killed inside its tool would open another request, which is not measured here
        killed = time.time()
        stack.kill("worker")
        stack.start("worker")
        back = await _decided_to_start(stack, client, pending.pop(), since=killed)
        seconds = await _answer_all(client, pending)
        await _check(stack, client, runs)
    return [
        Figure(
            name=f"worker killed under {waiting:,} waiting runs: kill to the first decision's handler",
            ours=f"{back:.1f} s",
            baseline=f"{untouched * 1000:.0f} ms without a kill",
        ),
        Figure(
            name=f"the other {len(pending):,} runs answered at once after it, to the end of the last",
            ours=f"{seconds:.1f} s, {len(pending) / seconds:.0f} runs/s",
        ),
    ]


async def _all_killed(directory: Path, waiting: int) -> list[Figure]:
    async with running(directory) as stack:
        async with stack.client() as client:
            await stack.works(client)
            runs = await _start(client, waiting)
            await _pending(client, waiting)
        killed = time.time()
        stack.kill(*NAMES)
        stack.start(*NAMES)
        await stack.serves()
        serves = time.time() - killed
        async with stack.client() as client:
            pending = await _pending(client, waiting)
            first = await _decided_to_start(stack, client, pending.pop(), since=killed)
            seconds = await _answer_all(client, pending)
            await _check(stack, client, runs)
    return [
        Figure(
            name=f"everything killed under {waiting:,} waiting runs: kill to the API ready; to the first decision's handler",
            ours=f"{serves:.1f} s; {first:.1f} s",
        ),
        Figure(
            name=f"the other {len(pending):,} runs answered at once after it, to the end of the last",
            ours=f"{seconds:.1f} s, {len(pending) / seconds:.0f} runs/s",
        ),
        Figure(name=f"of {waiting:,} runs: completed; started twice", ours=f"{len(runs):,}; 0"),
    ]


async def _start(client: TurngateClient, count: int) -> list[str]:
    async def one(number: int) -> str:
        return (await client.start_run(agent="payer", text=f"Pay {number}.")).id

    return await _at_once(one, range(count))


async def _pending(client: TurngateClient, count: int) -> list[RequestItem]:
    """Return what waits, newest first, once so many do."""

    async def look() -> bool:
        return (await client.count_requests()).count >= count

    await until(look, f"{count} pending requests")
    items: list[RequestItem] = []
    cursor = None
    while True:
        page = await client.list_requests(limit=PAGE, cursor=cursor)
        items += page.items
        cursor = page.next_cursor
        if cursor is None:
            return items[::-1]


async def _decided_to_start(
    stack: Stack, client: TurngateClient, request: RequestItem, *, since: float | None = None
) -> float:
    """Approve; return the seconds from then, or from ``since``, to the first line of the tool's handler."""
    began = time.time() if since is None else since
    await client.decide(request.id, DecisionOrder(verb="approve", digest=request.digest))

    async def started() -> bool:
        return request.run_id in stack.starts()

    await until(started, f"start of the tool of {request.run_id}", pause=0.005)
    line = next(
        each for each in stack.ledger.read_text(encoding="utf-8").splitlines() if each.startswith(request.run_id)
    )
    return float(line.split()[1]) - began


async def _answer_all(client: TurngateClient, pending: Sequence[RequestItem]) -> float:
    """Approve all, oldest first; return the seconds until the last of their runs has completed."""
    began = time.perf_counter()

    async def one(request: RequestItem) -> None:
        await client.decide(request.id, DecisionOrder(verb="approve", digest=request.digest))

    await _at_once(one, pending[::-1])
    await _all_ended(client)
    return time.perf_counter() - began


async def _ended(client: TurngateClient, run_id: str) -> None:
    async def done() -> bool:
        return (await client.get_run(run_id)).status != "running"

    await until(done, f"end of run {run_id}")


async def _all_ended(client: TurngateClient) -> None:
    async def done() -> bool:
        return not (await client.list_runs(status="running", limit=1)).items

    await until(done, "end of the last run")


async def _check(stack: Stack, client: TurngateClient, runs: Sequence[str]) -> None:
    """Fail unless every run completed and its tool was started exactly once."""

    async def status(run_id: str) -> str:
        return (await client.get_run(run_id)).status

    ended = Counter(await _at_once(status, runs))
    starts = stack.starts()
    if ended != {"completed": len(runs)} or sorted(starts) != sorted(runs) or set(starts.values()) != {1}:
        raise MeasurementError(f"{len(runs)} runs ended as {ended}; starts: {Counter(starts.values())}")


async def _at_once(do: Callable[[One], Awaitable[Got]], of: Sequence[One]) -> list[Got]:
    places = asyncio.Semaphore(AT_ONCE)

    async def in_place(each: One) -> Got:
        async with places:
            return await do(each)

    return await asyncio.gather(*(in_place(each) for each in of))


async def until(look: Callable[[], Awaitable[bool]], what: str, *, pause: float = 0.1) -> None:
    """Wait for something; raises MeasurementError when it never comes."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not await look():
        if time.monotonic() > deadline:
            raise MeasurementError(f"after {PATIENCE_SECONDS:.0f} s: no {what}")
        await asyncio.sleep(pause)


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]
    return []


@asynccontextmanager
async def running(directory: Path) -> AsyncIterator[Stack]:
    """Run the three; at the end none of them is left."""
    stack = await asyncio.to_thread(Stack.of, directory)
    try:
        stack.start(*NAMES)
        await stack.serves()
        yield stack
    except BaseException as error:
        for name in NAMES:
            error.add_note((directory / f"{name}.log").read_text(encoding="utf-8", errors="replace")[-2000:])
        raise
    finally:
        stack.kill(*list(stack.alive))
