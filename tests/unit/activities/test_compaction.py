"""Compaction over random conversations: the real compactor on a real store, step by step, without a workflow."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs
from support.engine.stack import Cast, says

from turngate import Agent, App, Context, Toolkit
from turngate import worker as composition
from turngate.activities.engine.run_step import RunStep
from turngate.activities.model.compaction import Compactor
from turngate.activities.model.history import Histories, History
from turngate.domain.agents.context_window import message_tokens
from turngate.domain.conversation.history import is_reconciled, reconcile
from turngate.domain.conversation.messages import Message, ModelResponse, TextPart, ToolCallPart, Usage, user_message
from turngate.domain.errors import ModelError
from turngate.domain.tools.results import Failure
from turngate.models.port import ModelRequest
from turngate.runtime.app_loader import check_app
from turngate.store.database import Database
from turngate.store.runs import messages, new_run, runs, steps
from turngate.store.runs.summaries import Cut

WINDOW = 2_000
SYSTEM = Message(role="system", parts=(TextPart(text="Be brief."),))
NUMBERS = itertools.count()
Step = tuple[int, int, bool]
"""Calls, characters of each result, and whether a person sends a message after it."""


class Writer:
    """Writes summaries, unless it is set to fail."""

    name = "scripted:writer"

    def __init__(self, fails: Sequence[bool]) -> None:
        self.fails = list(fails)
        self.written = 0

    async def generate(self, request: ModelRequest) -> ModelResponse:
        if self.fails and self.fails.pop(0):
            raise ModelError("away", error_class="unreachable", retryable=True)
        self.written += 1
        return says(f"Memory {self.written}\x00.")

    async def aclose(self) -> None:
        return None


class Talk:
    """A run without a workflow: its steps are stored as the activities store them."""

    def __init__(self, database: Database, agent: Agent, writer: Writer) -> None:
        app = check_app(App(agents=[agent]), base=Path.cwd())
        self.engine = composition.build_engine(app, database, Cast(writer=writer, test=writer))
        self.database, self.agent = database, agent
        self.run_id = f"run_{next(NUMBERS)}"
        self.forget()

    def forget(self) -> None:
        """Only the store survives, as after a restart."""
        self.compactor, self.histories = Compactor(self.engine), Histories()

    async def run(self) -> runs.Run:
        async with self.database.read() as conn:
            stored = await runs.get(conn, self.run_id)
        assert stored is not None
        return stored

    async def begin(self) -> None:
        async with self.database.write() as conn:
            await messages.create_conversation(conn, f"conv_{self.run_id}")
            input_id = await self._say(conn, None, "The task.")
            await new_run.insert_run(
                conn,
                new_run.NewRun(
                    id=self.run_id,
                    conversation_id=f"conv_{self.run_id}",
                    agent="agent",
                    agent_version="v1",
                    model="scripted:test",
                    task="The task.",
                    input_message_id=input_id,
                    started_by="starter",
                ),
            )

    async def _say(self, conn: object, parent_id: str | None, text: str) -> str:
        message_id = f"msg_{self.run_id}_{next(NUMBERS)}"
        await messages.append(
            conn,
            messages.NewMessage(
                id=message_id,
                parent_id=parent_id,
                conversation_id=f"conv_{self.run_id}",
                run_id=self.run_id,
                step=None,
                message=user_message(text),
            ),
        )
        return message_id

    async def ask(self, step: int) -> tuple[list[Message], Cut | None]:
        """Return what the model would get for this step."""
        run = await self.run()
        async with self.database.read() as conn:
            history = await self.histories.load(conn, run, self.agent)

        async def sent(fitting: History) -> tuple[list[Message], Cut | None]:
            return reconcile([SYSTEM, *fitting.messages]), fitting.cut

        return await self.compactor.ask_fitting(RunStep(run, self.agent, step), history, [], sent)

    async def answer(self, step: int, step_plan: Step, taken: int) -> None:
        """Store a response with its results."""
        calls, chars, spoken_to = step_plan
        ids = [f"c{step}_{index}" for index in range(calls)]
        parts = [ToolCallPart(tool_call_id=each, tool_name="look", input="{}") for each in ids]
        response = says(*(parts or ["Just words."])).model_copy(update={"usage": Usage(input_tokens=taken)})
        run = await self.run()
        async with self.database.write() as conn:
            await steps.record_response(conn, run, steps.NewStep(number=step, response=response))
            await steps.close(conn, run, step, Failure(kind="cancelled", reason="x" * chars))
        if spoken_to:
            run = await self.run()
            async with self.database.write() as conn:
                await runs.move_head(conn, run, await self._say(conn, run.head_message_id, "And more?"))


STEPS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 900), st.booleans()), min_size=4, max_size=9)


@given(steps=STEPS, fails=st.lists(st.booleans(), max_size=4), reports=st.booleans())
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], phases=[Phase.generate]
)
async def test_i1_i8_every_request_is_in_order(
    sqlite: Database, steps: list[Step], fails: list[bool], reports: bool
) -> None:
    """I1, I8: instructions and task first, each call with its result; a restart changes nothing, and under one cut it only grows.

    The request fits, unless the last step alone does not; and the stored messages stay unchanged.
    """
    writer = Writer(fails)
    context = Context(window=WINDOW, keep=2, summary_model="scripted:writer")
    agent = Agent(name="agent", instructions="Be brief.", toolkit=Toolkit.of(), model="scripted:test", context=context)
    talk, before, last_cut, stored_before = Talk(sqlite, agent, writer), list[Message](), None, list[Message]()
    with capture_logs():
        await talk.begin()
        for number, step in enumerate(steps, 1):
            sent, cut = await talk.ask(number)
            written = writer.written
            for _ in range(2):
                talk.forget()
                assert (await talk.ask(number))[0] == sent
            assert writer.written == written, "nothing is summarised twice"
            assert sent[:2] == [SYSTEM, user_message("The task.")]
            assert is_reconciled(sent)
            if cut is not None:
                assert sent[2] == cut.message
            if (cut and cut.covers) == (last_cut and last_cut.covers):
                assert sent[: len(before)] == before
            taken = sum(message_tokens(message) for message in sent)
            last = step_tokens(steps[number - 2]) if number > 1 else 0
            assert taken <= max(WINDOW, last + WINDOW / 2)
            before, last_cut = sent, cut
            await talk.answer(number, step, taken if reports else 0)
            async with sqlite.read() as conn:
                path = await messages.path_to(conn, (await talk.run()).head_message_id)
            assert [stored.message for stored in path][: len(stored_before)] == stored_before
            stored_before = [stored.message for stored in path]


def step_tokens(step: Step) -> int:
    """Return roughly how many tokens the messages of a step take."""
    calls, chars, _ = step
    return 100 + calls * (chars // 3 + 80)
