"""The life of a gated call, on the real server with the cache off: approve, edit, reject, respond, expire, interrupt."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import timedelta

import pytest
from pydantic import ValidationError, field_validator
from sqlalchemy import delete
from support.engine.stack import (
    OPERATOR,
    STARTER,
    ListModel,
    Script,
    call,
    person,
    require_no_difference,
    says,
    stack,
    until,
)
from support.engine.tools import Amount, Bench
from support.stores.encryption import ALSO_ENCRYPTED
from temporalio.client import Client

from turngate import Limits, Policy, Rule, ToolContext, interaction_tool, tool
from turngate.approvals_api.principal import OPERATOR_SCOPES, Principal
from turngate.domain.conversation.history import is_reconciled
from turngate.domain.conversation.messages import Message, user_message
from turngate.domain.digest import call_digest
from turngate.domain.errors import ConflictError, ForbiddenError, GoneError, InvalidInputError
from turngate.domain.tools.results import Failure, Ok
from turngate.store.database import Database
from turngate.store.requests import requests
from turngate.store.runs import messages
from turngate.store.tables import published_policies


class Even(Amount):
    """An amount with a rule that JSON Schema cannot say."""

    @field_validator("cents")
    @classmethod
    def even(cls, value: int) -> int:
        if value % 2:
            raise ValueError("must be even")
        return value


def paying(cents: int = 5) -> ListModel:
    return ListModel(says("I will pay.", call("pay", json.dumps({"cents": cents}), "c1")), says("Done."))


@ALSO_ENCRYPTED
async def test_i4_i6_i10_an_approved_call_runs_once_as_it_was_shown(
    client: Client, database: Database, bench: Bench
) -> None:
    """I4, I6, I10: what is refused changes nothing; the first decision counts once, and the bytes that were shown run.

    Refused are: another digest, an edit that does not fit the schema, and the starter where the rule bars them. The same decision
    id gets the first answer, and its signal may come any number of times. A gate holds up no other call of its step. The request
    would expire in an hour.
    """
    policy = Policy(
        rule=[
            Rule(name="four-eyes", verdict="ask", tools=["pay"], starter_may_decide=False, expires_after_seconds=3600)
        ]
    )
    raw = '{ "cents" :  7 }'
    model = ListModel(says(call("pay", raw, "c1"), call("look", '{"name": "x"}', "l")), says("Done."))
    async with stack(client, database, bench.pay, bench.look, model=model, policy=policy) as engine:
        run = await engine.start()
        await engine.event(run, "execution.finished")
        assert (bench.looked, bench.paid) == (["x"], []), "the ungated call waits for no one, the gated one does"
        request = await engine.request(run)
        with pytest.raises(ConflictError) as refused:
            await engine.decide(request, "approve", digest="0" * 64)
        assert refused.value.error_code == "digest_differs"
        with pytest.raises(InvalidInputError):
            await engine.decide(request, "edit", args='{"cents": "a lot"}', decision_id="bad-edit")
        with pytest.raises(ForbiddenError):
            await engine.decide(request, "approve", by=STARTER)
        async with database.read() as conn:
            assert await requests.decision(conn, "bad-edit") is None, "a refused edit was stored"
            assert (await requests.get(conn, request.id)) == request, "a refused decision changed the request"
        first = await engine.decide(request, "approve", decision_id="d-1")
        assert first.status == "approved"
        assert await engine.decide(request, "approve", decision_id="d-1") == first, "repeated before the run's end"
        tell = engine.services.gateway.tell_decided_again
        await asyncio.gather(*(tell(run.id, request.id) for _ in range(3)), return_exceptions=True)
        assert (await engine.ended(run)).status == "completed"
        assert await engine.decide(request, "approve", decision_id="d-1") == first, "repeated after the run's end"
        assert bench.paid == [7]
        assert (await engine.results(run))["c1"] == Ok(value={"paid": 7})
        history = await engine.history(run)
        assert [message.role for message in history] == ["user", "assistant", "tool", "assistant"]
        assert [event.type for event in await engine.events(run)] == [
            *("run.started", "step.responded", "request.opened", "execution.started", "execution.finished"),
            *("request.decided", "execution.started", "execution.finished", "step.responded", "run.ended"),
        ]
        expected = call_digest(
            tool_name="pay",
            manifest_digest=bench.pay.manifest.digest,
            raw_input=raw,
            run_id=run.id,
            tool_call_id="c1",
            policy_version=engine.engine.policy.version,
            nonce=run.nonce,
            defaults=None,
        )
        assert request.digest == expected, "what was shown is not what the model sent"
        assert (await engine.executions(run))["c1"].digest == expected, "what ran is not what was shown"


async def test_i1_i12_every_model_request_is_reconciled_and_says_who_refused(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """I1, I12: the next request has one result for each call of a step, whatever its end, and says who answered how.

    A repeat of a rejected call, in other spacing, is closed without a second request. A denial names its rule. An operator's own
    words are the tool's result, and so is the answer to a question, which must have the declared shape.
    """
    ask = interaction_tool(name="ask", description="Ask.", params=Amount, answer=Amount)
    model = ListModel(
        says(
            call("pay", '{"cents": 1}', "a"),
            call("pay", '{"cents": 2}', "b"),
            call("pay", '{"cents": "much"}', "c"),
            call("__class__", "{}", "d"),
            call("look", '{"name": "x"}', "e"),
        ),
        says(call("pay", '{"cents":2}', "f"), call("slow", "{}", "g")),
        says(call("pay", '{"cents": 3}', "h")),
        says(call("ask", '{"cents": 1}', "q")),
        says("Done."),
    )
    policy = Policy(rule=[Rule(name="no-waiting", verdict="deny", tools=["sl*"], reason="Waiting is off.")])
    tools = bench.pay, bench.look, bench.slow, ask
    async with stack(client, sqlite, *tools, model=model, policy=policy) as engine:
        run = await engine.start()
        for _ in range(2):
            request = await engine.request(run)
            is_first = '"cents": 1' in request.input
            await engine.decide(request, "approve" if is_first else "reject", message="" if is_first else "Too much.")
        await engine.decide(await engine.request(run), "respond", message="I paid it by hand.")
        question = await engine.request(run, kind="question")
        with pytest.raises(InvalidInputError):
            await engine.decide(question, "respond", args='{"cents": "x"}')
        with pytest.raises(InvalidInputError):
            await engine.decide(question, "approve")
        await engine.decide(question, "respond", args='{"cents": 3}')
        assert (await engine.ended(run)).status == "completed"
        assert all(is_reconciled(sent.messages[1:]) for sent in model.seen), "a call has no result, or two"
        results = model.seen[1].messages[-1].results
        assert [part.tool_call_id for part in results] == ["a", "b", "c", "d", "e"]
        kinds = [part.result.kind if isinstance(part.result, Failure) else "ok" for part in results]
        assert kinds == ["ok", "rejected", "input_validation_error", "unknown_tool", "ok"]
        by_call = await engine.results(run)
        rejected, repeated, denied = by_call["b"], by_call["f"], by_call["g"]
        assert rejected.fields["operator"] == "operator"
        assert "Too much." in rejected.reason
        assert (repeated.kind, repeated.fields["repeat"]) == ("rejected", True)
        assert (denied.kind, denied.fields["rule"]) == ("denied", "no-waiting")
        assert by_call["h"] == Ok(value={"operator_response": "I paid it by hand."})
        assert by_call["q"] == Ok(value={"cents": 3})
        async with sqlite.read() as conn:
            with_request = {each.tool_call_id for each in await requests.of_run(conn, run.id)}
        assert with_request == {"a", "b", "h", "q"}, "a repeat or a denied call was asked about"
        assert bench.paid == [1]
        assert set(await engine.executions(run)) == {"a", "e"}, "a refused or answered call ran"


async def test_i6_an_edit_runs_as_edited_and_leaves_the_models_call_untouched(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """I6: the edited arguments run, the model's own call stays, and the result says what ran.

    What JSON Schema lets through, the door does not (a validator that only pydantic knows): a person is asked again.
    """

    @tool(effect="once", ask=True)
    async def pay(params: Even) -> int:
        """Pay."""
        bench.paid.append(params.cents)
        return params.cents

    async with stack(client, sqlite, pay, model=paying(4)) as engine:
        run = await engine.start()
        request = await engine.request(run)
        await engine.decide(request, "edit", args='{"cents": 3}')
        again = await engine.request(run)
        assert again.id != request.id
        assert (again.input, again.digest) == (request.input, request.digest)
        assert "must be even" in again.reason
        await engine.decide(again, "edit", args='{"cents": 6}')
        await engine.ended(run)
        assert bench.paid == [6]
        history = await engine.history(run)
        assert history[1].calls[0].input == '{"cents": 4}', "the model's own call was changed"
        assert history[2].results[0].edited_input == '{"cents": 6}'
        execution = (await engine.executions(run))["c1"]
        async with sqlite.read() as conn:
            decision = await requests.decision(conn, str(execution.decision_id))
        assert decision is not None
        assert decision.digest == execution.digest != request.digest


async def test_i6_a_decision_without_a_worker_is_final_and_an_edit_passes_the_policy_of_the_day(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """I6: with no worker a decision is taken all the same. The next worker runs the call, or closes it by a newer deny rule."""
    policy = Policy.model_validate(
        {
            "rule": [
                {
                    "name": "closed",
                    "verdict": "deny",
                    "tools": ["pay"],
                    "args": [{"at": "/cents", "op": "eq", "value": 1}],
                },
                {"name": "asked", "verdict": "ask", "tools": ["pay"]},
            ]
        }
    )
    script = Script(says("I will pay.", call("pay", '{"cents": 5}', "c1")), says("Done."))
    async with stack(client, sqlite, bench.pay, model=script, working=False) as engine:
        async with engine.worker():
            run, refused = await engine.start(), await engine.start()
            request, other = await engine.request(run), await engine.request(refused)
            await engine.idle(run)
            await engine.idle(refused)
        answer = await engine.decide(request, "edit", args='{"cents": 9}', decision_id="d-9")
        assert answer.status == "approved"
        await engine.decide(other, "edit", args='{"cents": 1}')
        engine.engine = replace(engine.engine, policy=policy)
        async with engine.worker():
            assert (await engine.ended(run)).status == "completed"
            await engine.ended(refused)
        assert bench.paid == [9], "the call of the older run ran, the denied one did not"
        assert await engine.decide(request, "edit", args='{"cents": 9}', decision_id="d-9") == answer
        denied = (await engine.results(refused))["c1"]
        assert (denied.kind, denied.fields["rule"]) == ("denied", "closed")


async def test_i1_a_conversation_with_open_calls_is_repaired_before_it_is_sent(
    client: Client, sqlite: Database
) -> None:
    """I1: whatever the store contains (here a call without a result), the model gets a complete history."""
    broken = Message(role="assistant", parts=(call("gone", "{}", "old"),))
    async with sqlite.write() as conn:
        await messages.create_conversation(conn, "conv")
        place = {"conversation_id": "conv", "run_id": None, "step": None}
        await messages.append(conn, messages.NewMessage(id="m1", parent_id=None, message=user_message("hi"), **place))
        await messages.append(conn, messages.NewMessage(id="m2", parent_id="m1", message=broken, **place))
        await messages.set_head(conn, "conv", "m2")
    model = ListModel(says("Done."))
    async with stack(client, sqlite, model=model) as engine:
        run = await engine.start("and now?", conversation_id="conv")
        assert (await engine.ended(run)).status == "completed"
        sent = list(model.seen[0].messages[1:])
        assert [message.role for message in sent] == ["user", "assistant", "tool", "user"]
        assert is_reconciled(sent)


async def test_i4_one_decision_wins_and_losers_learn_who(client: Client, database: Database, bench: Bench) -> None:
    """I4: of eight concurrent decisions one wins; every other gets a conflict that names the winner."""
    async with stack(client, database, bench.pay, model=paying()) as engine:
        run = await engine.start()
        request = await engine.request(run)
        people = [Principal(name=f"p{n}", via="session", scopes=OPERATOR_SCOPES) for n in range(8)]
        verbs = ["approve", "reject"] * 4
        answers = await asyncio.gather(
            *(engine.decide(request, verb, by=person) for verb, person in zip(verbs, people, strict=True)),
            return_exceptions=True,
        )
        won = [answer for answer in answers if not isinstance(answer, BaseException)]
        lost = [answer for answer in answers if isinstance(answer, ConflictError)]
        assert (len(won), len(lost)) == (1, 7), answers
        async with database.read() as conn:
            stored = await requests.get(conn, request.id)
        assert stored is not None
        assert stored.decision_id == won[0].decision_id
        assert all(error.details["decided_by"] == stored.decided_by for error in lost), [e.details for e in lost]
        await engine.ended(run)
        assert len(bench.paid) == (1 if stored.verb == "approve" else 0)


@pytest.mark.parametrize(
    ("verb", "words"),
    [
        ("reject", {"message": "Pay 9 instead."}),
        pytest.param("respond", {"message": "Pay 9, too."}, marks=pytest.mark.exhaustive),
        pytest.param("edit", {"args": '{"cents": 6}'}, marks=pytest.mark.exhaustive),
        pytest.param("reject", {}, marks=pytest.mark.exhaustive),
    ],
)
async def test_i10_who_tells_the_agent_what_to_do_by_a_decision_counts_as_starter(
    client: Client, sqlite: Database, bench: Bench, verb: str, words: dict[str, str]
) -> None:
    """I10: who rejected a call with a reason, answered or edited it can't approve what the agent does after it has read that."""
    policy = Policy(
        rule=[
            Rule(name="four-eyes", verdict="ask", tools=["pay"], starter_may_decide=False, expires_after_seconds=3600)
        ]
    )
    model = ListModel(*(says(call("pay", f'{{"cents": {each}}}', f"c{each}")) for each in (5, 9)), says("Done."))
    async with stack(client, sqlite, bench.pay, model=model, policy=policy) as engine:
        run = await engine.start()
        await engine.decide(await engine.request(run), verb, **words)
        second = await engine.request(run)
        if words:
            with pytest.raises(ForbiddenError, match="led to this call"):
                await engine.decide(second, "approve")
        await engine.decide(second, "approve", by=person("zoe") if words else OPERATOR)
        await engine.ended(run)
        assert bench.paid[-1] == 9


