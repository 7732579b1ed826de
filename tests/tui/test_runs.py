"""Runs in the terminal UI: the timeline as it happens, the keys that steer it, and an API that goes away."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from api_server import Api, serving
from textual.widgets import Input, TextArea
from tui_bench import person_at

from approvals_api.api_app import create_api_app
from approvals_api.settings import ApiSettings
from turngate.domain.deltas import Delta
from turngate.tui.spoken import Spoken
from turngate.tui.texts import plain
from turngate.wire.events import DeltaView


async def test_a_run_is_followed_and_steered(api: Api) -> None:
    """A run shows steps, calls, decisions, results and its outcome as they come; keys hold, message and interrupt it."""
    looked = await api.start("look [b]this[/b]")
    await api.gated("pay 5")
    async with person_at(api, size=(100, 30)) as person:
        await person.sees("1 waits")
        await person.press("2")
        await person.sees("1 live")
        await person.press("j", "enter")
        await person.sees("OUTCOME completed")
        screen = await person.sees("✓ look")  # the steps come with the answer after that of the run itself
        assert looked["id"] in screen
        assert "**[b]this[/b]**" in screen, "a result is markup, or cut off"
        assert "All done." in screen

        await person.press("u", "k", "enter")
        await person.sees("waits for approval")
        await person.press("p")
        await person.sees("PAUSED")
        await person.press("m")
        await person.asked(TextArea).fill("look twice")
        await person.press("ctrl+s")
        await person.sees("look twice")
        await person.press("p")
        await person.sees("running")
        await person.press("o")
        await person.sees("THE EXACT CALL")
        await person.press("u", "i")
        await person.asked(Input).fill("enough")
        await person.press("enter")
        await person.sees("OUTCOME interrupted by ada: enough")
        await person.press("1")
        await person.sees("Nothing waits")


async def test_words_are_shown_while_they_are_said(api: Api) -> None:
    """What the model says is on the screen before its response is stored, and once when it is."""
    gate = asyncio.Event()
    api.stack.engine.models.model.hold = gate
    run = await api.start("listen [red]please[/red]")
    async with person_at(api) as person:
        await person.press("2")
        await person.sees("1 live")
        await person.press("enter")
        screen = await person.sees("You said: listen [red]please")
        assert "is being said" in screen
        gate.set()
        screen = await person.sees("OUTCOME completed")
        assert run["id"] in screen
        assert screen.count("You said:") <= 1
        screen = await person.sees("│ You said: listen [red]please[/red]")
        assert screen.count("You said:") == 1


async def test_an_api_that_goes_away_comes_back(api: Api) -> None:
    """While the API is away the screen says so and keeps what it shows; back on its address, it goes on by itself."""
    first = await api.gated("pay 5")
    services = {"database": api.stack.database, "gateway": api.stack.services.gateway}
    settings = ApiSettings(sse_ping=timedelta(milliseconds=300))
    async with serving(create_api_app(**services, settings=settings)) as url:
        seat = person_at(api, url=url)
        person = await seat.__aenter__()
        await person.sees('"cents": 5')
    try:
        screen = await person.sees("API AWAY")
        assert '"cents": 5' in screen
        assert (await api.decide(first, "reject")).status_code == 200
        await api.gated("pay 66")
        async with serving(create_api_app(**services, settings=settings), port=int(url.rpartition(":")[2])):
            screen = await person.sees('"cents": 66')
            await person.until(lambda: "API AWAY" not in person.screen, "banner gone")
            assert '"cents": 5}' not in person.screen
            await seat.__aexit__(None, None, None)
    except BaseException:
        await seat.__aexit__(None, None, None)
        raise


def test_another_attempt_makes_what_was_said_void() -> None:
    """Words of an attempt that failed are taken away and said to be void; words told twice are shown once."""
    spoken = Spoken()
    for attempt, n, text, reset in (
        (1, 1, "one ", None),
        (1, 2, "two", None),
        (1, 2, "two", None),
        (2, 1, "new", "it broke"),
    ):
        deltas = (Delta(kind="text", part=0, text=text),)
        spoken.take(
            DeltaView(
                run_id="r",
                step=1,
                attempt=attempt,
                n=n,
                deltas=deltas,
                reset=reset,
                dropped=0,
                created_at="2026-01-01T00:00:00Z",
            )
        )
        shown = "\n".join(each.text.plain for each in spoken.lines())
        assert plain(shown) == shown
        assert ("one two" in shown and "twotwo" not in shown) or attempt == 2 or n == 1
    assert "new" in shown
    assert "one" not in shown
    assert "void: it broke" in shown
    spoken.forget(1)
    assert not list(spoken.lines())
