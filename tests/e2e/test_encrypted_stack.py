"""An encrypted deployment as separate processes: keys rotate under load, a rotation is killed, and so is everything else."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import signal
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest
from bench import restart_app
from pydantic import SecretStr
from support.api.api_server import token_for
from support.engine.stack import until
from support.programs.terminal_process import Background, turngate
from support.stores.postgres_server import PostgresServer

from turngate.client import Retries, TurngateClient
from turngate.runtime.embedded_temporal import EmbeddedTemporal, choose_port
from turngate.runtime.key_services import open_keys
from turngate.runtime.settings import Settings
from turngate.store.database import Database
from turngate.store.runs import messages
from turngate.store.storable import MARK
from turngate.wire.orders import DecisionOrder

APP = Path(restart_app.__file__).parent
CONVERSATIONS = 12_000
"""That are there before: wrapping their keys again takes sixty batches, and a kill meets one in the middle."""
WAITING = 3
PAUSE_SECONDS = 0.1
CONFIGURATION = 2
"""The exit code of a command that refuses its configuration."""
PLANTED = "Ximena-4711"


@dataclass
class Load:
    """Runs that start and are approved, and requests that are read, until it is stopped. Nothing of it may fail."""

    client: TurngateClient
    enough: asyncio.Event = field(default_factory=asyncio.Event)
    started: list[str] = field(default_factory=list)
    approved: set[str] = field(default_factory=set)

    async def run(self) -> None:
        while not self.enough.is_set():
            await self.start()
            await self.approve(leave=WAITING)
            await self.client.get_run(secrets.choice(self.started))
            await asyncio.sleep(PAUSE_SECONDS)

    async def start(self) -> None:
        run = await self.client.start_run(agent="payer", text=f"Pay {PLANTED}.")
        self.started.append(run.id)

    async def approve(self, *, leave: int = 0) -> None:
        """Approve what waits, except for the oldest ones."""
        for item in (await self.client.list_requests(limit=50)).items[leave:]:
            await self.client.decide(item.id, DecisionOrder(verb="approve", digest=item.digest))
            self.approved.add(item.run_id)

    async def until_approved(self, more: int) -> None:
        goal = len(self.approved) + more
        await until(lambda: asyncio.sleep(0, len(self.approved) >= goal), f"{more} more approved runs")


@dataclass
class Deployment:
    """Its directory, what its processes share, and those that run."""

    directory: Path
    url: str
    environment: dict[str, str]
    port: int
    alive: list[Background] = field(default_factory=list)

    def key(self, name: str) -> str:
        """The path of a key's file."""
        return str(self.directory / name)

    def command(self, *words: str, **keys: str) -> str:
        """Run a command to its end, which has to succeed; returns what it printed."""
        done = turngate(*words, cwd=APP, **self.environment, **keys)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def refusal(self, *words: str, **keys: str) -> str:
        """Run a command that has to refuse its configuration; returns its error."""
        done = turngate(*words, cwd=APP, **self.environment, **keys)
        assert done.returncode == CONFIGURATION, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return " ".join(done.stderr.split())

    def start(self, **keys: str) -> None:
        """Start one API and one worker with these keys."""
        api = Background("api", "--port", str(self.port), cwd=APP, **self.environment, **keys)
        worker = Background("worker", "restart_app:app", cwd=APP, **self.environment, **keys)
        self.alive += [api, worker]

    def kill(self) -> None:
        """Kill -9 what runs, each by its pid."""
        for each in self.alive:
            each.stop(signal.SIGKILL)
        self.alive.clear()

    @asynccontextmanager
    async def client(self, token: str) -> AsyncIterator[TurngateClient]:
        """A client of the API, once that answers and a worker has published its agent."""
        url = f"http://127.0.0.1:{self.port}"
        async with TurngateClient(url, token=token, retries=Retries(attempts=3)) as client:

            async def answers() -> bool:
                with suppress(Exception):
                    return bool(await client.list_agents())
                return False

            await until(answers, "an API that answers, and an agent that a worker has published", 120)
            yield client

    def rows(self, query: str) -> list[tuple[str, ...]]:
        """What someone with the database reads, past the store."""
        if self.url.startswith("sqlite"):
            with sqlite3.connect(self.url.removeprefix("sqlite:///")) as connection:
                return connection.execute(query).fetchall()
        with psycopg.connect(self.url.replace("+psycopg", "")) as postgres:
            return postgres.execute(query.encode()).fetchall()


