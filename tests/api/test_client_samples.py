"""The samples of the pages about the Python client, against the real API."""

from __future__ import annotations

import asyncio

import pytest
from pydantic import BaseModel
from support.api.api_server import api_on, token_for
from support.engine.stack import call, says, stack, until
from support.project.samples import ROOT, run_sample
from temporalio.client import Client

from turngate import Agent, Policy, Rule, Toolkit, tool
from turngate.approvals_api.gateway.client import Gateway
from turngate.client import TurngateClient
from turngate.domain.conversation.messages import ModelResponse
from turngate.models.port import ModelRequest
from turngate.store.database import Database

CLIENT_PAGE = ROOT / "docs" / "howto" / "use-the-python-client.md"
WATCH_PAGE = ROOT / "docs" / "howto" / "watch-a-run.md"


class Refund(BaseModel):
    order: int
    amount_cents: int


class Order(BaseModel):
    order: int


@tool(effect="once", ask=True)
async def refund(params: Refund) -> str:
    """Refund an order."""
    return f"refunded {params.amount_cents}"


@tool(effect="read", ask=False)
async def look_up_order(params: Order) -> str:
    """Look up an order."""
    return f"order {params.order} came late"


class Clerk:
    """Looks the order up, refunds it, and says so; in every run."""

    name = "scripted:test"

    async def generate(self, request: ModelRequest) -> ModelResponse:
        after = [each.role for each in request.messages][::-1].index("user")
        done = [each.role for each in request.messages[-after:]].count("assistant") if after else 0
        return (
            says("Let me look.", call("look_up_order", '{"order": 1042}')),
            says(call("refund", '{"order": 1042, "amount_cents": 4900}')),
            says("It is on its way."),
        )[min(done, 2)]

    async def aclose(self) -> None:
        return None


async def test_the_samples_start_decide_fork_and_watch(
    client: Client, sqlite: Database, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A reader who types them in gets a refund that a person lowered, a fork, a dry run, and the words as they come."""
    support = Agent(
        name="support", instructions="Help.", toolkit=Toolkit.of(refund, look_up_order), model="scripted:test"
    )
    low = Policy(rule=[Rule(name="low", verdict="ask", tools=["refund"], risk="low")])
    async with (
        stack(client, sqlite, refund, model=Clerk(), agents=[support], policy=low) as engine,
        api_on(engine, Gateway(client)) as api,
    ):
        secret = (await token_for(sqlite, "sample", "admin"))["Authorization"].removeprefix("Bearer ")
        monkeypatch.setenv("TURNGATE_API_URL", api.url)
        monkeypatch.setenv("TURNGATE_TOKEN", secret)
        async with TurngateClient(api.url, token=secret) as person:

            async def waiting() -> str | None:
                items = (await person.list_requests()).items
                return items[0].id if items else None

            program = asyncio.create_task(run_sample(CLIENT_PAGE, 0)["main"]())
            await until(waiting, "a request")
            await run_sample(CLIENT_PAGE, 1)["lower_refunds"](person)
            await program
            printed = capsys.readouterr().out
            assert 'refund {"order": 1042, "amount_cents": 4900}' in printed
            assert "It is on its way." in printed

            (run,) = (await person.list_runs()).items
            fork = await run_sample(CLIENT_PAGE, 2)["try_again"](person, run.id)
            request_id = await until(waiting, "a request")
            approve = run_sample(CLIENT_PAGE, 3)["approve"]
            await approve(person, request_id)
            await approve(person, request_id)
            assert "decided by" in capsys.readouterr().out
            await run_sample(WATCH_PAGE, 0)["watch"](person, fork.id)
            started = await run_sample(CLIENT_PAGE, 4)["answer_ticket"](person, 7, "Refund order 1042.")
            assert started == await run_sample(CLIENT_PAGE, 4)["answer_ticket"](person, 7, "Refund order 1042.")
            await person.interrupt(started, reason="enough")
            assert (await person.get_run(fork.id)).forked_from_run_id == run.id
