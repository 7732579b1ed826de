"""Figure 4: from the gateway's interrupt to the death of a shell command's last process."""

from __future__ import annotations

import asyncio
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from bench.figures import Figure, MeasurementError, milliseconds, percentile
from bench.scale import Scale
from bench.turngate_side import fresh_sqlite
from support.engine.stack import STARTER, Stack, call, says, stack, until
from temporalio.client import Client

from turngate import worker as composition
from turngate.approvals_api.runs import control, start
from turngate.domain.conversation.messages import ModelResponse
from turngate.domain.policy.policy import Policy, Rule
from turngate.models.port import ModelRequest
from turngate.toolkits.shell import bash
from turngate.wire.orders import StartOrder

GOAL_SECONDS = 0.1
DEATH_SECONDS = 20.0
COMMAND = "echo $TURNGATE_COMMAND > mark; sleep 1000 & sleep 1000"
ALLOWED = Policy(rule=[Rule(name="measured", verdict="allow", tools=["bash"])])


class ShellModel:
    """Always runs the command."""

    name = "scripted:bench"

    async def generate(self, request: ModelRequest) -> ModelResponse:
        del request
        return says(call("bash", f'{{"command": "{COMMAND}"}}', "c1"))

    async def aclose(self) -> None:
        return None


async def measure(client: Client, directory: Path, scale: Scale) -> list[Figure]:
    """One line; the first interrupt is warm-up."""
    database = await fresh_sqlite(directory, "interrupt")
    try:
        async with (
            stack(client, database, bash, model=ShellModel(), policy=ALLOWED, working=False) as engine,
            composition.build_worker(engine.client, engine.engine, task_queue=engine.task_queue),
        ):
            await _interrupt_to_death(engine, directory)
            samples = [await _interrupt_to_death(engine, directory) for _ in range(scale.interrupts)]
    finally:
        await database.close()
    return [
        Figure(
            name="interrupt -> process group dead",
            ours=milliseconds(samples),
            goal=f"p95 <= {GOAL_SECONDS * 1000:.0f} ms",
            reached=percentile(samples, 0.95) <= GOAL_SECONDS,
            samples={"ours_seconds": samples},
        )
    ]


async def _interrupt_to_death(engine: Stack, directory: Path) -> float:
    """Interrupt one running command; returns the seconds until no process of it is left, its sandbox's included."""
    workspace = Path(tempfile.mkdtemp(prefix="workspace-", dir=directory))
    run = await start.start(engine.services, STARTER, StartOrder(agent="agent", input="go", workspace=str(workspace)))

    async def both_asleep() -> list[int] | None:
        file = workspace / "mark"
        mark = file.read_bytes() if file.exists() else b""
        members = _marked(mark.strip()) if mark.endswith(b"\n") else {}  # else not written yet, or half
        return list(members) if list(members.values()).count("sleep") == 2 else None

    members = await until(both_asleep, "command with two sleepers")
    # Watched from a thread: the worker shares our event loop, and must not be the one who times itself.
    death = asyncio.create_task(asyncio.to_thread(_died_at, members))
    interrupted_at = time.perf_counter()
    await control.stop(engine.services, run.id, by="operator", reason="enough")
    seconds = await death - interrupted_at
    result = await engine.workflow(run).result()
    if result["status"] != "interrupted":
        raise MeasurementError(f"an interrupted run ended as {result!r}")
    return seconds


def _died_at(members: list[int]) -> float:
    """Return the instant when the last of them is dead; looks every millisecond. None can join: all that could fork sleep."""
    deadline = time.perf_counter() + DEATH_SECONDS
    while any(_is_alive(pid) for pid in members):
        if time.perf_counter() > deadline:
            raise MeasurementError(f"after {DEATH_SECONDS:.0f} s some of {members} still live")
        time.sleep(0.001)
    return time.perf_counter()


def _marked(mark: bytes) -> dict[int, str]:
    """Return pid → command name of every process that carries the command's mark: numbers in its sandbox are others."""
    names = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            state = _stat(path)
            if state is not None and mark in path.with_name("environ").read_bytes():
                names[int(path.parent.name)] = state[0]
    return names


def _is_alive(pid: int) -> bool:
    """A zombie is dead: an orphan's is reaped by init, whenever that gets to it, so `killpg(…, 0)` would see it for longer."""
    state = _stat(Path(f"/proc/{pid}/stat"))
    return state is not None and state[1] not in {"Z", "X"}


def _stat(path: Path) -> tuple[str, str] | None:
    """Return (command name, state), or None when the process is gone; proc_pid_stat(5): pid (comm) state …."""
    try:
        text = path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    name, rest = text[text.index("(") + 1 :].rsplit(")", 1)
    return name, rest.split()[0]
