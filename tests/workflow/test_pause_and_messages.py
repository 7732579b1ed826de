"""Steering: a run is paused and resumed; a message to a live run is read before its next step, or answered after it."""

from __future__ import annotations

import asyncio

import pytest
from support.engine.stack import ListModel, Script, Stack, call, says, stack, until
from support.engine.tools import Bench
from support.stores.database_faults import Fault, Faults
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from turngate import Agent, Limits, Toolkit
from turngate.activities.close_step import CloseStep
from turngate.approvals_api.principal import Principal
from turngate.approvals_api.recovery.redelivery import redeliver_earlier
from turngate.approvals_api.requests.views import request_detail
from turngate.approvals_api.runs import control, send_message, start
from turngate.approvals_api.runs import views as run_views
from turngate.approvals_api.runs.send_message import Sent
from turngate.domain.contract import CloseStepInput
from turngate.domain.conversation.history import is_reconciled
from turngate.domain.conversation.messages import ModelResponse
from turngate.domain.errors import ConfigurationError, ConflictError, GoneError
from turngate.domain.tools.results import Failure, Ok
from turngate.models.port import ModelRequest
from turngate.store import evidence
from turngate.store.clock import now
from turngate.store.database import Database
from turngate.store.events import events
from turngate.store.live import sent_messages
from turngate.store.requests import requests
from turngate.store.runs import queued_messages, runs
from turngate.store.tables import metadata
from turngate.wire.orders import MessageOrder

PERSON = Principal(name="ada", via="session", scopes=frozenset({"runs:write", "requests:read", "requests:decide"}))
PAY = call("pay", '{"cents": 5}', "p")


async def stored(engine: Stack, run_id: str) -> runs.Run:
    async with engine.database.read() as conn:
        row = await runs.get(conn, run_id)
    assert row is not None
    return row


async def send(engine: Stack, run: runs.Run, text: str, how: str | None = None, *, key: str | None = None) -> Sent:
    message = MessageOrder.model_validate({"input": text, "while_running": how})
    return await send_message.send(engine.services, PERSON, run.id, message, idempotency_key=key)


async def held(engine: Stack, run: runs.Run, *, is_held: bool = True) -> None:
    async def look() -> bool:
        return ((await stored(engine, run.id)).paused_at is not None) is is_held

    await until(look, f"run that is {'held' if is_held else 'resumed'}")


async def next_run(engine: Stack, run: runs.Run) -> runs.Run:
    """The run of the conversation that lives after this one, once there is one."""

    async def look() -> runs.Run | None:
        async with engine.database.read() as conn:
            siblings = [each for each in await runs.page(conn, limit=50) if each.conversation_id == run.conversation_id]
        return next((each for each in siblings if each.id != run.id), None)

    return await until(look, "next run")


async def user_texts(engine: Stack, run: runs.Run) -> list[str]:
    return [message.text for message in await engine.history(run) if message.role == "user"]


