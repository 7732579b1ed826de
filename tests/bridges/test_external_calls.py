"""What the frameworks' adapters share, without any framework."""

from __future__ import annotations

import asyncio
import functools
import importlib
import json
import logging
import sys
from datetime import timedelta
from functools import partial

import httpx
import pytest
from support.api.gate_client import Sender
from support.engine.stack import until

from turngate.bridges.external_calls import ExternalCalls, GatedCall, MayNotRun, Ran, Settled, fits
from turngate.bridges.reports import ok_of
from turngate.client import Retries, TurngateClient
from turngate.domain.errors import ConfigurationError, ConflictError, UnavailableError
from turngate.domain.tools.results import Failure, Ok
from turngate.wire.external_calls import ExternalCallView, RunOrder


async def record_of(sender: Sender, outside: ExternalCalls, name: str = "look_up", raw_input: str = "{}") -> str:
    """Ask about a call; returns its record's id."""
    return await outside.ask(GatedCall(tool_call_id="c1", name=name, input=raw_input))


async def test_i3_a_call_whose_process_died_waits_for_a_persons_word(sender: Sender) -> None:
    """The next process doesn't run a once call that a dead one started: a person says what happened, and that is its result."""
    outside = ExternalCalls(sender.client, source=sender.source, timeout=timedelta(seconds=1))
    call = await record_of(sender, outside)
    await outside.all_answers([call], wait=None)
    started = await sender.client.start_external_call(call, attempt="of-the-dead-process")
    assert started.run is not None
    ran: list[str] = []

    async def handler(_order: object) -> str:
        ran.append("again")
        return ""

    second = asyncio.create_task(outside.run(call, handler, to_report=ok_of))
    (request,) = await sender.pending()
    assert request["kind"] == "outcome"
    answer = await sender.api.decide(request, "respond", outcome="happened", args={"order": "seen"})
    assert answer.status_code == 200, answer.text
    settled = await second
    assert isinstance(settled, Settled)
    assert settled.text == '{"order":"seen"}'
    assert ran == []


async def test_i3_a_call_whose_end_cannot_be_reported_may_have_happened(sender: Sender) -> None:
    """I3: its error can't be read, or its result can't be turned into a report: a person is asked at once, nothing is raised.

    And while no one knows, the same call starts no second time without a person, though a rule allows it.
    """

    class Unreadable(Exception):  # noqa: N818 - it is only unreadable
        def __str__(self) -> str:
            raise RuntimeError

    async def raises(_order: object) -> str:
        raise Unreadable

    async def returns(_order: object) -> str:
        return ""

    def unreportable(_result: str) -> Ok:
        raise RecursionError

    for name, handler, to_report in (("raises", raises, ok_of), ("returns", returns, unreportable)):
        outside = ExternalCalls(sender.client, source=sender.source, conversation=name)
        call = await record_of(sender, outside, raw_input=json.dumps({"unreportable": name}))
        await outside.all_answers([call], wait=None)
        settled = await outside.run(call, handler, to_report=to_report)
        assert isinstance(settled, Settled)
        assert "may have taken effect" in settled.text
        (request,) = await sender.pending()
        assert request["kind"] == "outcome"
        answer = await sender.api.decide(request, "respond", outcome="tell_model")
        assert answer.status_code == 200, answer.text
    again = await record_of(
        sender, ExternalCalls(sender.client, source=sender.source), raw_input='{"unreportable":"raises"}'
    )
    repeat = asyncio.create_task(outside.run(again, returns, to_report=ok_of))
    request = await sender.decide("reject", message="Look first.")
    assert (request["kind"], request["rule"]) == ("approval", "may-have-happened")
    assert isinstance(await repeat, Settled)


@pytest.mark.exhaustive
async def test_a_call_that_may_be_repeated_goes_to_the_next_process(sender: Sender) -> None:
    """The next process runs a read whose process died at once; no one is asked."""
    outside = ExternalCalls(sender.client, source=sender.source, effects={"look_up": "read"})
    call = await record_of(sender, outside)
    await outside.all_answers([call], wait=None)
    await sender.client.start_external_call(call, attempt="of-the-dead-process")
    outcome = await outside.run(call, lambda order: asyncio.sleep(0, order.input), to_report=ok_of)
    assert outcome == Ran(result="{}")
    assert (await sender.client.get_external_call(call)).result == Ok(value={"value": "{}"})