async def test_concurrency_is_bounded(client: Client, sqlite: Database, bench: Bench) -> None:
    """At most ``limits.concurrency`` calls of a step run at a time; the others have not even been scheduled."""
    model = ListModel(says(*(call("slow", "{}", f"s{n}") for n in range(6))), says("Done."))
    async with stack(client, sqlite, bench.slow, model=model, limits=Limits(concurrency=2)) as engine:
        run = await engine.start()

        async def two_run() -> bool:
            return bench.running == 2

        await until(two_run, "two running tools")
        pending = (await engine.workflow(run).describe()).raw_description.pending_activities
        assert len(pending) == 2
        bench.release.set()
        await engine.ended(run)
        assert bench.most_running == 2
        assert len(await engine.executions(run)) == 6


async def test_one_at_a_time_is_the_models_order(client: Client, sqlite: Database) -> None:
    """With one slot, calls start in order; equal calls differ by their ids and keys."""
    started: list[tuple[str, str]] = []

    @tool(effect="read", ask=False)
    async def note(params: Amount, ctx: ToolContext) -> str:
        """Note."""
        started.append((ctx.tool_call_id, ctx.idempotency_key))
        return ctx.tool_call_id

    ids = ["b", "a", "c"]
    model = ListModel(says(*(call("note", '{"cents": 1}', each) for each in ids)), says("Done."))
    async with stack(client, sqlite, note, model=model, limits=Limits(concurrency=1)) as engine:
        run = await engine.start()
        await engine.ended(run)
        assert [each for each, _ in started] == ids
        assert len({key for _, key in started}) == 3
        assert (await engine.results(run))["a"] == Ok(value={"value": "a"})


