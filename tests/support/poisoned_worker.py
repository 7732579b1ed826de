"""A worker of ``support.engine.stack`` that is restarted when it ends or freezes, as a supervisor does. Run by tests.

``poisoned_worker.py ADDRESS DATABASE QUEUE FUSE WAY``: while the file FUSE exists, judging a call that pays 666 cents kills
the process (WAY ``exit``) or never ends (``freeze``), and one line is added to FUSE.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from pydantic import BaseModel
from support.encryption import read_with_test_key
from support.engine import Script, call, says, stack
from temporalio.client import Client

from turngate import tool
from turngate.domain.conversation.messages import ModelResponse
from turngate.models.port import ModelRequest
from turngate.runtime.temporal_client import data_converter
from turngate.store.database import Database

POISON = 666
FROZEN_SECONDS = 3.0
"""More than the engine's heartbeat timeout in tests: the attempt was given away by then."""


class Payment(BaseModel):
    cents: int


async def work(address: str, url: str, queue: str, fuse: Path, way: str) -> None:
    def poisoned(params: Payment) -> bool:
        if params.cents == POISON and fuse.exists():
            with fuse.open("a") as file:
                file.write(f"{os.getpid()}\n")
            if way == "exit":
                os._exit(9)
            time.sleep(3600)  # holds the event loop as a busy one does, and leaves the processor to others
        return True

    @tool(effect="once", ask=poisoned)
    async def pay(params: Payment) -> int:
        return params.cents

    async def pays(request: ModelRequest) -> ModelResponse:
        return says(call("pay", f'{{"cents": {POISON if "poison" in str(request.messages[-1]) else 1}}}'))

    client = await Client.connect(address, data_converter=data_converter())
    database = Database(url)
    await read_with_test_key(database)
    async with stack(client, database, pay, model=Script(pays, says("Done.")), working=False) as engine:
        engine.task_queue = queue
        async with engine.worker():
            await asyncio.Event().wait()


def lines(fuse: Path) -> int:
    return len(fuse.read_text().splitlines()) if fuse.exists() else 0


def supervise(address: str, url: str, queue: str, fuse: Path, way: str) -> None:
    """Start the worker again whenever it is gone; kill it when it has been frozen for a while. SIGTERM ends both."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    while True:
        before, pid = lines(fuse), os.fork()
        if pid == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            asyncio.run(work(address, url, queue, fuse, way))
            os._exit(0)
        frozen_at = None
        try:
            while os.waitpid(pid, os.WNOHANG)[0] == 0:
                time.sleep(0.05)
                if way == "freeze" and lines(fuse) > before:
                    frozen_at = frozen_at or time.monotonic()
                    if time.monotonic() - frozen_at > FROZEN_SECONDS:
                        os.kill(pid, signal.SIGKILL)
        except SystemExit:
            os.kill(pid, signal.SIGKILL)
            raise


if __name__ == "__main__":
    supervise(*sys.argv[1:4], Path(sys.argv[4]), sys.argv[5])
