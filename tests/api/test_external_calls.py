"""Calls that another program runs: the gate without the handler, from the sender's side, over the real API and engine."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from support.api.api_server import TextScript, api_on, pay, token_for
from support.engine.stack import stack, until
from temporalio.client import Client

from turngate.approvals_api.gateway.client import Gateway
from turngate.client import TurngateClient
from turngate.domain.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from turngate.domain.policy.policy import Policy, Rule
from turngate.domain.tools.external import MAX_MESSAGE_CHARS, ExternalMessage, ExternalTool, message, within_bounds
from turngate.domain.tools.results import Failure, Ok
from turngate.store.clock import as_text, now
from turngate.store.database import Database
from turngate.store.events import events
from turngate.store.runs import external_calls, runs
from turngate.text.run_words import lead_lines
from turngate.wire.external_calls import ExternalCallView, ExternalState
from turngate.wire.orders import DecisionOrder, ExternalCallOrder
from turngate.wire.requests import RequestDetail

SCHEMA = {"type": "object", "properties": {"cents": {"type": "integer"}}, "required": ["cents"]}
POLICY = Policy(
    rule=[
        Rule(name="no-drops", verdict="deny", tools=["drop"], reason="Never."),
        Rule(name="looks", verdict="allow", tools=["look"]),
        Rule(name="one", verdict="ask", tools=["brief"], expires_after_seconds=1),
    ]
)


class Outside:
    """A program that runs tools itself, and the operator it waits for."""

    def __init__(self, sender: TurngateClient, operator: TurngateClient, database: Database) -> None:
        self.sender = sender
        self.operator = operator
        self.database = database

    async def send(
        self,
        name: str = "refund",
        raw_input: str = '{"cents": 5}',
        *,
        wait: int = 0,
        call_id: str = "",
        turn: str | None = "",
        source: str = "shop",
        parameters: dict[str, Any] = SCHEMA,
        conversation: tuple[ExternalMessage, ...] = (),
        context: str = "The customer asked for it.",
        **tool: Any,
    ) -> ExternalCallView:
        """With an empty ``turn``, the call has a turn of its own, so that it repeats no other test's."""
        order = ExternalCallOrder(
            source=source,
            tool_call_id=call_id or secrets.token_hex(6),
            tool=ExternalTool(name=name, parameters=parameters, **tool),
            input=raw_input,
            context=context,
            conversation=conversation,
            turn=secrets.token_hex(6) if turn == "" else turn,
        )
        return await self.sender.send_external_call(order, wait=wait)

    async def become(self, call: ExternalCallView, state: ExternalState) -> ExternalCallView:
        async def look() -> ExternalCallView | None:
            call_now = await self.sender.get_external_call(call.id)
            return call_now if call_now.state == state else None

        return await until(look, f"call {state}")

    async def request_of(self, call: ExternalCallView, state: ExternalState = "waiting") -> RequestDetail:
        call_now = await self.become(call, state)
        assert call_now.request is not None
        return await self.operator.get_request(call_now.request.id)

    async def decide(self, call: ExternalCallView, verb: Any = "approve", **more: Any) -> None:
        request = await self.request_of(call)
        await self.operator.decide(request.id, DecisionOrder(verb=verb, digest=request.digest, **more))

    async def event_types(self, call: ExternalCallView) -> list[str]:
        async with self.database.read() as conn:
            return [event.type for event in await events.after(conn, 0, run_id=call.id)]


@pytest.fixture(scope="session")
async def outside(client: Client, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Outside]:
    database = Database(f"sqlite:///{tmp_path_factory.mktemp('outside')}/turngate.db")
    await database.migrate()
    async with (
        stack(client, database, pay, model=TextScript(), policy=POLICY) as engine,
        api_on(engine, Gateway(client)) as api,
    ):
        sending = await token_for(database, "shop-bot", "runs:write", "requests:read")
        deciding = await token_for(database, "ada", "requests:read", "requests:decide")
        bearer = [headers["Authorization"].removeprefix("Bearer ") for headers in (sending, deciding)]
        async with (
            TurngateClient(api.url, token=bearer[0]) as sender,
            TurngateClient(api.url, token=bearer[1]) as operator,
        ):
            yield Outside(sender, operator, database)
    await database.close()


