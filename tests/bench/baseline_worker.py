"""The baseline's worker as a process: ``baseline_worker.py ADDRESS TASK_QUEUE LEDGER``; prints the id of each turn that waits."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

if __name__ == "__main__":
    sys.path.pop(0)
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.baseline import Baseline
from bench.sides import Ask
from bench.turngate_side import fresh_sqlite, turngate
from temporalio.client import Client

from turngate.runtime.temporal_client import data_converter, sdk_runtime


class PrintingBaseline(Baseline):
    """A baseline whose client is another process."""

    def tell(self, ask: Ask) -> None:
        print(ask.turn_id, flush=True)


async def main(address: str, task_queue: str, ledger: Path) -> None:
    """Work until the process is ended."""
    client = await Client.connect(address, data_converter=data_converter(), runtime=sdk_runtime())
    baseline = PrintingBaseline(client, task_queue=task_queue)
    baseline.handlers.note = lambda turn_id: _note(ledger, turn_id)
    with tempfile.TemporaryDirectory() as directory:
        database = await fresh_sqlite(Path(directory), "unused")
        async with turngate("unused", client, database) as ours:
            like = ours.worker
        await database.close()
    async with baseline.worker(like=like):
        await asyncio.Event().wait()


def _note(ledger: Path, turn_id: str) -> None:
    with ledger.open("a", encoding="utf-8") as file:
        file.write(f"{turn_id} {time.time()}\n")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
