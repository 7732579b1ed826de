"""A rolling restart of two APIs and two workers under load: real processes, a balancer that follows /readyz, no failure."""

from __future__ import annotations

import asyncio
import secrets
import signal
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from bench import restart_app
from support.api.api_server import token_for
from support.engine.stack import until
from support.programs.terminal_process import TURNGATE, clean_environment
from support.servers.loopback_balancer import Balancer, balancing
from support.stores.postgres_server import PostgresServer

from turngate.client import Retries, TurngateClient
from turngate.domain.errors import TurngateError
from turngate.runtime import embedded_temporal
from turngate.runtime.embedded_temporal import EmbeddedTemporal
from turngate.store.database import Database
from turngate.wire.events import EventView
from turngate.wire.orders import DecisionOrder

DRAIN_SECONDS = 2
PAUSE_SECONDS = 0.15
"""Of each loop of the load: some twenty requests a second in all."""
MOST_RUNS = 400
START_SECONDS = 180
"""Four processes start at once, perhaps on a machine that others use."""
NO_RETRIES = Retries(attempts=1)


@dataclass
class Fleet:
    """The processes, by name: ``api-1``, ``worker-2``."""

    directory: Path
    environment: dict[str, str]
    ports: dict[str, int]
    alive: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str) -> None:
        """Start one, as its supervisor does."""
        where = ("--data-dir", str(self.directory / name))
        arguments = ["api", "--port", str(self.ports[name])] if name in self.ports else ["worker", "restart_app:app"]
        more = {} if name in self.ports else {"TURNGATE_HEALTH_FILE": str(self.health_file(name))}
        with (self.directory / f"{name}.log").open("ab") as log:
            self.alive[name] = subprocess.Popen(
                [TURNGATE, *arguments, *where],
                cwd=Path(restart_app.__file__).parent,
                env=clean_environment(**self.environment, **more),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def health_file(self, name: str) -> Path:
        return self.directory / f"{name}.health"

    async def ready(self, name: str, balancer: Balancer) -> None:
        """Wait until one takes work."""
        if name in self.ports:
            await until(
                lambda: asyncio.sleep(0, self.ports[name] in balancer.ready), f"{name} that is ready", START_SECONDS
            )
        else:
            await until(lambda: asyncio.sleep(0, self.health_file(name).exists()), f"{name} that runs", START_SECONDS)

    async def stop(self, name: str) -> int:
        """SIGTERM; return the exit code."""
        process = self.alive.pop(name)
        process.send_signal(signal.SIGTERM)
        return await asyncio.to_thread(process.wait, 30)

    def end(self) -> None:
        """Kill what is left, each by its pid."""
        for process in self.alive.values():
            process.kill()
            process.wait()


@dataclass
class Load:
    """Starts, decisions, reads and watchers, none of which may fail. ``failures``: what did."""

    client: TurngateClient
    enough: asyncio.Event = field(default_factory=asyncio.Event)
    started: list[str] = field(default_factory=list)
    decided: set[str] = field(default_factory=set)
    answers: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    streams_broken: int = 0
    connections: int = 0

    async def keep(self, name: str, act: Callable[[], Awaitable[object]]) -> None:
        """Do something again and again; a refused connection and a 5xx are failures, and so is any other error."""
        while not self.enough.is_set():
            try:
                await act()
                self.answers[name] += 1
            except (TurngateError, httpx.HTTPError) as error:
                self.failures.append(f"{name}: {error!r}")
            await asyncio.sleep(PAUSE_SECONDS)

    async def start_one(self) -> None:
        if len(self.started) < MOST_RUNS:
            run = await self.client.start_run(agent="payer", text=f"Pay {len(self.started)}.")
            self.started.append(run.id)

    async def decide_one(self) -> None:
        for item in (await self.client.list_requests(limit=50)).items[-2:]:
            await self.client.decide(item.id, DecisionOrder(verb="approve", digest=item.digest))
            self.decided.add(item.run_id)

    async def read_one(self) -> None:
        if self.started:
            await self.client.get_run(secrets.choice(self.started))

    async def watch(self, seen: list[int]) -> None:
        """Follow every event from the first one on."""

        def link(is_open: bool) -> None:
            self.connections += is_open
            self.streams_broken += not is_open

        async for item in self.client.follow_events(after=0, with_progress=False, on_link=link):
            assert isinstance(item, EventView)
            seen += [item.seq]


@asynccontextmanager
async def fleet_of_two(
    directory: Path, url: str, temporal: EmbeddedTemporal
) -> AsyncIterator[tuple[Fleet, str, Balancer]]:
    """Run two APIs and two workers; yields them, with the address of the balancer before the APIs."""
    environment = {
        "TURNGATE_DATABASE_URL": url.replace("+psycopg", ""),
        "TEMPORAL_ADDRESS": temporal.address,
        "TURNGATE_TASK_QUEUE": f"rolling-{secrets.token_hex(4)}",
        "TURNGATE_DRAIN_SECONDS": str(DRAIN_SECONDS),
        "TURNGATE_STOP_GRACE_SECONDS": "10",
        "TURNGATE_RATE_LIMITS": "false",
        restart_app.LEDGER: str(directory / "ledger.txt"),
    }
    fleet = Fleet(directory, environment, {name: embedded_temporal.choose_port() for name in ("api-1", "api-2")})
    names = ("api-1", "api-2", "worker-1", "worker-2")
    try:
        async with balancing(list(fleet.ports.values())) as (address, balancer):
            for name in names:
                fleet.start(name)
            for name in names:
                await fleet.ready(name, balancer)
            yield fleet, address, balancer
    except BaseException as error:
        for name in names:
            error.add_note((directory / f"{name}.log").read_text(encoding="utf-8", errors="replace")[-2000:])
        raise
    finally:
        fleet.end()


@pytest.mark.exhaustive
async def test_a_rolling_restart_fails_no_request(
    tmp_path: Path, postgres: PostgresServer, postgres_template: str, temporal: EmbeddedTemporal
) -> None:
    """Each process is restarted in turn under load: every request is answered, every watcher sees each event once."""
    database = Database(postgres.fresh_url(template=postgres_template))
    token = (await token_for(database, "load", "admin"))["Authorization"].removeprefix("Bearer ")
    async with (
        fleet_of_two(tmp_path, database.url, temporal) as (fleet, address, balancer),
        TurngateClient(address, token=token, retries=NO_RETRIES) as client,
        asyncio.timeout(240),
    ):
        load, seen = Load(client), ([], [], [])
        async with asyncio.TaskGroup() as group:
            watchers = [group.create_task(load.watch(one)) for one in seen]
            loops = {"start": load.start_one, "decide": load.decide_one, "read": load.read_one}
            working = [group.create_task(load.keep(name, act)) for name, act in loops.items()]
            for name in ("api-1", "worker-1", "api-2", "worker-2"):
                answered = sum(load.answers.values())
                assert await fleet.stop(name) == 0
                fleet.start(name)
                await fleet.ready(name, balancer)
                assert sum(load.answers.values()) > answered, "the load continues meanwhile"
            load.enough.set()
            await asyncio.gather(*working)
            await _finish(load)
            last = (await client.list_audit(limit=1)).items[0].seq
            await until(lambda: asyncio.sleep(0, all(one[-1:] == [last] for one in seen)), "the last event")
            for watcher in watchers:
                watcher.cancel()
    print(f"{dict(load.answers)}; {len(load.started)} runs; {load.connections} connections of 3 watchers")
    assert load.failures == []
    assert balancer.refused == 0
    assert load.streams_broken == 0
    assert load.connections >= 3 + 2, "two restarts of APIs moved watchers"
    for one in seen:
        assert one == sorted(set(one)), "each event once, in order"
        assert one == seen[0]
    starts = Counter(line.split()[0] for line in (tmp_path / "ledger.txt").read_text().splitlines())
    assert starts == dict.fromkeys(load.started, 1)
    await database.close()


async def _finish(load: Load) -> None:
    """Answer what is left, until every run has completed."""

    async def over() -> bool:
        await load.decide_one()
        return not (await load.client.list_runs(status="running", limit=1)).items

    await until(over, "the end of every run")
    statuses = Counter([(await load.client.get_run(run_id)).status for run_id in load.started])
    assert statuses == {"completed": len(load.started)}
