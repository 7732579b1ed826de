"""The life of a request against a pure model of it: any people, any order, through the real API, worker and Temporal.

The model gives the answer to each action and the request after it. Some order of the people must explain what several
of them do at the same time.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import pytest
from bench.crowd import Crowd, decided_by
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from support.api.api_server import Amount, Question, Reply, serving, token_for
from support.engine.stack import Stack, call, says, stack
from temporalio.client import Client

from turngate import ToolContext, interaction_tool, tool
from turngate.approvals_api.app import create_api_app
from turngate.approvals_api.gateway.client import Gateway
from turngate.approvals_api.http.authentication import SESSION_COOKIE
from turngate.approvals_api.settings import ApiSettings
from turngate.domain.conversation.history import is_reconciled
from turngate.domain.conversation.messages import ModelResponse
from turngate.models.port import ModelRequest
from turngate.store.access import sessions
from turngate.store.database import Database
from turngate.store.requests import requests
from turngate.store.runs import calls, executions, messages, runs

PEOPLE = {"ann": "operator", "bob": "operator", "eve": "operator", "zoe": "admin", "vic": "viewer", "bot": "machine"}
STARTER = "ann"
DECIDERS = [name for name, role in PEOPLE.items() if role != "viewer"]
STEPS = 16


# The model


@dataclass(frozen=True)
class Terms:
    """What a rule requires, as far as the model knows."""

    kind: str = "approval"
    quorum: int = 1
    roles: tuple[str, ...] = ()
    people: tuple[str, ...] = ()
    decisions: tuple[str, ...] | None = None
    starter_may_decide: bool = True

    @property
    def verbs(self) -> tuple[str, ...]:
        if self.kind == "question":
            return ("respond", "reject")
        allowed = ("approve", "reject") if self.quorum > 1 else ("approve", "edit", "reject", "respond")
        return tuple(verb for verb in allowed if self.decisions is None or verb in self.decisions)

    @property
    def needed(self) -> int:
        return self.quorum if self.kind == "approval" else 1

    def admits(self, name: str) -> bool:
        role = "operator" if PEOPLE[name] == "machine" else PEOPLE[name]
        roles = self.roles or (() if self.people else ("operator",))
        if name == STARTER and not self.starter_may_decide:
            return False
        if PEOPLE[name] == "machine" and self.needed > 1:
            return False
        return name in self.people or role in roles or (role == "admin" and "operator" in roles)


@dataclass(frozen=True)
class Sent:
    """One decision as a person sends it. ``body``: beyond verb and digest.

    ``fits``: where its content is refused: as ``body``, unread; at the ``edge``, by the schema; by the ``worker``, by the
    tool's own types, which leads to another request; nowhere (``yes``).
    """

    who: str
    verb: str
    key: str
    body: tuple[tuple[str, Any], ...] = ()
    fits: str = "yes"
    stale: bool = False


@dataclass(frozen=True)
class Life:
    """A request as the model has it. ``taken``: decision id → what was sent, and the status of its answer.

    ``stopped``: its run was interrupted after the request's end.
    """

    terms: Terms
    status: str = "pending"
    approved_by: tuple[str, ...] = ()
    winner: Sent | None = None
    claimed_by: str | None = None
    taken: tuple[tuple[str, Sent, str], ...] = ()
    stopped: bool = False

    @property
    def is_asked_again(self) -> bool:
        """Whether its run waits for the answer to another request: the edit that won does not fit the tool's own types."""
        return self.winner is not None and self.winner.fits == "worker" and not self.stopped

    @property
    def has_run(self) -> bool:
        return self.status == "approved" and self.winner is not None and self.winner.fits != "worker"

    def decide(self, sent: Sent) -> tuple[tuple[int, str], Life]:
        """Return the answer (HTTP status, code or the request's status) and the life after it."""
        known = next(
            ((first, status) for key, first, status in self.taken if (key, first.who) == (sent.key, sent.who)), None
        )
        refusal = self._refusal(sent, known)
        if refusal is not None:
            return refusal, self
        if known is not None:
            return (200, known[1]), self
        if sent.verb == "approve" and len(self.approved_by) + 1 < self.terms.needed:
            after = replace(self, approved_by=(*self.approved_by, sent.who))
            after = replace(after, claimed_by=None if self.claimed_by == sent.who else self.claimed_by)
            return (200, "pending"), replace(after, taken=(*self.taken, (sent.key, sent, "pending")))
        status = {"approve": "approved", "edit": "approved", "reject": "rejected", "respond": "responded"}[sent.verb]
        counted = (
            (*self.approved_by, sent.who) if sent.verb == "approve" and self.terms.needed > 1 else self.approved_by
        )
        taken = (*self.taken, (sent.key, sent, status))
        after = replace(self, status=status, winner=sent, approved_by=counted, taken=taken, claimed_by=None)
        return (200, status), after

    def _refusal(self, sent: Sent, known: tuple[Sent, str] | None) -> tuple[int, str] | None:
        """The reason for its refusal: the first of these, in the order in which they are checked."""
        late = (410, "run_ended") if self.status == "cancelled" else (409, "already_decided")
        always = [
            (PEOPLE[sent.who] == "viewer", (403, "missing_scope")),
            (sent.fits == "body", (422, "refused")),
            (known is not None and known[0] != sent, (409, "idempotency_key_reused")),
        ]
        unknown = [
            (self.status != "pending", late),
            (sent.stale, (409, "digest_differs")),
            (not self.terms.admits(sent.who), (403, "not_eligible")),
            (sent.verb not in self.terms.verbs, (422, "verb_not_allowed")),
            (self.claimed_by not in {None, sent.who}, (409, "claimed")),
            (sent.fits == "edge", (422, "refused")),
            (sent.verb == "approve" and sent.who in self.approved_by, (409, "already_approved")),
        ]
        checks = always if known is not None else always + unknown
        return next((answer for refused, answer in checks if refused), None)

    def claim(self, who: str) -> tuple[tuple[int, str], Life]:
        if PEOPLE[who] == "viewer":
            return (403, "missing_scope"), self
        if not self.terms.admits(who):
            return (403, "not_eligible"), self
        if self.status != "pending":
            return (409, "request_not_pending"), self
        if self.claimed_by not in {None, who} and PEOPLE[who] != "admin":
            return (409, "claimed"), self
        return (200, who), replace(self, claimed_by=who)

    def release(self, who: str) -> tuple[tuple[int, str], Life]:
        if PEOPLE[who] == "viewer":
            return (403, "missing_scope"), self
        if self.claimed_by not in {None, who} and PEOPLE[who] != "admin":
            return (409, "claimed"), self
        return (204, ""), replace(self, claimed_by=None)