@pytest.mark.exhaustive
async def test_an_approved_call_is_handed_out_byte_for_byte(outside: Outside) -> None:
    """It waits in the ordinary inbox with its source's name; after the approval the sender gets its bytes, and reports."""
    call = await outside.send(raw_input='{"cents":  5}')
    request = await outside.request_of(call)
    assert (request.agent, request.tool_name, request.input) == ("external-shop", "refund", '{"cents":  5}')
    assert request.agent_words == "The customer asked for it."
    waiting = asyncio.create_task(outside.sender.get_external_call(call.id, wait=10))
    await outside.operator.decide(request.id, DecisionOrder(verb="approve", digest=request.digest))
    assert (await waiting).state == "ready"
    explained = await outside.operator.explain_run(call.id)
    assert explained.cause == "refund may run, but 'shop', which runs it, has not started it."
    started = await outside.sender.start_external_call(call.id, attempt="attempt-1")
    assert started.run is not None
    assert (started.run.input, started.run.edited, started.call.state) == ('{"cents":  5}', False, "running")
    result = Ok(value={"paid": 5})
    for _again in range(2):
        done = await outside.sender.report_external_call(call.id, attempt="attempt-1", result=result)
        assert (done.state, done.result) == ("done", result)
    with pytest.raises(ConflictError) as refused:
        await outside.sender.report_external_call(call.id, attempt="attempt-1", result=Ok(value={"paid": 6}))
    assert refused.value.error_code == "reported"

    async def ended() -> runs.Run | None:
        async with outside.database.read() as conn:
            run = await runs.get(conn, call.id)
        return run if run is not None and run.status == "completed" else None

    await until(ended, "end of the run")
    types = await outside.event_types(call)
    assert [types.count(each) for each in ("request.opened", "execution.started", "execution.finished")] == [1, 1, 1]


async def test_a_program_tells_what_led_to_its_call(outside: Outside) -> None:
    """People see task, newest message and where values come from, all marked as the program's words; no rule believes them."""
    conversation = (
        message("person", "Refund order A-117."),
        message("tool", '{"order": "A-117", "cents": 4900}', tool="look.up"),
        message("person", "Be quick."),
        message("tool", "half \ud83d \x00"),
    )
    fields = {"cents": {"type": "integer"}, "order": {"type": "string"}}
    schema = {"type": "object", "properties": fields}
    call = await outside.send(
        raw_input='{"cents": 4900, "order": "A-119"}',
        conversation=conversation,
        parameters=schema,
        call_id="with-conversation",
    )
    request = await outside.request_of(call)
    assert [(each.agent, each.task) for each in request.tasks] == [("external-shop", "Refund order A-117.")]
    assert request.latest_message is not None
    assert request.latest_message.text == "Be quick."
    assert lead_lines(request.tasks, request.latest_message) == [
        ("the task, as shop tells it", "Refund order A-117."),
        ("a person last said, as shop tells it", "Be quick."),
    ]
    assert request.origins is not None
    words = {each.at: (each.words, each.doubt) for each in request.origins.items}
    assert words["/cents"] == ("the result of look_up of the agent external-shop", None)
    assert words["/order"][1] == "nowhere"
    again = await outside.send(
        raw_input='{"cents": 4900, "order": "A-119"}',
        parameters=schema,
        call_id="with-conversation",
        turn=None,
        conversation=conversation[:1],
    )
    assert again.id == call.id
    without = await outside.request_of(await outside.send())
    assert (without.tasks, without.latest_message, without.origins) == ([], None, None)
    with pytest.raises(InvalidInputError, match="200,000"):
        await outside.send(conversation=(message("person", "x" * MAX_MESSAGE_CHARS),) * 11)


