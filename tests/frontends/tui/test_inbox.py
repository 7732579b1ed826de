"""Requests in the terminal UI: what the screen displays, and what the keys decide."""

from __future__ import annotations

import asyncio
import json

import pytest
from support.api.api_server import Api
from support.programs.tui_person import calling, person_at
from textual import events
from textual.widgets import Input, TextArea

from turngate.frontends.tui.request_screen import RequestScreen
from turngate.frontends.tui.widgets import ScrolledText


@pytest.mark.exhaustive
async def test_calls_are_approved_rejected_and_edited_as_displayed(api: Api) -> None:
    """`a a` approves the call on screen, `r` rejects with a reason, `e` edits; bad input gets an error and stays."""
    approved, rejected, edited = [await api.gated(f"pay {cents}") for cents in (5, 6, 7)]
    async with person_at(api, size=(100, 40)) as person:
        await person.sees("3 wait for a person")
        await person.opens()
        screen = await person.sees('"cents": 5')
        sections = ("THE EXACT CALL", "WHY IT WAITS", "EFFECT AND RISK", "THE AGENT'S OWN WORDS")
        assert sorted(sections, key=screen.index) == list(sections)
        await person.twice("a")
        await person.sees("approved by ada")
        assert (await person.decided(approved))["decision"]["verb"] == "approve"

        await person.press("т")  # where a Latin keyboard has the n
        await person.sees_ready('"cents": 6')
        await person.press("r")
        await person.dialog_field(Input).fill("много")
        await person.press("escape", "r")
        assert await person.dialog_field(Input).text() == "много", "what was typed is lost when the dialog is left"
        await person.press("enter")
        await person.sees("rejected by ada")
        assert (await person.decided(rejected))["decision"]["message"] == "много"

        await person.press("n")
        await person.sees_ready('"cents": 7')
        await person.press("e")
        field = person.dialog_field(Input)
        assert await field.text() == "7"
        await field.fill("many")
        await person.press("ctrl+s")
        await person.sees("is not a whole number")
        await person.press("escape")
        await person.press("e")
        field = person.dialog_field(Input)
        assert await field.text() == "many", "what was typed is lost when the form is left"
        await field.fill("70")
        await person.press("ctrl+s")
        await person.sees("approved with edited arguments by ada")
        assert (await person.decided(edited))["decision"]["args"] == '{"cents": 70}'
        await person.press("u")
        await person.sees("Nothing waits")


async def test_high_risk_takes_the_name_and_no_paste_or_held_key_decides(api: Api) -> None:
    """High risk takes the typed name, which can't be pasted; keys that come at once, from a list or a call, do nothing.

    `g` says why there is no grant for such a call, and decides nothing.
    """
    pay, wire = await api.gated("pay 5"), await api.gated("wire 900")
    async with person_at(api) as person:
        await person.sees("2 wait for a person")
        person.app.screen.focused.post_message(events.Paste("\raa\raa"))
        await person.settled()
        assert not isinstance(person.app.screen, RequestScreen)
        await person.press("j")  # the high risk comes first
        await person.opens()
        person.app.screen.focused.post_message(events.Paste("aaaa"))
        for _ in range(6):  # without bracketed paste, or from a key that is held
            person.app.screen.action_approve()
        await asyncio.sleep(0.4)
        person.app.screen.action_approve()
        person.app.screen.action_approve()
        await person.sees("held down")
        assert (await person.request(pay))["status"] == "pending"

        await person.press("n")
        await person.sees_ready("HIGH")
        await person.press("g")
        await person.sees("each call of high risk needs its own")
        await person.press("a")
        field = person.dialog_field(Input)
        (await field.field()).post_message(events.Paste("wire"))
        await person.settled()
        assert await field.text() == ""
        await field.fill("wir")
        await person.press("enter")
        await person.sees("Not its name")
        assert (await person.request(wire))["status"] == "pending"
        await person.press("e", "enter")
        await person.sees("approved by ada")
        assert (await person.decided(wire))["decision"]["verb"] == "approve"


