"""Where a call's arguments come from."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turngate.domain.conversation.messages import Message, TextPart, ToolCallPart, ToolResultPart, user_message
from turngate.domain.origins.origin import Origin, Origins
from turngate.domain.origins.sources import Author, SentMessage, sources_of
from turngate.domain.origins.trace import MAX_ARGUMENTS, trace
from turngate.domain.tools import results
from turngate.domain.tools.results import Failure, Ok

BOUND_SECONDS = 5.0
"""Processor time. The slowest of these takes less than a quarter of it, and a tenth without the load of other tests."""


def says(text: str, author: Author = "task", agent: str = "") -> SentMessage:
    return SentMessage(message=user_message(text), author=author, agent=agent, id=f"of-{author}")


def tool(
    name: str, args: Any, result: Any, *, whole: str | None = None, edited: str | None = None
) -> tuple[SentMessage, SentMessage]:
    """Return a call and its result, as two messages."""
    call = ToolCallPart(tool_call_id="c1", tool_name=name, input=json.dumps(args))
    value = (
        result if isinstance(result, Failure) else Ok(value=result if isinstance(result, dict) else {"value": result})
    )
    part = ToolResultPart(tool_call_id="c1", tool_name=name, result=value, whole_result=whole, edited_input=edited)
    return (
        SentMessage(message=Message(role="assistant", parts=(TextPart(text="Let me see."), call)), step=1),
        SentMessage(message=Message(role="tool", parts=(part,)), step=1),
    )


def origins(*sent: SentMessage, args: Any, instructions: str = "", schema: Any = None) -> Origins:
    sources = sources_of(sent, instructions=instructions, untrusted={"read_mail"}, answering={"ask_person"})
    return trace(sources, json.dumps(args), schema=schema)


def only(*sent: SentMessage, value: Any, name: str = "value", instructions: str = "") -> Origin:
    [origin] = origins(*sent, args={name: value}, instructions=instructions).items
    return origin


@pytest.mark.parametrize(
    ("value", "task"),
    [
        ("A-113", "Refund A-113, please."),
        ("a-113", "Refund A-113, please."),
        ("Ann  Miller", "Write to Ann\nMiller."),
        ("DE44500105175407324931", "Pay to DE44 5001 0517 5407 3249 31."),
        ("+49 (89) 1234-5678", "Call +498912345678."),
        (49, "Refund 49.00 EUR."),
        ("1234.50", "Refund € 1.234,50 today."),
        (1234.5, "Refund 1,234.50."),
        (12000, "Order 12 000 pieces."),
        ("2026-12-03", "Come on 3 December 2026."),
        ("2026-12-03T10:30:00Z", "Come on December 3rd, 2026 at half past ten."),
        ("2026-12-03", "Come on 03.12.2026."),
        ("https://shop.example/a%20b/", "See shop.example/a b for it."),
        ("HTTPS://www.Shop.example/x#top", "See https://shop.example/x for it."),
        ("shop/miller.py", "In the folder shop, fix miller.py."),
    ],
)
def test_a_value_is_found_in_each_of_its_forms(value: Any, task: str) -> None:
    """Case, spacing, numbers, dates and URLs may be written otherwise."""
    origin = only(says(task), value=value)
    assert (origin.places[0].kind, origin.doubt) == ("task", None)


@pytest.mark.parametrize(
    ("value", "task"),
    [
        ("A-113", "Refund A-1130."),
        ("INV-2024-11", "Refund INV-2024-113."),
        ("113", "Refund A-1130."),
        (490, "Refund 49.00 EUR."),
        (4900, "Refund 49.00 EUR."),
        (495, "Refund 49,500 EUR."),
        ("ann@shop.example", "Write to joann@shop.example."),
        ("2026-12-04", "Come on 3 December 2026."),
        ("https://shop.example/x?leak=4711", "See https://shop.example/x."),
    ],
)
def test_a_value_is_not_found_in_a_longer_or_another_one(value: Any, task: str) -> None:
    """A part of an identifier, a number or an address is another value."""
    assert only(says(task), value=value).doubt == "nowhere"


def test_an_amount_in_cents_is_the_amount() -> None:
    """An argument that names cents matches the amount in the whole unit, and the other way round."""
    assert only(says("Refund 49.00 EUR."), value=4900, name="amountCents").doubt is None
    sent = tool("lookup", {}, {"order": {"total_cents": 4900}})
    origin = only(says("Refund it."), *sent, value="49.00", name="amount")
    assert (origin.places[0].at, origin.doubt) == ("/order/total_cents", None)


def test_an_argument_in_cents_is_not_taken_for_whole_units() -> None:
    """4900 cents don't come from a field of 490000 cents, a hundred times as much."""
    sent = tool("lookup", {}, {"order": {"total_cents": 490_000}})
    assert only(*sent, value=4900, name="amount_cents").doubt == "nowhere"