async def test_i3_a_call_that_its_framework_cancels_is_asked_about_at_once(sender: Sender) -> None:
    """I3: long before its deadline a person is asked whether a once call happened, and the cancellation continues.

    Of one that is cancelled before its start came through, nothing happened, and no one is asked.
    """
    at_work = asyncio.Event()

    async def hangs(_order: object) -> str:
        at_work.set()
        await asyncio.sleep(3600)
        return ""

    outside = ExternalCalls(sender.client, source=sender.source, timeout=timedelta(hours=1))
    call = await record_of(sender, outside, raw_input='{"cancelled": "at work"}')
    await outside.all_answers([call], wait=None)
    running = asyncio.create_task(outside.run(call, hangs, to_report=ok_of))
    await asyncio.wait_for(at_work.wait(), 20)
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()
    (request,) = await sender.pending()
    assert request["kind"] == "outcome"
    unstarted = await outside.ask(GatedCall(tool_call_id="c2", name="look_up", input='{"cancelled": "before"}'))
    await outside.all_answers([unstarted], wait=None)
    starting = asyncio.create_task(outside.run(unstarted, hangs, to_report=ok_of))
    await asyncio.sleep(0)  # one turn of the loop: the start is on its way
    starting.cancel()
    await asyncio.wait([starting])
    view = await until(partial(done, sender, unstarted), "the report that nothing happened")
    assert isinstance(view.result, Failure)
    assert view.result.kind == "nothing_happened"


async def test_no_one_answers_in_time(sender: Sender) -> None:
    """A call whose time ran out does not run, and the model reads that no one answered."""
    outside = ExternalCalls(sender.client, source=sender.source)
    call = await record_of(sender, outside, "ship")
    (answer,) = (await outside.all_answers([call], wait=None)).values()
    assert isinstance(answer, MayNotRun)
    assert answer.text.startswith("No one answered the approval request in time")


async def test_a_call_that_is_stopped(sender: Sender) -> None:
    """A call whose record is interrupted does not run, and the model reads who stopped it and why."""
    outside = ExternalCalls(sender.client, source=sender.source)
    call = await record_of(sender, outside, "refund")
    await sender.pending()
    await sender.client.interrupt(call, reason="Closing time.")
    (answer,) = (await outside.all_answers([call], wait=None)).values()
    assert isinstance(answer, MayNotRun)
    assert "Closing time." in answer.text
    assert sender.source in answer.text


async def test_another_call_under_the_same_id(sender: Sender) -> None:
    """An answer belongs to the call and tool that were displayed: another call with the same id is refused (I6)."""
    outside = ExternalCalls(sender.client, source=sender.source)
    assert await record_of(sender, outside) == await record_of(sender, outside)
    with pytest.raises(ConflictError) as refused:
        await record_of(sender, outside, "delete_shop")
    assert refused.value.error_code == "call_id_reused"
    another = ExternalCalls(sender.client, source=sender.source, conversation="43")
    assert await record_of(sender, another, "delete_shop")


async def test_a_tool_that_turngate_cannot_describe(sender: Sender) -> None:
    """A tool whose name Turngate can't take stops the program with the reason, before anyone is asked."""
    with pytest.raises(ConfigurationError, match=r"tool 'shop\.refund' cannot be gated: name: "):
        await record_of(sender, ExternalCalls(sender.client, source=sender.source), "shop.refund")


def test_i6_other_arguments_than_were_approved_do_not_run() -> None:
    """What a framework would run is compared with what was approved as JSON, not as text."""
    order = RunOrder(tool_name="refund", input='{"cents": 1e2}', edited=True, idempotency_key="k", deadline_at="")
    fits(order, {"cents": 100})
    with pytest.raises(ConflictError, match="nothing ran"):
        fits(order, {"cents": 101})


