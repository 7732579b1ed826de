"""The process of ``bench.watchers`` that commits from outside: ``event_writer.py URL RUN_ID COUNT``; prints when, as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

sys.path.pop(0)
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.watchers import append_events

from turngate.store.database import Database


async def main(url: str, run_id: str, count: int) -> None:
    """Append the events."""
    database = Database(url)
    print(json.dumps(await append_events(database, run_id, count)))
    await database.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