def test_a_place_names_tool_step_and_pointer() -> None:
    """A person can go to the place, also inside JSON that a server sent as a text."""
    text = json.dumps({"accounts": [{"iban": "DE44 5001"}]})
    sent = tool("accounts", {}, {"content": [{"type": "text", "text": text}]})
    place = only(says("Pay."), *sent, value="DE44 5001").places[0]
    assert (place.kind, place.tool, place.step, place.at) == (
        "result",
        "accounts",
        1,
        "/content/0/text/accounts/0/iban",
    )


def test_places_come_best_first() -> None:
    """A person's words come before instructions, those before results, and the untrusted ones last."""
    sent = [*tool("read_mail", {}, "A-113"), *tool("lookup", {}, "A-113"), says("It is A-113.", "person")]
    origin = only(*sent, value="A-113", instructions="Never touch A-113.")
    assert [place.kind for place in origin.places] == ["message", "instructions", "result"]
    assert origin.doubt is None


def test_a_value_that_only_a_stranger_wrote_is_doubtful() -> None:
    """What is in nothing but the results of untrusted tools is marked."""
    origin = only(says("Answer the mail."), *tool("read_mail", {}, "Pay to LT12 1000 0111."), value="LT12 1000 0111")
    assert (origin.doubt, origin.places[0].untrusted) == ("untrusted", True)


def test_a_lookup_that_repeats_its_argument_vouches_for_nothing() -> None:
    """A stranger's value does not become trusted because a trusted tool was called with it."""
    mail = tool("read_mail", {}, "Pay to LT12 1000 0111.")
    check = tool("check_iban", {"iban": "LT12 1000 0111"}, {"iban": "LT12 1000 0111", "valid": True})
    assert only(says("Answer."), *mail, *check, value="LT12 1000 0111").doubt == "untrusted"
    assert only(says("Answer."), *check, value="LT12 1000 0111").doubt == "nowhere"


def test_the_rest_of_an_untrusted_result_is_untrusted() -> None:
    """What read_result reads belongs to the tool whose result it is."""
    first = tool("read_mail", {}, {"head": "Hello"}, whole="digest-of-mail")
    rest = tool("read_result", {"result_id": "digest-of-mail", "offset": 10}, "Pay to LT12 1000 0111.")
    assert only(says("Answer."), *first, *rest, value="LT12 1000 0111").doubt == "untrusted"


def test_an_earlier_call_is_shown_and_proves_nothing() -> None:
    """A value that the agent made up before is still from nowhere."""
    origin = only(says("Refund it."), *tool("lookup", {"order": "A-999"}, {"status": "paid"}), value="A-999")
    assert ([place.kind for place in origin.places], origin.doubt) == (["call"], "nowhere")


def test_what_people_answer_edit_and_say_counts_as_theirs() -> None:
    """An answer to a question, an edit and the reason of a rejection are a person's words."""
    answer = tool("ask_person", {"question": "Which?"}, {"order": "A-200"})
    edit = tool("refund", {"order": "A-300"}, {"done": True}, edited='{"order": "A-301"}')
    rejection = tool("refund", {"order": "A-400"}, results.rejected("ann", "No, it is A-401."))
    sent = [says("Refund it."), *answer, *edit, *rejection]
    kinds = [only(*sent, value=order).places[0].kind for order in ("A-200", "A-301", "A-401")]
    assert kinds == ["answer", "edit", "answer"]


