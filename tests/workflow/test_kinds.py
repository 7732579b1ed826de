"""Tools that nothing here runs: those of the model's provider, questions to people, and tools whose handler is elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pydantic import BaseModel, field_validator
from support.engine.stack import ListModel, Stack, call, says, stack
from support.engine.tools import Amount, Bench
from support.servers.fake_provider import FakeProvider, completion, serving_provider, tool_call
from temporalio.client import Client

from turngate import Policy, Rule, Toolkit, declare_tool, interaction_tool, provider_tool
from turngate.domain.errors import ConflictError, InvalidInputError
from turngate.domain.policy.policy import VerdictKind
from turngate.domain.tools.results import Ok
from turngate.domain.tools.tool import Tool
from turngate.models import OpenAICompatibleModel
from turngate.models.scripted import ScriptedModel
from turngate.store.database import Database
from turngate.store.requests import requests

ENTRY = {"type": "web_search", "search_context_size": "low", "filters": {"domains": ["example.com"]}}
SEARCH = provider_tool(
    name="web_search", description="Search.", provider={"openai": ENTRY, "other": {"type": "search_20990101"}}
)
FOREIGN = provider_tool(name="code_runner", description="Run code.", provider={"other": {"type": "code"}})


@pytest.fixture
def provider() -> Iterator[FakeProvider]:
    with serving_provider() as server:
        yield server


@asynccontextmanager
async def asking(
    client: Client, database: Database, provider: FakeProvider, *tools: Tool, **options: Any
) -> AsyncIterator[Stack]:
    """An engine on the OpenAI-compatible adapter, against a real server."""
    model = OpenAICompatibleModel(provider.base_url, None, "some-model", timeout=10)
    async with stack(client, database, *tools, model=model, **options) as engine:
        yield engine
    await model.aclose()


async def test_i9_a_provider_tool_is_sent_as_its_author_wrote_it_and_never_runs_here(
    client: Client, sqlite: Database, bench: Bench, provider: FakeProvider
) -> None:
    """The entry for this provider is in the request unchanged, in the toolkit's order; the provider's response is text.

    I9, I2: a call to it, or to a declared tool whose handler isn't here, is closed as ``non_local_tool`` without anyone being
    asked, also where its gate would have asked; the run continues.
    """
    elsewhere = declare_tool(name="elsewhere", description="Elsewhere.", params=Amount, ask=True)
    calls = [("web_search", '{"query": "x"}', "c1"), ("elsewhere", '{"cents": 1}', "c2")]
    provider.answer(completion(calls=[tool_call(name, sent, call_id=each) for name, sent, each in calls]))
    provider.answer(completion("I searched, and found it."))
    kit = Toolkit.of(bench.look, SEARCH, bench.pay, elsewhere)
    async with asking(client, sqlite, provider, toolkit=kit) as engine:
        run = await engine.ended(await engine.start())
        assert run.status == "completed"
        tools = provider.requests[0].body["tools"]
        assert tools[1] == ENTRY
        assert [tool.get("function", {}).get("name") for tool in tools] == ["look", None, "pay", "elsewhere"]
        results = await engine.results(run)
        assert [results[each].kind for each in ("c1", "c2")] == ["non_local_tool"] * 2
        assert "provider runs it" in results["c1"].reason
        assert await engine.executions(run) == {}
        async with sqlite.read() as conn:
            assert await requests.of_run(conn, run.id) == []


async def test_i2_a_provider_tool_runs_only_where_the_provider_and_policy_let_it(
    client: Client, sqlite: Database, provider: FakeProvider
) -> None:
    """A tool that the provider can't run is never dropped in silence: before anything is sent, the run fails and names both.

    I2: one that policy denies or would ask about is not offered, since no one could be asked before the provider runs it; a
    missing entry does not matter then. A script takes any, so a demo of an agent with provider tools runs.
    """
    async with asking(client, sqlite, provider, FOREIGN) as engine:
        run = await engine.ended(await engine.start())
        assert (run.status, run.error_class) == ("failed", "configuration")
        for named in ("'code_runner'", "'openai'", "other"):
            assert named in run.reason
        assert provider.requests == []
        assert "model.retrying" not in [event.type for event in await engine.events(run)]
    verdicts: tuple[VerdictKind, ...] = ("deny", "ask")
    for verdict in verdicts:
        rule = Rule(name="no-web", verdict=verdict, tools=["web_search", "code_runner"])
        provider.answer(completion("I cannot search."))
        async with asking(client, sqlite, provider, SEARCH, FOREIGN, policy=Policy(rule=[rule])) as engine:
            assert (await engine.ended(await engine.start())).status == "completed"
            assert "tools" not in provider.requests[-1].body, verdict
    scripted = ScriptedModel.from_text("responses: [{text: Hello.}]", "test")
    async with stack(client, sqlite, SEARCH, FOREIGN, model=scripted) as engine:
        assert (await engine.ended(await engine.start())).status == "completed"


class Choice(BaseModel):
    """An answer with a rule that JSON Schema cannot say."""

    day: str
    at: int

    @field_validator("day")
    @classmethod
    def a_weekday(cls, value: str) -> str:
        if value.lower() in {"saturday", "sunday"}:
            raise ValueError("not on a weekend")
        return value


CHOOSE = interaction_tool(name="choose", description="Ask when.", params=Amount, answer=Choice)
WRONG_ANSWERS = ('{"day": "Monday"}', '{"day": "Monday", "at": "noon"}', '{"day": ', None)


async def test_i4_an_answer_is_the_result_and_the_first_one_counts(client: Client, sqlite: Database) -> None:
    """I4: the model reads the answer as the person gave it; a second person learns who was first.

    An answer that violates the schema is refused, and nothing is saved. What only the tool's own type can tell is found by the
    worker: the question is asked again, and says why. I9: a question whose own arguments don't fit is not asked.
    """
    calls = says(call("choose", '{"cents": 1}', "q"), call("choose", '{"cents": "many"}', "unfit"))
    model = ListModel(calls, says("Thanks."))
    async with stack(client, sqlite, CHOOSE, model=model) as engine:
        run = await engine.start()
        first = await engine.request(run, kind="question")
        for wrong in WRONG_ANSWERS:
            with pytest.raises(InvalidInputError):
                await engine.decide(first, "respond", args=wrong, decision_id="wrong")
        async with sqlite.read() as conn:
            assert await requests.decision(conn, "wrong") is None
            assert await requests.get(conn, first.id) == first
        assert (await engine.results(run))["q"] is None
        await engine.decide(first, "respond", args='{"day": "Sunday", "at": 9}')
        request = await engine.request(run, kind="question")
        assert request.id != first.id
        assert "not on a weekend" in request.reason
        await engine.decide(request, "respond", args='{"day": "Monday", "at": 9}')
        with pytest.raises(ConflictError):
            await engine.decide(request, "respond", args='{"day": "Friday", "at": 9}')
        assert (await engine.ended(run)).status == "completed"
        results = await engine.results(run)
        assert results["q"] == Ok(value={"day": "Monday", "at": 9})
        assert results["unfit"].kind == "input_validation_error"
        assert model.seen[1].messages[-1].results[0].result == Ok(value={"day": "Monday", "at": 9})
        assert await engine.executions(run) == {}
        async with sqlite.read() as conn:
            assert {each.tool_call_id for each in await requests.of_run(conn, run.id)} == {"q"}


@pytest.mark.parametrize("verdict", ["deny", "allow"])
async def test_i12_a_rule_may_forbid_a_question_and_never_answers_it(
    client: Client, sqlite: Database, verdict: VerdictKind
) -> None:
    """I12: a denied question opens no request; an allowed one has nothing to run, so it is asked all the same."""
    policy = Policy(rule=[Rule(name="questions", verdict=verdict, tools=["choose"])])
    model = ListModel(says(call("choose", '{"cents": 1}', "q")), says("Well."))
    async with stack(client, sqlite, CHOOSE, model=model, policy=policy) as engine:
        run = await engine.start()
        if verdict == "allow":
            await engine.decide(await engine.request(run, kind="question"), "reject", message="Not now.")
        await engine.ended(run)
        result = (await engine.results(run))["q"]
        assert result.kind == ("rejected" if verdict == "allow" else "denied")
