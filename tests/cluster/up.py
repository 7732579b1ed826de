"""``scripts/cluster up``: Temporal's four services, two PostgreSQL servers, APIs and workers of an app, until Ctrl-C.

The data is in a new temporary directory, which is removed at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
from pathlib import Path

# In place of this script's own directory, whose modules would stand in for others of the same name.
sys.path.pop(0)
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "chaos"))

from cluster.stage import cluster_stage
from cluster.temporal_services import SERVICES, TemporalCluster

DEMO = Path(__file__).resolve().parents[2] / "examples" / "refunds"


def main() -> int:
    """Serve until SIGINT or SIGTERM; returns the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/cluster up", description=__doc__.splitlines()[0])
    parser.add_argument(
        "app", nargs="?", metavar="APP", help="of this directory, such as my_app:app; default: examples/refunds"
    )
    parser.add_argument("--workers", type=int, default=2, metavar="N")
    parser.add_argument("--server", type=Path, required="--help" not in sys.argv, help=argparse.SUPPRESS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="turngate-cluster-", ignore_cleanup_errors=True) as directory:
        asyncio.run(_serve(options, Path(directory)))
    return 0


async def _serve(options: argparse.Namespace, directory: Path) -> None:
    def change(layout: TemporalCluster) -> None:
        layout.directory = Path.cwd() if options.app else DEMO
        layout.apps = dict.fromkeys([*layout.apis, *layout.workers], options.app or "refunds_app:app")

    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    async with cluster_stage(
        options.server, directory, workers=options.workers, durable=True, heartbeat_seconds=None, change=change
    ) as (on, _postgres):
        ours = ("TEMPORAL_ADDRESS", "TEMPORAL_NAMESPACE", "TURNGATE_DATABASE_URL")
        lines = [f"export {name}={on.processes.environment[name]}" for name in ours]
        lines.append(f"export TURNGATE_DATA_DIR={on.processes.data_dir}")
        print("\n".join(lines))
        print(f"# APIs: {' and '.join(on.processes.api_urls)}; `turngate login-link` lets a browser in")
        pids = ", ".join(f"{name} {on.processes.pid(name)}" for name in on.processes.names)
        print(f"# processes: {pids}; Temporal's are {', '.join(SERVICES)}\n# Ctrl-C ends all of it", flush=True)
        await stopped.wait()


if __name__ == "__main__":
    sys.exit(main())
