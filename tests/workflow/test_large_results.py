"""Results larger than the model's limit: clipped once, stored whole once, and read to the end by their own run only."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import func, select
from support.engine.stack import Cast, ListModel, Script, Stack, call, says, stack
from support.engine.tools import Name
from temporalio.client import Client

from turngate import Agent, Limits, ToolContext, ToolFailure, Toolkit, sub_agent, tool
from turngate.domain.conversation.clipping import MAX_WHOLE_CHARS, PART_CHARS, READ_RESULT, result_digest, whole_text
from turngate.domain.conversation.messages import Message, ModelResponse
from turngate.domain.tools.results import Failure, Ok
from turngate.models.port import ModelRequest
from turngate.store.database import Database
from turngate.store.runs import runs
from turngate.store.tables import whole_results as whole_results_table

LIMIT_CHARS = 1_000
LIMITS = Limits(result_chars=LIMIT_CHARS)
PART = 3_000
DUMP = says(call("dump", '{"name": "a"}', "d"))
DONE = says("Done.")

Line = ModelResponse | Callable[[ModelRequest], Awaitable[ModelResponse]]


class TooMuch(ToolFailure):
    """A declared failure with a lot to say."""

    reason: str
    rows: list[str]


@tool(effect="read", ask=False)
async def dump(params: Name) -> dict[str, Any]:
    """Return much: escapes, emojis and quotes, so that parts are cut in the middle of them."""
    return {"name": params.name, "rows": ['"\\ \u2028 \x00 😀é\n' * 40 for _ in range(20)]}


WHOLE = whole_text(Ok(value={"name": "a", "rows": ['"\\ \u2028 \x00 😀é\n' * 40 for _ in range(20)]}))


def offered(request: ModelRequest) -> list[str]:
    return [manifest.name for manifest in request.tools]


def read(result_id: str, call_id: str, **arguments: Any) -> ModelResponse:
    return says(call(READ_RESULT, json.dumps({"result_id": result_id, **arguments}), call_id))


def body(result: Ok | Failure) -> dict[str, Any]:
    return result.value if isinstance(result, Ok) else result.fields


async def reading_on(request: ModelRequest) -> ModelResponse:
    """Read the rest as the result itself says, part by part, as a model would; then say so."""
    (last,) = request.messages[-1].results
    result = body(last.result)
    if last.tool_name != READ_RESULT:
        return read(result["result_id"], "r0", limit=PART)
    if result["next_offset"] is None:
        return DONE
    (reading,) = request.messages[-2].calls
    at = result["next_offset"]
    return read(json.loads(reading.input)["result_id"], f"r{at}", offset=at, limit=PART)


def parts_read(history: list[Message]) -> list[dict[str, Any]]:
    return [body(part.result) for message in history for part in message.results if part.tool_name == READ_RESULT]


async def wholes(database: Database) -> int:
    async with database.read() as conn:
        return int((await conn.execute(select(func.count()).select_from(whole_results_table))).scalar_one())


async def ended(engine: Stack, text: str = "go", **options: Any) -> runs.Run:
    run = await engine.ended(await engine.start(text, **options))
    assert run.status == "completed", run.reason
    return run


@pytest.mark.exhaustive
async def test_a_large_result_is_shown_in_part_and_read_to_its_end(client: Client, sqlite: Database) -> None:
    """Head, tail and how to read on; the parts make up the whole exactly; what they hold is not clipped again.

    Reading on is offered for as long as the conversation holds a part: from the first request of its next run on, not in another
    conversation, nor after results that fit.
    """

    @tool(effect="read", ask=False)
    async def brief() -> str:
        """Return little."""
        return "x" * (LIMIT_CHARS - len('{"value":""}'))

    async with stack(client, sqlite, brief, dump, model=Script(DUMP, reading_on), limits=LIMITS) as engine:
        run = await ended(engine)
        clipped = body((await engine.results(run))["d"])
        assert (clipped["truncated"], clipped["total_chars"]) == (True, len(WHOLE))
        assert WHOLE.startswith(clipped["head"])
        assert WHOLE.endswith(clipped["tail"])
        assert len(clipped["head"]) + len(clipped["tail"]) == LIMIT_CHARS
        assert clipped["result_id"] == result_digest(WHOLE)
        assert f"offset={len(clipped['head'])}" in clipped["how_to_read_the_rest"]
        parts = parts_read(await engine.history(run))
        assert len(parts) == -(-len(WHOLE) // PART) > 3
        assert "".join(part["text"] for part in parts) == WHOLE
        assert [part["offset"] for part in parts] == list(range(0, len(WHOLE), PART))
        assert {part["total_chars"] for part in parts} == {len(WHOLE)}
    model = ListModel(DUMP, DONE, says("Again."), says(call("brief", "")), DONE)
    async with stack(client, sqlite, brief, dump, model=model, limits=LIMITS) as engine:
        run = await ended(engine)
        await ended(engine, conversation_id=run.conversation_id)
        other = await ended(engine)
        reader = [["brief", "dump", READ_RESULT] if held else ["brief", "dump"] for held in (0, 1, 1, 0, 0)]
        assert [offered(request) for request in model.seen] == reader
        (result,) = (await engine.results(other)).values()
        assert "truncated" not in body(result)
        assert await wholes(sqlite) == 1


@pytest.mark.exhaustive
async def test_identical_wholes_are_kept_once_and_each_conversation_reads_its_own(
    client: Client, sqlite: Database
) -> None:
    """Two calls of one step and another conversation's: one row; a result that differs in a letter is a second one."""
    twice = says(call("dump", '{"name": "a"}', "d1"), call("dump", '{"name": "a"}', "d2"))
    async with stack(client, sqlite, dump, model=Script(twice, DONE), limits=LIMITS) as engine:
        run = await ended(engine)
        results = await engine.results(run)
        assert results["d1"] == results["d2"]
        assert await wholes(sqlite) == 1
    for name, count in (("a", 1), ("b", 2)):
        again = Script(says(call("dump", json.dumps({"name": name}), "d")), reading_on)
        async with stack(client, sqlite, dump, model=again, limits=LIMITS) as engine:
            parts = parts_read(await engine.history(await ended(engine)))
            assert "".join(part["text"] for part in parts) == WHOLE.replace('"a"', f'"{name}"')
            assert await wholes(sqlite) == count


