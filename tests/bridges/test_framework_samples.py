"""The samples of the page about other frameworks, and their examples: each framework's own loop, with a model for practice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.models.function import FunctionModel
from support.api.gate_client import Sender, example
from support.engine.stack import until
from support.project.samples import ROOT, run_sample

DONE = "Done: 4900 cents for order 1042 are on their way."
PAGE = ROOT / "docs" / "howto" / "gate-another-framework.md"
MODELS: dict[int, Callable[[], Any]] = {
    1: lambda: FunctionModel(example("pydantic_ai_gate").practice_model),
    2: lambda: example("langchain_gate").PracticeModel(),
    3: lambda: example("openai_agents_gate").practice_model(),
}
"""Number of the sample → a model that makes one call and then reports its result."""


@pytest.mark.parametrize("number", MODELS)
async def test_a_refund_waits_and_runs(sender: Sender, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """The framework waits for the person, then its own tool runs and its model answers."""
    monkeypatch.setenv("OPENAI_AGENTS_DISABLE_TRACING", "1")
    at_shop = replace(sender, source="shop")
    work = run_sample(PAGE, number)["work"]
    async with asyncio.TaskGroup() as programs:
        program = programs.create_task(work(sender.client, MODELS[number](), "Order 1042 never came."))
        await at_shop.decide()
    assert program.result() == DONE


@pytest.mark.parametrize("name", ["langchain_gate", "openai_agents_gate", "pydantic_ai_gate"])
async def test_an_examples_clerk_may_be_killed_while_it_waits(
    sender: Sender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """It has stored what it needs: started again, it pays once its refund is approved."""
    monkeypatch.delenv("CLERK_MODEL", raising=False)
    clerk, stored = example(name), tmp_path / "stored"
    by_thread = name == "langchain_gate"
    where = ("1042", clerk.FileSaver(stored)) if by_thread else (stored,)

    def serve() -> Coroutine[Any, Any, str]:
        return clerk.serve(sender.client, "It never came.", *where, sender.source)

    async with asyncio.TaskGroup() as clerks:
        first = clerks.create_task(serve())
        (request,) = await sender.pending()
        await until(lambda: asyncio.sleep(0, stored.exists()), "stored conversation")
        first.cancel()
        await asyncio.wait([first])
        second = clerks.create_task(serve())
        assert (await sender.decide())["id"] == request["id"]
    assert second.result() == DONE
    assert stored.exists() is by_thread
