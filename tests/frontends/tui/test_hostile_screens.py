"""Every screen over rows with text made to deceive: nothing hidden, nothing obeyed, and what people must know is there."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from support.api.api_server import serving
from support.planted.rows import OPERATOR, plant
from support.planted.text import Filling
from support.programs.tui_person import Person
from temporalio.client import Client

from turngate.approvals_api.app import create_app
from turngate.approvals_api.gateway.client import Gateway
from turngate.approvals_api.settings import ApiSettings
from turngate.client import Retries, TurngateClient
from turngate.domain.text.hidden_text import is_hidden
from turngate.frontends.tui.app import TurngateTui
from turngate.frontends.tui.grants_screen import GrantScreen
from turngate.frontends.tui.request_screen import RequestScreen
from turngate.frontends.tui.run_screen import RunScreen
from turngate.runtime.temporal_client import data_converter
from turngate.store.access import tokens
from turngate.store.database import Database

WORD = "zqhostile"
HOSTILE = f"{WORD}[b]x[/b] [link=y][@click=app.quit]z[/] \u202e\u200b\x1b[2J\x9b31m\r\x07\U000e0041"
"""In place of every text in the store."""
REQUESTS = {
    "approval": ("HIGH", "the judge", "a model's words", "nothing follows from it", "PREVIEW"),
    "diff": ("1 of 2 approvals", "WHAT WILL CHANGE"),
    "claimed": ("has claimed this", "parked"),
    "barred": ("You cannot decide this: you started this run",),
    "question": ("THE QUESTION",),
    "outcome": ("h it happened",),
    "rejected": ("rejected by",),
}
"""A request, and what its screen has to say."""
RUNS = ("running", "completed", "failed", "retrying")


async def seen(person: Person, *words: str) -> str:
    """Wait for a screen with these words and check it: no character of it is hidden, and no markup in it was read."""
    screen = ""
    for word in words:
        if word not in screen:
            screen = await person.sees(word)
    hidden = {char for char in set(screen) if char != "\n" and is_hidden(char)}
    assert not hidden, f"{[f'U+{ord(each):04X}' for each in hidden]} on {type(person.app.screen).__name__}:\n{screen}"
    assert f"{WORD}x" not in screen, "markup of a stored text was read"
    for strip in person.app.screen._compositor.render_strips():
        for segment in strip:
            assert segment.style is None or not segment.style.link
            assert WORD not in segment.text or "@click" not in (segment.style.meta if segment.style else {})
    return screen


@pytest.mark.parametrize(
    ("requests", "runs"), [(["approval", "outcome"], ["failed"]), (REQUESTS, RUNS)], ids=["some", "all"]
)
async def test_nothing_stored_deceives(sqlite: Database, requests: Iterable[str], runs: Iterable[str]) -> None:
    """Lists, requests, forms, conversations, comments, runs, explanations and grants show text and nothing else."""
    async with sqlite.write() as conn:
        await plant(conn, Filling(HOSTILE))
        secret = await tokens.issue(conn, tokens.NewToken(name="desk", scopes=["admin"], owner=OPERATOR))
    nowhere = await Client.connect("127.0.0.1:1", lazy=True, data_converter=data_converter())
    app = create_app(database=sqlite, gateway=Gateway(nowhere), settings=ApiSettings())
    async with serving(app) as url, TurngateClient(url, token=secret, retries=Retries(attempts=1)) as client:
        tui = TurngateTui(client)
        async with tui.run_test(size=(170, 220)) as pilot:
            person = Person(tui, pilot, None)
            screen = await seen(person, "wait for a person")
            assert f"{WORD}[b]x[/b] [link=y]" in screen
            for name in requests:
                tui.push_screen(RequestScreen(tui.session, f"rq_{name}", order=[]))
                await seen(person, "THE AGENT'S OWN WORDS", "COMMENTS (no agent reads them", *REQUESTS[name])
                await person.until(lambda: not tui.screen.is_inert, "time to look")
                if name in {"approval", "question"}:
                    await person.press("e" if name == "approval" else "s")
                    await seen(person, "F2 raw JSON")
                    await person.press("escape", "v")
                    await seen(person, "The conversation up to this call")
                    await person.press("escape")
                await person.press("u")
            await person.press("2")
            await seen(person, "Runs")
            for name in runs:
                tui.push_screen(RunScreen(tui.session, f"run_{name}"))
                await seen(person, f"run_{name}", "you │")
                await person.press("w")
                await seen(person, "Escape close")
                await person.press("escape")
                await person.press("u")
            await person.press("3")
            await seen(person, "Grants")
            tui.push_screen(GrantScreen(tui.session, "gr_1"))
            await seen(person, "WHAT IT LET THROUGH")