@pytest.mark.exhaustive
async def test_any_part_of_what_the_conversation_was_shown_a_part_of_can_be_read(
    client: Client, sqlite: Database
) -> None:
    """One character, the last one, beyond the end; negative, far too much and unknown arguments are invalid input.

    An id that is made up, empty, or another conversation's gets the declared failure, and nothing of the text.
    """
    result_id, last = result_digest(WHOLE), len(WHOLE) - 1
    good = [(0, 1), (last, 50), (last + 1, 50), (10**9, 50), (17, 20_000)]
    reads = [read(result_id, f"g{n}", offset=offset, limit=limit) for n, (offset, limit) in enumerate(good)]
    bad = [{"offset": -1}, {"limit": 0}, {"limit": 20_001}, {"page": 2}, {"offset": "x"}]
    reads += [read(result_id, f"b{n}", **arguments) for n, arguments in enumerate(bad)]
    stolen = [read(each, f"s{n}") for n, each in enumerate((result_id, "", "../../etc", "0" * 64))]
    step, stealing = (says(*(each.message.calls[0] for each in every)) for every in (reads, stolen))
    model = ListModel(DUMP, step, DONE, stealing, DONE)
    async with stack(client, sqlite, dump, model=model, limits=LIMITS) as engine:
        results = await engine.results(await ended(engine))
        for number, (offset, limit) in enumerate(good):
            expected = WHOLE[offset : offset + limit]
            end = offset + len(expected)
            assert body(results[f"g{number}"]) == {
                "text": expected,
                "offset": offset,
                "total_chars": len(WHOLE),
                "next_offset": end if end < len(WHOLE) else None,
            }
        kinds = {results[f"b{number}"].kind for number in range(len(bad))}
        assert kinds == {"input_validation_error"}
        of_thief = list((await engine.results(await ended(engine))).values())
        assert [result.kind for result in of_thief if isinstance(result, Failure)] == ["no_such_result"] * len(stolen)
        assert not any(WHOLE[:20] in str(result) for result in of_thief)


async def test_i9_a_failure_with_much_to_say_is_clipped_and_read_on(client: Client, sqlite: Database) -> None:
    """I9: it stays the same failure; half a surrogate pair in its fields costs that character and nothing else."""

    @tool(effect="read", ask=False, failures=[TooMuch])
    async def fail() -> str:
        """Fail at length."""
        raise TooMuch(reason="No \udc80 stock. " + "Really. " * 500, rows=["row \ud83d"] * 500)

    model = Script(says(call("fail", "", "f")), reading_on)
    async with stack(client, sqlite, fail, model=model, limits=LIMITS) as engine:
        run = await ended(engine)
        result = (await engine.results(run))["f"]
        assert isinstance(result, Failure)
        assert result.kind == "too_much"
        assert result.reason.startswith("No \ufffd stock. Really.")
        assert len(result.reason) < LIMIT_CHARS
        assert (await engine.executions(run))["f"].state == "failed"
        whole = "".join(part["text"] for part in parts_read(await engine.history(run)))
        failure = json.loads(whole)
        assert failure == {"reason": "No \ufffd stock. " + "Really. " * 500, "rows": ["row \ufffd"] * 500}
        assert result.fields["result_id"] == result_digest(whole)
        assert len(model.seen[1].messages[-1].model_dump_json()) < 4 * LIMIT_CHARS


