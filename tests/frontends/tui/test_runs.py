"""Runs in the terminal UI: the live timeline, the keys that control it, and an API that goes away."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from support.api.api_server import Api, serving
from support.programs.tui_person import DUG, calling, person_at
from textual.widgets import Input, TextArea

from turngate.approvals_api.app import create_api_app
from turngate.approvals_api.settings import ApiSettings
from turngate.domain.conversation.messages import Delta
from turngate.frontends.tui.run_text import LiveText
from turngate.frontends.tui.runs_screen import Filter, filter_of
from turngate.frontends.tui.texts import plain
from turngate.frontends.tui.widgets import PickList
from turngate.wire.events import DeltaView, ProgressView


@pytest.mark.exhaustive
async def test_a_run_is_followed_and_controlled(api: Api) -> None:
    """A run shows steps, calls, decisions, results and its outcome as they come; keys pause, message and interrupt it."""
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
        await person.dialog_field(TextArea).fill("look twice")
        await person.press("ctrl+s")
        await person.sees("to be read from ada: look twice")
        await person.press("p")
        await person.sees("running")
        await person.press("o")
        await person.sees("THE EXACT CALL")
        await person.press("u", "i")
        await person.dialog_field(Input).fill("enough")
        await person.press("enter")
        await person.sees("OUTCOME interrupted by ada: enough")
        await person.press("1")
        await person.sees("Nothing waits")


def test_the_filter_of_stalled_runs_takes_nothing_else() -> None:
    """The API lists stalled runs by what they wait for alone; everything else goes together."""
    typed = {"search": " lamp ", "agent": "", "status": "failed"}
    assert filter_of(typed) == Filter({"search": "lamp", "status": "failed"})
    assert filter_of({"status": "stalled"}) == Filter(is_stalled=True)
    assert filter_of({"status": "stalled", "waits_for": "person"}) == Filter(is_stalled=True, waits_for="person")
    assert filter_of({"waits_for": "no_worker"}) == Filter(is_stalled=True, waits_for="no_worker")
    assert filter_of({"waits_for": "person", "search": "lamp"}) is None
    assert filter_of({"status": "failed", "waits_for": "person"}) is None


@pytest.mark.exhaustive
async def test_the_runs_are_filtered_as_on_their_page(api: Api) -> None:
    """`/` narrows the list and says so, also when no run is left. Stalled runs say what each waits for."""
    await api.start("look here")
    waiting = await api.gated("pay 5")
    async with person_at(api, size=(100, 40)) as person:
        await person.sees("1 waits")
        await person.press("2")
        await person.sees("2, 1 live")

        async def filters(**typed: str) -> None:
            await person.press("slash")
            for control, value in typed.items():
                widget = await person.at(f"own-{control.removeprefix('field')}")
                assert isinstance(widget, (Input, PickList))
                widget.value = value
            await person.press("ctrl+s")

        await filters(field0="here")
        screen = await person.sees("1, 0 live  only search here")
        assert "pay 5" not in screen
        await filters(field0="none such")
        await person.sees("No run is under this filter")
        await api.operator.post(f"/api/v1/runs/{waiting['run_id']}/pause", json={"reason": "lunch"})
        await filters(field0="", field4='"paused"')
        screen = await person.sees("1, 1 live  only waits for paused")
        assert "lunch" in screen


@pytest.mark.exhaustive
async def test_words_appear_while_the_model_says_them(api: Api) -> None:
    """The model's words are on the screen before its response is stored, and once after that; late watchers see them too."""
    gate = asyncio.Event()
    api.stack.engine.models.model.hold = gate
    run = await api.start("listen [red]please[/red] \u202e")
    spoken = "You said: listen [red]please[/red] ⟨U+202E⟩"
    async with person_at(api) as person, person_at(api, name="eve") as late:
        await person.press("2")
        await person.sees("1 live")
        await person.press("enter")
        screen = await person.sees(spoken)
        assert "is being said" in screen
        await late.press("2")
        await late.sees("1 live")
        await late.press("enter")
        assert (await late.sees(spoken)).count("You said:") == 1
        gate.set()
        for each in (person, late):
            screen = await each.sees("OUTCOME completed")
            assert run["id"] in screen
            assert screen.count("You said:") <= 1
            screen = await each.sees(f"│ {spoken}")
            assert screen.count("You said:") == 1


def test_progress_that_comes_again_appears_once() -> None:
    """Every new connection gets the progress of running calls again; lines that were left out are counted."""
    live_text = LiveText()
    for n, dropped in ((1, 0), (1, 0), (5, 3), (5, 3)):
        line = {"tool_call_id": "c", "n": n, "payload": f"line {n}\u202e", "dropped": dropped, "run_id": "r"}
        live_text.take_progress(ProgressView.model_validate({**line, "created_at": "2026-01-01T00:00:00Z"}))
    assert live_text.progress_of("c") == ("line 1⟨U+202E⟩", "… 3 not shown", "line 5⟨U+202E⟩")


