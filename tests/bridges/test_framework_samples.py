"""The samples of the page about other frameworks: each framework's own loop, with a model for practice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from pydantic_ai.models.function import FunctionModel
from support.api.gate_client import Sender, example
from support.project.samples import ROOT, run_sample

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
    assert program.result() == "Done: 4900 cents for order 1042 are on their way."
