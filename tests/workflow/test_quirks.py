"""What is peculiar to providers, through the real engine: three wires, streamed and not, each on a loopback server.

Asserted are the bytes of the provider's next request and the messages that are stored.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import pytest
from support.engine.provider_engines import Stage, require_order, staged, turns_of
from support.engine.stack import STARTER, Stack, until
from support.servers.provider_wires import (
    DEVSTRAL,
    EVENT_STREAM,
    WIRES,
    Wire,
    WireCall,
    WireResponse,
    calls,
    each_wire,
    either_way,
)
from temporalio.client import Client

from turngate.approvals_api.runs import send_message
from turngate.domain.tools.results import Failure, Ok
from turngate.store.runs.runs import Run
from turngate.wire.orders import MessageOrder

DONE = WireResponse(text="Done.")
LOOK = WireCall("look", '{"name": "x"}', "c1")
LOOK_TOO = WireCall("look", '{"name": "y"}', "c2")


@pytest.fixture(scope="module")
async def _staged(
    client: Client, sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Stage]:
    async with staged(client, sqlite_template, tmp_path_factory.mktemp("quirks")) as stage:
        yield stage


@pytest.fixture
def stage(_staged: Stage) -> Stage:
    """One for all tests, emptied for each."""
    _staged.reset()
    return _staged


@each_wire
@either_way
async def test_a_tool_without_parameters(stage: Stage, wire: Wire, streamed: bool) -> None:
    """It is offered with the schema of an empty object, runs when called with nothing, and its call goes back as ``{}``."""
    response = calls(WireCall("zebra", "{}", "c1"), WireCall("apple", "{}", "c2"))
    played = await stage.play(wire, response, DONE, streamed=streamed)
    offered = wire.schemas(played.requests[0])
    assert [offered[name]["type"] for name in ("zebra", "apple")] == ["object", "object"]
    assert [offered[name]["properties"] for name in ("zebra", "apple")] == [{}, {}]
    turns = turns_of(wire, played)
    require_order(turns)
    assert [call[1:] for turn in turns for call in turn.calls] == [("zebra", {}), ("apple", {})]
    assert [content for turn in turns for _, content in turn.results] == [{"value": "Sunday"}, {"value": [1, 2]}]


@each_wire
async def test_results_are_objects(stage: Stage, wire: Wire) -> None:
    """Text, a list and a failure: an object each, as it is stored and as the provider reads it."""
    response = calls(LOOK, WireCall("apple", "{}", "c2"), WireCall("repair", "{}", "c3"))
    played = await stage.play(wire, response, DONE)
    turns = turns_of(wire, played)
    require_order(turns)
    looked, counted, failed = (content for turn in turns for _, content in turn.results)
    assert (looked, counted) == ({"value": "seen x"}, {"value": [1, 2]})
    assert failed["error"]["kind"] == "execution_error"
    stored = [part.result for part in played.history[2].results]
    assert [result.value for result in stored if isinstance(result, Ok)] == [looked, counted]


@each_wire
async def test_i1_results_come_directly_after_their_turn(stage: Stage, wire: Wire) -> None:
    """I1: in the model's order, however long each took, and before what a person said while they were awaited."""
    response = calls(
        WireCall("pay", '{"cents": 5}', "c1"), LOOK_TOO, WireCall("zebra", "{}", "c3"), text="I pay and look."
    )
    engine = stage.engines[True]
    stage.says(wire, response, DONE)
    run = await stage.start(wire)
    request = await engine.request(run)
    await until(lambda: has_looked(stage), "look")
    await send_message.send(engine.services, STARTER, run.id, MessageOrder(input="Hurry up.", while_running="inject"))
    await engine.decide(request, "approve")
    played = await stage.ended(wire, run)
    turns = turns_of(wire, played)
    require_order(turns)
    assert turns[1].text == "I pay and look."
    assert [call[1] for call in turns[1].calls] == ["pay", "look", "zebra"]
    answered = [content for turn in turns[2:] for _, content in turn.results]
    assert answered == [{"paid": 5}, {"value": "seen y"}, {"value": "Sunday"}]
    assert turns[-1].items[-1] == ("text", "Hurry up.")
    assert [message.role for message in played.history] == ["user", "assistant", "tool", "user", "assistant"]