async def test_a_held_run_finishes_what_runs_and_starts_nothing_new(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """What runs comes to its end; an approved call waits, and one that gets the place of the first; the model is not asked.

    Resumed, all of it continues (I1).
    """
    step = says("All.", call("slow", "{}", "s"), call("look", '{"name": "x"}', "l"), PAY)
    model, limits = ListModel(step, says("Done.")), Limits(concurrency=1)
    async with stack(client, sqlite, bench.slow, bench.look, bench.pay, model=model, limits=limits) as engine:
        run = await engine.start()
        request = await engine.request(run)
        await asyncio.wait_for(bench.started.wait(), 60)
        await control.pause(engine.services, PERSON, run.id, reason="lunch")
        await held(engine, run)
        await engine.decide(request, "approve")
        bench.release.set()
        await engine.event(run, "execution.finished")
        await engine.idle(run)
        assert (await engine.results(run)) == {"s": Ok(value={"value": "whole"}), "l": None, "p": None}
        assert (bench.looked, bench.paid, len(model.seen)) == ([], [], 1)
        now = await stored(engine, run.id)
        assert (now.status, now.paused_by, now.pause_reason) == ("running", "ada", "lunch")
        await control.resume(engine.services, PERSON, run.id)
        assert (await engine.ended(run)).status == "completed"
        assert (bench.looked, bench.paid) == (["x"], [5])
        assert (await stored(engine, run.id)).paused_at is None
        assert is_reconciled(await engine.history(run))
        logged = [
            (each.type, each.payload.get("by")) for each in await engine.events(run) if each.type.startswith("run.")
        ]
        assert logged[1:3] == [("run.paused", "ada"), ("run.resumed", "ada")]


@pytest.mark.exhaustive
async def test_repeats_change_nothing_and_the_last_word_counts(client: Client, sqlite: Database, bench: Bench) -> None:
    """Pausing twice is pausing once; resuming a running run does nothing; pause, resume, pause in a row ends paused."""
    async with stack(client, sqlite, bench.pay, model=Script(says("Pay.", PAY), says("Done."))) as engine:
        run = await engine.start()
        request = await engine.request(run)
        await control.resume(engine.services, PERSON, run.id)
        for _ in range(2):
            await control.pause(engine.services, PERSON, run.id)
        await control.resume(engine.services, PERSON, run.id)
        await control.pause(engine.services, PERSON, run.id)

        async def look() -> bool:
            return [each.type for each in await engine.events(run)].count("run.paused") == 2

        await until(look, "second pause")
        await engine.idle(run)
        event_types = [each.type for each in await engine.events(run) if each.type in {"run.paused", "run.resumed"}]
        assert event_types == ["run.paused", "run.resumed", "run.paused"]
        await engine.interrupt(run)
        assert (await engine.ended(run)).status == "interrupted"
        assert (await engine.closed(run)).name == "COMPLETED"
        assert request.id not in {each.id for each in await _pending(engine)}
        with pytest.raises(ConflictError, match="ended already"):
            await control.pause(engine.services, PERSON, run.id)


async def _pending(engine: Stack) -> list[requests.ListedRequest]:
    async with engine.database.read() as conn:
        return await requests.page(conn, limit=50)


async def test_i8_a_pause_outlives_continue_as_new_and_a_worker(client: Client, sqlite: Database, bench: Bench) -> None:
    """A run that is paused while its step closes stays paused after continue-as-new, and on another worker."""
    model = ListModel(says("Slow.", call("slow", "{}", "s")), says("Done."))
    async with stack(client, sqlite, bench.slow, model=model, working=False) as engine:
        async with engine.worker():
            run = await engine.start()
            await asyncio.wait_for(bench.started.wait(), 60)
            await control.pause(engine.services, PERSON, run.id)
            await held(engine, run)
            bench.release.set()
            await engine.event(run, "execution.finished")
            await engine.idle(run)
        async with engine.worker():
            await engine.idle(run)
            assert len(model.seen) == 1
            await control.resume(engine.services, PERSON, run.id)
            assert (await engine.ended(run)).status == "completed"


@pytest.mark.exhaustive
async def test_a_queued_message_is_answered_by_a_run_of_its_own(client: Client, sqlite: Database, bench: Bench) -> None:
    """It waits for the end, then the conversation continues with it: same agent, one live run at a time, in order."""
    model = ListModel(says("Pay.", PAY), says("Paid."), says("First."), says("Second."))
    async with stack(client, sqlite, bench.pay, model=model) as engine:
        run = await engine.start()
        request = await engine.request(run)
        sent = await send(engine, run, "and then?", key="k1")
        again = await send(engine, run, "and then?", key="k1")
        assert sent.message is not None
        assert again.message is not None
        assert (sent.run.id, sent.message.id) == (run.id, again.message.id)
        await send(engine, run, "and after that?")
        with pytest.raises(ConflictError, match="another message"):
            await send(engine, run, "something else", key="k1")
        assert await user_texts(engine, run) == ["go"]
        await engine.decide(request, "approve")
        assert (await engine.ended(run)).status == "completed"
        second = await next_run(engine, run)
        assert (second.task, second.started_by, second.agent, second.parent_run_id) == (
            "and then?",
            "ada",
            "agent",
            None,
        )
        assert (await engine.ended(second)).status == "completed"

        async def third() -> runs.Run | None:
            async with sqlite.read() as conn:
                every = await runs.page(conn, limit=50)
            return next((each for each in every if each.task == "and after that?"), None)

        last = await engine.ended(await until(third, "third run"))
        assert await user_texts(engine, last) == ["go", "and then?", "and after that?"]
        assert is_reconciled(await engine.history(last))
        late = await send(engine, run, "and then?", key="k1")
        assert (late.run.id, late.message is not None) == (second.id, True)
        assert len(model.seen) == 4


async def test_an_injected_message_is_read_before_the_next_step(client: Client, sqlite: Database, bench: Bench) -> None:
    """It comes after the results of the current step, and the model's next request ends with it (I1).

    The agent's own word counts when the sender says none.
    """
    model, kit = ListModel(says("Pay.", PAY), says("Done.")), Toolkit.of(bench.pay)
    prompt = Agent(name="prompt", instructions="", toolkit=kit, model="scripted:test", while_running="inject")
    async with stack(client, sqlite, model=model, agents=[prompt]) as engine:
        run = await engine.start(agent="prompt")
        request = await engine.request(run)
        for text, how in (("but hurry", "inject"), ("and be polite", None)):
            sent = (await send(engine, run, text, how)).message
            assert sent is not None
            assert sent.while_running == "inject"
        assert len(await _waiting(engine, run)) == 2
        await engine.decide(request, "approve")
        assert (await engine.ended(run)).status == "completed"
        assert [message.role for message in model.seen[1].messages[-4:]] == ["assistant", "tool", "user", "user"]
        assert [message.text for message in model.seen[1].messages[-2:]] == ["but hurry", "and be polite"]
        assert (await _waiting(engine, run), bench.paid) == ([], [5])
        async with sqlite.read() as conn:
            detail = await run_views.run_detail(conn, run.id)
        assert [[(message.sent_by, message.text) for message in step.told] for step in detail.steps] == [
            [],
            [("ada", "but hurry"), ("ada", "and be polite")],
        ]
        assert is_reconciled(await engine.history(run))


async def _waiting(engine: Stack, run: runs.Run) -> list[queued_messages.QueuedMessage]:
    async with engine.database.read() as conn:
        return await queued_messages.waiting(conn, run.id)


async def test_a_superseding_message_ends_what_waits(client: Client, sqlite: Database, bench: Bench) -> None:
    """The request is superseded, its call closed as such, a decision about it is refused, and the model reads the message."""
    model = ListModel(
        says("Pay.", PAY, call("look", '{"name": "x"}', "l")),
        says("Another.", call("pay", '{"cents": 7}', "q")),
        says("Done."),
    )
    async with stack(client, sqlite, bench.pay, bench.look, model=model) as engine:
        run = await engine.start()
        request = await engine.request(run)
        await send(engine, run, "not that one, pay 7", "supersede")

        second = await engine.request(run, request)
        async with sqlite.read() as conn:
            first = await requests.get(conn, request.id)
        assert first is not None
        assert (first.status, first.decided_by) == ("superseded", None)
        assert await latest_message(engine, request) is None
        assert await latest_message(engine, second) == "not that one, pay 7"
        closed = (await engine.results(run))["p"]
        assert isinstance(closed, Failure)
        assert (closed.kind, closed.fields["by"]) == ("cancelled", "ada")
        assert model.seen[1].messages[-1].text == "not that one, pay 7"
        with pytest.raises(GoneError, match="newer message"):
            await engine.decide(request, "approve")
        await engine.decide(second, "reject", message="no")
        await engine.ended(run)
        assert bench.paid == []
        assert is_reconciled(await engine.history(run))


async def latest_message(engine: Stack, request: requests.Request) -> str | None:
    """What the request says that a person last said, beside the task."""
    async with engine.database.read() as conn:
        latest = (await request_detail(conn, request.id)).latest_message
    return None if latest is None else latest.text


async def test_what_a_response_on_its_way_asks_for_is_superseded_too(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """The message came while the model was thinking: its calls are superseded as soon as they are requested."""
    requested, answer = asyncio.Event(), asyncio.Event()

    async def think(request: ModelRequest) -> ModelResponse:
        if request.messages[-1].text == "never mind":
            return says("Done.")
        requested.set()
        await answer.wait()
        return says("Pay.", PAY)

    async with stack(client, sqlite, bench.pay, model=Script(think)) as engine:
        run = await engine.start()
        await asyncio.wait_for(requested.wait(), 60)
        await send(engine, run, "never mind", "supersede")
        answer.set()
        request = await superseded(engine, run)
        assert (request.status, bench.paid) == ("superseded", [])
        assert (await engine.ended(run)).status == "completed"


async def superseded(engine: Stack, run: runs.Run) -> requests.Request:
    async def look() -> requests.Request | None:
        return next((each for each in await engine.requests_of(run) if each.status != "pending"), None)

    return await until(look, "request that ended")


async def test_what_comes_too_late_for_a_next_step_starts_the_next_run(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """A message to inject that no step takes any more is answered after the run, also after one that was interrupted."""
    async with stack(client, sqlite, bench.pay, model=ListModel(says("Pay.", PAY), says("Answered."))) as engine:
        run = await engine.start()
        await engine.request(run)
        await send(engine, run, "are you there?", "inject")
        await engine.interrupt(run)
        assert (await engine.ended(run)).status == "interrupted"
        second = await next_run(engine, run)
        assert (await engine.ended(second)).status == "completed"
        assert (await engine.history(second))[-1].text == "Answered."


async def test_i5_a_repeated_close_finds_the_next_run_again(client: Client, sqlite: Database, bench: Bench) -> None:
    """The answer of the attempt that ended the run was lost: the next attempt names the same next run, and makes no second."""
    async with stack(client, sqlite, bench.pay, model=ListModel(says("Pay.", PAY)), working=False) as engine:
        run = await engine.start()
        await send(engine, run, "and then?")
        order = CloseStepInput(run_id=run.id, status="failed", reason="gone", at=now(), error_class="bug")
        closing = CloseStep(engine.engine)
        first = await ActivityEnvironment().run(closing.close_step, order)
        second = await ActivityEnvironment().run(closing.close_step, order)
        assert first.next is not None
        assert first == second
        assert (await next_run(engine, run)).id == first.next.run_id
        async with sqlite.read() as conn:
            assert len(await runs.page(conn, limit=9)) == 2


async def test_i5_a_message_outlives_the_api_that_took_it(client: Client, sqlite: Database, bench: Bench) -> None:
    """The message was stored, and the process died before it signalled the run: the next process does so at its start."""
    model = ListModel(says("Pay.", PAY), says("Done."))
    async with stack(client, sqlite, bench.pay, model=model) as engine:
        run = await engine.start()
        await engine.request(run)
        async with sqlite.write() as conn:
            await queued_messages.add(
                conn,
                queued_messages.QueuedMessage(
                    id="msg_kept",
                    run_id=run.id,
                    text="never mind",
                    while_running="supersede",
                    sent_by="ada",
                    fingerprint="",
                ),
                run.nonce,
            )
        await redeliver_earlier(engine.services)
        assert (await engine.ended(run)).status == "completed"
        assert model.seen[1].messages[-1].text == "never mind"
        assert bench.paid == []


async def test_i15_a_message_that_no_one_sent_is_refused(client: Client, sqlite: Database, bench: Bench) -> None:
    """I15: one that was added, changed, or set back to waiting in the database steers no run, opens none, and the log says so.

    What was really sent to the same run is taken.
    """
    model = ListModel(says("Pay.", PAY), says("Done."), says("Again."), says("Never."))
    async with stack(client, sqlite, bench.pay, model=model, tampered="rows of messages are written") as engine:
        run = await engine.start()
        request = await engine.request(run)
        await send(engine, run, "really", "inject")
        changed = (await send(engine, run, "changed", "inject")).message
        follows = (await send(engine, run, "again", "queue")).message
        assert changed is not None
        assert follows is not None
        table = metadata.tables["queued_messages"]
        async with sqlite.write() as conn:
            row = dict((await conn.execute(table.select().where(table.c.id == changed.id))).mappings().one())
            for how in ("queue", "inject", "supersede"):
                planted = {**row, "id": f"msg_{how}", "text": "planted", "while_running": how, "sent_by": "otto"}
                await conn.execute(table.insert().values(planted | {"created_at": "2026-01-01T00:00:00.000000+00:00"}))
            await conn.execute(table.update().where(table.c.id == changed.id).values(sent_by="otto"))
        await redeliver_earlier(engine.services)
        async with sqlite.read() as conn:
            assert (await requests.get(conn, request.id) or request).status == "pending"
        await engine.decide(request, "approve")
        following = await next_run(engine, run)
        assert (following.started_by, following.input_message_id) == ("ada", follows.id)
        assert (await engine.ended(following)).status == "completed"
        assert await user_texts(engine, following) == ["go", "really", "again"]
        refused = [each.payload["message_id"] for each in await engine.events(run) if each.type == "message.refused"]
        assert sorted(refused) == sorted(["msg_queue", "msg_inject", "msg_supersede", changed.id])
        async with sqlite.read() as conn:
            assert "queued_messages msg_" in str(await evidence.first_difference(conn, run.id))
            assert await evidence.first_difference(conn, following.id) is None
        async with sqlite.write() as conn:
            await conn.execute(table.update().where(table.c.id == follows.id).values(taken_at=None))
            assert await sent_messages.waiting(conn, following) == []


@pytest.mark.exhaustive
async def test_a_message_to_a_run_that_has_ended_starts_the_next_one(
    client: Client, database: Database, bench: Bench
) -> None:
    """As ever; and of many that are sent at the end's very moment none is lost, and one run lives at a time."""
    model = ListModel(says("Done."))
    async with stack(client, database, bench.look, model=model) as engine:
        run = await engine.start()
        texts = [f"message {number}" for number in range(6)]
        await asyncio.gather(*(send(engine, run, text, "queue") for text in texts))

        async def answered() -> bool:
            async with database.read() as conn:
                every = await runs.page(conn, limit=50)
                waiting = [await queued_messages.waiting(conn, each.id) for each in every]
            return not any(waiting) and all(each.status == "completed" for each in every) and len(every) == 7

        await until(answered, "answers to all")
        async with database.read() as conn:
            every = await runs.page(conn, limit=50)
            assert sorted(each.task for each in every) == sorted(["go", *texts])
            for each in every:
                assert await events.chain_break(conn, each.id) is None


def test_an_agent_declares_what_a_live_run_does_with_messages(bench: Bench) -> None:
    """One of three words; another is refused where it is declared, with the words there are."""
    agent = Agent(name="a", instructions="", toolkit=Toolkit.of(bench.look), model="scripted:x", while_running="inject")
    assert agent.while_running == "inject"
    with pytest.raises(ConfigurationError, match="queue, inject, supersede"):
        Agent(name="a", instructions="", toolkit=Toolkit.of(bench.look), model="scripted:x", while_running="drop")  # type: ignore[arg-type]


async def test_a_run_that_has_not_begun_can_be_interrupted(client: Client, sqlite: Database, bench: Bench) -> None:
    """Between its record and its workflow's start a run takes orders, too: they are rows. Nothing of it starts then."""
    recorded = Fault("start_ordered", kind="write")
    async with stack(client, sqlite, bench.pay, model=ListModel(says(PAY), says("Done."))) as engine:
        with Faults(sqlite, recorded):
            starting = asyncio.create_task(engine.start())
            await recorded.reached.wait()
            starting.cancel()
        async with sqlite.read() as conn:
            (run,) = await runs.page(conn, limit=9)
        for order in (control.pause, control.resume, control.interrupt):
            await order(engine.services, PERSON, run.id)
        assert await start.start_recorded(engine.services) == 1
        ended = await engine.ended(run)
        assert (ended.status, ended.ended_by, ended.step) == ("interrupted", PERSON.name, 0)