@pytest.mark.exhaustive
async def test_a_sub_agents_whole_answer_can_be_read_and_its_parents_results_cannot(
    client: Client, sqlite: Database
) -> None:
    """What no handler returned is clipped alike; a sub-agent's conversation is its own, and so is what it may read."""
    words = "".join(f"word {number}\n" for number in range(1_000))

    async def delegate(request: ModelRequest) -> ModelResponse:
        result = body(request.messages[-1].results[0].result)
        return says(call("helper", json.dumps({"task": result["result_id"]}), "h"))

    async def steal(request: ModelRequest) -> ModelResponse:
        return read(request.messages[-1].text, "s")

    helper = Agent(name="helper", instructions="Help.", toolkit=Toolkit.of(dump), model="scripted:helper")
    models = Cast(test=Script(DUMP, delegate, reading_on), helper=Script(steal, says(words)))
    async with stack(client, sqlite, dump, sub_agent(helper), model=models, limits=LIMITS) as engine:
        run = await ended(engine)
        child = await engine.child(run, "h")
        stolen = (await engine.results(child))["s"]
        assert isinstance(stolen, Failure)
        assert stolen.kind == "no_such_result"
        whole = "".join(part["text"] for part in parts_read(await engine.history(run)))
        assert json.loads(whole) == {"answer": words, "agent": "helper", "run_id": child.id}
        assert body((await engine.results(run))["h"])["result_id"] == result_digest(whole)


@pytest.mark.exhaustive
async def test_an_agents_own_read_result_stays_its_own(client: Client, sqlite: Database) -> None:
    """It is offered once and called; its results are clipped as any tool's; no clipped result refers to it with our ids."""
    called: list[str] = []

    @tool(name=READ_RESULT, effect="read", ask=False)
    async def own(params: Name) -> str:
        """Read a laboratory's result."""
        called.append(params.name)
        return "x" * 5_000

    model = ListModel(DUMP, says(call(READ_RESULT, '{"name": "blood"}', "o")), DONE)
    async with stack(client, sqlite, own, dump, model=model, limits=LIMITS) as engine:
        results = await engine.results(await ended(engine))
        assert called == ["blood"]
        for request in model.seen:
            assert offered(request) == [READ_RESULT, "dump"]
            assert request.tools[0].description == "Read a laboratory's result."
        for call_id in ("d", "o"):
            assert body(results[call_id])["truncated"] is True
            assert READ_RESULT not in body(results[call_id])["how_to_read_the_rest"]


async def test_the_correction_of_a_malformed_response_names_the_reader_too(client: Client, sqlite: Database) -> None:
    """The names in the corrective message are those that were offered."""
    broken = says("Half.").model_copy(update={"malformed": "it broke off"})
    async with stack(client, sqlite, dump, model=ListModel(broken, DUMP, broken, DONE), limits=LIMITS) as engine:
        corrections = [message.text for message in await engine.history(await ended(engine)) if message.role == "user"][
            1:
        ]
        assert corrections[0].endswith("The tools are: dump.")
        assert corrections[1].endswith(f"The tools are: dump, {READ_RESULT}.")


@pytest.mark.parametrize("chars", [LIMIT_CHARS, 50 * LIMIT_CHARS])
async def test_what_an_interrupted_call_had_done_is_bounded_too(client: Client, sqlite: Database, chars: int) -> None:
    """Its partial output becomes a result without a stored whole, so it keeps its two ends."""
    started = asyncio.Event()

    @tool(effect="once", ask=False)
    async def build(ctx: ToolContext) -> str:
        """Build until stopped."""
        ctx.partial("<" + "x" * (chars - 2) + ">")
        started.set()
        await asyncio.Event().wait()
        return "never"

    model = ListModel(says(call("build", "", "b")), DONE)
    async with stack(client, sqlite, build, model=model, limits=LIMITS) as engine:
        run = await engine.start()
        await asyncio.wait_for(started.wait(), 60)
        await engine.interrupt(run)
        await engine.ended(run)
        result = (await engine.results(run))["b"]
        assert isinstance(result, Failure)
        partial = str(result.fields["partial_output"])
        assert (partial[0], partial[-1], partial.count("x")) == ("<", ">", LIMIT_CHARS - 2)
        assert ("left out" in partial) == (chars > LIMIT_CHARS)
        assert await wholes(sqlite) == 0


async def test_a_once_call_with_a_huge_result_succeeds(client: Client, database: Database) -> None:
    """Of 3 MiB the whole is kept, of more than may be kept a part: no run fails, and no one is asked what happened."""

    @tool(effect="once", ask=False)
    async def export(params: Name) -> dict[str, Any]:
        """Return millions of characters, or of elements."""
        return {"rows": "é" * (3 * 1024 * 1024) if params.name == "large" else [0] * (MAX_WHOLE_CHARS // 2)}

    names = ("large", "huge")
    model = ListModel(says(*(call("export", json.dumps({"name": name}), name) for name in names)), DONE)
    async with stack(client, database, export, model=model) as engine:
        results = await engine.results(await ended(engine))
        assert [isinstance(results[name], Ok) for name in names] == [True, True]
        large, huge = (body(results[name]) for name in names)
        assert (large["truncated"], huge["truncated"], await wholes(database)) == (True, True, 1)
        assert huge["total_chars"] > MAX_WHOLE_CHARS
        assert len(huge["head"]) + len(huge["tail"]) == PART_CHARS
