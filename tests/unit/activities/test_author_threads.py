"""What builders wrote without ``async`` may never end: it takes no place that others need, and stops no process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from support.engine.stack import until

from turngate import Preview, Tool, declare_tool
from turngate.activities.engine import preconditions
from turngate.activities.engine.author_code import OverdueError, in_own_thread
from turngate.activities.engine.preconditions import take_preview
from turngate.activities.planning import requests
from turngate.activities.planning.requests import take_summary


class Params(BaseModel):
    name: str = ""


def tool_with(preview: Any) -> Tool:
    return declare_tool(name="t", description="", params=Params, success=str, preview=preview)


async def threads_ended() -> None:
    """Wait until no author's code runs in a thread, and the event loop knows it."""
    for thread in threading.enumerate():
        if thread.name == "author's code":
            await asyncio.to_thread(thread.join, 60)
    await asyncio.sleep(0)


async def test_wedged_previews_hold_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty previews that hang leave another tool's preview, and the pool of threads, as they were."""
    monkeypatch.setattr(preconditions, "PREVIEW_SECONDS", 0.2)
    released, begun = threading.Event(), []

    def hang(_params: Params, _workspace: Path | None) -> Preview:
        begun.append(None)
        released.wait(60)
        return Preview(kind="text", text="late")

    wedged = tool_with(hang)
    first = await asyncio.gather(*(take_preview(wedged, Params(), None) for _ in range(30)))
    assert {each.text for each in first if each} == {"No preview: TimeoutError: "}
    await until(lambda: asyncio.sleep(0, len(begun) == 30), "start of the threads")
    refused = await take_preview(wedged, Params(), None)
    assert refused is not None
    assert "earlier calls of it still run" in refused.text
    assert len(begun) == 30
    monkeypatch.setattr(preconditions, "PREVIEW_SECONDS", 60)
    fine = await take_preview(
        tool_with(lambda params, _workspace: Preview(kind="text", text=params.name)), Params(name="ann"), None
    )
    assert fine is not None
    assert fine.text == "ann"
    async with asyncio.timeout(60):
        assert await asyncio.to_thread(lambda: 1) == 1
    released.set()
    await threads_ended()
    again = await take_preview(wedged, Params(), None)
    assert again is not None
    assert again.text == "late"


async def test_a_thread_of_its_own_is_like_one_of_the_pool() -> None:
    """Its function sees the caller's context; what it returns and raises arrives, whatever it is."""
    variable: ContextVar[str] = ContextVar("variable")
    variable.set("here")
    assert await in_own_thread(variable.get, of=variable.get, most_overdue=1) == "here"

    def give_up(what: BaseException) -> None:
        raise what

    for what, kind in ((KeyError("x"), KeyError), (StopIteration(), RuntimeError), (SystemExit(3), SystemExit)):
        with pytest.raises(kind):
            await in_own_thread(lambda what=what: give_up(what), of=give_up, most_overdue=1)


async def test_one_that_ended_late_counts_no_more() -> None:
    """A call that was given up counts until it ends, and then no more."""
    released = threading.Event()
    for _ in range(3):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(in_own_thread(released.wait, of=released.wait, most_overdue=1), 0.05)
        with pytest.raises(OverdueError):
            await in_own_thread(released.wait, of=released.wait, most_overdue=1)
        released.set()
        await threads_ended()
        assert await in_own_thread(released.wait, of=released.wait, most_overdue=1)
        released.clear()


async def test_i14_a_summary_that_fails_or_hangs_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """I14: a function that raises, exits, never ends or returns no words leaves the sentence that Turngate renders."""
    monkeypatch.setattr(requests, "SUMMARY_SECONDS", 0.2)
    released = threading.Event()

    def hang(_params: Params) -> str:
        released.wait(60)
        return "late"

    def fail(_params: Params) -> str:
        raise ValueError("no")

    def leave(_params: Params) -> str:
        raise SystemExit(3)

    for summarizer in (hang, fail, leave, lambda _params: None, lambda _params: 7, lambda _params: " \n"):
        declared = declare_tool(name="pay", description="Pay.", params=Params, success=str, summary=summarizer)
        assert await take_summary(declared, Params(name="x"), '{"name": "ann"}') == "Pay: name ann"
    released.set()
    await threads_ended()


async def test_a_long_call_has_the_same_sentence() -> None:
    """Turngate renders it for arguments of 20,000 characters, too, in a thread."""
    declared = declare_tool(name="pay", description="Pay.", params=Params, success=str)
    assert await take_summary(declared, Params(name="x"), f'{{"name": "ann"{" " * 20_000}}}') == "Pay: name ann"


async def test_an_authors_summary_is_one_line_of_bounded_length() -> None:
    """What the function returns is the sentence, on one line and cut after 300 characters."""
    declared = declare_tool(
        name="pay", description="", params=Params, success=str, summary=lambda params: f"Pay\n{params.name}" * 10**6
    )
    sentence = await take_summary(declared, Params(name="ann"), '{"name": "ann"}')
    assert sentence.startswith("Pay annPay ann")
    assert (len(sentence), sentence[-1]) == (300, "…")


def test_a_process_ends_while_a_preview_hangs(tmp_path: Path) -> None:
    """A worker that was asked to stop doesn't wait for author's code in threads."""
    program = tmp_path / "program.py"
    program.write_text(
        "import asyncio, threading\n"
        "from turngate.activities.engine.author_code import in_own_thread\n"
        "async def main():\n"
        "    hang = threading.Event().wait\n"
        "    for _ in range(3):\n"
        "        try:\n"
        "            await asyncio.wait_for(in_own_thread(hang, of=hang, most_overdue=9), 0.1)\n"
        "        except TimeoutError:\n"
        "            print('given up', flush=True)\n"
        "asyncio.run(main())\n"
    )
    root = str(Path(__file__).parents[3])
    ended = subprocess.run(
        [sys.executable, program], env={"PYTHONPATH": root}, capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout.count("given up") == 3
