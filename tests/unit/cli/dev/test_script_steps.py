"""Which entry of a script each request of a run took."""

from __future__ import annotations

from turngate import Agent, Toolkit
from turngate.cli.builders_app import scripts_of
from turngate.cli.dev.script_steps import script_steps
from turngate.domain.agents.model_profiles import Profile, Profiles
from turngate.domain.conversation.messages import Message, TextPart, ToolCallPart, ToolResultPart, user_message
from turngate.domain.tools.results import Ok, ToolResult, rejected
from turngate.models import ScriptedModel
from turngate.wire.playground import RunMessages, ScriptSteps

SCRIPT = """\
responses:
  - calls:
      - {tool: refund, input: {order: A}}
  - cases:
      - {when: {tool: refund, kind: ok}, text: "Done."}
      - {when: {tool: refund, kind: rejected}, text: "Understood."}
"""
CALL = Message(role="assistant", parts=(ToolCallPart(tool_call_id="c1", tool_name="refund", input='{"order": "A"}'),))
GO = (None, user_message("go"))


def answer_of(text: str) -> Message:
    return Message(role="assistant", parts=(TextPart(text=text),))


def result_of_refund(result: ToolResult) -> tuple[int, Message]:
    return 1, Message(role="tool", parts=(ToolResultPart(tool_call_id="c1", tool_name="refund", result=result),))


def steps_of(run: RunMessages | None, script: str = SCRIPT) -> ScriptSteps:
    return script_steps(ScriptedModel.from_text(script, "s.yaml"), "scripted:s.yaml", run)


def taken_of(steps: ScriptSteps) -> list[tuple[tuple[int, ...], bool]]:
    return [(entry.steps, entry.is_next) for entry in steps.entries]


def test_a_script_lists_its_entries_and_their_cases_in_order() -> None:
    """Each has its place with the line, and what the model says there. Without a run none is taken."""
    steps = steps_of(None)
    assert [entry.place for entry in steps.entries] == [
        "responses[0] (s.yaml, line 2)",
        "responses[1].cases[0] (s.yaml, line 5)",
        "responses[1].cases[1] (s.yaml, line 6)",
    ]
    assert [entry.when for entry in steps.entries] == ["", "when refund is ok", "when refund is rejected"]
    assert steps.entries[0].calls == (("refund", '{"order": "A"}'),)
    assert (taken_of(steps), steps.requests) == ([((), False)] * 3, ())


def test_each_answer_of_a_run_has_the_entry_it_took() -> None:
    """The case is the one of the recorded result. Answers of earlier runs of the conversation aren't this run's."""
    closed = [
        (None, user_message("hi")),
        (None, answer_of("Hello.")),
        GO,
        (1, CALL),
        result_of_refund(rejected("ada", "no")),
    ]
    steps = steps_of(RunMessages([*closed, (2, answer_of("Understood."))]))
    assert taken_of(steps) == [((1,), False), ((), False), ((2,), False)]
    assert [(each.step, each.differs) for each in steps.requests] == [(1, False), (2, False)]


def test_the_next_request_is_known_as_far_as_the_results_are() -> None:
    """While a call is open, each case may come next; with its result, one."""
    waiting = steps_of(RunMessages([GO], open=(1, CALL), asks_again=True))
    assert taken_of(waiting) == [((1,), False), ((), True), ((), True)]
    closed = [GO, (1, CALL), result_of_refund(Ok(value={}))]
    settled = steps_of(RunMessages(closed, asks_again=True))
    assert taken_of(settled) == [((1,), False), ((), True), ((), False)]
    assert taken_of(steps_of(RunMessages([GO], asks_again=True)))[0] == ((), True)


def test_a_request_without_an_entry_says_why() -> None:
    """As the failed run does: no case for the result, or the script is over."""
    (_first, no_case) = steps_of(
        RunMessages([GO, (1, CALL), result_of_refund(Ok(value={}))], asks_again=True),
        SCRIPT.replace("kind: ok", "kind: timeout"),
    ).requests
    assert (no_case.step, no_case.place) == (None, "")
    assert (
        "has no case at responses[1] (s.yaml, line 4) for the results directly before it (refund ok)" in no_case.why_not
    )
    closed = [GO, (1, CALL), result_of_refund(Ok(value={})), (2, answer_of("Done."))]
    over = steps_of(RunMessages(closed, asks_again=True)).requests[-1]
    assert "has 2 response(s) for this run, and the model was asked once more" in over.why_not


def test_an_answer_that_is_not_in_the_script_is_not_counted_as_taken() -> None:
    """The script was changed since, or another model answered: the entry has no step, and the request says so."""
    steps = steps_of(RunMessages([GO, (1, answer_of("Something else."))]))
    assert taken_of(steps)[0] == ((), False)
    assert [(each.step, each.differs) for each in steps.requests] == [(1, True)]


def test_scripts_are_found_in_profiles_and_fallbacks_in_the_order_they_are_asked() -> None:
    """An agent's model may be a profile, and a fallback of either may be a script."""
    profiles = Profiles(
        {
            "main": Profile(name="main", model="openai:gpt", fallback=("spare",)),
            "spare": Profile(name="spare", model="scripted:spare.yaml"),
        }
    )
    by_profile = Agent(name="a", instructions="", toolkit=Toolkit.of(), model="main", fallback=["scripted:last.yaml"])
    assert scripts_of(by_profile, profiles) == ["scripted:spare.yaml", "scripted:last.yaml"]
    plain = Agent(name="b", instructions="", toolkit=Toolkit.of(), model="scripted:s.yaml", fallback=["openai:gpt"])
    assert scripts_of(plain, profiles) == ["scripted:s.yaml"]
    without = Agent(name="c", instructions="", toolkit=Toolkit.of(), model="openai:gpt")
    assert scripts_of(without, profiles) == []