def test_a_conversation_of_any_length_can_be_sent() -> None:
    """What the program was asked first is kept, and the newest messages."""
    long = [message("person", "first"), *(message("tool", f"{number} " + "x" * 30_000) for number in range(500))]
    sent = within_bounds(long)
    assert sent[0] == long[0]
    assert sent[1:] == tuple(long[-len(sent) + 1 :])
    assert sum(len(each.text) for each in sent) <= 200_000
    many = [message("person", str(number)) for number in range(500)]
    assert within_bounds(many) == (many[0], *many[-199:])
    assert within_bounds([]) == ()


async def test_i3_a_once_call_is_handed_out_to_one_attempt(outside: Outside) -> None:
    """Of ten attempts at once, one gets it and nine read so; the one may fetch it again, and no other's report counts."""
    call = await outside.send("look", '{"cents": 204}', wait=10)
    assert call.state == "ready"
    tries = [f"attempt-{n}" for n in range(10)]

    async def start(attempt: str) -> str | None:
        try:
            started = await outside.sender.start_external_call(call.id, attempt=attempt)
        except ConflictError as refused:
            return refused.error_code
        return attempt if started.run else None

    winners = await asyncio.gather(*map(start, tries))
    assert winners.count("already_started") + winners.count(None) == len(tries) - 1
    (winner,) = [each for each in winners if each in tries]
    assert await start(winner) == winner
    loser = next(each for each in tries if each != winner)
    with pytest.raises(ConflictError) as refused:
        await outside.sender.report_external_call(call.id, attempt=loser, result=Ok(value={}))
    assert refused.value.error_code == "not_started"
    await outside.sender.report_external_call(call.id, attempt=winner, result=Ok(value={}))
    assert (await outside.event_types(call)).count("execution.started") == 1


async def test_a_call_that_may_be_repeated_goes_to_the_last_attempt(outside: Outside) -> None:
    """After the first attempt was lost, another gets an idempotent call at once, with the same key."""
    call = await outside.send("look", wait=10, effect="idempotent")
    keys = set()
    for attempt in ("attempt-1", "attempt-2"):
        started = await outside.sender.start_external_call(call.id, attempt=attempt)
        assert started.run is not None
        keys.add(started.run.idempotency_key)
    assert len(keys) == 1
    done = await outside.sender.report_external_call(call.id, attempt="attempt-2", result=Ok(value={}))
    assert done.state == "done"


async def test_the_same_call_again_is_the_same_call(outside: Outside) -> None:
    """The id again returns the first call and its answer, whatever comes with it; with other content it is refused."""
    first = await outside.send(call_id="call_1")
    other = (ExternalMessage(author="person", text="Refund all."),)
    assert (await outside.send(call_id="call_1", context="Another word.", conversation=other)).id == first.id
    with pytest.raises(ConflictError) as refused:
        await outside.send(call_id="call_1", raw_input='{"cents": 6}')
    assert refused.value.error_code == "call_id_reused"
    request = await outside.request_of(first)
    assert request.agent_words == "The customer asked for it."
    assert "Refund all." not in request.model_dump_json()
    await outside.decide(first, "reject", message="Too much.")
    again = await outside.send(call_id="call_1", wait=10)
    assert (again.id, again.state) == (first.id, "done")
    assert isinstance(again.result, Failure)
    assert (again.result.kind, again.result.fields["operator_message"]) == ("rejected", "Too much.")


@pytest.mark.parametrize("turn", ["turn-1", None])
async def test_i12_what_a_person_rejected_is_not_asked_again(outside: Outside, turn: str | None) -> None:
    """The same call with a new id is closed with the person's words, within its turn, or for a while if it names none."""
    source = f"shop-{secrets.token_hex(3)}"
    first = await outside.send(turn=turn, source=source)
    await outside.decide(first, "reject", message="Ask for a photo.")
    for raw_input in ('{"cents": 5}', '{ "cents":5 }'):
        again = await outside.send(raw_input=raw_input, turn=turn, source=source, wait=10)
        assert isinstance(again.result, Failure)
        assert (again.result.kind, again.result.fields["repeat"], again.request) == ("rejected", True, None)
        assert (
            "no one was asked again. An operator rejected this call. They said: Ask for a photo." in again.result.reason
        )
        assert (await outside.sender.start_external_call(again.id, attempt="attempt-1")).run is None
    for call in (
        await outside.send(raw_input='{"cents": 6}', turn=turn, source=source),
        await outside.send(turn="turn-2", source=source),
        await outside.send(turn=turn, source=f"{source}-2"),
    ):
        await outside.become(call, "waiting")
    async with outside.database.read() as conn:
        last = await external_calls.get(conn, again.id)
        assert last is not None
        later = as_text(now() + timedelta(seconds=1))
        rejection = await external_calls.rejected_before(conn, last, since=later)
        assert (rejection is not None) == (turn is not None), "without a turn it applies for a while only"