@pytest.mark.exhaustive
async def test_a_call_is_approved_only_when_all_of_it_was_on_screen(api: Api) -> None:
    """`a` on a call longer than the screen unfolds it, then scrolls to its rest; only then a press counts. Text is inert."""
    hostile = "a\u202eb\x1b[2J [link=x]y[/] [bold red]z[/]"
    lines = [f"line {place:02}" for place in range(40)]
    arguments = json.dumps({"text": hostile, **{line: place for place, line in enumerate(lines)}}, ensure_ascii=False)
    request = await api.gated(f"raw {json.dumps({'say': f'Trust me {hostile}', 'arguments': arguments})}")
    async with person_at(api) as person:
        await person.sees("⟨U+202E⟩b")
        await person.opens()
        screen = await person.sees("line 01")
        assert screen.index("WHAT WILL CHANGE") < screen.index("THE EXACT CALL")
        assert "a⟨U+202E⟩b\\u001b[2J [link=x]y[/] [bold red]z[/]" in screen
        assert "line 39" not in screen
        reading = person.app.screen.query_one(ScrolledText)
        await person.press("a")
        await person.sees_ready("This is the whole call.")
        await person.press("a")
        await person.sees("There is more below: look at all of it.")
        await person.until(lambda: reading.scroll_y > 0, "the part below")
        await person.press("end")
        screen = await person.sees("Trust me")
        assert "Trust me a⟨U+202E⟩b⟨U+001B⟩[2J [link=x]y[/] [bold red]z[/]" in screen
        assert not {"\u202e", "\x1b"} & set(screen)
        await person.press("a")
        await person.until(lambda: reading.scroll_y == 0, "the call's beginning: what was jumped over was not seen")
        for _ in range(8):  # where each argument comes from is a part of it
            before = reading.scroll_y
            await person.press("space")
            await person.until(lambda before=before: reading.scroll_y > before or reading.was_read, "the next page")
        assert reading.was_read
        assert (await person.request(request))["status"] == "pending"
        await person.press("home")
        await person.until(lambda: reading.scroll_y == 0, "the call's beginning")
        await person.twice("a")
        decision = (await person.decided(request))["decision"]
        assert (decision["verb"], decision["decided_by"]) == ("approve", "ada")


async def test_a_folded_call_is_approved_only_after_it_was_unfolded_and_seen(api: Api) -> None:
    """`f` unfolds a long call and folds it again, which forgets what was seen; `a` on a folded one unfolds it first."""
    request = await api.gated(calling("pay", {"cents": 5, "note": "x" * 5_000}))
    async with person_at(api, size=(100, 110)) as person:
        await person.sees("1 wait")
        await person.opens()
        await person.sees("… 3,012 more characters")
        await person.sees("f unfold")
        await person.press("f")
        await person.sees_ready("This is the whole call.")
        assert "3,012 more characters" not in person.screen
        await person.press("f")
        await person.sees_ready("It is folded again.")
        await person.press("a")
        await person.sees_ready("This is the whole call.")
        assert "3,012 more characters" not in person.screen
        assert (await person.request(request))["status"] == "pending"
        await person.reads_to_the_end()
        await person.press("home")
        await person.twice("a")
        assert (await person.decided(request))["decision"]["verb"] == "approve"


@pytest.mark.exhaustive
async def test_long_calls_that_are_decided_together_are_folded(api: Api) -> None:
    """What is folded has to be unfolded, with `f` or the first `a`, and seen, before all of them are approved."""
    calls = [["pay", json.dumps({"cents": cents, "note": str(cents) * 2_500})] for cents in (21, 22)]
    order = {"say": "Both.", "tool": "pay", "arguments": calls[0][1], "more": calls[1:]}
    await api.gated(f"raw {json.dumps(order)}")
    async with person_at(api, size=(100, 110)) as person:
        await person.sees("2 wait for a person")
        await person.opens()
        await person.press("b")
        await person.sees("2 requests, each as it would run")
        await person.sees("… 3,012 more characters")
        await person.press("f")
        await person.sees("These are the whole calls.")
        assert "3,012 more characters" not in person.screen
        await person.press("f")
        await person.sees("They are folded again.")
        await person.press("a")
        await person.sees("These are the whole calls.")
        await person.reads_to_the_end()
        await person.twice("a")
        await person.sees("2 decided, 0 not")


@pytest.mark.exhaustive
async def test_questions_are_answered_and_many_are_decided_together(api: Api) -> None:
    """`s` answers a question in words; `x` selects requests, which are displayed whole and decided with one answer each."""
    question = await api.gated("ask_person Which colour?")
    both = [await api.gated(f"pay {cents}") for cents in (8, 9)]
    async with person_at(api) as person:
        await person.sees("3 wait for a person")
        await person.press("end")  # a question has the lowest risk, so it comes last
        await person.opens("THE QUESTION")
        await person.press("s")
        await person.dialog_field(TextArea).fill("Blue, [b]of course[/b]")
        await person.press("ctrl+s")
        await person.sees("answered by ada")
        assert json.loads((await person.decided(question))["decision"]["args"]) == {"answer": "Blue, [b]of course[/b]"}
        await person.press("u")
        await person.sees("2 wait")
        await person.press("home", "x", "j", "x", "a")
        await person.sees('"cents": 8')
        await person.press("a")
        await person.sees("There is more below")
        await person.reads_to_the_end()
        await person.sees('"cents": 9')
        await person.twice("a")
        await person.sees("2 decided, 0 not")
        assert [(await person.decided(each))["verb"] for each in both] == ["approve", "approve"]