@each_wire
async def test_i1_what_an_interrupt_left_open_is_answered(stage: Stage, wire: Wire) -> None:
    """I1: the next run of the conversation sends the calls that were never answered with their closures, and then its message."""
    engine = stage.engines[True]
    stage.says(wire, calls(LOOK, WireCall("pay", '{"cents": 5}', "c2")))
    run = await stage.start(wire)
    await engine.request(run)
    await until(lambda: has_result(engine, run), "result of the ungated call")
    await engine.interrupt(run)
    await engine.ended(run)
    then = await stage.play(wire, DONE, text="Continue.", conversation_id=run.conversation_id)
    turns = turns_of(wire, then)
    require_order(turns)
    looked, paid = (content for turn in turns for _, content in turn.results)
    assert (looked, paid["error"]["kind"]) == ({"value": "seen x"}, "interrupted")
    assert turns[-1].items[-1] == ("text", "Continue.")


@each_wire
async def test_messages_of_one_side_are_one(stage: Stage, wire: Wire) -> None:
    """Two empty responses and their corrections: one turn of the user, with all of the text."""
    played = await stage.play(wire, WireResponse(), WireResponse(ending="length"), DONE)
    assert [message.role for message in played.history] == ["user", "assistant"] + ["user", "assistant"] * 2
    (turn,) = turns_of(wire, played)
    assert turn.role == "user"
    assert turn.text == "\n\n".join(message.text for message in played.history if message.role == "user")
    assert turn.text.count("Your last response was empty") == 2
    assert turn.text.count("It reached the limit of its length") == 1


@pytest.mark.parametrize(
    ("wire", "streamed"),
    # Anthropic's are text only while they stream, and Google's are objects by their type.
    [(WIRES[0], True), (WIRES[0], False), (WIRES[1], True)],
    ids=["openai-streamed", "openai-whole", "anthropic-streamed"],
)
async def test_i9_an_input_that_is_no_object_goes_back_as_one(stage: Stage, wire: Wire, streamed: bool) -> None:
    """I9: the call is closed unexecuted and the model reads why; its input is stored unchanged, and sent as an object later."""
    raws = ["[1]", '"x"', '{"name": "x']
    response = calls(*(WireCall("look", raw, f"r{place}") for place, raw in enumerate(raws)), LOOK_TOO)
    played = await stage.play(wire, response, calls(LOOK), DONE, streamed=streamed)
    assert [call.input for call in played.history[1].calls] == [*raws, LOOK_TOO.raw]
    for place in (1, 2):
        turns = turns_of(wire, played, place)
        require_order(turns)
        sent = [call[2] for call in turns[1].calls]
        assert sent == [*({"invalid_json_arguments": raw} for raw in raws), {"name": "y"}]
    problems = [part.result for part in played.history[2].results]
    assert [each.kind for each in problems if isinstance(each, Failure)] == ["input_validation_error"] * 3
    assert stage.bench.looked == ["y", "x"]


@pytest.mark.exhaustive
@each_wire
@either_way
async def test_ids_that_are_missing_or_doubled(stage: Stage, wire: Wire, streamed: bool) -> None:
    """Within a response, from step to step, and from run to run: each call has an id of its own, and its result has it too."""
    no_id = "" if wire.name == "anthropic" else None
    doubled = calls(
        *(WireCall("look", f'{{"name": "{name}"}}', "same") for name in "ab"), WireCall("look", '{"name": "c"}', no_id)
    )
    first = await stage.play(wire, doubled, doubled, DONE, streamed=streamed)
    then = await stage.play(wire, doubled, DONE, streamed=streamed, conversation_id=first.run.conversation_id)
    assert sorted(stage.bench.looked) == sorted("abc" * 3)
    turns = turns_of(wire, then)
    require_order(turns)
    ids = [call.tool_call_id for message in then.history for call in message.calls]
    assert len(set(ids)) == len(ids) == 9
    assert all(ids)
    assert ids[0] == "same"
    assert [call[2]["name"] for turn in turns for call in turn.calls] == list("abc") * 3
    assert [content["value"] for turn in turns for _, content in turn.results] == [f"seen {name}" for name in "abc"] * 3