async def test_i6_an_edited_call_is_handed_out_as_it_was_edited(outside: Outside) -> None:
    """The operator's text runs; arguments that do not fit the sender's schema are refused."""
    call = await outside.send()
    with pytest.raises(InvalidInputError):
        await outside.decide(call, "edit", args='{"cents": "many"}')
    await outside.decide(call, "edit", args='{"cents": 3}')
    started = await outside.sender.start_external_call(call.id, attempt="attempt-1")
    assert started.run is not None
    assert (started.run.input, started.run.edited) == ('{"cents": 3}', True)
    assert (started.call.input, started.call.edited_input) == ('{"cents": 5}', '{"cents": 3}')


@pytest.mark.parametrize(
    ("name", "raw_input", "kind"),
    [
        ("drop", '{"cents": 5}', "denied"),
        ("refund", '{"cents": "x"}', "input_validation_error"),
        ("brief", '{"cents": 5}', "expired"),
    ],
)
async def test_i2_what_is_refused_is_never_handed_out(outside: Outside, name: str, raw_input: str, kind: str) -> None:
    """Denied by a rule, not fitting its schema, unanswered in time: the call is done, and starting it returns nothing to run."""
    call = await outside.become(await outside.send(name, raw_input, wait=10), "done")
    assert getattr(call.result, "kind", None) == kind
    assert (await outside.sender.start_external_call(call.id, attempt="attempt-1")).run is None
    assert "execution.started" not in await outside.event_types(call)


async def test_i2_a_call_that_waits_cannot_be_started(outside: Outside) -> None:
    """Before the answer no attempt can redeem the call; another program's credential never gets it."""
    call = await outside.send()
    await outside.request_of(call)
    with pytest.raises(ConflictError) as refused:
        await outside.sender.start_external_call(call.id, attempt="attempt-1")
    assert refused.value.error_code == "not_ready"
    with pytest.raises(ForbiddenError):
        await outside.operator.start_external_call(call.id, attempt="attempt-1")
    with pytest.raises(NotFoundError):
        await outside.sender.start_external_call("run_nowhere", attempt="attempt-1")


async def test_i10_who_sends_calls_cannot_decide_them(outside: Outside) -> None:
    """The sender's credential is refused at the inbox."""
    call = await outside.send()
    request = await outside.request_of(call)
    with pytest.raises(ForbiddenError):
        await outside.sender.decide(request.id, DecisionOrder(verb="approve", digest=request.digest))


async def test_i3_a_once_call_without_a_report_is_asked_about(outside: Outside) -> None:
    """After its time, a person says what happened; until then it starts nowhere. A call that never happened may start again."""
    call = await outside.send("look", '{"cents": 333}', wait=10, timeout_seconds=1)
    assert (await outside.sender.start_external_call(call.id, attempt="attempt-1")).run is not None
    request = await outside.request_of(call, "unknown")
    assert request.kind == "outcome"
    with pytest.raises(ConflictError) as late:
        await outside.sender.report_external_call(call.id, attempt="attempt-1", result=Ok(value={}))
    assert late.value.error_code == "too_late"
    with pytest.raises(ConflictError) as refused:
        await outside.sender.start_external_call(call.id, attempt="attempt-2")
    assert refused.value.error_code == "not_ready"
    await outside.operator.decide(
        request.id, DecisionOrder(verb="respond", digest=request.digest, outcome="did_not_happen")
    )
    await outside.become(call, "ready")
    assert (await outside.sender.start_external_call(call.id, attempt="attempt-2")).run is not None
    done = await outside.sender.report_external_call(call.id, attempt="attempt-2", result=Ok(value={"n": 1}))
    assert done.result == Ok(value={"n": 1})


