"""A worker of ``support.engine.stack`` that is restarted when it ends or freezes, as a supervisor does. Run by tests.

``poisoned_worker.py ADDRESS DATABASE DIRECTORY QUEUE…``: one worker for each queue. While DIRECTORY has a file ``kill``, judging
the call of a run with that task ends the process; while it has a file ``freeze``, judging one of those never ends. The file gets
a line each time.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from pydantic import BaseModel
from support.engine.stack import Script, call, says, stack
from support.stores.encryption import read_with_test_key
from temporalio.client import Client

from turngate import tool
from turngate.domain.conversation.messages import ModelResponse
from turngate.models.port import ModelRequest
from turngate.runtime.temporal_client import data_converter
from turngate.store.database import Database

TASKS = {666: "kill", 667: "freeze"}
"""What a run pays, and its task."""
FROZEN_SECONDS = 1.5
"""More than the heartbeat timeout of :meth:`support.engine.stack.Stack.hurry`: the attempt was given away by then."""


class Payment(BaseModel):
    cents: int


async def work(address: str, url: str, queue: str, directory: Path) -> None:
    def poisoned(params: Payment) -> bool:
        task = TASKS.get(params.cents)
        if task is not None and (directory / task).exists():
            with (directory / task).open("a") as file:
                file.write(f"{os.getpid()}\n")
            if task == "kill":
                os._exit(9)
            time.sleep(3600)  # holds the event loop as a busy one does, and leaves the processor to others
        return True

    @tool(effect="once", ask=poisoned)
    async def pay(params: Payment) -> int:
        return params.cents

    async def pays(request: ModelRequest) -> ModelResponse:
        cents = next((cents for cents, task in TASKS.items() if task == request.messages[-1].text), 1)
        return says(call("pay", f'{{"cents": {cents}}}'))

    client = await Client.connect(address, data_converter=data_converter())
    database = Database(url)
    await read_with_test_key(database)
    async with stack(client, database, pay, model=Script(pays, says("Done.")), working=False) as engine:
        engine.task_queue = queue
        async with engine.worker():
            await asyncio.Event().wait()


def losses(directory: Path, task: str) -> int:
    """How many workers judging the call of a run with this task has cost."""
    return len((directory / task).read_text().splitlines()) if (directory / task).exists() else 0


def start(address: str, url: str, queue: str, directory: Path) -> int:
    """Return the pid of a new worker."""
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        asyncio.run(work(address, url, queue, directory))
        os._exit(0)
    return pid


def supervise(address: str, url: str, directory: Path, queues: Sequence[str]) -> None:
    """Start a queue's worker again whenever it is gone; kill one that has been frozen for a while. SIGTERM ends all."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    workers = {start(address, url, queue, directory): queue for queue in queues}
    try:
        while True:
            time.sleep(0.02)
            pid, _status = os.waitpid(-1, os.WNOHANG)
            if pid:
                queue = workers.pop(pid)
                workers[start(address, url, queue, directory)] = queue
            frozen = directory / "freeze"
            if frozen.exists() and time.time() - frozen.stat().st_mtime > FROZEN_SECONDS:
                for pid in workers.keys() & {int(line) for line in frozen.read_text().splitlines()}:
                    os.kill(pid, signal.SIGKILL)
    except SystemExit:
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
        raise


if __name__ == "__main__":
    supervise(*sys.argv[1:3], Path(sys.argv[3]), sys.argv[4:])
