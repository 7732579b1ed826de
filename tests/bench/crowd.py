"""Figure: a crowd decides the same pending requests at once, through the whole API in this process.

Each person goes through the requests in their own random order, with random decisions. Each request has one winner, and
every loser learns who it was; this is checked for each answer. A quorum of one: it is about winning.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
from bench.figures import Figure, MeasurementError, milliseconds
from bench.scale import Scale
from fastapi import FastAPI
from pydantic import BaseModel
from support.api.api_server import session_for
from support.engine.stack import Stack, call, says, stack, until
from temporalio.client import Client

from turngate import ToolContext, tool
from turngate.approvals_api.app import create_api_app
from turngate.approvals_api.gateway.client import Gateway
from turngate.approvals_api.settings import ApiSettings
from turngate.domain.conversation.messages import ModelResponse
from turngate.models.port import ModelRequest
from turngate.store.database import Database
from turngate.store.requests import requests
from turngate.store.runs import executions, runs

URL = "http://127.0.0.1"
VERBS: Sequence[Mapping[str, Any]] = (
    {"decision": "approve"},
    {"decision": "edit", "args": {"cents": 1}},
    {"decision": "reject", "message": "No."},
    {"decision": "respond", "message": "Done by hand."},
)
RUNS_AT_ONCE = 10
PAGE = 200
PATIENCE_SECONDS = 300.0
PAUSE_SECONDS = 0.5


class Amount(BaseModel):
    cents: int


class ManyPayments:
    """Asks for all payments in one response, then is done."""

    name = "scripted:test"

    def __init__(self, calls: int) -> None:
        self._asks = says(*(call("pay", json.dumps({"cents": cents}), f"c{cents}") for cents in range(2, calls + 2)))

    async def generate(self, request: ModelRequest) -> ModelResponse:
        return says("Done.") if request.messages[-1].role == "tool" else self._asks

    async def aclose(self) -> None:
        return None


@dataclass
class Answers:
    """What came back. ``won``: request id → name and verb. ``lost``: request id → the winner that each loser got.

    ``tried``: request id → how many sent a decision. ``seconds``: of each decision, until its answer; ``elapsed``: of all
    together. ``asked_again``: answers that were no answer yet.
    """

    won: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    lost: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    tried: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    elapsed: float = 0.0
    asked_again: int = 0


@dataclass(frozen=True)
class Crowd:
    """So many people, before so many runs of so many calls.

    ``seconds``: after which no one begins another decision once every request has its winner; None: everyone tries all.
    """

    people: int
    runs: int
    calls: int
    seconds: float | None = None


async def measure(client: Client, database: Database, scale: Scale) -> list[Figure]:
    """Let the crowd in once; raises MeasurementError when a request has two winners, or a loser did not learn of one."""
    crowd = Crowd(
        people=scale.crowd_people, runs=scale.crowd_runs, calls=scale.crowd_calls, seconds=scale.crowd_seconds
    )
    answers = await decided_by(crowd, client, database)
    rate = len(answers.seconds) / answers.elapsed
    losers = sum(len(names) for names in answers.lost.values())
    return [
        Figure(
            name=f"{crowd.people} people at {crowd.runs * crowd.calls} requests: {len(answers.won)} won, {losers} learned who",
            ours=f"{rate:.0f} decisions/s, {milliseconds(answers.seconds)}",
            samples={"ours_seconds": answers.seconds, "elapsed_seconds": [answers.elapsed]},
        )
    ]


async def decided_by(crowd: Crowd, client: Client, database: Database, *, seed: int = 4) -> Answers:
    """Create the requests, let everyone decide, and compare the answers with the store."""
    started: Counter[tuple[str, str]] = Counter()

    @tool(effect="once", ask=True)
    async def pay(params: Amount, ctx: ToolContext) -> dict[str, int]:
        """Pay an amount."""
        started[ctx.run_id, ctx.tool_call_id] += 1
        return {"paid": params.cents}

    model = ManyPayments(crowd.calls)
    async with (
        stack(client, database, pay, model=model, working=False) as engine,
        engine.worker(max_cached_workflows=1000),
    ):
        # The tests' own heartbeat is so short that a busy machine makes a lost worker of a slow one.
        engine.services = replace(engine.services, settings=ApiSettings())
        pending = await _opened(engine, crowd)
        # Patient: a decision that is sent once more because the machine is busy makes it busier.
        gateway = Gateway(client)
        app = create_api_app(database=database, gateway=gateway, settings=ApiSettings())
        # Its background work is included: a decision that got lost with a workflow task is sent again.
        async with app.router.lifespan_context(app):
            answers = await _decided(app, engine, crowd, pending, seed)
            for run_id in {each.run_id for each in pending}:
                await _ended(engine, run_id)
        await _check(engine, pending, answers, started)
    return answers


async def _opened(engine: Stack, crowd: Crowd) -> list[requests.Request]:
    """Start the runs, and return all their requests once all wait."""
    wanted = crowd.runs * crowd.calls
    places = asyncio.Semaphore(RUNS_AT_ONCE)

    async def start() -> None:
        async with places:
            await engine.start()

    await asyncio.gather(*(start() for _ in range(crowd.runs)))

    async def all_wait() -> bool:
        async with engine.database.read() as conn:
            return await requests.count(conn) == wanted

    await until(all_wait, f"{wanted} pending requests", PATIENCE_SECONDS)
    opened: list[requests.Request] = []
    async with engine.database.read() as conn:
        while len(opened) < wanted:
            after = requests.key_of(requests.PENDING, opened[-1]) if opened else None
            opened += await requests.page(conn, requests.PENDING, limit=PAGE, after=after)
    return opened


async def _decided(
    app: FastAPI, engine: Stack, crowd: Crowd, pending: Sequence[requests.Request], seed: int
) -> Answers:
    transport = httpx.ASGITransport(app=app)
    chance, answers = random.Random(seed), Answers()  # noqa: S311 - an order to decide in, not a secret
    cookies = {name: await session_for(engine.database, name) for name in (f"p{n:03}" for n in range(crowd.people))}
    headers = {"Origin": URL}

    async def person(name: str) -> None:
        mine = chance.sample(pending, len(pending))
        known_as = {"cookies": cookies[name], "headers": headers}
        async with httpx.AsyncClient(transport=transport, base_url=URL, **known_as) as http:
            for request in mine:
                late = crowd.seconds is not None and time.perf_counter() - began > crowd.seconds
                if late and len(answers.won) == len(pending):
                    return
                answers.tried[request.id] += 1
                await _decide(http, request, name, chance.choice(VERBS), answers)

    began = time.perf_counter()
    async with asyncio.TaskGroup() as people:
        for name in cookies:
            people.create_task(person(name))
    answers.elapsed = time.perf_counter() - began
    return answers


async def _decide(
    http: httpx.AsyncClient, request: requests.Request, name: str, wanted: Mapping[str, Any], answers: Answers
) -> None:
    """Send one decision until it is answered, under one id as a client would."""
    headers = {"Idempotency-Key": f"{name}-{request.id}"}
    body = {"digest": request.digest, **wanted}
    began = time.perf_counter()
    while True:
        answer = await http.post(f"/api/v1/requests/{request.id}/decisions", json=body, headers=headers)
        if answer.status_code not in {202, 503}:
            break
        answers.asked_again += 1  # recorded, and not taken up yet: the machine is busy with the others
        await asyncio.sleep(PAUSE_SECONDS)
    answers.seconds.append(time.perf_counter() - began)
    content = answer.json()
    if answer.status_code == 200:
        answers.won.setdefault(request.id, []).append((name, str(wanted["decision"])))
    elif (answer.status_code, content.get("code")) == (409, "already_decided"):
        answers.lost.setdefault(request.id, []).append((str(content["decided_by"]), str(content["verb"])))
    else:
        raise MeasurementError(f"a decision was answered {answer.status_code}: {answer.text[:300]}")


async def _ended(engine: Stack, run_id: str) -> None:
    async def look() -> bool:
        async with engine.database.read() as conn:
            run = await runs.get(conn, run_id)
            run_requests = await requests.of_run(conn, run_id)
        if any(each.kind == "outcome" for each in run_requests):
            raise MeasurementError("a worker was thought lost: this machine is too busy to measure on")
        return run is not None and run.status == "completed"

    await until(look, f"completion of {run_id}", PATIENCE_SECONDS)


async def _check(
    engine: Stack,
    pending: Sequence[requests.Request],
    answers: Answers,
    started: Counter[tuple[str, str]],
) -> None:
    """Raise MeasurementError unless each request has one winner, who is the store's, and every loser learned it."""
    problems = []
    for each in pending:
        async with engine.database.read() as conn:
            request = await requests.get(conn, each.id)
            execution = await executions.get(conn, each.run_id, each.tool_call_id)
        if request is None:
            raise MeasurementError(f"{each.id} is gone")
        winner = (str(request.decided_by), str(request.verb))
        named = answers.lost.get(each.id, [])
        runs_it = request.verb in {"approve", "edit"}
        if answers.won.get(each.id) != [winner]:
            problems.append(f"{each.id}: {answers.won.get(each.id)} won, the store says {winner}")
        if set(named) - {winner} or len(named) != answers.tried[each.id] - 1:
            problems.append(f"{each.id}: {len(named)} losers got {set(named)}, not {winner}")
        if started[each.run_id, each.tool_call_id] != runs_it or (execution is not None) != runs_it:
            problems.append(
                f"{each.id}: {request.verb}, and its handler started {started[each.run_id, each.tool_call_id]} times"
            )
    if problems:
        raise MeasurementError(f"{len(problems)} requests: {problems[:3]}")