async def test_a_report_that_is_not_taken_does_not_lose_the_result(
    sender: Sender, caplog: pytest.LogCaptureFixture
) -> None:
    """A tool that ran keeps its result when the report is refused. The log says so, and a person is asked what happened (I3)."""
    outside = ExternalCalls(sender.client, source=sender.source)
    call = await record_of(sender, outside, raw_input='{"report": "untrue"}')
    await outside.all_answers([call], wait=None)

    def untrue(_result: str) -> Failure:
        return Failure(kind="rejected", reason="No program may say this of a person.")

    with caplog.at_level(logging.WARNING):
        outcome = await outside.run(call, lambda _order: asyncio.sleep(0, "done"), to_report=untrue)
    assert outcome == Ran(result="done")
    assert "could not be reported as it is" in caplog.text
    view = await sender.client.get_external_call(call)
    assert view.state == "unknown"
    outcome_requests = await sender.api.operator.get("/api/v1/requests", params={"kind": "outcome", "run_id": call})
    assert "The call ran, and its result is not recorded: " in outcome_requests.text


DEEP: object = functools.reduce(lambda inner, _level: [inner], range(150), "deep")


async def test_i5_a_result_of_any_size_and_content_ends_its_call(sender: Sender) -> None:
    """The program continues with the whole; the record has it or, if it is too large or too deep, a part and its digest."""
    outside = ExternalCalls(sender.client, source=sender.source)
    for number, result in enumerate(
        ["x" * 3_000_000, "\N{GRINNING FACE}" * 900_000, "y" * 6_000_000, DEEP, "half \ud83d", "\x00", float("inf")]
    ):
        call = await outside.ask(GatedCall(tool_call_id=f"c{number}", name="look_up", input="{}"))
        await outside.all_answers([call], wait=None)
        outcome = await outside.run(call, partial(returning, result), to_report=ok_of)
        assert outcome == Ran(result=result)
        view = await until(partial(done, sender, call), f"the end of call {number}")
        assert isinstance(view.result, Ok), number
        if view.result.value.get("truncated"):
            assert len(str(view.result.value["result_id"])) == 64, number
    assert view.result == Ok(value={"value": "Infinity"})


async def returning(result: object, _order: RunOrder) -> object:
    return result


async def done(sender: Sender, call: str) -> ExternalCallView | None:
    view = await sender.client.get_external_call(call)
    return view if view.state == "done" else None


async def test_the_api_may_be_away_while_people_think(sender: Sender) -> None:
    """Restarting the API while a call waits does not end the wait."""
    away = 2

    async def through(request: httpx.Request) -> httpx.Response:
        nonlocal away
        if request.method == "GET" and away:
            away -= 1
            raise httpx.ConnectError("no server there")
        async with httpx.AsyncClient(trust_env=False, timeout=30) as real:
            answer = await real.request(request.method, request.url, headers=request.headers, content=request.content)
            return httpx.Response(
                answer.status_code, content=answer.content, headers={"content-type": "application/json"}
            )

    token = sender.client._http.headers["Authorization"].removeprefix("Bearer ")
    async with TurngateClient(
        sender.api.url, token=token, retries=Retries(attempts=1), transport=httpx.MockTransport(through)
    ) as client:
        outside = ExternalCalls(client, source=sender.source)
        with pytest.raises(UnavailableError):
            await client.get_external_call("run_x")
        call = await record_of(sender, outside)
        assert list(await outside.all_answers([call], wait=timedelta(seconds=10))) == [call]
    assert away == 0


@pytest.mark.parametrize(
    ("adapter", "package", "extra"),
    [
        ("pydantic_ai_adapter", "pydantic_ai.capabilities", "pydantic-ai"),
        ("langchain_adapter", "langchain.agents.middleware", "langchain"),
        ("openai_agents_adapter", "agents", "openai-agents"),
    ],
)
def test_a_missing_package_is_named(adapter: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An adapter without its framework says which extra to install."""
    name = f"turngate.bridges.{adapter}"
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigurationError, match=rf"the extra '{extra}' is not installed"):
        importlib.import_module(name)


@pytest.mark.parametrize(
    ("returned", "reported"),
    [
        ({"a": 1}, {"a": 1}),
        ("text", {"value": "text"}),
        (None, {"value": None}),
        (b"\xff", {"value": "_w=="}),
        (float("nan"), {"value": "NaN"}),
        ({1}, {"value": [1]}),
        (timedelta(days=1), {"value": "P1D"}),
    ],
)
def test_whatever_a_tool_returns_can_be_reported(returned: object, reported: dict[str, object]) -> None:
    """A report is a JSON object, whatever Python value a tool returned."""
    assert ok_of(returned).value == reported