# What is tried


@st.composite
def all_terms(draw: st.DrawFn) -> Terms:
    kind = draw(st.sampled_from(["approval", "approval", "approval", "question"]))
    quorum = draw(st.sampled_from([1, 1, 2, 3]))
    people = tuple(draw(st.lists(st.sampled_from(DECIDERS), unique=True, max_size=4)))
    roles = tuple(draw(st.lists(st.sampled_from(["operator", "admin"]), unique=True, max_size=2)))
    if people and not roles and len(people) < quorum:
        roles = ("operator",)
    verbs = ("approve", "reject") if quorum > 1 else ("approve", "edit", "reject", "respond")
    decisions = draw(st.none() | st.lists(st.sampled_from(verbs), unique=True, min_size=1).map(tuple))
    return Terms(kind, quorum, roles, people, decisions, draw(st.booleans()))


CONTENT: dict[str, list[tuple[dict[str, Any], str]]] = {
    "approve": [({}, "yes"), ({"message": "Fine."}, "yes"), ({"args": {"cents": 1}}, "edge")],
    "edit": [
        ({"args": {"cents": 7}}, "yes"),
        ({"args": {"cents": 7, "note": "less"}, "message": "Less."}, "yes"),
        ({"args": {"cents": "much"}}, "edge"),
        ({"args": {"cents": 13}}, "worker"),
        ({}, "edge"),
    ],
    "reject": [({}, "yes"), ({"message": "No."}, "yes"), ({"message": 5}, "body")],
    "respond": [({"message": "I did it."}, "yes"), ({"message": " "}, "edge")],
}
ANSWERS = [({"args": {"answer": "Do it."}}, "yes"), ({"args": {"answer": 5}}, "edge"), ({}, "edge")]


@st.composite
def new_decisions(draw: st.DrawFn, kind: str = "approval") -> Sent:
    verb = draw(st.sampled_from(["approve", "approve", "approve", "edit", "reject", "respond"]))
    if kind == "question" and verb == "approve":
        verb = draw(st.sampled_from(["approve", "respond"]))
    choices = ANSWERS if kind == "question" and verb == "respond" else CONTENT[verb]
    # What fits comes first and more often than not: a life of refusals alone proves little.
    body, fits = draw(st.sampled_from([choices[0], choices[0], *choices]))
    stale = draw(st.integers(0, 9)) == 0
    who = draw(st.sampled_from([*DECIDERS, *PEOPLE]))
    return Sent(who, verb, f"d-{secrets.token_hex(6)}", tuple(body.items()), fits, stale)


# The real thing


class Asking:
    """Asks for a payment or puts a question, as the last user message says, then ends."""

    name = "scripted:test"

    async def generate(self, request: ModelRequest) -> ModelResponse:
        last = request.messages[-1]
        if last.role != "user":
            return says("Done.")
        name, arguments = ("ask_person", {"text": "Which?"}) if last.text == "question" else ("pay", {"cents": 5})
        return says("Please.", call(name, json.dumps(arguments), "c1"))

    async def aclose(self) -> None:
        return None


@dataclass
class House:
    """The engine, its API, and a client for each person. ``paid``: run id of each start of the handler."""

    engine: Stack
    clients: dict[str, httpx.AsyncClient]
    paid: list[str] = field(default_factory=list)

    async def open(self, terms: Terms) -> tuple[runs.Run, requests.Request]:
        """Store the rule, start a run, and return its request."""
        keys = {"quorum": terms.quorum, "roles": list(terms.roles), "people": list(terms.people)}
        keys |= {} if terms.decisions is None else {"decisions": list(terms.decisions)}
        keys["starter_may_decide"] = terms.starter_may_decide
        lines = [f"{name} = {json.dumps(value)}" for name, value in keys.items()]
        head = '[[rule]]\nname = "drawn"\nverdict = "ask"\ntools = ["*"]\n'
        await self.engine.store_rules(head + "\n".join(lines))
        body = {"agent": "agent", "input": terms.kind}
        started = await self.clients[STARTER].post("/api/v1/runs", json=body)
        assert started.status_code == 201, started.text
        async with self.engine.database.read() as conn:
            run = await runs.get(conn, started.json()["id"])
        assert run is not None
        return run, await self.engine.request(run)

    async def decide(self, request: requests.Request, sent: Sent) -> tuple[tuple[int, str], dict[str, Any]]:
        body = {"decision": sent.verb, "digest": "0" * 64 if sent.stale else request.digest, **dict(sent.body)}
        headers = {"Idempotency-Key": sent.key}
        url = f"/api/v1/requests/{request.id}/decisions"
        answer = await self.clients[sent.who].post(url, json=body, headers=headers)
        reply = answer.json()
        if answer.status_code == 200:
            return (200, reply["status"]), reply
        code = reply["code"] if reply["code"] == "verb_not_allowed" or answer.status_code != 422 else "refused"
        return (answer.status_code, code), reply


class RequestLife(RuleBasedStateMachine):
    """One request from its opening to the end of its run."""

    house: House
    loop: asyncio.AbstractEventLoop

    def on_loop(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout=30)

    @initialize(terms=all_terms())
    def open(self, terms: Terms) -> None:
        self.life = Life(terms)
        self.tried: list[Sent] = []
        self.ids: dict[tuple[str, str], str] = {}
        """Of each decision that was taken, by whom and with which key."""
        self.run, self.request = self.on_loop(self.house.open(terms))

    def judge(self, by: str, wanted: tuple[int, str], got: tuple[int, str], reply: dict[str, Any]) -> None:
        assert got == wanted, reply
        if wanted[1] == "already_decided":
            winner = self.life.winner
            assert winner is not None
            won = winner.who, winner.verb, self.ids[winner.who, winner.key]
            assert (reply["decided_by"], reply["verb"], reply["decision_id"]) == won
        if wanted[1] == "claimed":
            assert reply["claimed_by"] not in {None, by}

    def note(self, sent: Sent, reply: dict[str, Any]) -> None:
        """Note the id of a decision that was taken: its key, unless another person has used that."""
        if "status" in reply and "code" not in reply:
            self.ids[sent.who, sent.key] = reply["decision_id"]

    def settled(self) -> None:
        """After the end of the request, wait for the end of its run, or its next request, so that later actions come late."""
        if self.life.is_asked_again:
            self.on_loop(self.house.engine.request(self.run))
        elif self.life.status != "pending":
            self.on_loop(self.house.engine.ended(self.run))

    def send(self, sent: Sent) -> None:
        wanted, after = self.life.decide(sent)
        got, reply = self.on_loop(self.house.decide(self.request, sent))
        self.note(sent, reply)
        self.judge(sent.who, wanted, got, reply)
        self.life = after
        self.tried.append(sent)
        self.settled()

    @rule(data=st.data())
    def decide(self, data: st.DataObject) -> None:
        self.send(data.draw(new_decisions(self.life.terms.kind)))

    @precondition(lambda self: self.tried)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        """The same decision with the same id once more, whatever its answer was."""
        self.send(data.draw(st.sampled_from(self.tried)))

    @precondition(lambda self: self.tried)
    @rule(data=st.data())
    def reuse(self, data: st.DataObject) -> None:
        """Another decision with a used id."""
        used = data.draw(st.sampled_from(self.tried))
        sent = replace(data.draw(new_decisions(self.life.terms.kind)), key=used.key)
        self.send(sent)

    @precondition(lambda self: self.life.status == "pending")
    @rule(data=st.data(), count=st.integers(2, 3))
    def at_once(self, data: st.DataObject, count: int) -> None:
        """Several people at the same time: their answers fit some order of the people."""
        crowd = [data.draw(new_decisions(self.life.terms.kind)) for _ in range(count)]

        async def all_of_them() -> list[tuple[tuple[int, str], dict[str, Any]]]:
            return list(await asyncio.gather(*(self.house.decide(self.request, sent) for sent in crowd)))

        answers = self.on_loop(all_of_them())
        got = {sent.key: answer for sent, (answer, _reply) in zip(crowd, answers, strict=True)}
        for order in itertools.permutations(crowd):
            life, wanted = self.life, {}
            for sent in order:
                wanted[sent.key], life = life.decide(sent)
            if wanted == got:
                self.life = life
                break
        else:
            pytest.fail(f"no order explains {got} of {crowd}")
        for sent, (_answer, reply) in zip(crowd, answers, strict=True):
            self.note(sent, reply)
        for sent, (answer, reply) in zip(crowd, answers, strict=True):
            self.judge(sent.who, answer, answer, reply)
            self.tried.append(sent)
        self.settled()

    @rule(who=st.sampled_from(list(PEOPLE)), doing=st.sampled_from(["claim", "claim", "release", "comment"]))
    def around(self, who: str, doing: str) -> None:
        """Claim it, release it, or comment on it, before its end or after."""
        url = f"/api/v1/requests/{self.request.id}"
        if doing == "comment":
            answer = self.on_loop(self.house.clients[who].post(f"{url}/comments", json={"text": "Looks odd."}))
            assert answer.status_code == (403 if PEOPLE[who] == "viewer" else 201), answer.text
            return
        wanted, after = self.life.claim(who) if doing == "claim" else self.life.release(who)
        method = "POST" if doing == "claim" else "DELETE"
        answer = self.on_loop(self.house.clients[who].request(method, f"{url}/claim"))
        reply = answer.json() if answer.content else {}
        word = reply.get("claimed_by", "") if answer.status_code == 200 else reply.get("code", "")
        self.judge(who, wanted, (answer.status_code, word), reply)
        self.life = after

    @precondition(lambda self: len(self.tried) > 3)
    @rule()
    def interrupt(self) -> None:
        """Stop the run: open requests end with it, and ended ones stay as they are."""
        answer = self.on_loop(self.house.clients[STARTER].post(f"/api/v1/runs/{self.run.id}/interrupt", json={}))
        if self.life.status != "pending" and not self.life.is_asked_again:
            assert (answer.status_code, answer.json()["code"]) == (409, "run_ended"), answer.text
            return
        assert answer.status_code == 202, answer.text
        if self.life.is_asked_again:
            self.life = replace(self.life, stopped=True)
        else:
            self.life = replace(self.life, status="cancelled", claimed_by=None)
        self.settled()

    @invariant()
    def the_store_agrees(self) -> None:
        """One winner, who is the model's; what ran is what was displayed or edited, at most once."""
        self.on_loop(self._the_store_agrees())

    async def _the_store_agrees(self) -> None:
        life = self.life
        async with self.house.engine.database.read() as conn:
            request = await requests.get(conn, self.request.id)
            assert request is not None
            counted = [each.decided_by for each in await requests.of_request(conn, request.id)]
            ran = await executions.of_run(conn, self.run.id)
            content = None if request.decision_id is None else await requests.decision(conn, request.decision_id)
        winner = life.winner
        assert (request.status, request.digest) == (life.status, self.request.digest)
        assert (sorted(counted), request.approvals) == (sorted(life.approved_by), len(life.approved_by))
        assert (request.decided_by, request.verb, request.decision_id) == (
            (None, None, None) if winner is None else (winner.who, winner.verb, self.ids[winner.who, winner.key])
        )
        if request.status == "pending":
            assert request.claimed_by == life.claimed_by
        starts = self.house.paid.count(self.run.id)
        assert (len(ran), starts) == ((1, 1) if life.has_run else (0, 0))
        for execution in ran:
            edited = winner is not None and winner.verb == "edit"
            assert execution.decision_id == request.decision_id
            assert execution.digest == (content.digest if edited and content else request.digest)
            assert edited is (execution.digest != request.digest)
        recorded = [event for event in await self.house.engine.events(self.run) if event.type.startswith("request.")]
        decided = [event.payload["decision_id"] for event in recorded if event.type == "request.decided"]
        assert decided == ([] if winner is None else [self.ids[winner.who, winner.key]])
        once = [event for event in recorded if event.type == "request.approved_once"]
        assert len(once) == len(life.approved_by) - (life.status == "approved" and life.terms.needed > 1)

    def teardown(self) -> None:
        """End it one way or the other: each call has one result, and the conversation can continue."""
        if not hasattr(self, "request"):
            return
        self.on_loop(self._teardown())

    async def _teardown(self) -> None:
        engine = self.house.engine
        if self.life.status == "pending" or self.life.is_asked_again:
            await engine.interrupt(self.run)
        ended = await engine.ended(self.run)
        completes = self.life.has_run or self.life.status in {"rejected", "responded"}
        assert ended.status == ("completed" if completes else "interrupted")
        async with engine.database.read() as conn:
            (call,) = await calls.of_run(conn, self.run.id)
            path = [stored.message for stored in await messages.path_to(conn, ended.head_message_id)]
        assert call.result is not None
        assert is_reconciled(path)


@pytest.fixture
async def house(client: Client, sqlite: Database) -> AsyncIterator[House]:
    built: list[House] = []

    @tool(effect="once", ask=True)
    async def pay(params: Amount, ctx: ToolContext) -> dict[str, int]:
        """Pay an amount."""
        built[0].paid.append(ctx.run_id)
        return {"paid": params.cents}

    ask = interaction_tool(name="ask_person", description="Ask.", params=Question, answer=Reply)
    async with AsyncExitStack() as opened:
        engine = await opened.enter_async_context(stack(client, sqlite, pay, ask, model=Asking(), working=False))
        await opened.enter_async_context(engine.worker())
        gateway = Gateway(client)
        app = create_api_app(database=sqlite, gateway=gateway, settings=ApiSettings(heartbeat_timeout_seconds=2))
        url = await opened.enter_async_context(serving(app))
        clients = {}
        for name, role in PEOPLE.items():
            if role == "machine":
                options: dict[str, Any] = {"headers": await token_for(sqlite, name, "requests:read", "requests:decide")}
            else:
                async with sqlite.write() as conn:
                    cookie = await sessions.begin(conn, name, role=role)  # type: ignore[arg-type]
                options = {"cookies": {SESSION_COOKIE: cookie}, "headers": {"Origin": url}}
            person = httpx.AsyncClient(base_url=url, trust_env=False, timeout=20, **options)
            clients[name] = await opened.enter_async_context(person)
        built.append(House(engine, clients))
        yield built[0]


async def test_i4_a_requests_life_is_what_the_model_says(house: House) -> None:
    """I2, I3, I4, I6, I10: any people in any order: answers, winner, count, digest and starts are the model's."""
    machine: Callable[[], RequestLife] = type(
        "ThisRequestLife", (RequestLife,), {"house": house, "loop": asyncio.get_running_loop()}
    )
    chosen = settings(
        max_examples=settings.default.max_examples // 8,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        # A failure is reported as it happened: trying ever shorter lives of a real engine takes minutes.
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    await asyncio.to_thread(run_state_machine_as_test, machine, settings=chosen)


async def test_i4_the_id_of_a_counted_approval_is_refused_for_another_approval(house: House) -> None:
    """I4: bob's approval counts; vic may not decide and reuses its id in vain; then bob sends another one with it.

    The random test discovered this. That vic sent the id changes nothing, before or after bob: a viewer's decision is refused
    before anything is read or stored.
    """
    approval = Sent("bob", "approve", "")
    with_words = replace(approval, body=(("message", "Fine."),))
    with_arguments = replace(approval, body=(("args", {"cents": 1}),), fits="edge")
    for number, (first, other) in enumerate(
        [
            (approval, replace(approval, stale=True)),
            (approval, with_arguments),
            (approval, with_words),
            (with_words, replace(with_words, stale=True)),
            (with_words, approval),
        ]
    ):
        life = Life(Terms(quorum=2))
        _run, request = await house.open(life.terms)
        vics = Sent("vic", "respond", "", (("message", "I did it."),))
        answers = []
        for each in (vics, first, vics, other, first):
            sent = replace(each, key=f"d-{number}")
            wanted, life = life.decide(sent)
            got, problem = await house.decide(request, sent)
            assert got == wanted, (sent, problem)
            answers.append(got)
        refused, reused = (403, "missing_scope"), (409, "idempotency_key_reused")
        assert answers == [refused, (200, "pending"), refused, reused, (200, "pending")]


@pytest.mark.parametrize("crowd", [Crowd(people=10, runs=2, calls=3), Crowd(people=20, runs=4, calls=5)])
async def test_i4_a_crowd_has_one_winner_per_request_whom_every_loser_sees(
    client: Client, sqlite: Database, crowd: Crowd
) -> None:
    """I4: many people decide the same requests at once: one wins each, all others learn who; what was allowed ran once."""
    answers = await decided_by(crowd, client, sqlite)
    count = crowd.runs * crowd.calls
    assert len(answers.won) == count
    assert sum(len(losers) for losers in answers.lost.values()) == count * (crowd.people - 1)
