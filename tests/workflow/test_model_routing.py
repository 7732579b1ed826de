"""Which model answers: switched by a person, chosen for a step, standing in for one that cannot be used."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from support.engine.stack import Cast, ListModel, Stack, call, person, says, stack
from support.engine.tools import Bench
from temporalio.client import Client

from turngate import Hooks, Limits, RunScope
from turngate.approvals_api.runs import dry_run, send_message
from turngate.approvals_api.runs import switch_model as model_switch
from turngate.approvals_api.runs.lead import lead_after
from turngate.domain.agents.model_profiles import ModelOptions, Profile, Profiles
from turngate.domain.conversation.messages import ModelResponse, Usage
from turngate.domain.errors import ConflictError, ForbiddenError, InvalidInputError, ModelError, ModelErrorClass
from turngate.domain.runs.budgets import Price
from turngate.store import agents
from turngate.store.database import Database
from turngate.store.runs import runs, steps
from turngate.toolkits.control_calls import switch_model
from turngate.wire.orders import DryRunOrder, MessageOrder

ADA = person("ada")
LOOK = call("look", '{"name": "x"}')


def broken(error_class: ModelErrorClass, *, retryable: bool = False, wait: float | None = None) -> ModelError:
    return ModelError("it broke", error_class=error_class, retryable=retryable, retry_after_seconds=wait)


def counted(response: ModelResponse, tokens: int) -> ModelResponse:
    return response.model_copy(update={"usage": Usage(input_tokens=tokens)})


def requests_to(engine: Stack, name: str) -> int:
    """How often the model of this name was asked."""
    model = engine.engine.models.resolve(f"scripted:{name}")
    assert isinstance(model, ListModel)
    return len(model.seen)


async def specs(engine: Stack, run: runs.Run) -> list[str | None]:
    """Whom each step of the run asked."""
    async with engine.database.read() as conn:
        return [step.model_spec for step in await steps.of_run(conn, run.id)]


async def fell(engine: Stack, run: runs.Run) -> list[tuple[str, str, str]]:
    payloads = [each.payload for each in await engine.events(run) if each.type == "run.model_fell_back"]
    return [(each["from"], each["to"], each["error_class"]) for each in payloads]


@asynccontextmanager
async def routed(client: Client, database: Database, bench: Bench, **options: Any) -> AsyncIterator[Stack]:
    """An engine whose models are those of the keywords that are models; the rest go to the stack."""
    models = {name: each for name, each in options.items() if isinstance(each, ListModel)}
    more = {name: each for name, each in options.items() if name not in models}
    async with stack(client, database, bench.look, model=Cast(**models), **more) as engine:
        yield engine


async def test_a_switch_reaches_a_request_that_is_being_tried_again(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """The next attempt asks the new model, the event says who switched, a repeat says nothing; an ended run refuses."""
    away = ListModel(broken("unreachable", retryable=True, wait=0.3))
    async with routed(client, sqlite, bench, test=away, big=ListModel(says(LOOK), says("Done."))) as engine:
        run = await engine.start()
        await engine.event(run, "model.retrying")
        for _ in range(2):
            switched = await model_switch.switch_model(engine.services, ADA, run.id, model="scripted:big")
            assert (switched.model, switched.model_chosen_by) == ("scripted:big", "ada")
        ended = await engine.ended(run)
        assert (ended.status, ended.model, await specs(engine, run)) == (
            "completed",
            "scripted:big",
            ["scripted:big"] * 2,
        )
        payloads = [each.payload for each in await engine.events(run) if each.type == "run.model_switched"]
        assert payloads == [{"by": "ada", "from": "scripted:test", "to": "scripted:big", "step": 0}]
        with pytest.raises(ConflictError) as refused:
            await model_switch.switch_model(engine.services, ADA, run.id, model="scripted:test")
        assert refused.value.error_code == "run_ended"
        async with sqlite.read() as conn:
            assert (await lead_after(conn, ended, 1)).model == "scripted:big"


async def test_who_may_switch_and_to_what(client: Client, sqlite: Database, bench: Bench) -> None:
    """A viewer may not; a model that nothing declares is refused, also when a run starts with it; the error lists the names."""
    async with routed(client, sqlite, bench, test=ListModel(says(call("ask_me", "{}"))), working=False) as engine:
        run = await engine.start()
        with pytest.raises(ForbiddenError):
            await model_switch.switch_model(engine.services, person("eve", "viewer"), run.id, model="scripted:big")
        with pytest.raises(InvalidInputError, match=r"the models are: .*scripted:test"):
            await model_switch.switch_model(engine.services, ADA, run.id, model="any:thing")  # no profile is there yet
        async with sqlite.write() as conn:
            profiles = Profiles({"fast": Profile(name="fast", model="openai:a")})
            await agents.publish_model_names(conn, profiles, ["openai"], task_queue="more", declared=["openai:b"])
        for wrong in ("slow", "nosuch:model", "openai:c", "scripted:/etc/shadow"):
            with pytest.raises(InvalidInputError, match="fast") as refused:
                await model_switch.switch_model(engine.services, ADA, run.id, model=wrong)
            assert refused.value.error_code == "unknown_model"
            with pytest.raises(InvalidInputError, match="fast"):
                await engine.start(model=wrong)
        for known in ("fast", "openai:b", "scripted:other"):
            assert (await model_switch.switch_model(engine.services, ADA, run.id, model=known)).model == known


@pytest.mark.parametrize("error_class", ["authentication", "permission", "not_found", "configuration"])
async def test_what_no_repeat_fixes_falls_back(
    client: Client, sqlite: Database, bench: Bench, error_class: ModelErrorClass
) -> None:
    """The agent's next model answers within the same step and continues to the end; the step and the bill name it."""
    prices = {
        f"scripted:{name}": Price(input=Decimal(each), output=Decimal(0)) for name, each in (("test", 1), ("b", 7))
    }
    models = {
        "test": ListModel(broken(error_class)),
        "b": ListModel(counted(says(LOOK), 10), counted(says("Done."), 10)),
    }
    async with routed(client, sqlite, bench, **models, fallback=["scripted:b"], prices=prices) as engine:
        ended = await engine.ended(await engine.start())
        assert (ended.status, ended.model, ended.fell_back_from) == ("completed", "scripted:b", "scripted:test")
        assert (ended.cost_micros, await specs(engine, ended)) == (140, ["scripted:b"] * 2)
        assert await fell(engine, ended) == [("scripted:test", "scripted:b", error_class)]
        assert (requests_to(engine, "test"), requests_to(engine, "b")) == (1, 2)