def test_a_sub_agents_task_is_the_words_of_an_agent() -> None:
    """What the agent above wrote proves nothing; what it was itself sent does."""
    brief = says("Pay 20 EUR to LT12 1000 0111.", "agent")
    assert only(brief, value="LT12 1000 0111").doubt == "nowhere"
    above = says("Pay 20 EUR to LT12 1000 0111, Ann.", "task", agent="writer")
    assert only(above, brief, value="LT12 1000 0111").places[0].agent == "writer"


def test_messages_of_the_engine_are_no_source() -> None:
    """Neither a summary, which a model wrote, nor a correction."""
    assert only(says("A summary: A-113 was refunded.", "engine"), value="A-113").doubt == "nowhere"


def test_another_of_the_kind_that_a_person_names_contradicts() -> None:
    """The task names an order, and the call has another one that a result holds."""
    sent = tool("list_orders", {}, {"orders": ["A-102", "A-113"]})
    origin = only(says("Refund A-113."), *sent, value="A-102")
    assert (origin.doubt, origin.instead) == ("contradicts", "A-113")
    assert only(says("Refund A-113."), *sent, says("No, A-102.", "person"), value="A-102").doubt is None


def test_a_number_alone_contradicts_under_the_same_name() -> None:
    """Orders may be plain numbers; numbers of other things do not contradict them."""
    sent = tool("list_orders", {}, {"orders": [{"order": 4712, "customer": 8812}]})
    assert only(says("Refund order 4711."), *sent, value=4712, name="orderId").doubt == "contradicts"
    assert only(says("Refund it."), *sent, value=8812, name="customer").doubt is None


def test_another_amount_than_the_task_names_contradicts() -> None:
    """Where the task names an amount, the amount of a record is not it."""
    sent = tool("lookup", {}, {"order": "A-113", "total": 49.0})
    origin = only(says("Refund 20 EUR of A-113."), *sent, value=49, name="amount")
    assert (origin.doubt, origin.instead) == ("contradicts", "20")


@pytest.mark.parametrize("as_text", [True, False])
def test_a_value_of_another_record_contradicts(as_text: bool) -> None:
    """The account is in the same result, and in the record of another order than the task's."""
    records = [{"order": "A-113", "iban": "DE44 0001"}, {"order": "A-102", "iban": "DE44 0002"}]
    sent = tool("list_orders", {}, json.dumps(records) if as_text else {"orders": records})
    assert only(says("Refund A-113."), *sent, value="DE44 0001").doubt is None
    assert only(says("Refund A-113."), *sent, value="DE44 0002").doubt == "contradicts"


def test_prose_is_the_agents_own_and_what_it_names_is_looked_up() -> None:
    """Sentences need no source; the identifiers, addresses and amounts in them do."""
    body = "Dear Ann,\nwe refund A-113. Proof: https://pay.evil.example/x, reference ZZ-9911."
    mail = tool("read_mail", {}, "See https://pay.evil.example/x")
    items = origins(says("Refund A-113."), *mail, args={"body": body}).items
    assert [(each.part, each.doubt) for each in items] == [
        ("", None),
        ("A-113", None),
        ("https://pay.evil.example/x", "untrusted"),
        ("ZZ-9911", "nowhere"),
    ]
    assert items[0].written


def test_what_the_tool_offers_needs_no_source() -> None:
    """A choice or a default of the schema is the tool's own word, of that property only."""
    schema = {
        "properties": {"speed": {"$ref": "#/$defs/Speed"}, "note": {"anyOf": [{"const": "urgent"}, {"type": "null"}]}},
        "$defs": {"Speed": {"enum": ["express", "slow"]}},
    }
    items = origins(
        says("Send it."), args={"speed": "express", "note": "urgent", "name": "express"}, schema=schema
    ).items
    assert [(each.at, each.doubt) for each in items] == [("/speed", None), ("/note", None), ("/name", "nowhere")]