async def test_a_sender_that_does_not_know_asks_a_person_at_once(outside: Outside) -> None:
    """No deadline has to pass; only their sender sees the open calls, so that it can continue after a restart."""
    call = await outside.send("look", '{"cents": 354}', wait=10)
    await outside.sender.start_external_call(call.id, attempt="attempt-1")
    unsure = await outside.sender.report_external_call(call.id, attempt="attempt-1", result=None)
    assert unsure.state == "unknown"
    mine = [each async for each in outside.sender.iter_external_calls(source="shop", limit=1)]
    assert unsure in mine
    assert (await outside.operator.list_external_calls(source="shop")).items == []


@pytest.mark.exhaustive
async def test_a_read_without_a_report_is_a_time_out(outside: Outside) -> None:
    """No one is asked about a call that changes nothing."""
    call = await outside.send("look", wait=10, timeout_seconds=1, effect="read")
    await outside.sender.start_external_call(call.id, attempt="attempt-1")
    done = await outside.become(call, "done")
    assert isinstance(done.result, Failure)
    assert done.result.kind == "timeout"


async def test_an_interrupt_ends_a_call_that_waits(outside: Outside) -> None:
    """When its sender gives a call up, the request leaves the inbox and the call is closed."""
    call = await outside.send()
    request = await outside.request_of(call)
    await outside.sender.interrupt(call.id, reason="The client gave up.")
    done = await outside.become(call, "done")
    assert isinstance(done.result, Failure)
    assert done.result.kind == "interrupted"
    assert (await outside.operator.get_request(request.id)).status == "cancelled"


async def test_no_report_speaks_in_the_engines_name(outside: Outside) -> None:
    """A failure of the sender's own is stored as it is; a failure of a refusal's kind is rejected (I12)."""
    call = await outside.send("look", '{"cents": 386}', wait=10)
    await outside.sender.start_external_call(call.id, attempt="attempt-1")
    with pytest.raises(InvalidInputError):
        await outside.sender.report_external_call(call.id, attempt="attempt-1", result=Failure(kind="rejected"))
    own = Failure(kind="no_funds", reason="The till is empty.")
    done = await outside.sender.report_external_call(call.id, attempt="attempt-1", result=own)
    assert done.result == own


async def test_a_source_is_no_agent_to_start_or_send_messages_to(outside: Outside) -> None:
    """Only a call from outside creates such a run."""
    with pytest.raises(InvalidInputError):
        await outside.sender.start_run(agent="external-shop", text="go")
    call = await outside.send("look", wait=10)
    with pytest.raises(ConflictError):
        await outside.sender.send_message(call.id, "and then?")


async def test_a_schema_that_cannot_be_used_is_refused(outside: Outside) -> None:
    """It would be no gate, because arguments are checked before anyone is asked."""
    unreadable = {"type": "object", "patternProperties": {"^(?=a)": {}}}
    for schema in (
        {"type": "string"},
        {"type": "object", "properties": 5},
        {"type": "object", "$ref": "http://x/y"},
        unreadable,
    ):
        tool = ExternalTool(name="t", parameters=schema)
        order = ExternalCallOrder(source="shop", tool_call_id="c", tool=tool, input="{}")
        with pytest.raises(InvalidInputError):
            await outside.sender.send_external_call(order)


async def test_i14_a_pattern_from_outside_stops_no_process(outside: Outside) -> None:
    """A backtracking engine would try this pattern for years, in the API and then in each worker. Here the call is done."""
    parameters = {"type": "object", "properties": {"x": {"pattern": "^(a+)+$"}}}
    call = await outside.send("t", json.dumps({"x": "a" * 40 + "X"}), parameters=parameters, wait=10)
    assert (call.state, getattr(call.result, "kind", None)) == ("done", "input_validation_error")