@pytest.mark.parametrize("error_class", ["invalid_request", "context_length", "bad_response"])
async def test_what_another_model_would_not_fix_does_not_fall_back(
    client: Client, sqlite: Database, bench: Bench, error_class: ModelErrorClass
) -> None:
    """The run fails with the model's own error; no fallback is asked."""
    models = {"test": ListModel(broken(error_class)), "b": ListModel(says("No."))}
    async with routed(client, sqlite, bench, **models, fallback=["scripted:b"]) as engine:
        ended = await engine.ended(await engine.start())
        assert (ended.status, ended.error_class, ended.model) == ("failed", error_class, "scripted:test")
        assert (requests_to(engine, "test"), requests_to(engine, "b")) == (1, 0)


@pytest.mark.exhaustive
async def test_what_passes_is_tried_again_and_never_falls_back(client: Client, sqlite: Database, bench: Bench) -> None:
    """Each transient error is retried with the same model, after the time that the provider asked for."""
    passing: list[ModelErrorClass] = ["rate_limited", "unreachable", "server_error"]
    model = ListModel(*(broken(each, retryable=True, wait=0.1) for each in passing), says("Done."))
    async with routed(client, sqlite, bench, test=model, b=ListModel(says("No.")), fallback=["scripted:b"]) as engine:
        ended = await engine.ended(await engine.start())
        assert (ended.status, ended.model, await fell(engine, ended)) == ("completed", "scripted:test", [])
        payloads = [each.payload for each in await engine.events(ended) if each.type == "model.retrying"]
        assert [(each["error_class"], each["retry_in_seconds"]) for each in payloads] == [
            (each, 0.1) for each in passing
        ]


