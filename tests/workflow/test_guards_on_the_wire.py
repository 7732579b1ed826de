"""The loop's guards and the choice of a model, with three providers' own bytes, each on a loopback server.

Scripted models cover every case of each guard: test_budgets.py, test_shared_budgets.py, test_no_progress.py,
test_malformed.py, test_model_routing.py. Here: that what providers send reaches them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from support.engine.provider_engines import Played, Stage, require_order, staged, turns_of
from support.servers.provider_wires import (
    EVENT_STREAM,
    WIRES,
    Wire,
    WireCall,
    WireResponse,
    calls,
    each_wire,
    either_way,
)
from temporalio.client import Client

from turngate import Limits, NoProgress, Price
from turngate.domain.agents.no_progress import is_nudge
from turngate.domain.runs.outcomes import describe_outcome
from turngate.store.events.events import Event
from turngate.store.live.deltas import Deltas
from turngate.store.live.watch import EVERY_RUN
from turngate.store.requests import requests
from turngate.store.runs import steps

DONE = WireResponse(text="Done.")
USED = (11, 7)
LIMITS = {
    "thrifty": Limits(tokens=30),
    "poor": Limits(cost=Decimal("0.0001")),
    "short": Limits(steps=2),
    "circling": Limits(no_progress=NoProgress(steps=1, after_nudge=1)),
    "strict": Limits(malformed_in_a_row=2),
}
PRICE = Price(input=Decimal(1), output=Decimal(10))  # 81 millionths an answer
NEXT = dict(zip((wire.name for wire in WIRES), (*(wire.name for wire in WIRES[1:]), WIRES[0].name), strict=True))
"""Who stands in for whom."""


def look(call_id: str | None, name: str = "x") -> WireResponse:
    return calls(WireCall("look", f'{{"name": "{name}"}}', call_id), tokens=USED)


@pytest.fixture(scope="module")
async def _staged(
    client: Client, sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Stage]:
    folder = tmp_path_factory.mktemp("guards")
    backed = {f"backed-{name}": (other,) for name, other in NEXT.items()}
    async with staged(client, sqlite_template, folder, limits=LIMITS, fallbacks=backed, price=PRICE) as stage:
        yield stage


@pytest.fixture
def stage(_staged: Stage) -> Stage:
    """One for all tests, emptied for each."""
    _staged.reset()
    return _staged


@pytest.mark.exhaustive
@each_wire
@either_way
async def test_budgets_count_what_the_provider_counted(stage: Stage, wire: Wire, streamed: bool) -> None:
    """Tokens and their cost are those of its answers: the run ends before the request that would go beyond."""
    for agent, error_class in (("thrifty", "token_cap"), ("poor", "cost_cap")):
        stage.reset()
        played = await stage.play(wire, look("c1"), look("c2", "y"), streamed=streamed, agent=agent)
        assert (played.run.outcome, played.run.error_class) == ("budget", error_class)
        async with stage.engines[streamed].database.read() as conn:
            used = [(step.input_tokens, step.output_tokens) for step in await steps.of_run(conn, played.run.id)]
        assert used == [USED, USED]
        assert played.run.cost_micros == 2 * (11 + 70)
        assert stage.bench.looked == ["x", "y"]


@each_wire
async def test_the_step_cap_and_the_cap_of_malformed_answers(stage: Stage, wire: Wire) -> None:
    """The caps bound the number of requests, and each end has its own name."""
    short = await stage.play(wire, look("c1"), look("c2", "y"), agent="short")
    strict = await stage.play(wire, WireResponse(), WireResponse(), agent="strict")
    assert [(each.run.outcome, each.run.error_class) for each in (short, strict)] == [
        ("step_cap", "step_cap"),
        ("malformed", "malformed"),
    ]


@pytest.mark.exhaustive
@each_wire
async def test_calls_that_differ_by_their_ids_alone_are_no_progress(stage: Stage, wire: Wire) -> None:
    """Providers give each call another id, or none: the nudge comes after the results, then the run ends."""
    for ids in (("a", "b", "c"), (None, None, None)):
        stage.reset()
        played = await stage.play(wire, *map(look, ids), agent="circling")
        assert (played.run.outcome, played.run.step) == ("no_progress", 3)
        (nudge,) = [message.text for message in played.history if is_nudge(message)]
        turns = turns_of(wire, played)
        require_order(turns)
        assert turns[-1].items[-1] == ("text", nudge)


@each_wire
async def test_i12_a_repeat_of_a_rejected_call_is_closed(stage: Stage, wire: Wire) -> None:
    """I12: whatever its id and spacing, only one request is opened, and the model reads that the call is a repeat."""
    engine = stage.engines[True]
    first, again = calls(WireCall("pay", '{"cents": 5}', "c1")), calls(WireCall("pay", '{ "cents":5 }', "c2"))
    stage.says(wire, first, again, DONE)
    run = await stage.start(wire)
    await engine.decide(await engine.request(run), "reject", message="Too much.")
    played = await stage.ended(wire, run)
    turns = turns_of(wire, played)
    require_order(turns)
    kinds = [content["error"] for turn in turns for _, content in turn.results]
    assert [each["kind"] for each in kinds] == ["rejected", "rejected"]
    assert [each.get("repeat") for each in kinds] == [None, True]
    async with engine.database.read() as conn:
        assert len(await requests.of_run(conn, run.id)) == 1
    assert stage.bench.paid == []


@pytest.mark.exhaustive
@either_way
async def test_an_interrupt_leaves_every_provider(stage: Stage, streamed: bool) -> None:
    """Its connection is closed while it thinks; the run is interrupted, and says by whom."""

    async def one(wire: Wire) -> None:
        server, engine = stage.servers[wire.name], stage.engines[streamed]
        server.answer(hang=True)
        run = await stage.start(wire, streamed=streamed)
        assert await asyncio.to_thread(server.wait_for_requests, 1)
        await engine.interrupt(run)
        assert await asyncio.to_thread(server.client_left.wait, 60)
        ended = await engine.ended(run)
        assert describe_outcome(ended.outcome, by=ended.ended_by) == "interrupted by operator"

    await asyncio.gather(*(one(wire) for wire in WIRES))


async def turned(stage: Stage, wire: Wire, **options: Any) -> Played:
    return await stage.ended(wire, await stage.start(wire, **options))


QUOTA = {
    "openai": (429, "insufficient_quota", "You exceeded your current quota."),
    "anthropic": (400, "invalid_request_error", "Your credit balance is too low to access the Anthropic API."),
    "google": (403, "PERMISSION_DENIED", "Your project has been denied access."),
}


@each_wire
async def test_a_quota_that_is_used_up_falls_back(stage: Stage, wire: Wire) -> None:
    """In the middle of a run the fallback continues within the step, with the whole conversation so far."""
    other = next(each for each in WIRES if each.name == NEXT[wire.name])
    stage.says(wire, look("c1"))
    wire.refuse(stage.servers[wire.name], *QUOTA[wire.name])
    server = stage.says(other, look(None, "y"), DONE)
    played = await turned(stage, wire, agent=f"backed-{wire.name}")
    assert played.run.outcome == "completed"
    assert (len(played.requests), len(server.requests)) == (2, 2)
    for request in server.requests:
        require_order(other.turns(request))
    results = [content for turn in other.turns(server.requests[1]) for _, content in turn.results]
    assert results == [{"value": "seen x"}, {"value": "seen y"}]
    fell = [
        event.payload for event in await stage.engines[True].events(played.run) if event.type == "run.model_fell_back"
    ]
    assert [(each["from"], each["to"], each["error_class"]) for each in fell] == [(wire.name, other.name, "permission")]


@each_wire
async def test_a_refused_request_does_not_fall_back(stage: Stage, wire: Wire) -> None:
    """Another model would get the same request: the run fails with its own model's error, and no fallback is asked."""
    wire.refuse(stage.servers[wire.name], 400, "invalid_request_error", "tools.0: no such field")
    played = await turned(stage, wire, agent=f"backed-{wire.name}")
    assert (played.run.outcome, played.run.error_class) == ("provider_error", "invalid_request")
    assert "tools.0: no such field" in played.run.reason
    assert stage.servers[NEXT[wire.name]].requests == []


@pytest.mark.exhaustive
async def test_a_fallback_after_the_first_words_takes_them_back(stage: Stage) -> None:
    """The quota ends in the middle of a response: watchers learn that its words are void before the next model's first word."""
    openai, anthropic, _google = WIRES
    begun = openai.stream(WireResponse(text="I believe"))
    ended = b'data: {"error": {"message": "No credit.", "code": "insufficient_quota"}}\n\n'
    stage.servers[openai.name].answer(begun[: begun.rindex(openai.truncated)] + ended, headers=EVENT_STREAM)
    engine = stage.engines[True]
    run = await stage.start(openai, agent=f"backed-{openai.name}")
    watched = []
    async with asyncio.timeout(60):
        async for each in engine.services.feed.follow(0, run.id, deltas_of=EVERY_RUN):
            if isinstance(each, Deltas) and each.reset:
                watched.append("void")
                stage.says(anthropic, DONE)  # not before: with the next answer, what is void is forgotten
            elif isinstance(each, Event):
                watched.append(each.type)
                if each.type == "run.ended":
                    break
    assert watched.index("void") < watched.index("run.model_fell_back") < watched.index("step.responded")
    played = await stage.ended(openai, run)
    assert [message.text for message in played.history] == ["go", "Done."]
