"""The operators of a chaos run: they approve, edit and reject, send twice, contradict each other, come too late, and regret."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from typing import Final

from chaos_app import EXPIRY_SECONDS, GRACE_SECONDS
from evidence import Answered, text_of
from scene import OPERATORS, Scene

from turngate.domain.requests import Resolution, Verb
from turngate.wire.requests import RequestItem

LOOK_SECONDS: Final = 0.3
THINK_SECONDS: Final = 1.5
MANNERS: Final = {"approve": 58, "edit": 12, "reject": 10, "conflict": 20}
SENT_TWICE: Final = 0.3
COMES_LATE: Final = 0.25
LETS_EXPIRE: Final = 0.4
REGRETS: Final = 0.5
"""Takes an approval of a transfer back, during its grace or just after."""
HESITATES_SECONDS: Final = GRACE_SECONDS * 1.3


class Operators:
    """Answer whatever is pending until they are cancelled. ``seed`` repeats what they would say to which order."""

    def __init__(self, on: Scene, seed: str) -> None:
        self._on = on
        self._seed = seed
        self._taken: set[str] = set()
        self._times: Counter[tuple[str, str]] = Counter()

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
        call = request.run_id, request.tool_call_id
        self._times[call] += 1  # who took an approval back thinks otherwise the next time
        fate = random.Random(f"{self._seed}-{request.kind}-{request.input}-{self._times[call]}")  # noqa: S311
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
        answers = await asyncio.gather(*sending)
        approved = [each.by for each in answers if each.status == "approved"]
        if approved and request.tool_name == "transfer" and fate.random() < REGRETS:
            await asyncio.sleep(fate.uniform(0.0, HESITATES_SECONDS))
            await self._on.take_back(request, by=approved[0])
        if fate.random() < COMES_LATE:
            await asyncio.sleep(fate.uniform(0.0, THINK_SECONDS))
            late: Verb = "reject" if "reject" not in verbs else "approve"
            await self._on.decide(request, late, by=other, key=f"late-{request.id}")

    async def _send(self, request: RequestItem, verb: Verb, by: str) -> Answered:
        args = None
        if verb == "edit":
            edited = json.loads(request.input)
            args = text_of({**edited, "amount": edited["amount"] + 1_000})
        return await self._on.decide(request, verb, by=by, args=args, key=f"{by}-{verb}-{request.id}")

    async def _say_what_happened(self, request: RequestItem, fate: random.Random) -> None:
        """Look at the world (the ledger), and say so, mostly."""
        outcomes: dict[Resolution, int] = {"happened": 50, "tell_model": 25, "did_not_happen": 25}
        if not self._on.starts_of(request):
            outcomes = {"did_not_happen": 80, "tell_model": 20}
        outcome = fate.choices(list(outcomes), list(outcomes.values()))[0]
        args = '{"done": "by the lost worker"}' if outcome == "happened" and fate.random() < 0.5 else None
        by = fate.choice(OPERATORS)
        await self._on.decide(request, "respond", outcome=outcome, args=args, by=by, key=f"{by}-{request.id}")
