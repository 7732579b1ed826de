"""How much is measured: the default run, and the quick one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Counts of one run. ``turns``: gated turns per round and side. ``latency_samples``: per round and side.

    ``concurrency``: turns at work at a time. ``api_…``: over HTTP. ``think_seconds``: between a request and its decision.
    ``reads``: ungated calls in one step. ``crowd_seconds``: after which none of the ``crowd_people`` begins another
    decision about the ``crowd_runs`` times ``crowd_calls`` requests. ``long_run_steps``: of the one
    very long run. ``waiting_worker``, ``waiting_all``: runs that wait while the worker, or everything, is killed.
    ``chunks``: of each streamed answer.
    ``large_…``: of the large inbox. ``twins``: of some of the ``decided`` requests, to be found.
    """

    rounds: int = 7
    turns: int = 60
    warm_up_turns: int = 32
    concurrency: int = 16
    think_seconds: float = 0.1
    api_rounds: int = 3
    api_turns: int = 200
    api_concurrency: int = 50
    api_samples: int = 30
    latency_rounds: int = 6
    latency_samples: int = 10
    reads: int = 100
    interrupts: int = 30
    pending: int = 10_000
    pages: int = 200
    stored_turns: int = 1_000
    commit_seconds: float = 10.0
    large_pending: int = 100_000
    large_decided: int = 5_000_000
    decided: int = 100_000
    twins: int = 300
    chunks: int = 500
    crowd_people: int = 200
    crowd_runs: int = 100
    crowd_calls: int = 10
    crowd_seconds: float = 240.0
    long_run_steps: int = 10_000
    waiting_worker: int = 500
    waiting_all: int = 2_000


FULL = Scale()
QUICK = Scale(
    rounds=2,
    turns=48,
    warm_up_turns=16,
    api_rounds=2,
    api_turns=48,
    api_concurrency=16,
    api_samples=8,
    latency_rounds=2,
    latency_samples=5,
    reads=40,
    interrupts=5,
    pages=40,
    stored_turns=48,
    commit_seconds=1.0,
    large_pending=1_000,
    large_decided=5_000,
    decided=2_000,
    twins=50,
    chunks=100,
    crowd_people=40,
    crowd_runs=10,
    crowd_seconds=20.0,
    long_run_steps=400,
    waiting_worker=20,
    waiting_all=40,
)
