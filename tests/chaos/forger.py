"""Someone who reaches Temporal during a chaos run: forged signals and updates to live runs, all the while.

What they say is what the workflow believed before the store decided, and what it takes now. :mod:`checker` looks for the
forged names and ids in everything that was stored.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from checker import FORGED_ID, FORGED_NAMES
from scene import Scene
from temporalio.client import Client, WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.service import RPCError

from turngate.domain import contract
from turngate.wire.requests import RequestItem

PAUSE_SECONDS: Final = 0.25
"""Between two messages: many more would only slow the runs down."""
ANSWER_SECONDS: Final = 1.0
UNREACHABLE: Final = (RPCError, RuntimeError, OSError, TimeoutError, WorkflowUpdateRPCTimeoutOrCancelledError)
"""Temporal is away, or the run has ended."""


class Forger:
    """Sends forged messages until it is cancelled. ``sent``: message → how often Temporal took one."""

    def __init__(self, on: Scene, seed: str) -> None:
        self._on = on
        self._fate = random.Random(f"{seed}-forged")  # noqa: S311 - chance, not secrecy
        self.sent: Counter[str] = Counter()

    async def work(self) -> None:
        """Choose a pending request again and again, and forge a message to its run."""
        doing = asyncio.current_task()
        assert doing is not None
        while not doing.cancelling():  # the client turns a cancelled update into an error of its own
            with suppress(*UNREACHABLE):
                client = await self._on.temporal()
                while True:
                    await self._look(client)
            await asyncio.sleep(PAUSE_SECONDS)

    async def _look(self, client: Client) -> None:
        """Forge one message for each of a few pending requests."""
        waiting = await self._on.glance()
        for request in self._fate.sample(waiting, min(len(waiting), 4)):
            await self._forge(client, request)
            await asyncio.sleep(PAUSE_SECONDS)
        await asyncio.sleep(PAUSE_SECONDS)

    async def _forge(self, client: Client, request: RequestItem) -> None:
        run = client.get_workflow_handle(request.run_id)
        decision = self._decision(request)
        if self._fate.random() < 0.25:
            self.sent["update decide"] += 1
            with suppress(WorkflowUpdateFailedError):
                async with asyncio.timeout(ANSWER_SECONDS):
                    await run.execute_update("decide", decision)
            return
        signal, values = self._fate.choice(self._signals(request, decision))
        async with asyncio.timeout(ANSWER_SECONDS):
            await run.signal(signal, args=values)
        self.sent[f"signal {signal}"] += 1

    def _decision(self, request: RequestItem) -> dict[str, Any]:
        """Return a decision as the workflow took it before the store decided, in the name of someone who may."""
        return {
            "decision_id": f"{FORGED_ID}{self._fate.randrange(10**6)}",
            "request_id": request.id,
            "verb": self._fate.choice(["approve", "edit", "reject", "respond"]),
            "digest": request.digest,
            "by": self._fate.choice(FORGED_NAMES),
            "role": "admin",
            "machine": False,
            "sent_at": request.created_at,
        }

    @staticmethod
    def _signals(request: RequestItem, decision: dict[str, Any]) -> Sequence[tuple[str, list[Any]]]:
        """Return each signal that a run takes, or took, with what to send in it."""
        return (
            (contract.DECIDED, [request.id]),
            (contract.DECIDED, [decision]),
            (contract.CHANGED, []),
            (contract.EXTERNAL_CALL, [request.tool_call_id]),
            ("decide", [decision]),
            ("interrupt", [{"by": decision["by"], "reason": "forged"}]),
            ("pause", [{"by": decision["by"], "reason": "forged"}]),
        )
