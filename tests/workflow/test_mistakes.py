"""I7, I9: the model's mistakes become results it can read; input is decoded exactly once."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated

import pytest
from pydantic import AfterValidator, BaseModel, HttpUrl
from support.engine import ListModel, call, says, stack
from support.tools import Bench
from temporalio.client import Client

from turngate import Limits, ToolFailure, tool
from turngate.domain.errors import ModelError
from turngate.domain.tools.results import Failure, Ok
from turngate.store.database import Database


class Transforming(BaseModel):
    """Every kind of type whose decoded form is not its encoded one; decoding twice fails or doubles again."""

    url: HttpUrl
    at: datetime
    price: Decimal
    doubled: Annotated[int, AfterValidator(lambda value: value * 2)]


class Declined(ToolFailure):
    """A declared failure."""

    reason: str
    code: int


async def test_i7_input_is_decoded_exactly_once(client: Client, sqlite: Database) -> None:
    """I7: URL, datetime, Decimal and a doubling validator reach the handler decoded once, also after an edit."""
    got: list[Transforming] = []

    @tool(effect="once", ask=True)
    async def store(params: Transforming) -> Transforming:
        """Store."""
        got.append(params)
        return params

    raw = '{"url": "https://example.com/a", "at": "2026-01-02T03:04:05Z", "price": "1.10", "doubled": %s}'
    model = ListModel(says(call("store", raw % "21", "c1"), call("store", raw % "1", "c2")), says("Done."))
    async with stack(client, sqlite, store, model=model) as engine:
        run = await engine.start()
        inputs: list[str] = []
        for _ in range(
            3
        ):  # Only a worker knows what the edit is read as: who edited it is shown that, and asked again.
            request = await engine.request(run)
            inputs.append(request.input)
            edit = request.input == raw % "1"
            await engine.decide(request, "edit" if edit else "approve", args=raw % "100" if edit else None)
            assert request.input != raw % "100" or "200" in (request.defaults or "")
        assert sorted(inputs) == sorted(raw % number for number in ("21", "1", "100"))
        await engine.ended(run)
        by_value = sorted(each.doubled for each in got)
        assert by_value == [42, 200]
        assert got[0].at == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
        assert got[0].price == Decimal("1.10")
        result = (await engine.results(run))["c1"]
        assert isinstance(result, Ok)
        assert result.value["price"] == "1.10"


async def test_i9_each_mistake_is_its_own_result_and_harms_no_neighbour(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """I9: unknown tool, broken JSON, wrong shape, crash and declared failure are results; the good call still runs."""

    @tool(effect="read", ask=False)
    async def crash() -> str:
        """Crash."""
        raise RuntimeError("secret detail")

    @tool(effect="read", ask=False, failures=[Declined])
    async def decline() -> str:
        """Decline."""
        raise Declined(reason="not today", code=7)

    model = ListModel(
        says(
            call("nope", "{}", "a"),
            call("look", '{"name": ', "b"),
            call("look", '{"nme": 1}', "c"),
            call("crash", "", "d"),
            call("decline", "", "e"),
            call("look", '{"name": "x"}', "f"),
        ),
        says("Done."),
    )
    async with stack(client, sqlite, bench.look, crash, decline, model=model) as engine:
        run = await engine.start()
        assert (await engine.ended(run)).status == "completed"
        results = await engine.results(run)
        kinds = {key: value.kind if isinstance(value, Failure) else "ok" for key, value in results.items()}
        assert kinds == {
            "a": "unknown_tool",
            "b": "input_validation_error",
            "c": "input_validation_error",
            "d": "execution_error",
            "e": "declined",
            "f": "ok",
        }
        assert "look" in results["a"].reason
        assert "name: Field required" in results["c"].reason
        assert "secret detail" not in results["d"].reason
        assert results["e"].fields == {"reason": "not today", "code": 7}


async def test_i9_malformed_responses_in_a_row_end_the_run(client: Client, sqlite: Database, bench: Bench) -> None:
    """I9: three malformed responses in a row end the run, and the reason says so."""
    model = ListModel(says(), says(call("nope", "{}")), says(call("look", "[")), says("never reached"))
    async with stack(client, sqlite, bench.look, model=model) as engine:
        run = await engine.ended(await engine.start())
        assert (run.status, run.error_class) == ("failed", "malformed")
        assert "3 responses in a row" in run.reason
        assert len(model.seen) == 3
        assert "empty" in model.seen[1].messages[-1].text


async def test_i9_a_good_response_resets_the_count(client: Client, sqlite: Database, bench: Bench) -> None:
    """I9: malformed, good, malformed, malformed, final: the run completes."""
    bad = says(call("nope", "{}"))
    model = ListModel(bad, says(call("look", '{"name": "x"}')), bad, bad, says("Done."))
    async with stack(client, sqlite, bench.look, model=model) as engine:
        assert (await engine.ended(await engine.start())).status == "completed"


async def test_an_unfinished_response_executes_nothing(client: Client, sqlite: Database, bench: Bench) -> None:
    """A response cut off by its length closes its calls unexecuted, although their JSON is whole."""
    model = ListModel(says(call("look", '{"name": "x"}', "c1"), finish_reason="length"), says("Done."))
    async with stack(client, sqlite, bench.look, model=model) as engine:
        run = await engine.start()
        await engine.ended(run)
        assert bench.looked == []
        assert "length" in str((await engine.results(run))["c1"])


@pytest.mark.exhaustive
async def test_missing_and_repeated_call_ids_are_minted(client: Client, sqlite: Database, bench: Bench) -> None:
    """Call ids are present and unique within the run, also across steps."""
    twice = says(
        call("look", '{"name": "x"}', "same"), call("look", '{"name": "y"}', "same"), call("look", '{"name": "z"}')
    )
    model = ListModel(twice, twice, says("Done."))
    async with stack(client, sqlite, bench.look, model=model) as engine:
        run = await engine.start()
        await engine.ended(run)
        assert len(await engine.results(run)) == 6
        assert sorted(bench.looked) == ["x", "x", "y", "y", "z", "z"]


@pytest.mark.exhaustive
async def test_a_step_limit_ends_the_run(client: Client, sqlite: Database, bench: Bench) -> None:
    """A run that reaches its step limit fails with that reason, its conversation whole."""
    model = ListModel(says(call("look", '{"name": "x"}')))
    async with stack(client, sqlite, bench.look, model=model, limits=Limits(steps=3)) as engine:
        run = await engine.ended(await engine.start())
        assert (run.status, run.error_class, run.step) == ("failed", "step_cap", 3)
        assert [message.role for message in await engine.history(run)][-1] == "tool"


async def test_a_model_that_refuses_the_key_fails_the_run_at_once(client: Client, sqlite: Database) -> None:
    """A permanent provider error is not retried; the run fails with its class, and nothing stays open."""
    model = ListModel(ModelError("the provider refused the key", error_class="authentication", retryable=False))
    async with stack(client, sqlite, model=model) as engine:
        run = await engine.ended(await engine.start())
        assert (run.status, run.error_class) == ("failed", "authentication")
        assert "refused the key" in run.reason
        assert len(model.seen) == 1


async def test_a_model_that_is_away_is_tried_again_and_watchers_see_it(client: Client, sqlite: Database) -> None:
    """A retryable provider error is retried at the time the provider asked for, each attempt an event."""
    away = ModelError("overloaded", error_class="rate_limited", retryable=True, retry_after_seconds=0.05)
    model = ListModel(away, away, says("Done."))
    async with stack(client, sqlite, model=model) as engine:
        run = await engine.start()
        assert (await engine.ended(run)).status == "completed"
        retries = [event for event in await engine.events(run) if event.type == "model.retrying"]
        assert [event.payload["attempt"] for event in retries] == [1, 2]
        assert retries[0].payload["retry_in_seconds"] == 0.05


async def test_a_failure_declared_to_raise_fails_the_run(client: Client, sqlite: Database, bench: Bench) -> None:
    """failure_mode="raise": the run fails, its other calls are closed, gates included."""

    @tool(effect="read", ask=False, failures=[Declined], failure_mode="raise")
    async def decline() -> str:
        """Decline."""
        raise Declined(reason="no", code=1)

    model = ListModel(says(call("decline", "", "a"), call("pay", '{"cents": 1}', "b")), says("never"))
    async with stack(client, sqlite, decline, bench.pay, model=model) as engine:
        run = await engine.start()
        ended = await engine.ended(run)
        assert (ended.status, ended.error_class) == ("failed", "tool_raised")
        assert all(isinstance(result, Failure) for result in (await engine.results(run)).values())
        assert bench.paid == []