async def test_what_does_not_pass_in_time_falls_back_or_ends_the_run(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """A provider that asks to come back after ``model_retry`` isn't waited for: no event promises a retry.

    A fallback answers an unattended run then. An attended one fails, so that its person may decide.
    """
    away = broken("rate_limited", retryable=True, wait=3_600)
    done = ListModel(says("Done."))
    async with routed(client, sqlite, bench, test=ListModel(away), b=done, fallback=["scripted:b"]) as engine:
        ended = await engine.ended(await engine.start(unattended="rules"))
        assert (ended.status, await fell(engine, ended)) == (
            "completed",
            [("scripted:test", "scripted:b", "rate_limited")],
        )
    async with routed(client, sqlite, bench, test=ListModel(away), b=done, fallback=["scripted:b"]) as engine:
        ended = await engine.ended(await engine.start())
        assert (ended.status, ended.error_class) == ("failed", "rate_limited")
        assert ended.reason == "it broke. It asks to come back in 1 h; model_retry allows 9 min more."
        assert "model.retrying" not in [each.type for each in await engine.events(ended)]


@pytest.mark.parametrize(
    ("setting", "unattended", "falls_back"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"fallback_after_retry": "always"}, False, True),
        ({"fallback_after_retry": "never"}, True, False),
    ],
)
async def test_an_outage_without_end_is_answered_by_the_fallback_of_an_unattended_run(
    client: Client, sqlite: Database, bench: Bench, setting: dict[str, Any], unattended: bool, falls_back: bool
) -> None:
    """A run that no one watches asks its fallback before it is given up; an attended one fails for its person to see.

    The agent's limits may say otherwise for either.
    """
    limits = Limits(model_retry=timedelta(seconds=0.1), **setting)
    models = {"test": ListModel(broken("unreachable", retryable=True, wait=0.05)), "b": ListModel(says("Done."))}
    async with routed(client, sqlite, bench, **models, fallback=["scripted:b"], limits=limits) as engine:
        ended = await engine.ended(await engine.start(**({"unattended": "rules"} if unattended else {})))
        assert (ended.status, requests_to(engine, "b")) == (("completed", 1) if falls_back else ("failed", 0))
        fallen = [("scripted:test", "scripted:b", "unreachable")] if falls_back else []
        assert await fell(engine, ended) == fallen


@pytest.mark.parametrize(
    "bug",
    [
        TypeError("no model takes 'tools'"),
        *(
            pytest.param(of("x"), marks=pytest.mark.exhaustive)
            for of in (KeyError, IndexError, ValueError, RuntimeError)
        ),
    ],
    ids=lambda bug: type(bug).__name__,
)
async def test_whatever_an_adapter_raises_is_reported_and_tried_again_as_its_class_says(
    client: Client, sqlite: Database, bench: Bench, bug: Exception
) -> None:
    """What may pass is retried, with an event from the first time; a bug in the adapter ends the run at once, with its text."""
    model = ListModel(ConnectionResetError("reset by sk-proj-4f9aB2c7D1e8F3a6B5c0D9e2"), says(LOOK))
    async with routed(client, sqlite, bench, test=model) as engine:
        model.responses.append(bug)
        run = await engine.ended(await engine.start("Go."))
        retried = [each.payload for each in await engine.events(run) if each.type == "model.retrying"]
        assert [(each["error_class"], each["attempt"]) for each in retried] == [("unreachable", 1)]
        assert retried[0]["message"].startswith(
            "the adapter of model 'scripted:test' raised ConnectionResetError: reset by "
        )
        assert "4f9aB2c7" not in retried[0]["message"]
        assert len(model.seen) == 3
        assert (run.status, run.error_class) == ("failed", "configuration")
        assert run.reason == (
            f"the adapter of model 'scripted:test' raised {type(bug).__name__}: {bug}. This is a bug in the adapter, so the "
            "request is not sent again."
        )


async def test_a_chain_of_fallbacks_is_followed_to_its_end(client: Client, sqlite: Database, bench: Bench) -> None:
    """A profile's list comes first, then the agent's; each is logged; after the last one, its error ends the run.

    The next message starts with the model that was chosen; a missing model counts as one that cannot be used.
    """
    profiles = Profiles({"fast": Profile(name="fast", model="scripted:fast", fallback=("scripted:gone",))})
    models = {
        "test": ListModel(says("?")),
        "fast": ListModel(broken("permission")),
        "b": ListModel(broken("not_found")),
    }
    async with routed(client, sqlite, bench, **models, fallback=["scripted:b"], profiles=profiles) as engine:
        ended = await engine.ended(await engine.start(model="fast"))
        assert (ended.status, ended.error_class, ended.model) == ("failed", "not_found", "scripted:b")
        assert await fell(engine, ended) == [
            ("fast", "scripted:gone", "permission"),
            ("scripted:gone", "scripted:b", "configuration"),
        ]
        sent = await send_message.send(engine.services, ADA, ended.id, MessageOrder(input="again"))
        assert sent.run.model == "fast"
        await engine.ended(sent.run)