@pytest.mark.exhaustive
async def test_a_tools_progress_appears_while_it_runs(api: Api) -> None:
    """The timeline has each line of progress once, as it comes; late and returning watchers see them too."""
    DUG.clear()
    await api.start(calling("dig", {"street": "[b]Rue[/b]\u202e"}))
    async with person_at(api) as person:
        await person.press("2")
        await person.sees("1 live")
        await person.press("enter")
        line = '{"depth": 2, "said": "[b]Rue[/b]⟨U+202E⟩"}'
        screen = await person.sees(line)
        assert [screen.count(f'"depth": {depth}') for depth in range(3)] == [1, 1, 1]
        await person.press("u", "enter")
        screen = await person.sees(line)
        assert [screen.count(f'"depth": {depth}') for depth in range(3)] == [1, 1, 1]
        DUG.set()
        await person.sees("OUTCOME completed")
        await person.sees("✓ dig")
        assert "depth" not in person.screen.replace('"street"', "")


@pytest.mark.exhaustive
async def test_a_message_says_when_it_is_read(api: Api) -> None:
    """A message to a live run does what was chosen: a run of its own, before the next step, or instead of what waits."""
    request = await api.gated("pay 5")
    async with person_at(api, size=(110, 34)) as person:
        await person.sees("1 waits")
        await person.press("2")
        await person.sees("1 live")
        await person.press("enter")
        await person.sees("waits for approval")
        await person.press("m")
        await person.put("own-0", "later, please")
        await person.at("own-1")
        await person.press("enter", "down", "enter")
        await person.press("ctrl+s")
        await person.sees("to be read from ada: later, please")
        run = (await api.operator.get(f"/api/v1/runs/{request['run_id']}")).json()
        assert [each["while_running"] for each in run["waiting_messages"]] == ["queue"]
        await person.press("m")
        await person.put("own-0", "look now")
        await person.at("own-1")
        await person.press("enter", "end", "enter")
        await person.press("ctrl+s")
        await person.decided(request)
    assert (await person.request(request))["status"] == "superseded"


@pytest.mark.exhaustive
async def test_a_run_is_retried_and_forked(api: Api) -> None:
    """`t` continues where a run was interrupted; `f` says what is reused before it starts a fork; both then open."""
    await api.start("look here")
    async with person_at(api, size=(110, 34)) as person:
        await person.press("2")
        await person.sees("completed")
        await person.press("enter")
        await person.sees("✓ look")
        await person.press("t")
        await person.sees("Only a run that failed or was interrupted is retried")
        first = person.app.screen.run_id
        await person.press("f")
        await person.put("own-1", "look there")
        await person.press("ctrl+s")
        screen = await person.sees("the run did nothing that would have to be undone")
        assert "calls whose recorded results it uses: 1" in screen
        await person.twice("a")
        await person.sees("you │ look there")
        assert person.app.screen.run_id != first
        await person.sees("OUTCOME completed")

        request = await api.gated("pay 5")
        await person.press("u", "u", "2", "home", "enter")
        await person.sees("waits for approval")
        await person.press("s")
        await person.dialog_field(Input).fill("scripted:other")
        await person.press("enter")
        await person.sees("model scripted:other")
        await person.press("i")
        await person.dialog_field(Input).fill("enough")
        await person.press("enter")
        await person.sees("OUTCOME interrupted")
        await person.press("w")
        await person.sees("WHAT TO DO")
        await person.press("escape", "t")
        await person.put("own-0", "scripted:test")
        await person.press("ctrl+s")
        await person.until(
            lambda: getattr(person.app.screen, "run_id", first) not in {first, request["run_id"]}, "the retry"
        )
        await person.sees("STEP 1")


@pytest.mark.exhaustive
async def test_an_api_that_goes_away_comes_back(api: Api) -> None:
    """While the API is away, the screen says so and keeps its content; when it is back, the screen updates by itself."""
    first = await api.gated("pay 5")
    services = {"database": api.stack.database, "gateway": api.stack.services.gateway}
    settings = ApiSettings(sse_ping=timedelta(milliseconds=300))
    async with serving(create_api_app(**services, settings=settings)) as url:
        seat = person_at(api, url=url)
        person = await seat.__aenter__()
        await person.sees("(5 cents)")
    try:
        screen = await person.sees("Not connected since")
        assert "(5 cents)" in screen
        assert (await api.decide(first, "reject")).status_code == 200
        await api.gated("pay 66")
        async with serving(create_api_app(**services, settings=settings), port=int(url.rpartition(":")[2])):
            screen = await person.sees("(66 cents)")
            await person.until(lambda: "Not connected" not in person.screen, "banner gone")
            assert "(5 cents)" not in person.screen
            await seat.__aexit__(None, None, None)
    except BaseException:
        await seat.__aexit__(None, None, None)
        raise


def test_another_attempt_makes_earlier_words_void() -> None:
    """Words of a failed attempt are removed and called void; words that come twice appear once."""
    live_text = LiveText()
    for attempt, n, text, reset in (
        (1, 1, "one ", None),
        (1, 2, "two", None),
        (1, 2, "two", None),
        (2, 1, "new", "it broke"),
    ):
        deltas = (Delta(kind="text", part=0, text=text),)
        live_text.response.take(
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
        screen_text = "\n".join(each.text.plain for each in live_text.lines())
        assert plain(screen_text) == screen_text
        assert ("one two" in screen_text and "twotwo" not in screen_text) or attempt == 2 or n == 1
    assert "new" in screen_text
    assert "one" not in screen_text
    assert "void: it broke" in screen_text
    live_text.forget(1)
    assert not list(live_text.lines())