@pytest.fixture(params=["sqlite", "postgresql"])
def deployment(
    request: pytest.FixtureRequest, tmp_path: Path, temporal: EmbeddedTemporal, sqlite_template: Path
) -> Iterator[Deployment]:
    """A deployment with its schema, two keys, and no process yet."""
    if request.param == "sqlite":
        shutil.copy(sqlite_template, tmp_path / "turngate.db")
        url = f"sqlite:///{tmp_path / 'turngate.db'}"
    else:
        server: PostgresServer = request.getfixturevalue("postgres")
        url = server.fresh_url(template=request.getfixturevalue("postgres_template"))
    environment = {
        "TURNGATE_DATABASE_URL": url.replace("+psycopg", ""),
        "TURNGATE_DATA_DIR": str(tmp_path / "data"),
        "TEMPORAL_ADDRESS": temporal.address,
        "TURNGATE_TASK_QUEUE": f"encrypted-{secrets.token_hex(4)}",
        "TURNGATE_RATE_LIMITS": "false",
        restart_app.LEDGER: str(tmp_path / "ledger.txt"),
    }
    own = Deployment(tmp_path, url, environment, choose_port())
    yield own
    own.kill()


async def many_conversations(deployment: Deployment, key: SecretStr) -> None:
    """Conversations, each with a key of its own."""
    database = Database(deployment.url)
    await open_keys(Settings(key=key), database)
    for begin in range(0, CONVERSATIONS, 1_000):
        async with database.write() as conn:
            for number in range(begin, begin + 1_000):
                await messages.create_conversation(conn, f"conv_old_{number:05d}")
    await database.close()


async def begun(deployment: Deployment) -> tuple[str, str, str]:
    """Encrypt a deployment with the first of two keys; returns both, and a token. What can't start is refused in words."""
    first, second = deployment.key("key-1"), deployment.key("key-2")
    for file in (first, second):
        deployment.command("keys", "new", file)
    deployment.command("keys", "init", TURNGATE_KEY_FILE=first)
    for words in (("api", "--port", str(deployment.port)), ("worker", "restart_app:app")):
        assert "no key is configured: set TURNGATE_KEY_FILE" in deployment.refusal(*words)
        assert "configure that key, as TURNGATE_FORMER_KEY_FILE" in deployment.refusal(*words, TURNGATE_KEY_FILE=second)
    await many_conversations(deployment, SecretStr(await asyncio.to_thread(Path(first).read_text)))
    database = Database(deployment.url)
    token = (await token_for(database, "load", "admin"))["Authorization"].removeprefix("Bearer ")
    await database.close()
    return first, second, token


def wrapped_by(deployment: Deployment) -> Counter[str]:
    """How many conversations' keys each key of the ring wraps."""
    return Counter(row[0].partition(":")[0] for row in deployment.rows("SELECT data_key FROM conversations"))


@pytest.mark.exhaustive  # unit tests cover each step of a rotation
async def test_keys_rotate_under_load_and_a_killed_rotation_is_continued(deployment: Deployment) -> None:
    """No run is lost or run twice, each text can be read, and the former key isn't needed when it is over."""
    first, second, token = await begun(deployment)
    both = {"TURNGATE_KEY_FILE": second, "TURNGATE_FORMER_KEY_FILE": first}
    deployment.start(**both)
    async with deployment.client(token) as client, asyncio.timeout(240), asyncio.TaskGroup() as group:
        load = Load(client)
        loop = group.create_task(load.run())
        await load.until_approved(2)
        for _ in range(2):
            rotation = Background("keys", "rotate", cwd=APP, **deployment.environment, **both)
            await asyncio.to_thread(rotation.wait_for, r"[1-9][\d,]* conversations …")
            rotation.stop(signal.SIGKILL)
        between = wrapped_by(deployment)
        assert len(between) == 2, between  # some are wrapped again, the others not yet
        await load.until_approved(2)
        continued = await asyncio.to_thread(deployment.command, "keys", "rotate", **both)
        assert "conversations had keys from before the last rotation: it was stopped" in continued
        await load.until_approved(2)
        load.enough.set()
        await loop
        waiting = (await client.list_requests(limit=50)).items
        assert len(waiting) >= WAITING
    deployment.kill()  # everything, with runs that wait

    assert "configure that key" in deployment.refusal("api", "--port", str(deployment.port), TURNGATE_KEY_FILE=first)
    alone = {"TURNGATE_KEY_FILE": second}
    deployment.start(**alone)
    async with deployment.client(token) as client, asyncio.timeout(120):
        load.client = client

        async def over() -> bool:
            await load.approve()
            return not (await client.list_runs(status="running", limit=1)).items

        await until(over, "the end of every run", 60)
        for run_id in load.started:
            run = await client.get_run(run_id)
            assert run.status == "completed", run
            assert PLANTED in run.task
    deployment.kill()
    ledger = (deployment.directory / "ledger.txt").read_text().splitlines()
    assert Counter(line.split()[0] for line in ledger) == Counter(load.started)
    deployment.command("keys", "rotate", **alone)  # a process from before the rotation may have made some since
    assert len(wrapped_by(deployment)) == 1
    status = deployment.command("keys", "status", **alone)
    assert "still wrapped" not in status
    texts = [row[0] for row in deployment.rows("SELECT parts FROM messages UNION ALL SELECT task FROM runs")]
    assert len(texts) > len(load.started)
    assert {text[0] for text in texts} == {MARK}