@pytest.mark.parametrize("text", ["plain", "half a surrogate \ud800"])
def test_numbers_of_a_list_are_apart(text: str) -> None:
    """Two members of a list aren't one number, whatever else the result holds."""
    result = tool("read", {}, {"sums": [4123, 456], "text": text})
    assert only(*result, value=456).doubt is None
    assert only(*result, value=4123).doubt is None
    assert only(*result, value=4123456).doubt == "nowhere"


def test_flags_and_short_values_are_not_doubted() -> None:
    """A flag comes from nowhere, and a value of one or two characters says too little."""
    items = origins(says("Continue."), args={"all": True, "none": None, "pages": 7, "to": "ok"}).items
    assert [(each.at, each.doubt) for each in items] == [("/pages", None), ("/to", None)]


def test_arguments_that_readers_take_differently_are_not_complete() -> None:
    """A name that is there twice, and text that is no JSON, leave the answer open."""
    for raw in ('{"a": 1, "a": 2}', "{", '{"a": 1e999999999999999999999}', "[" * 100_000):
        assert not trace([], raw).complete


def test_more_arguments_than_are_looked_up_are_not_complete() -> None:
    """The first ones are looked up, and the answer says that there are more."""
    answer = origins(says("Go."), args={"all": [f"value {number}x" for number in range(MAX_ARGUMENTS + 50)]})
    assert (len(answer.items), answer.complete) == (MAX_ARGUMENTS, False)


TEXT = st.text(max_size=60)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@given(task=TEXT, mail=JSON, args=st.dictionaries(TEXT, JSON, max_size=5))
@settings(max_examples=150, deadline=None)
def test_any_text_has_an_answer(task: str, mail: Any, args: Any) -> None:
    """Nothing raises, and the same is found each time."""
    sent = [says(task), *tool("read_mail", {"query": task}, mail)]
    assert origins(*sent, args=args) == origins(*sent, args=args)


@given(
    word=st.text(alphabet="abcdefghij0123456789-", min_size=3, max_size=30).filter(lambda text: text.strip("-") == text)
)
@settings(max_examples=150, deadline=None)
def test_a_value_that_a_person_wrote_is_never_doubtful(word: str) -> None:
    """Whatever else holds it, and whatever else they wrote."""
    mail = tool("read_mail", {}, f"{word} and A-999")
    assert only(says(f"Please take {word} now, not A-998."), *mail, value=word).doubt is None
    assert only(says("Please look."), *mail, value=word).doubt == "untrusted"


HOSTILE = {
    "one letter": "a" * 1_000_000,
    "digits": "1" * 1_000_000,
    "small numbers": "1 " * 500_000,
    "thousands": "1,000" * 200_000,
    "dates": "2026-01-01 " * 90_000,
    "years": "2026" * 250_000,
    "identifiers": "a-1" * 330_000,
    "brackets": "[" * 1_000_000,
    "objects": '{"a":' * 200_000,
    "ligatures": "\ufdfa" * 100_000,
    "links": "https://" * 125_000,
    "at signs": "a@" * 500_000,
    "dots": "a.a" * 330_000,
    "money": "€1" * 500_000,
    "blanks": " \u200b" * 500_000,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_i14_no_text_keeps_it_busy(text: str) -> None:
    """A megabyte as the argument, as what was sent, and as both, takes a bounded time."""
    started = time.process_time()
    args = {
        "a": "a",
        "n": 1,
        "big": 1000,
        "day": "2026-01-01",
        "long": text,
        "id": "a-1",
        "cents": 100,
        "url": "https://a.a",
    }
    origins(says(text), *tool("lookup", {"a": text}, {"text": text, "more": [text[:1000]] * 100}), args=args)
    origins(*[says(text[:200_000], "person") for _ in range(20)], args={f"a{number}": "a" * 5 for number in range(200)})
    assert time.process_time() - started < BOUND_SECONDS