async def test_mistrals_rules_hold_behind_a_compatible_server(stage: Stage) -> None:
    """Every id has nine letters and digits; a text separates a result from a user's message; and what is stored stays."""
    doubled = calls(WireCall("look", '{"name": "a"}', "call_of_another"), WireCall("look", '{"name": "b"}', None))
    first = await stage.play(WIRES[0], doubled, DONE)
    engine = stage.engines[True]
    stage.says(DEVSTRAL, calls(WireCall("pay", '{"cents": 5}', "a1B2c3D4e")), DONE)
    run = await stage.start(DEVSTRAL, conversation_id=first.run.conversation_id)
    request = await engine.request(run)
    await send_message.send(engine.services, STARTER, run.id, MessageOrder(input="Hurry up.", while_running="inject"))
    await engine.decide(request, "approve")
    played = await stage.ended(DEVSTRAL, run)
    turns = turns_of(DEVSTRAL, played)
    require_order(turns)
    ids = [call[0] for turn in turns for call in turn.calls]
    assert all(re.fullmatch("[a-zA-Z0-9]{9}", each) for each in ids), ids
    assert ids[-1] == "a1B2c3D4e"
    assert [turn.role for turn in turns[-3:]] == ["tool", "assistant", "user"]
    assert (turns[-2].text, turns[-1].text) == ("OK", "Hurry up.")
    stored = [call.tool_call_id for message in played.history for call in message.calls]
    assert stored == ["call_of_another", "call_1_1", "a1B2c3D4e"]
    assert "OK" not in [message.text for message in played.history]


TAKES = {
    "openai": ".+",
    "anthropic": "[a-zA-Z0-9_-]{1,64}",
    "google": "[a-zA-Z0-9_-]{1,64}",
    "devstral": "[a-zA-Z0-9]{9}",
}


async def test_i1_a_conversation_full_of_oddities_continues_anywhere(stage: Stage) -> None:
    """I1, I9: odd ids, names and arguments, an empty answer and a cut one: each provider gets them in a form that it takes."""
    odd = [
        WireCall("look", '{"name": "a"}', "x" * 200),
        WireCall("look", "[1]", "a b/c:é"),
        WireCall("1st.tool é", '{"name": NaN}', "dup"),
        WireCall("zebra", "", "dup"),
        WireCall("", "", None),
        WireCall("zebra", " ", "\x00"),
    ]
    first = await stage.play(WIRES[0], calls(*odd), WireResponse(), calls(LOOK, ending="length"), DONE)
    assert first.run.status == "completed", first.run.reason
    for wire in (WIRES[1], WIRES[2], DEVSTRAL, WIRES[0]):
        then = await stage.play(wire, DONE, text="And now?", conversation_id=first.run.conversation_id)
        turns = turns_of(wire, then)
        require_order(turns)
        sent_calls = [call for turn in turns for call in turn.calls]
        assert len(sent_calls) == 7
        assert all(re.fullmatch(TAKES[wire.name], call[0]) for call in sent_calls), sent_calls
        assert all(re.fullmatch("[a-zA-Z0-9_-]{1,64}", call[1]) for call in sent_calls), sent_calls
        stored = [call for message in then.history for call in message.calls]
        assert [call.input for call in stored[:6]] == [each.raw for each in odd]


@each_wire
@either_way
async def test_calls_of_a_response_that_was_cut_off(stage: Stage, wire: Wire, streamed: bool) -> None:
    """For its length, by a filter: nothing runs and no one is asked, though the arguments are whole; the model reads why."""
    cut_calls = (LOOK, WireCall("pay", '{"cents": 5}', "c2"))
    responses = [WireResponse(calls=cut_calls, ending="length"), WireResponse(calls=cut_calls, ending="filtered")]
    played = await stage.play(wire, *responses, DONE, streamed=streamed)
    assert played.run.status == "completed"
    assert (stage.bench.looked, stage.bench.paid) == ([], [])
    turns = turns_of(wire, played)
    require_order(turns)
    reasons = [content["error"]["message"] for turn in turns for _, content in turn.results]
    assert len(reasons) == 4
    assert all("ended early" in each for each in reasons)
    assert await stage.engines[streamed].requests_of(played.run) == []


@each_wire
async def test_i9_undeclared_tool_names(stage: Stage, wire: Wire) -> None:
    """I9: also the engine's own names and reserved words; they are sent back in a form that the provider accepts."""
    names = ["extend_budget", "turngate_answer", "__class__", "constructor", "a.b c"]
    response = calls(*(WireCall(name, "{}", f"c{place}") for place, name in enumerate(names)))
    played = await stage.play(wire, response, DONE)
    turns = turns_of(wire, played)
    require_order(turns)
    kinds = [content["error"]["kind"] for turn in turns for _, content in turn.results]
    assert kinds == ["unknown_tool"] * len(names)
    assert [call.tool_name for call in played.history[1].calls] == names
    assert [call[1] for turn in turns for call in turn.calls] == [*names[:4], "a_b_c"]


