"""Forms in the terminal UI: edits and answers field by field, with their types, and as raw JSON."""

from __future__ import annotations

import json

import pytest
from support.api.api_server import Api
from support.programs.tui_person import calling, person_at
from textual.widgets import Input, TextArea

STAY = {
    "hotel": "[b]Sun[/b] \u202e",
    "nights": 3,
    "rate": 99.5,
    "room": "double",
    "breakfast": True,
    "guests": ["Ada", "Grace"],
    "address": {"street": "Rue"},
    "extras": {"towels": 2},
    "anything": {"deep": [1]},
}
HOTEL, NIGHTS, ROOM, BREAKFAST, GUESTS, ADDRESS, EXTRAS, NOTE, ANYTHING = (
    f"field-{at}" for at in (0, 1, 3, 4, 5, 6, 7, 8, 9)
)


BOOKING = calling("book", STAY)


@pytest.mark.exhaustive
async def test_an_edit_keeps_types_and_says_what_is_wrong_beside_its_field(api: Api) -> None:
    """Each field has its type's control; an error is at its field, here or from the API, and nothing is lost."""
    request = await api.gated(BOOKING)
    async with person_at(api, size=(100, 60)) as person:
        await person.sees("1 waits")
        await person.opens()
        await person.press("e")
        screen = await person.sees("( ) single  (•) double  ( ) suite")
        assert "(•) true  ( ) false" in screen
        assert '"[b]Sun[/b] \\u202e"' in screen, "a hidden character is in a plain field, or markup was read"
        assert "[b]at most[/b] 30⟨U+202E⟩" in screen

        await person.press("ctrl+s")
        await person.sees("Nothing was changed")
        await person.put(NIGHTS, "some")
        await person.press("ctrl+s")
        await person.sees("Something does not fit")
        assert "whole number" in person.beside(NIGHTS)
        assert person.beside(HOTEL) == ""
        await person.put(NIGHTS, "99")
        await person.press("ctrl+s")
        await person.until(lambda: "30" in person.beside(NIGHTS), "the API's complaint beside its field")
        await person.put(NIGHTS, "4")
        await person.at(ROOM)
        await person.press("right")
        await person.at(BREAKFAST)
        await person.press("space")
        await person.put(GUESTS, "Lin\nKay")
        await person.put(f"{ADDRESS}-1", "2")  # typing into a field that is left out sends it
        await person.presses(f"add {EXTRAS}")
        await person.put(f"{EXTRAS}-1-key", "beds")
        await person.put(f"{EXTRAS}-1", "1")
        await person.presses(f"remove {EXTRAS} 0")
        await person.put(ANYTHING, '{"deep": [1.50, "x"]}')
        await person.press("escape", "e")
        await person.sees("( ) single  ( ) double  (•) suite")
        assert (await person.at(f"{EXTRAS}-1-key")).held == "beds", "what was typed is lost when the form is left"
        await person.press("ctrl+s")
        await person.sees("approved with edited arguments by ada")
    args = (await person.decided(request))["decision"]["args"]
    assert json.loads(args) == STAY | {
        "nights": 4,
        "room": "suite",
        "breakfast": False,
        "guests": ["Lin", "Kay"],
        "address": {"street": "Rue", "floor": 2},
        "extras": {"beds": 1},
        "anything": {"deep": [1.5, "x"]},
    }
    assert "1.50" in args, "a number lost its digits"
    assert isinstance(json.loads(args)["breakfast"], bool)