async def test_a_step_is_decided_in_one_act(api: Api) -> None:
    """`b` shows the calls of a step whole; `a` `a` approves them but the one of high risk, which says why it is left."""
    calls = [["pay", json.dumps({"cents": cents})] for cents in (21, 22)]
    order = {"say": "All three.", "tool": "wire", "arguments": json.dumps({"cents": 20}), "more": calls}
    run_id = (await api.gated(f"raw {json.dumps(order)}"))["run_id"]
    async with person_at(api, size=(100, 90)) as person:
        await person.sees("3 wait for a person")
        await person.opens()
        await person.press("b")
        screen = await person.sees("Approve this on its own: it is of high risk.")
        assert screen.index('"cents": 21') < screen.index('"cents": 20')
        await person.reads_to_the_end()
        await person.press("a")
        await person.sees("Press a again to approve 2.")
        await asyncio.sleep(0.4)  # a person's pause, as in Person.twice
        await person.press("a")
        await person.sees("2 decided, 1 not")
    listed = (await api.operator.get("/api/v1/requests", params={"status": "all", "run_id": run_id})).json()["items"]
    assert sorted((each["tool_name"], each["status"]) for each in listed) == [
        ("pay", "approved"),
        ("pay", "approved"),
        ("wire", "pending"),
    ]


@pytest.mark.exhaustive
async def test_others_decisions_appear_and_nothing_typed_is_lost(api: Api) -> None:
    """The screen says who decided a request meanwhile, also above a dialog, which keeps its text; a claim refuses in words."""
    request, other, claimed = await api.gated("pay 5"), await api.gated("pay 6"), await api.gated("pay 7")
    async with person_at(api) as person:
        await person.sees("3 wait")
        assert (await api.decide(other, "reject")).status_code == 200
        await person.sees("2 wait")
        await person.opens()
        await person.press("r")
        field = person.dialog_field(Input)
        await field.fill("my long reason")
        assert (await api.decide(request, "approve")).status_code == 200
        await person.sees(f"approved by ada-{api.name}")
        await person.press("enter")
        await person.sees("Not decided")
        assert await field.text() == "my long reason"
        await person.press("escape")
        await person.sees("THE DECISION")
        assert person.app.session.drafts[request["id"], "reject"] == "my long reason"

        assert (await api.operator.post(f"/api/v1/requests/{claimed['id']}/claim", json={})).status_code == 200
        await person.press("n")
        await person.sees_ready(f"ada-{api.name} has claimed this")
        await person.twice("a")
        await person.sees("Not decided")
        assert (await person.request(claimed))["status"] == "pending"
        await person.twice("c")
        await person.sees("You have claimed it")
        await person.until(lambda: not person.app.screen.is_inert, "time to look")
        await person.twice("a")
        await person.sees("approved by ada ")
        assert (await person.decided(claimed))["decided_by"] == "ada"


@pytest.mark.exhaustive
async def test_the_inbox_is_filtered_and_next_stays_in_the_filter(api: Api) -> None:
    """`/` filters the requests, and says so; `n` then continues among those; a list that is not drawn yet is not called empty."""
    await api.gated("pay 5")
    wires = [await api.gated(f"wire {cents}") for cents in (900, 901)]
    async with person_at(api, size=(100, 40)) as person:
        assert "Nothing waits" not in person.screen
        await person.sees("3 wait for a person")
        await person.press("slash")
        await person.put("own-1", "wire")
        await person.press("ctrl+s")
        screen = await person.sees("2 wait for a person  only tool wire")
        assert "pay" not in screen
        await person.press("home", "enter")
        await person.sees_ready('"cents": 900')
        await person.press("n")
        await person.sees_ready('"cents": 901')
        await person.press("n")
        await person.sees_ready('"cents": 900')
        await person.press("r", "enter")
        await person.sees("rejected by ada")
        assert (await person.decided(wires[0]))["status"] == "rejected"
        await person.press("u", "slash")
        await person.put("own-1", "none such")
        await person.press("ctrl+s")
        await person.sees("Nothing waits under this filter")