async def test_i1_an_interrupt_stops_the_tool_and_closes_every_call_and_the_conversation_continues(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """Interrupt: the running handler is cancelled, gates close, each call gets its closure; the next run can continue.

    Until then a second run in the conversation is refused.
    """
    model = ListModel(
        says(call("slow", "{}", "s"), call("pay", '{"cents": 1}', "p")), says("I was interrupted; now I am done.")
    )
    async with stack(client, sqlite, bench.slow, bench.pay, model=model) as engine:
        run = await engine.start()
        request = await engine.request(run)
        await engine.event(run, "execution.started")
        with pytest.raises(ConflictError) as refused:
            await engine.start("more", conversation_id=run.conversation_id)
        assert refused.value.error_code == "run_live"
        await engine.interrupt(run, "wrong branch")
        assert (await engine.ended(run)).status == "interrupted"
        assert bench.cancelled.is_set()
        results = await engine.results(run)
        assert isinstance(results["s"], Failure)
        assert isinstance(results["p"], Failure)
        expected = {"interrupted_by": "operator", "started": True, "partial_output": "half done"}
        assert (results["s"].kind, results["s"].fields) == ("interrupted", expected)
        assert (results["p"].kind, results["p"].fields["started"]) == ("interrupted", False)
        with pytest.raises(GoneError):
            await engine.decide(request, "approve")
        following = await engine.start("continue", conversation_id=run.conversation_id)
        assert (await engine.ended(following)).status == "completed"
        assert is_reconciled(model.seen[1].messages[1:])
        assert model.seen[1].messages[-1].text == "continue"
        assert bench.paid == []


async def test_cancelling_the_workflow_is_an_interrupt(client: Client, sqlite: Database, bench: Bench) -> None:
    """A workflow cancelled past our API (Temporal's page, its CLI) closes its calls and ends the run as interrupted."""
    model = ListModel(says(call("slow", "{}", "s"), call("pay", '{"cents": 1}', "p")), says("never"))
    async with stack(client, sqlite, bench.slow, bench.pay, model=model) as engine:
        run = await engine.start()
        await engine.request(run)
        await engine.event(run, "execution.started")
        await engine.workflow(run).cancel()
        assert (await engine.ended(run)).status == "interrupted"
        assert bench.cancelled.is_set()
        assert all(isinstance(result, Failure) for result in (await engine.results(run)).values())
        assert (await engine.history(run))[-1].role == "tool"


def test_limits_are_checked() -> None:
    """A limit outside its range is refused where it is written."""
    with pytest.raises(ValidationError):
        Limits(model_retry=timedelta(0))


@pytest.mark.parametrize("is_known", [True, False])
async def test_i6_an_edit_does_not_walk_past_the_terms_of_the_edited_call(
    client: Client, sqlite: Database, bench: Bench, *, is_known: bool
) -> None:
    """I6: 51 edited to 5,000 is asked about again under the rule for 5,000: two people, and not the starter.

    The API does not take the edit if it knows that rule; where it does not, the worker's door stops the call. I15: rows and log
    agree before the second decision and after it.
    """
    policy = Policy(
        rule=[
            Rule.model_validate(
                {
                    "name": "large",
                    "verdict": "ask",
                    "tools": ["pay"],
                    "args": [{"at": "/cents", "op": "gt", "value": 1000}],
                    "quorum": 2,
                    "starter_may_decide": False,
                    "risk": "high",
                    "grace_seconds": 0,
                }
            ),
            Rule(name="small", verdict="ask", tools=["pay"]),
        ]
    )
    async with stack(client, sqlite, bench.pay, model=paying(51), policy=policy) as engine:
        run = await engine.start()
        request = await engine.request(run)
        assert (request.rule, request.quorum) == ("small", 1)
        if is_known:
            with pytest.raises(ConflictError, match="of the edited call, it is of high risk") as refused:
                await engine.decide(request, "edit", args='{"cents": 5000}', by=STARTER)
            assert refused.value.error_code == "asked_again"
        else:
            async with sqlite.write() as conn:
                await conn.execute(delete(published_policies))
            await engine.decide(request, "edit", args='{"cents": 5000}', by=STARTER)
        again = await engine.request(run)
        assert (again.input, again.rule, again.quorum, again.risk) == ('{"cents": 5000}', "large", 2, "high")
        await require_no_difference(sqlite)
        with pytest.raises(ForbiddenError):
            await engine.decide(again, "approve", by=STARTER)
        await engine.decide(again, "approve", by=person("ann"))
        assert bench.paid == []
        await engine.decide(again, "approve", by=person("bob"))
        assert (await engine.ended(run)).status == "completed"
        assert bench.paid == [5000]