@pytest.mark.exhaustive
async def test_fields_and_raw_json_are_one_draft(api: Api) -> None:
    """F2 turns fields into JSON and back with what was typed; bad JSON stays where it is."""
    request = await api.gated(BOOKING)
    async with person_at(api, size=(100, 60)) as person:
        await person.sees("1 waits")
        await person.opens()
        await person.press("e")
        await person.sees("(•) double")
        await person.put(NIGHTS, "5")
        await person.put(f"{ADDRESS}-0", "Elsewhere")
        await person.at(f"{ADDRESS}-state")
        await person.press("right", "right")  # leave it out
        await person.until(lambda: "street" not in person.screen, "a field that is not sent, gone")
        await person.press("f2")
        area = person.dialog_field(TextArea)
        raw = await area.text()
        assert json.loads(raw) == {name: value for name, value in STAY.items() if name != "address"} | {"nights": 5}
        assert "\u202e" not in raw
        await area.fill(raw[:-1])
        await person.press("f2")
        await person.sees("This is not JSON")
        await person.press("ctrl+s")
        assert await area.text() == raw[:-1]
        await person.press("escape", "e")
        area = person.dialog_field(TextArea)
        assert await area.text() == raw[:-1], "what was typed is lost when the editor is left"
        await area.fill(raw.replace('"nights": 5', '"nights": 6'))
        await person.press("f2")
        await person.sees("(•) double")
        assert (await person.at(NIGHTS)).held == "6"
        await person.press("ctrl+s")
        await person.sees("approved with edited arguments")
    args = json.loads((await person.decided(request))["decision"]["args"])
    assert (args["nights"], "address" in args, args["hotel"]) == (6, False, STAY["hotel"])


@pytest.mark.exhaustive
async def test_an_edit_of_high_risk_takes_the_typed_name(api: Api) -> None:
    """An edit of a call of high risk is sent after its tool's name is typed; until then nothing is sent, and nothing is lost."""
    request = await api.gated("wire 900")
    async with person_at(api) as person:
        await person.sees("HIGH wire")
        await person.opens()
        await person.press("e")
        await person.dialog_field(Input).fill("800")
        await person.press("ctrl+s")
        await person.sees("Type the tool's name")
        await person.dialog_field(Input).fill("wires")
        await person.press("enter")
        await person.sees("Not its name")
        await person.press("escape")
        await person.sees("Not confirmed")
        assert (await person.at("field-0")).held == "800"
        assert (await person.request(request))["status"] == "pending"
        await person.press("ctrl+s")
        await person.sees("Type the tool's name")
        await person.dialog_field(Input).fill("wire")
        await person.press("enter")
        await person.sees("approved with edited arguments")
    assert json.loads((await person.decided(request))["decision"]["args"]) == {"cents": 800}


async def test_a_kept_edit_is_what_approving_sends_until_it_is_dropped(api: Api) -> None:
    """After Escape `a a` approves with the edit, which is shown; `x x` drops it, and the plain approve is back."""
    request = await api.gated("pay 900")
    async with person_at(api, size=(100, 40)) as person:
        await person.sees("1 waits")
        await person.opens()
        await person.press("e")
        await person.dialog_field(Input).fill("800")
        await person.press("escape")
        screen = await person.sees("a a approve with 1 change")
        assert "/cents: will be 800" in screen
        assert "a a approve  " not in screen
        await person.press("g")
        await person.sees("Your edit is not sent")
        await person.twice("x")
        assert "YOUR EDIT" not in await person.sees("a a approve  ")
        await person.press("e")
        await person.dialog_field(Input).fill("700")
        await person.press("escape")
        await person.sees("a a approve with 1 change")
        await person.twice("a")
        await person.sees("approved with edited arguments")
    assert json.loads((await person.decided(request))["decision"]["args"]) == {"cents": 700}


async def test_a_suggested_answer_fills_the_field(api: Api) -> None:
    """An answer that a question suggests is selected, can be changed, and is sent with the changes."""
    asks = {"question": "Which [i]colour[/i]?", "choices": ["Red", "Blue"]}
    request = await api.gated(calling("pick_one", asks))
    async with person_at(api) as person:
        await person.sees("1 waits")
        await person.opens("THE QUESTION")
        await person.press("s")
        await person.sees("Which [i]colour[/i]?")
        await person.press("down", "enter")
        await person.types("!")
        await person.press("ctrl+s")
        await person.sees("answered by ada")
    assert json.loads((await person.decided(request))["decision"]["args"]) == {"answer": "Blue!"}
