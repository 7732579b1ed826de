"""The research app under test: a sub-agent's request in the same inbox, and an interrupt that reaches it."""

from __future__ import annotations

from pathlib import Path

from research_app import app

from turngate import Ok
from turngate.testing import running_app


async def test_the_readers_request_is_decided_in_the_same_inbox(tmp_path: Path) -> None:
    """The sub-agent waits at its own gate, named by its path; its answer is the result of the writer's call."""
    async with running_app(app, tmp_path) as engine:
        run = await engine.start("Write about the tides in our harbour.")
        request = await engine.request(run, tool="open_archive")
        assert request.path == "writer/reader"
        await engine.decide(request, "approve")
        ended = await engine.ended(run)
        (call,) = await engine.calls(run, "reader")
    assert ended.final_text.startswith("The harbour has two high waters")
    assert isinstance(call.result, Ok)
    assert call.result.value["answer"] == "Two high waters in 24 h 50 min; measured since 1897."


async def test_interrupting_the_writer_ends_the_reader(tmp_path: Path) -> None:
    """An interrupt closes the sub-agent's run and its request with the run that asked for it."""
    async with running_app(app, tmp_path) as engine:
        run = await engine.start("Write about the tides in our harbour.")
        request = await engine.request(run, tool="open_archive")
        await engine.interrupt(run, "Not today.")
        assert (await engine.ended(run)).status == "interrupted"
        assert (await engine.ended(request.run_id)).status == "interrupted"