async def test_a_profile_says_how_its_model_is_to_answer(client: Client, sqlite: Database, bench: Bench) -> None:
    """Options reach the request, and only that of a profile; its own price is what it costs."""
    options = ModelOptions(temperature=0.5, max_output_tokens=7, reasoning_effort="low")
    price = Price(input=Decimal(3), output=Decimal(0))
    profiles = Profiles({"fast": Profile(name="fast", model="scripted:fast", options=options, price=price)})
    models = {"test": ListModel(says("No.")), "fast": ListModel(counted(says("Done."), 10))}
    limits = Limits(cost=Decimal(1))
    prices = {"scripted:test": price}
    async with routed(client, sqlite, bench, **models, profiles=profiles, limits=limits, prices=prices) as engine:
        ended = await engine.ended(await engine.start(model="fast"))
        assert (ended.status, ended.cost_micros, await specs(engine, ended)) == ("completed", 30, ["fast"])
        await engine.ended(await engine.start())
        seen = [each.seen[0].options for each in models.values()]
        assert seen == [ModelOptions(), options]


class ByStep(Hooks):
    """Chooses the models of the steps from a list that a test may change; raises where it says so."""

    def __init__(self, *chosen: str | None) -> None:
        self.chosen = list(chosen)
        self.scopes: list[tuple[int, str]] = []

    async def model_for_step(self, scope: RunScope, model: str) -> str | None:
        self.scopes.append((scope.step, model))
        chosen = self.chosen[scope.step - 1] if scope.step <= len(self.chosen) else None
        if chosen == "raise":
            raise RuntimeError("no idea")
        return chosen


@pytest.mark.exhaustive
async def test_a_hook_chooses_the_model_of_a_step_and_a_dry_run_asks_the_same(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """None and a hook that raises leave the run's own; the step keeps who was asked, and a replay goes by that."""
    hook = ByStep("scripted:b", "raise", "scripted:b")
    test, b = ListModel(says(LOOK)), ListModel(says(LOOK), says("Done."))

    async def replayed(**options: Any) -> list[str | None]:
        test.seen.clear()
        del b.seen[options.get("step", 0) :]
        replay = await engine.ended(await dry_run.start_dry_run(engine.services, ADA, run.id, DryRunOrder(**options)))
        assert replay.status == "completed"
        return await specs(engine, replay)

    async with routed(client, sqlite, bench, test=test, b=b, hooks=[hook]) as engine:
        run = await engine.ended(await engine.start())
        expected = ["scripted:b", "scripted:test", "scripted:b"]
        assert (run.model, await specs(engine, run)) == ("scripted:test", expected)
        assert hook.scopes == [(step, "scripted:test") for step in (1, 2, 3)]
        hook.scopes = []
        assert await replayed() == expected
        assert await replayed(step=1) == expected[1:]
        assert await replayed(model="scripted:b") == ["scripted:b"] * 2
        assert hook.scopes == []


async def test_a_person_and_a_fallback_count_more_than_a_hook(client: Client, sqlite: Database, bench: Bench) -> None:
    """A step's choice that can't be used falls back once for the whole run; after ``switch_model`` the hook chooses again."""
    hook = ByStep("scripted:gone", "scripted:gone", "scripted:b")
    test = ListModel(says(LOOK), says(call("switch_model", '{"model": "scripted:test"}')), says("No."))
    models = {"test": test, "b": ListModel(says("Done."))}
    options: dict[str, Any] = {"model": Cast(**models), "hooks": [hook], "fallback": ["scripted:test"]}
    async with stack(client, sqlite, bench.look, switch_model("scripted:test"), **options) as engine:
        run = await engine.ended(await engine.start())
        assert await specs(engine, run) == ["scripted:test", "scripted:test", "scripted:b"]
        assert [each[0] for each in await fell(engine, run)] == ["scripted:gone"]
        assert [step for step, _model in hook.scopes] == [1, 3]
