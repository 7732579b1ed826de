"""The operators of a chaos run: they approve, edit and reject, send twice, contradict each other, and come too late."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Final

from chaos_app import EXPIRY_SECONDS
from evidence import text_of
from scene import OPERATORS, Scene

from turngate.domain.requests import Resolution, Verb
from turngate.wire.requests import RequestItem

LOOK_SECONDS: Final = 0.3
THINK_SECONDS: Final = 1.5
MANNERS: Final = {"approve": 58, "edit": 12, "reject": 10, "conflict": 20}
SENT_TWICE: Final = 0.3
COMES_LATE: Final = 0.25
LETS_EXPIRE: Final = 0.4


class Operators:
    """Answer whatever is pending until they are cancelled. ``seed`` repeats what they would say to which order."""

    def __init__(self, on: Scene, seed: str) -> None:
        self._on = on
        self._seed = seed
        self._taken: set[str] = set()

    async def work(self) -> None:
        """Look at the inbox again and again; each request is answered on its own, so in any order."""
        async with asyncio.TaskGroup() as deciding:
            while True:
                for request in await self._on.requests():
                    if request.id not in self._taken:
                        self._taken.add(request.id)
                        deciding.create_task(self._answer(request))
                await asyncio.sleep(LOOK_SECONDS)

    async def _answer(self, request: RequestItem) -> None:
        fate = random.Random(f"{self._seed}-{request.kind}-{request.input}-{len(self._on.starts_of(request))}")  # noqa: S311
        await asyncio.sleep(fate.uniform(0.0, THINK_SECONDS))
        if request.kind == "outcome":
            await self._say_what_happened(request, fate)
        else:
            await self._judge(request, fate)

    async def _judge(self, request: RequestItem, fate: random.Random) -> None:
        """Decide an approval in one of the manners, perhaps sent several times at once, perhaps once more by another."""
        if request.expires_at is not None and fate.random() < LETS_EXPIRE:
            await asyncio.sleep(EXPIRY_SECONDS + 1)
        first, other = fate.sample(OPERATORS, 2)
        manner = fate.choices(list(MANNERS), list(MANNERS.values()))[0]
        verbs: list[Verb]
        match manner:
            case "conflict":
                verbs = fate.sample(["approve", "edit", "reject"], 2)
            case "edit":
                verbs = ["edit"]
            case "reject":
                verbs = ["reject"]
            case _:
                verbs = ["approve"]
        sending = []
        for by, verb in zip((first, other), verbs, strict=False):
            copies = fate.randint(2, 3) if fate.random() < SENT_TWICE else 1
            sending += [self._send(request, verb, by) for _ in range(copies)]
        fate.shuffle(sending)
        await asyncio.gather(*sending)
        if fate.random() < COMES_LATE:
            await asyncio.sleep(fate.uniform(0.0, THINK_SECONDS))
            late: Verb = "reject" if "reject" not in verbs else "approve"
            await self._on.decide(request, late, by=other, key=f"late-{request.id}")

    async def _send(self, request: RequestItem, verb: Verb, by: str) -> None:
        args = None
        if verb == "edit":
            edited = json.loads(request.input)
            args = text_of({**edited, "amount": edited["amount"] + 1_000})
        await self._on.decide(request, verb, by=by, args=args, key=f"{by}-{verb}-{request.id}")

    async def _say_what_happened(self, request: RequestItem, fate: random.Random) -> None:
        """Look at the world (the ledger), and say so, mostly."""
        outcomes: dict[Resolution, int] = {"happened": 50, "tell_model": 25, "did_not_happen": 25}
        if not self._on.starts_of(request):
            outcomes = {"did_not_happen": 80, "tell_model": 20}
        outcome = fate.choices(list(outcomes), list(outcomes.values()))[0]
        args = '{"done": "by the lost worker"}' if outcome == "happened" and fate.random() < 0.5 else None
        by = fate.choice(OPERATORS)
        await self._on.decide(request, "respond", outcome=outcome, args=args, by=by, key=f"{by}-{request.id}")
