"""The question about a call that no one knows the end of: what the person needs to find out, on every surface."""

from __future__ import annotations

import asyncio
import html
import re
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr
from support.api.api_server import api_on
from support.engine.stack import ListModel, call, says, stack, until
from temporalio.client import Client

from turngate import ToolContext, tool
from turngate.approvals_api.gateway.client import Gateway
from turngate.domain.errors import ConfigurationError
from turngate.domain.requests import LostStart
from turngate.domain.tools.tool import Tool
from turngate.frontends.tui.request_text import facts_text
from turngate.store.database import Database
from turngate.store.live import progress
from turngate.text.instants import second
from turngate.text.run_words import lost_start_lines
from turngate.wire.requests import RequestDetail

HOW = "Look for {idempotency_key} at the bank,\nthen for {cents} to {to}; the PIN is {pin}."
ARGUMENTS = '{"cents": 1250, "to": "Ann & Bo", "pin": "hunter2hunter2"}'


class Payment(BaseModel):
    cents: int
    to: str
    pin: SecretStr


def how(params: Payment) -> str:
    return f"Ask the bank about {params.to}\x1b[31m and {params.pin.get_secret_value()}."


def broken(params: Payment) -> str:
    raise ValueError(params.to)


def payer(check_with: Any) -> Tool:
    """A tool that reports progress and never ends."""

    @tool(effect="once", ask=False, check_with=check_with)
    async def pay(params: Payment, ctx: ToolContext) -> str:
        """Pay."""
        ctx.emit(f"sent {params.cents} to the bank\x1b[31m")
        await asyncio.Event().wait()
        return "never"

    return pay


@pytest.mark.parametrize(
    ("check_with", "says_how"),
    [
        (HOW, "at the bank,\nthen for 12.50 (1250 cents) to “Ann & Bo”; the PIN is •••."),
        (how, "Ask the bank about Ann & Bo"),
        (broken, None),
        (None, None),
    ],
)
async def test_a_lost_call_says_how_to_find_out(
    client: Client, sqlite: Database, check_with: Any, says_how: str | None
) -> None:
    """Page, API and terminals: key, worker, progress, the agent's words, and how its tool says to check; and no secret."""
    model = ListModel(says("I pay Ann now.", call("pay", ARGUMENTS, "c1")), says("Done."))
    work = payer(check_with)
    async with (
        stack(client, sqlite, work, model=model, working=False) as engine,
        api_on(engine, Gateway(client)) as api,
    ):
        async with engine.worker(graceful_shutdown_seconds=0):
            run = await engine.start()

            async def reported() -> bool:
                async with sqlite.read() as conn:
                    return bool(await progress.newest_of_executing(conn, run.id, limit=1))

            await until(reported, "the call's progress")
        async with engine.worker():
            request = await engine.request(run, kind="outcome")
            await engine.decide(request, "respond", outcome="tell_model")
            await engine.ended(run)
        answer = await api.operator.get(f"/api/v1/requests/{request.id}")
        page = html.unescape(re.sub(r"<[^>]*+>", "", await api.page(f"/requests/{request.id}")))
        printed = await api.printed("show", request.id)
    detail = RequestDetail.model_validate(answer.json())
    start, execution = detail.lost_start, (await engine.executions(run))["c1"]
    assert start is not None
    assert (start.idempotency_key, start.attempt) == (execution.idempotency_key, 1)
    assert (start.worker, start.build) == (engine.engine.worker, engine.engine.build)
    assert start.progress == "sent 1250 to the bank\x1b[31m"
    assert detail.agent_words == "I pay Ann now."
    terminal_ui = "\n".join(each.text.plain for each in facts_text(detail).lines)
    for surface in (page, printed, terminal_ui):
        for words in (
            start.idempotency_key,
            engine.engine.worker,
            engine.engine.build,
            "sent 1250 to the bank",
        ):
            assert words in surface, (words, surface)
        assert "I pay Ann now." in surface
        assert "said nothing" not in surface
        assert "wrote nothing" not in surface
        assert "hunter2" not in surface
        assert "\x1b[31m" not in surface
        assert says_how is None or " ".join(says_how.split()) in " ".join(surface.split())
    assert (start.check_with is None) == (says_how is None)
    assert "hunter2" not in answer.text


def test_a_text_names_arguments_and_the_key_only() -> None:
    """A wrong name is refused when the tool is declared, as in a summary."""
    assert payer(HOW).check_with == HOW
    with pytest.raises(ConfigurationError, match="its check_with names 'amount', which is no argument"):
        payer("Look for {amount}.")
    with pytest.raises(ConfigurationError, match="its check_with may hold names of arguments"):
        payer("Look for {cents:>9}.")


def test_what_is_not_known_of_a_start_is_left_out() -> None:
    """A start of another program has no worker."""
    start = LostStart(idempotency_key="k", attempt=2, started_at="2026-11-02T10:00:00.000000+00:00")
    assert lost_start_lines(start) == [
        ("idempotency key", "k"),
        ("started", f"at {second(start.started_at)}, attempt 2"),
    ]
    assert lost_start_lines(None) == []
