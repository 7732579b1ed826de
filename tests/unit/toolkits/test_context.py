"""Context transforms shape what is sent, keep its order, and never cut between a call and its result."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from turngate import RunScope
from turngate.domain.conversation.history import is_reconciled, reconcile
from turngate.domain.conversation.messages import Message, TextPart, ToolCallPart, ToolResultPart, user_message
from turngate.domain.tools.results import Ok
from turngate.toolkits.context import Inject, KeepRecent, Summarise

SCOPE = RunScope(run_id="run", agent="agent", step=3)
SYSTEM = Message(role="system", parts=(TextPart(text="Be brief."),))


def step(number: int) -> list[Message]:
    """One step: a response with a call, and its result."""
    call = ToolCallPart(tool_call_id=f"c{number}", tool_name="look", input="{}")
    result = ToolResultPart(tool_call_id=f"c{number}", tool_name="look", result=Ok(value={"n": number}))
    return [Message(role="assistant", parts=(call,)), Message(role="tool", parts=(result,))]


def conversation(steps: int) -> list[Message]:
    return [SYSTEM, user_message("The task."), *(message for number in range(steps) for message in step(number))]


class Writer:
    """Replaces the run's model: its summary says how many messages it read."""

    def __init__(self) -> None:
        self.read: list[list[Message]] = []

    async def __call__(self, messages: Sequence[Message]) -> str:
        self.read.append(list(messages))
        return f"summary {len(self.read)} of {len(messages)}"


async def never(messages: Sequence[Message]) -> str:
    raise AssertionError("no text was needed")


@pytest.mark.parametrize("keep", range(2, 9))
async def test_keep_recent_keeps_instructions_task_and_the_newest(keep: int) -> None:
    """System and first message stay, the middle is dropped, and no cut separates a call from its result."""
    history = conversation(5)
    sent = list(await KeepRecent(keep).before_model(SCOPE, history, never))
    assert sent[:2] == history[:2]
    assert sent[2:] == history[-(len(sent) - 2) :]
    assert keep - 1 <= len(sent) - 2 <= keep
    assert is_reconciled(sent)


async def test_keep_recent_leaves_a_short_conversation_as_it_is() -> None:
    """While everything fits, nothing is left out and nothing is sent twice."""
    for steps in range(3):
        history = conversation(steps)
        assert list(await KeepRecent(4).before_model(SCOPE, history, never)) == history
    assert list(await KeepRecent(2).before_model(SCOPE, [], never)) == []
    assert list(await KeepRecent(2).before_model(SCOPE, [SYSTEM], never)) == [SYSTEM]


async def test_inject_adds_a_text_after_the_conversation() -> None:
    """At the end, so that the prompt before it stays cached; built for each request from run, agent and step."""
    history = conversation(1)
    sent = list(await Inject(lambda scope: f"step {scope.step} of {scope.agent}").before_model(SCOPE, history, never))
    assert sent[:-1] == history
    assert sent[-1] == user_message("step 3 of agent")


async def test_a_conversation_within_the_limit_is_not_summarised() -> None:
    """Up to ``above`` messages after the task nothing changes, and the model gets no request."""
    history = conversation(5)
    assert list(await Summarise(above=10, keep=4).before_model(SCOPE, history, never)) == history


async def test_a_long_conversation_is_sent_as_task_summary_and_the_newest() -> None:
    """The model read all of what the summary replaces, then the prompt; the rest is unchanged and in order."""
    history = conversation(6)
    writer = Writer()
    sent = list(await Summarise(above=10, keep=4).before_model(SCOPE, history, writer))
    assert sent[:2] == history[:2]
    assert sent[2].role == "user"
    assert "summary 1" in sent[2].text
    assert sent[3:] == history[8:]
    assert writer.read[0][:-1] == history[:8]
    assert writer.read[0][-1].text == Summarise.PROMPT
    assert is_reconciled(sent)


async def test_a_summary_is_written_once_per_block_and_the_prompt_before_it_stays() -> None:
    """As the conversation grows, the same summary is sent until the next whole block; each is paid for once."""
    hook, writer = Summarise(above=10, keep=4), Writer()
    heads: list[str] = []
    for steps in range(6, 15):
        for _ in range(2):  # a retried activity
            sent = list(await hook.before_model(SCOPE, conversation(steps), writer))
            assert is_reconciled(sent)
            assert reconcile(sent) == sent
            assert 4 <= len(sent) - 3 <= 10
        heads.append(sent[2].text)
    assert len(writer.read) == len(set(heads))
    assert heads == sorted(heads, key=heads.index)
    assert 1 < len(set(heads)) < len(heads)


async def test_a_cut_never_parts_results_from_their_calls() -> None:
    """Whatever the numbers, a provider would accept the conversation that is sent."""
    for above in range(3, 9):
        for keep in range(2, above):
            for steps in range(8):
                sent = list(await Summarise(above=above, keep=keep).before_model(SCOPE, conversation(steps), Writer()))
                assert is_reconciled(sent), (above, keep, steps)
                assert len(sent) <= 3 + above


async def test_a_failed_summary_raises() -> None:
    """The engine logs it and sends the conversation unchanged; no partial summary is stored."""
    hook = Summarise(above=4, keep=2)

    async def fails(messages: Sequence[Message]) -> str:
        raise RuntimeError("away")

    with pytest.raises(RuntimeError):
        await hook.before_model(SCOPE, conversation(5), fails)
    writer = Writer()
    await hook.before_model(SCOPE, conversation(5), writer)
    assert len(writer.read) == 1


def test_numbers_that_make_no_sense_are_refused() -> None:
    """Fewer messages than a call and its results, or a summary for every message."""
    for wrong in (lambda: KeepRecent(1), lambda: Summarise(above=4, keep=1), lambda: Summarise(above=4, keep=4)):
        with pytest.raises(ValueError, match=r"at least 2|2 <= keep"):
            wrong()
