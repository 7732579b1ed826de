"""What a builder's test reads when a run waits for more than the test did."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel
from support.servers.fake_provider import completion, serving_provider, tool_call

from turngate import Agent, App, Policy, Rule, Toolkit, tool
from turngate.domain.errors import ConflictError
from turngate.testing import RunningApp, running_app

NEVER = 0.3


class Amount(BaseModel):
    cents: int


@tool(effect="once")
async def pay(params: Amount) -> str:
    """Pay an amount."""
    return f"paid {params.cents}"


TWO = Rule(name="two-people", verdict="ask", tools=["pay"], reason="Money leaves.", quorum=2)
APP = App(
    agents=[Agent(name="payer", instructions="Pay.", toolkit=Toolkit.of(pay), model="openai:m")],
    policy=Policy(rule=[TWO]),
)


async def test_a_run_that_waits_for_a_second_approval_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The decision says that one more is needed, the deadline what the run waits for, and the second one lets it end.

    The model's settings are those of the environment: what the error of a model without a key says to set has an effect.
    """
    with serving_provider() as provider:
        provider.answer(completion(calls=[tool_call("pay", {"cents": 7})]))
        provider.answer(completion("Paid."))
        monkeypatch.setenv("TURNGATE_OPENAI_BASE_URL", provider.base_url)
        monkeypatch.setenv("TURNGATE_STREAMING", "off")
        async with running_app(APP, tmp_path) as engine:
            await _decide_by_two(engine)
        assert provider.requests[0].path.endswith("/chat/completions")


async def _decide_by_two(engine: RunningApp) -> None:
    run = await engine.start("Pay.")
    request = await engine.request(run)
    long, engine._deadline = engine._deadline, NEVER
    with pytest.raises(AssertionError, match=rf"no end of run {run}; at step 1 .*pay.*engine\.decide"):
        await engine.ended(run)
    first = await engine.decide(request, "approve", by="ann")
    assert (first.status, first.missing) == ("pending", 1)
    assert str(first) == "pending: one more person has to approve"
    with pytest.raises(ConflictError, match="One more person must approve"):
        await engine.decide(request, "approve", by="ann")
    with pytest.raises(AssertionError, match=r"1 of 2 approvals: one more person has to approve"):
        await engine.ended(run)
    engine._deadline = long
    second = await engine.decide(request, "approve", by="bob")
    assert (second.status, second.missing, str(second)) == ("approved", 0, "approved")
    assert (await engine.ended(run)).status == "completed"
    engine._deadline = NEVER
    with pytest.raises(AssertionError, match=rf"no pending request in run {run} .*; the run is completed: "):
        await engine.request(run)