@pytest.mark.exhaustive
@each_wire
async def test_what_was_sent_once_is_sent_again_byte_for_byte(stage: Stage, wire: Wire) -> None:
    """For the prompt caches: the tools in their declared order, and a conversation that only ever grows at its end."""
    response = calls(LOOK, WireCall("zebra", "{}", None), text="Wait.")
    first = await stage.play(wire, response, response, DONE)
    then = await stage.play(wire, response, DONE, conversation_id=first.run.conversation_id)
    sent = [*first.requests, *then.requests]
    assert list(wire.schemas(sent[0])) == ["zebra", "look", "apple", "pay", "repair"]
    assert len({wire.offered(request) for request in sent}) == 1
    for request, later in pairwise(sent):
        before, after = wire.elements(request), wire.elements(later)
        assert after[: len(before)] == before
        assert len(after) > len(before)


@pytest.mark.exhaustive
@each_wire
async def test_streamed_or_whole_the_same_is_stored(stage: Stage, wire: Wire) -> None:
    """Every part of every message, ids and inputs included, and so every later request."""
    doubled = [
        WireCall("look", '{"name": "a"}', "c1"),
        WireCall("look", '{"name": "b"}', "c1"),
        WireCall("zebra", "{}", None),
    ]
    odd = [
        WireCall("a.b", "{}", "c2"),
        WireCall("turngate_answer", '{"name": "Zoë"}', "c3"),
        WireCall("look", "{}", "c4"),
    ]
    responses = [
        calls(*doubled, text="I look."),
        calls(*odd),
        calls(LOOK, ending="length"),
        calls(LOOK, text="No.", ending="filtered"),
        WireResponse(),
        WireResponse(text="Seen Zoë."),
    ]
    played = [await stage.play(wire, *responses, streamed=streamed) for streamed in (True, False)]
    first, second = ([message.model_dump() for message in each.history] for each in played)
    assert first == second
    assert [wire.elements(request) for request in played[0].requests] == [
        wire.elements(request) for request in played[1].requests
    ]


@either_way
async def test_an_empty_200_is_asked_for_again(stage: Stage, streamed: bool) -> None:
    """An empty response is the provider's failure: nothing of it is stored, and the same request is sent again."""

    async def one(wire: Wire) -> None:
        stage.servers[wire.name].answer(b"", headers=EVENT_STREAM if streamed else None)
        stage.says(wire, DONE, streamed=streamed)
        played = await stage.ended(wire, await stage.start(wire, streamed=streamed), streamed=streamed)
        assert [message.text for message in played.history] == ["go", "Done."]
        assert played.requests[0].content == played.requests[1].content
        retried = await stage.engines[streamed].event(played.run, "model.retrying")
        assert retried.payload["error_class"] == "bad_response"

    await asyncio.gather(*(one(wire) for wire in WIRES))


@either_way
async def test_an_answer_that_breaks_off_leaves_nothing(stage: Stage, streamed: bool) -> None:
    """Its calls are whole and none runs, nothing of it is stored; watchers of its words learn that they are void."""

    async def one(wire: Wire) -> None:
        stage.says(wire, calls(LOOK, text="I look."), streamed=streamed, cut=True)
        stage.says(wire, DONE, streamed=streamed)
        played = await stage.ended(wire, await stage.start(wire, streamed=streamed), streamed=streamed)
        assert [message.text for message in played.history] == ["go", "Done."]
        assert played.requests[0].content == played.requests[1].content
        retried = await stage.engines[streamed].event(played.run, "model.retrying")
        assert retried.payload["error_class"] == "bad_response"
        assert retried.payload.get("shown") is (True if streamed else None)

    await asyncio.gather(*(one(wire) for wire in WIRES))
    assert stage.bench.looked == []


async def has_result(engine: Stack, run: Run) -> bool:
    return any(isinstance(result, Ok) for result in (await engine.results(run)).values())


async def has_looked(stage: Stage) -> bool:
    return bool(stage.bench.looked)
