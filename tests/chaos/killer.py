"""Signals to the processes of a chaos run, at random instants and at every named one, and their restarts."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import instants
from processes import Life, StuckError
from scene import Scene
from support.stores.postgres_server import Cluster

LOOK_SECONDS: Final = 0.1
ARMED_SECONDS: Final = 20.0
"""How long an instant waits for a process to come by before another one has its turn."""
IMPATIENT_SHARE: Final = 0.3
"""Of the random acts: it comes whether or not all are up again after the last one."""
STOP_SECONDS: Final = 45.0
"""After SIGTERM a worker has ended: its tools' grace, what it leaves, and a slow machine, on which it may be paused meanwhile."""
UP_SECONDS: Final = 120.0
"""For a process to be up once it is left alone for long enough; others may be killed meanwhile."""
POSTGRES_SECONDS: Final = 60.0
STOPPED_SHARE: Final = 0.4
"""Of the named instants: the process is paused and resumed there, instead of being killed."""


class EndedByItselfError(AssertionError):
    """A process ended without being killed."""


class Killer:
    """Kills, stops and restarts until :meth:`enough`.

    ``postgres``: the PostgreSQL servers, by the names that the report calls them. ``hits``: instant → how often a process came to
    it. ``refused``: starts that failed because the store was away. ``gave_up``: of Temporal's own processes, which ended by
    themselves and were started again, as a supervisor does.
    """

    def __init__(
        self, on: Scene, seed: str, *, heartbeat_seconds: int, postgres: Mapping[str, Cluster] | None = None
    ) -> None:
        self._on = on
        self._processes = on.processes
        self._fate = random.Random(f"{seed}-random")  # noqa: S311 - chance, not secrecy
        self._named = random.Random(f"{seed}-named")  # noqa: S311
        self._heartbeat = heartbeat_seconds
        self._postgres = dict(postgres or {})
        self._layout = self._processes.layout
        self._workers = self._layout.workers
        self._resting: set[str] = set()
        self._terminated: list[tuple[Life, float]] = []
        """What got SIGTERM, and when: it seems to be up until it ends."""
        self._over = asyncio.Event()
        self.sent = self._processes.sent
        self.hits: Counter[tuple[str, str]] = Counter()
        self.refused = 0
        self.gave_up: Counter[str] = Counter()

    async def work(self, pause_seconds: tuple[float, float]) -> None:
        """Do it all until :meth:`enough`; then every process runs. ``pause_seconds``: between two random acts."""
        async with asyncio.TaskGroup() as doing:
            reviving = doing.create_task(self._revive())
            often = [each for each in instants.WORKER if each not in instants.RARE]
            rarely = [*instants.API, *instants.RARE]
            ending = [
                doing.create_task(self._at_random(pause_seconds)),
                doing.create_task(self._at_instants(often[::2])),
                doing.create_task(self._at_instants(often[1::2])),
                doing.create_task(self._at_instants(rarely)),
            ]
            await asyncio.gather(*ending)
            self._resting.clear()
            await self.all_up()
            reviving.cancel()

    def enough(self) -> None:
        """No more harm."""
        self._over.set()

    async def all_up(self) -> None:
        """Wait until every process does its work; one whose start failed is started again meanwhile.

        Raises StuckError for one that doesn't end after its SIGTERM, or doesn't come up.
        """
        while self._ending():  # noqa: ASYNC110 - a file says it
            await asyncio.sleep(LOOK_SECONDS)
        for name in self._processes.names:
            deadline = time.monotonic() + UP_SECONDS
            while self._processes.exit_code(name) is not None or not await self._processes.is_up(name):
                if time.monotonic() > deadline:
                    raise StuckError(f"{self._described(name)}: not up for {UP_SECONDS:.0f} s")
                await asyncio.sleep(LOOK_SECONDS)

    def _ending(self) -> bool:
        """Tell whether something that got SIGTERM is still there. Raises StuckError if it is for too long."""
        self._terminated = [each for each in self._terminated if each[0].code is None]
        for life, at in self._terminated:
            if (seconds := time.monotonic() - at) > STOP_SECONDS:
                what = f"{life.name} (process {life.pid}: {life.state})"
                raise StuckError(
                    f"{what}: SIGTERM came {seconds:.0f} s ago, and it has not ended\n{self._processes.tail(life.name)}"
                )
        return bool(self._terminated)

    def _described(self, name: str) -> str:
        life = self._processes.life(name)
        return f"{name} (process {life.pid}: {life.state})"

    async def _pause(self, seconds: float) -> None:
        """Wait, or until it is over."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._over.wait(), seconds)

    async def _revive(self) -> None:
        """Start again what has ended. What ended by itself after it had come up is a failure."""
        while True:
            for name in self._processes.names:
                code = self._processes.exit_code(name)
                if code is None or name in self._resting:
                    continue
                if code not in {-signal.SIGKILL, 0}:
                    if not self._processes.had_come_up(name):
                        self.refused += 1  # it found no store; a supervisor would start it again, too
                    elif self._processes.program(name).executable:
                        self.gave_up[name] += 1
                    else:
                        raise EndedByItselfError(f"{name} ended by itself ({code}):\n{self._processes.tail(name)}")
                    await asyncio.sleep(0.5)
                self._processes.start(name)
            await asyncio.sleep(LOOK_SECONDS)

    # At random

    async def _at_random(self, pause_seconds: tuple[float, float]) -> None:
        acts: dict[Callable[[], Awaitable[None]], int] = {
            self._kill_worker: 26,
            self._kill_api: 14,
            self._kill_temporal: 8,
            self._kill_server: 10,
            self._stop_worker_briefly: 6,
            self._stop_worker_long: 10,
            self._stop_api: 5,
            self._stop_server: 6,
            self._terminate_worker: 4,
            self._no_workers: 4,
            self._kill_everything: 3,
        }
        if len(self._layout.servers) > 1:
            acts |= {self._kill_server: 20, self._stop_server: 14, self._kill_several: 8, self._stop_several: 10}
        if self._postgres:
            acts |= {self._kill_postgres: 8, self._kill_backend: 8, self._stop_postgres: 5}
        while not self._over.is_set():
            await self._pause(self._fate.uniform(*pause_seconds))
            if self._fate.random() > IMPATIENT_SHARE:
                # On a slow machine they would be killed faster than they can start, and nothing would ever progress.
                await self.all_up()
            if not self._over.is_set():
                await self._fate.choices(list(acts), list(acts.values()))[0]()

    async def _kill_worker(self) -> None:
        self._processes.send(self._fate.choice(self._workers), signal.SIGKILL)

    async def _kill_api(self) -> None:
        self._processes.send(self._any(self._layout.apis), signal.SIGKILL)

    async def _kill_temporal(self) -> None:
        for name in self._layout.temporal:
            self._processes.send(name, signal.SIGKILL)

    async def _kill_server(self) -> None:
        await self._processes.kill_server(self._any(self._layout.servers))

    async def _kill_several(self) -> None:
        """Two to four processes at the same moment, whatever they are."""
        for name in self._fate.sample(self._processes.names, self._fate.randint(2, 4)):
            self._processes.send(name, signal.SIGKILL)

    def _any(self, names: Sequence[str]) -> str:
        return self._fate.choice(names) if len(names) > 1 else names[0]

    async def _kill_everything(self) -> None:
        for name in self._processes.names:
            self._processes.send(name, signal.SIGKILL)

    async def _no_workers(self) -> None:
        """No worker runs for some seconds, and decisions are taken all the same."""
        self._resting.update(self._workers)
        for name in self._workers:
            self._processes.send(name, signal.SIGKILL)
        await self._pause(self._fate.uniform(4.0, 6.0))
        self._resting.difference_update(self._workers)

    async def _terminate_worker(self) -> None:
        name = self._fate.choice(self._workers)
        self._terminated.append((self._processes.life(name), time.monotonic()))
        self._processes.send(name, signal.SIGTERM)

    async def _stop_worker_briefly(self) -> None:
        await self._stopped(self._fate.choice(self._workers), seconds=self._fate.uniform(0.5, 1.5))

    async def _stop_worker_long(self) -> None:
        """A worker that only seems lost: its results come late."""
        await self._stopped(self._fate.choice(self._workers), seconds=self._heartbeat + self._fate.uniform(1.0, 3.0))

    async def _stop_api(self) -> None:
        await self._stopped(self._any(self._layout.apis), seconds=self._fate.uniform(0.5, 3.0))

    async def _stop_server(self) -> None:
        """A server that is there and answers no one, as if the network between them were gone."""
        seconds = self._fate.uniform(0.5, self._heartbeat + 2.0)
        await self._stopped(self._any(self._layout.servers), seconds=seconds)

    async def _stop_several(self) -> None:
        """A partition: two or three processes answer no one, for a while longer than heartbeats and sticky queues last."""
        targets = self._fate.sample(
            [*self._layout.servers, *self._workers, *self._layout.apis], self._fate.randint(2, 3)
        )
        await self._stopped(*targets, seconds=self._fate.uniform(1.0, self._heartbeat + 4.0))

    async def _stopped(self, *targets: str, seconds: float) -> None:
        for target in targets:
            self._processes.send(target, signal.SIGSTOP)
        await self._pause(seconds)
        for target in targets:
            self._processes.send(target, signal.SIGCONT)

    async def _kill_postgres(self) -> None:
        name, cluster = self._any_postgres()
        cluster.kill()
        self.sent[name, "SIGKILL"] += 1
        await self._pause(self._fate.uniform(0.0, 2.0))
        deadline = time.monotonic() + POSTGRES_SECONDS
        while True:
            cluster.start()  # on this thread, with which it dies
            try:
                await asyncio.to_thread(cluster.wait_until_ready)
            except RuntimeError:  # the last backend of the killed one has not ended yet
                if time.monotonic() > deadline:
                    raise
            else:
                return

    async def _kill_backend(self) -> None:
        """SIGKILL one of PostgreSQL's own processes: it ends every connection and recovers."""
        name, cluster = self._any_postgres()
        backends = _children(cluster.pid)
        if backends:
            self._signal(self._fate.choice(backends), signal.SIGKILL)
            self.sent[f"{name} backend", "SIGKILL"] += 1

    async def _stop_postgres(self) -> None:
        name, cluster = self._any_postgres()
        pids = [pid for pid in (cluster.pid, *_children(cluster.pid)) if pid is not None]
        for pid in pids:
            self._signal(pid, signal.SIGSTOP)
        self.sent[name, "SIGSTOP"] += 1
        await self._pause(self._fate.uniform(0.5, 4.0))
        for pid in pids:
            self._signal(pid, signal.SIGCONT)

    def _any_postgres(self) -> tuple[str, Cluster]:
        name = self._any(list(self._postgres))
        return name, self._postgres[name]

    @staticmethod
    def _signal(pid: int, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)

    # At named instants

    async def _at_instants(self, every: Sequence[str]) -> None:
        """Arm one of these after the other, those that were hit least first; what a hit does is chance."""
        while not self._over.is_set():
            fewest = min(self.hit(each) for each in every)
            instant = self._named.choice([each for each in every if self.hit(each) <= fewest + 1])
            action = "stop" if self._named.random() < STOPPED_SHARE else "kill"
            await self._at(instant, action)

    def hit(self, instant: str) -> int:
        """How often a process came to this instant."""
        return self.hits[instant, "kill"] + self.hits[instant, "stop"]

    async def _at(self, instant: str, action: str) -> None:
        known = len(self._on.hits(instant))
        self._on.arm(instant, action)
        deadline = time.monotonic() + ARMED_SECONDS
        while len(self._on.hits(instant)) == known:
            late = time.monotonic() - deadline
            if (self._over.is_set() or late > 0) and self._on.disarm(instant):
                return
            if late > ARMED_SECONDS:
                raise StuckError(f"instant {instant}: a process took the order, and no one recorded it")
            await asyncio.sleep(LOOK_SECONDS)
        pid = self._on.hits(instant)[-1]
        self.hits[instant, action] += 1
        name = self._processes.name_of(pid)
        self.sent[name, "SIGSTOP" if action == "stop" else "SIGKILL"] += 1
        if action == "stop":
            await self._meanwhile()
            self._signal(pid, signal.SIGCONT)
        await self._pause(self._named.uniform(0.2, 1.0))

    async def _meanwhile(self) -> None:
        """While one process is paused at its instant: another one is lost, or it is taken for lost itself."""
        losses: Mapping[Callable[[], Awaitable[None]], int] = {
            self._kill_server: 3,
            self._kill_temporal: 1,
            self._kill_api: 2,
            self._kill_postgres if self._postgres else self._nothing: 2,
            self._nothing: 4,
        }
        await self._named.choices(list(losses), list(losses.values()))[0]()
        await self._pause(self._named.uniform(0.5, self._heartbeat + 3.0))

    async def _nothing(self) -> None:
        return None


def _children(pid: int | None) -> list[int]:
    with suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []
