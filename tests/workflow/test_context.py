"""Conversations longer than their model's window: summarised once, cut safely, and never lost to a summariser that fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs
from support.engine.stack import STARTER, Cast, Stack, call, says, stack
from temporalio.client import Client

from turngate import Agent, Context, Limits, Toolkit, tool
from turngate.activities.model import compaction
from turngate.approvals_api.runs import fork as fork_run
from turngate.approvals_api.runs import retry
from turngate.approvals_api.runs import views as run_views
from turngate.domain.agents.context_window import message_tokens
from turngate.domain.conversation.clipping import READ_RESULT
from turngate.domain.conversation.history import is_reconciled
from turngate.domain.conversation.messages import Message, ModelResponse, Usage
from turngate.domain.conversation.summaries import LEFT_OUT
from turngate.domain.errors import ModelError
from turngate.models.port import LanguageModel, ModelRequest
from turngate.store.database import Database
from turngate.store.runs import runs
from turngate.wire.orders import ForkOrder

WINDOW = 3_000
TASK = "Look at everything."
TOO_LONG = ModelError("the conversation is too long", error_class="context_length", retryable=False)


@pytest.fixture(autouse=True)
def quiet_log():
    """What is logged, unrendered."""
    with capture_logs() as logs:
        yield logs


@tool(effect="read", ask=False)
async def look() -> str:
    """Look: about 600 tokens of it."""
    return "seen " * 350


@tool(effect="read", ask=False)
async def dump() -> str:
    """Return more than the model reads at once."""
    return "row " * 1_000


class Worker:
    """A model that looks ``looks`` times and answers. Refuses what is longer than ``limit`` tokens, as providers do."""

    name = "scripted:worker"

    def __init__(self, looks: int, *, limit: int | None = None, first: str = "look", reports: bool = True) -> None:
        self.looks, self.limit, self.first, self.reports = looks, limit, first, reports
        self.seen: list[list[Message]] = []
        self.offered: list[list[str]] = []
        self.refused: list[int] = []
        self.answered = 0
        self.fails_at: dict[int, Exception] = {}
        self.shrinks_to: int | None = None

    async def generate(self, request: ModelRequest) -> ModelResponse:
        taken = sum(message_tokens(message) for message in request.messages)
        if self.limit is not None and taken > self.limit:
            self.refused.append(taken)
            self.limit = self.shrinks_to or self.limit
            raise TOO_LONG
        failure = self.fails_at.pop(self.answered, None)
        if failure is not None:
            raise failure
        self.seen.append(list(request.messages))
        self.offered.append([manifest.name for manifest in request.tools])
        self.answered += 1
        usage = Usage(input_tokens=taken, output_tokens=10) if self.reports else Usage()
        name = self.first if self.answered == 1 else "look"
        response = says(call(name, "{}", f"c{self.answered}")) if self.answered <= self.looks else says("All seen.")
        return response.model_copy(update={"usage": usage})

    async def aclose(self) -> None:
        return None


class Writer:
    """Writes summaries: the n-th says so, unless ``says`` has something else for it."""

    name = "scripted:writer"

    def __init__(self, *says: ModelResponse | Exception | float) -> None:
        self.says = list(says)
        self.read: list[str] = []

    async def generate(self, request: ModelRequest) -> ModelResponse:
        assert not request.tools
        assert [message.role for message in request.messages] == ["system", "user"]
        self.read.append(request.messages[-1].text)
        answer = self.says.pop(0) if self.says else None
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, float):
            await asyncio.sleep(answer)
        if isinstance(answer, ModelResponse):
            return answer
        return says(f"Memory {len(self.read)}.").model_copy(update={"usage": Usage(input_tokens=400, output_tokens=7)})

    async def aclose(self) -> None:
        return None


def keeper(*, name: str = "keeper", worker: str = "worker", writer: str = "writer", **context: Any) -> Agent:
    settings = {"window": WINDOW, "keep": 2, "summary_model": f"scripted:{writer}", **context}
    return Agent(
        name=name,
        instructions="Be brief.",
        toolkit=Toolkit.of(look, dump),
        model=f"scripted:{worker}",
        limits=Limits(result_chars=2_000, no_progress=None),
        context=Context(**settings),
    )


@asynccontextmanager
async def engine_of(
    client: Client, database: Database, *agents: Agent, **models: LanguageModel
) -> AsyncIterator[Stack]:
    """An engine of these agents; its worker keeps its workflows, because what they do is not what these tests are about."""
    cast = Cast(test=Worker(0), **models)
    async with (
        stack(client, database, model=cast, agents=agents, working=False) as engine,
        engine.worker(max_cached_workflows=100),
    ):
        yield engine


async def ended(engine: Stack, status: str = "completed", *, agent: str = "keeper") -> runs.Run:
    run = await engine.ended(await engine.start(TASK, agent=agent))
    assert run.status == status, run.reason
    return run


async def context_events(engine: Stack, run: runs.Run) -> list[tuple[str, dict[str, Any]]]:
    happened = [event for event in await engine.events(run) if event.type.startswith("context.")]
    payloads = [{name: value for name, value in event.payload.items() if name != "digests"} for event in happened]
    return [(event.type.removeprefix("context."), payload) for event, payload in zip(happened, payloads, strict=True)]


def cut_of(request: Sequence[Message]) -> str | None:
    """Return the text after the task that replaces what was cut off."""
    text = request[2].text if len(request) > 2 else ""
    return text if text.startswith("[") else None


@pytest.mark.exhaustive
async def test_a_conversation_longer_than_its_window_continues(client: Client, database: Database) -> None:
    """I1, I8: what is sent fits and is in order; one summary a cut, and between cuts only ever something is added."""
    model, writer = Worker(10), Writer()
    async with engine_of(client, database, keeper(), worker=model, writer=writer) as engine:
        run = await ended(engine)
        history, happened = await engine.history(run), await context_events(engine, run)
        async with database.read() as conn:
            cut_by_step = {step.step: step.cut for step in (await run_views.run_detail(conn, run.id)).steps}
    assert len(model.seen) == 11
    for request in model.seen:
        assert [message.role for message in request[:2]] == ["system", "user"]
        assert request[1].text == TASK
        assert is_reconciled(request)
        assert sum(message_tokens(message) for message in request) <= WINDOW
    for before, after in zip(model.seen, model.seen[1:], strict=False):
        if cut_of(before) == cut_of(after):
            assert after[: len(before)] == before, "the provider has that cached"
    cuts = list(dict.fromkeys(cut_of(request) for request in model.seen))
    assert cuts[0] is None
    assert len(cuts) - 1 == len(writer.read) == len(happened) >= 3
    assert all(
        f"Memory {number}." in cut and "written by the model scripted:test" in cut
        for number, cut in enumerate(cuts[1:], 1)
    )
    assert "Memory 1." in writer.read[1], "what a summary says is carried on by the next"
    assert [message.role for message in history] == ["user", *["assistant", "tool"] * 10, "assistant"]
    for kind, payload in happened:
        assert kind == "compacted"
        assert payload["tokens_after"] < payload["tokens_before"] >= 0.75 * WINDOW
        assert set(payload) == {"step", "covers", "messages", "tokens_before", "tokens_after", "model", "forced"}
    assert [step for step, cut in cut_by_step.items() if cut is not None] == [
        payload["step"] for _, payload in happened
    ]
    assert [cut.text for cut in cut_by_step.values() if cut is not None] == cuts[1:], (
        "people see what the model is sent"
    )
    by_steps = sum(sum(message_tokens(message) for message in request) + 10 for request in model.seen)
    assert run.tokens_used == by_steps + 407 * len(writer.read), "the run pays for its summaries"


@pytest.mark.exhaustive
async def test_a_cut_outlives_worker_retry_and_fork(client: Client, database: Database) -> None:
    """The same bytes are sent and no summary is written twice; a fork from before the cut sees the messages themselves."""
    model, writer = Worker(6), Writer()
    model.fails_at[5] = ModelError("busy", error_class="server_error", retryable=True, retry_after_seconds=0.01)
    model.fails_at[6] = ModelError("down", error_class="bad_response", retryable=False)
    async with engine_of(client, database, keeper(), worker=model, writer=writer) as engine:
        first = await ended(engine, "failed")
        ((_, compacted),) = await context_events(engine, first)
    last = model.seen[-1]
    assert "Memory 1." in (cut_of(last) or "")
    async with engine_of(client, database, keeper(), worker=model, writer=writer) as engine:
        again = await retry.retry(engine.services, STARTER, first.id)
        assert (await engine.ended(again)).status == "completed"
        assert model.seen[-1][: len(last)] == last
        for back, cut in ((1, cut_of(last)), (2, None)):
            fork = await fork_run.fork(
                engine.services, STARTER, first.id, ForkOrder(text="On.", step=compacted["step"] - back)
            )
            assert (await engine.ended(fork)).status == "completed"
            sent, history = model.seen[-1], await engine.history(fork)
            assert cut_of(sent) == cut
            assert sent[-1].text == "On."
    assert sent[1:] == history[:-1], "all of it, as it was said"
    assert len(writer.read) == 1


FAILING: dict[str, tuple[ModelResponse | Exception | float, str]] = {
    "error": (ModelError("away", error_class="unreachable", retryable=True), "unreachable"),
    "bug": (RuntimeError("bug"), "RuntimeError"),
    "empty": (says(" \n"), ""),
    "too_long": (says("x" * 501), ""),
    "cut_off": (says("Half of", finish_reason="length"), ""),
    "timeout": (30.0, ""),
}


@pytest.mark.exhaustive
async def test_a_summariser_that_fails_is_skipped(
    client: Client, sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recorded, not retried at each step: the whole conversation is sent, then a trimmed one, later a summary."""
    monkeypatch.setattr(compaction, "STEPS_BEFORE_ANOTHER_TRY", 3)
    settings = {"compact_at": 0.5, "trim_at": 0.8, "summary_chars": 500, "summary_timeout": "PT0.2S"}
    models: dict[str, Any] = {}
    agents = []
    for how, (answer, _) in FAILING.items():
        models[f"worker_{how}"], models[f"writer_{how}"] = Worker(7, reports=how != "empty"), Writer(answer)
        agents.append(keeper(name=how, worker=f"worker_{how}", writer=f"writer_{how}", **settings))
    async with engine_of(client, sqlite, *agents, **models) as engine:
        ran = await asyncio.gather(*(ended(engine, agent=how) for how in FAILING))
        happened = {run.agent: await context_events(engine, run) for run in ran}
    for how, (_, error_class) in FAILING.items():
        assert [kind for kind, _ in happened[how]] == ["compaction_skipped", "trimmed", "compacted"], how
        skipped = happened[how][0][1]
        reason = "error" if how == "bug" else how
        assert (skipped["reason"], skipped["error_class"], skipped["forced"]) == (reason, error_class, False)
        seen = models[f"worker_{how}"].seen
        assert all(is_reconciled(request) for request in seen)
        assert all(sum(message_tokens(message) for message in request) <= WINDOW for request in seen)
        cuts = list(dict.fromkeys(cut_of(request) for request in seen))
        assert cuts[0] is None
        assert cuts[1] == LEFT_OUT
        assert "Memory 2." in cuts[2]
        assert len(models[f"writer_{how}"].read) == 2


@pytest.mark.exhaustive
async def test_a_refused_conversation_is_compacted_once_and_sent_again(client: Client, database: Database) -> None:
    """With an unknown window, the provider's refusal says when to cut, and the same step is tried again."""
    model, writer = Worker(7, limit=2_000), Writer()
    async with engine_of(client, database, keeper(window=None), worker=model, writer=writer) as engine:
        run = await ended(engine)
        happened = await context_events(engine, run)
    assert len(model.seen) == 8
    assert len(model.refused) == len(writer.read) == len(happened) >= 2
    assert all(kind == "compacted" and payload["forced"] for kind, payload in happened)
    assert all(is_reconciled(request) for request in model.seen)


async def test_what_is_refused_whatever_is_cut_fails_the_run(client: Client, sqlite: Database) -> None:
    """One forced cut and one more try, no loop: the run fails with the class, and its retry gets one more."""
    model, writer = Worker(6, limit=2_000), Writer()
    model.shrinks_to = 1
    async with engine_of(client, sqlite, keeper(window=None), worker=model, writer=writer) as engine:
        run = await ended(engine, "failed")
        assert run.error_class == "context_length"
        assert [kind for kind, _ in await context_events(engine, run)] == ["compacted"]
        assert (len(model.refused), len(writer.read)) == (2, 1)
        again = await engine.ended(await retry.retry(engine.services, STARTER, run.id))
        assert (again.status, again.error_class) == ("failed", "context_length")
        assert [(kind, payload["reason"]) for kind, payload in await context_events(engine, again)] == [
            ("compaction_skipped", "no_place")
        ]
    assert (len(model.refused), len(writer.read)) == (3, 1)


@pytest.mark.exhaustive
async def test_an_agent_may_leave_its_conversations_alone(client: Client, sqlite: Database) -> None:
    """Without shares, or without a context: the provider's refusal ends the run, and no model is asked for a summary."""
    writer, models = Writer(), {"none": Worker(4, limit=1_500), "shares": Worker(4, limit=1_500)}
    shares = keeper(name="shares", worker="shares", compact_at=None, trim_at=None)
    none = replace(keeper(name="none", worker="none"), context=None)
    async with engine_of(client, sqlite, shares, none, writer=writer, **models) as engine:
        for name, model in models.items():
            run = await ended(engine, "failed", agent=name)
            assert run.error_class == "context_length"
            assert await context_events(engine, run) == []
            assert len(model.refused) == 1
    assert writer.read == []


async def test_results_shown_in_part_can_be_read_after_a_cut(client: Client, sqlite: Database) -> None:
    """The summary may mention them, so the tool that reads the rest stays, and the descriptors do not change."""
    model, writer = Worker(8, first="dump"), Writer()
    async with engine_of(client, sqlite, keeper(), worker=model, writer=writer) as engine:
        await ended(engine)
    assert len(writer.read) >= 2
    assert [READ_RESULT in offered for offered in model.offered] == [False] + [True] * 8


async def test_a_fork_may_begin_afresh_with_a_summary(client: Client, database: Database) -> None:
    """It is the new conversation's first message, names its writer, and is written once; the old conversation is unchanged."""
    model, writer = Worker(2), Writer()
    model.fails_at[3] = ModelError("busy", error_class="server_error", retryable=True, retry_after_seconds=0.01)
    async with engine_of(client, database, keeper(), worker=model, writer=writer) as engine:
        first = await ended(engine)
        before = await engine.history(first)
        fork = await fork_run.fork(engine.services, STARTER, first.id, ForkOrder(text="And now?", summarise=True))
        run = await engine.ended(fork)
        assert run.status == "completed"
        history, happened = await engine.history(run), await context_events(engine, run)
        plain = await engine.ended(await fork_run.fork(engine.services, STARTER, run.id, ForkOrder(text="More.")))
        assert await engine.history(first) == before
        assert [message.text for message in await engine.history(plain)][:2] == [history[0].text, "And now?"]
    assert [message.role for message in history] == ["user", "user", "assistant"]
    assert history[0].text == (
        f"[Summary of an earlier conversation (run {first.id}, up to step 3), written by the model scripted:test, "
        "not by a person.]\n\nMemory 1."
    )
    assert model.seen[-2][1:] == history[:2]
    assert "All seen." in writer.read[0]
    assert TASK in writer.read[0]
    assert len(writer.read) == 1
    assert happened == [("carried_over", {"from_run_id": first.id, "step": 3, "messages": 6, "model": "scripted:test"})]
    assert run.tokens_used > 407


async def test_a_fork_without_its_summary_shares_the_past(client: Client, sqlite: Database) -> None:
    """A failed summary is recorded as an event; the fork continues like any other."""
    model, writer = Worker(2), Writer(says(""))
    async with engine_of(client, sqlite, keeper(), worker=model, writer=writer) as engine:
        first = await ended(engine)
        fork = await fork_run.fork(engine.services, STARTER, first.id, ForkOrder(text="And now?", summarise=True))
        run = await engine.ended(fork)
        assert run.status == "completed"
        assert (await engine.history(run))[:-2] == await engine.history(first)
        assert [(kind, payload["reason"]) for kind, payload in await context_events(engine, run)] == [
            ("compaction_skipped", "empty")
        ]
