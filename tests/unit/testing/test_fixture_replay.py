"""A recorded run exported to a fixture, and apps run against it: the same app and changed ones."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import pytest
from support.engine.recorded_app import SCRIPT, TWO, Amount, Name, app
from support.engine.stack import ListModel, call
from support.engine.stack import says as response

from turngate import App, Judge, Policy, Rule, ToolFailure, tool
from turngate.approvals_api.runs import retry
from turngate.approvals_api.runs import views as run_views
from turngate.domain.conversation.malformed import ADVICE, EMPTY_RESPONSE
from turngate.domain.conversation.messages import (
    Message,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    user_message,
)
from turngate.domain.errors import ConfigurationError, ModelError
from turngate.domain.policy.judge import ANSWER_SCHEMA, call_in_question
from turngate.domain.runs.fixtures import Fixture, FixtureCall, FixtureEnd, FixtureFormError, parse_fixture
from turngate.domain.tools.results import Failure, Ok
from turngate.models.port import LanguageModel, ModelRequest
from turngate.models.scripted import ScriptedModel
from turngate.recording import NotExportableError, record
from turngate.testing import RunningApp, replay_fixture, running_app
from turngate.testing.harness import STARTER
from turngate.testing.replay import RecordedModel, _recorded_answer
from turngate.testing.report import ReplayedRun, compare
from turngate.wire.calls import CallRequest
from turngate.wire.requests import RequestDetail
from turngate.wire.runs import MessageView, RunDetail

TESTS = Path(__file__).parents[2]
GONE = ModelError("the key is wrong", error_class="authentication", retryable=False)
USERS_TESTS = """
from support.engine.recorded_app import Name, app

async def test_awaited(turngate_replay):
    report = await turngate_replay(app, "run.json")
    report.check()
    assert len(report.calls) == 8

def test_without_a_loop(turngate_replay):
    async def other(params: Name) -> str:
        return "seen another person"

    report = turngate_replay.run(app, "small.json", handlers={"look": other})
    assert [each.kind for each in report.divergences] == ["result"]
"""


class Recorded(NamedTuple):
    """Two runs of one conversation as fixtures, and the records of the first; a run that fails, and two retries of it."""

    first: Fixture
    later: Fixture
    failed: Fixture
    failed_again: Fixture
    retried: Fixture
    run: RunDetail
    messages: list[MessageView]
    requests: dict[str, RequestDetail]

    def again(self, run: RunDetail | None = None, messages: list[MessageView] | None = None) -> Fixture:
        return record(run or self.run, self.messages if messages is None else messages, self.requests)


@dataclass
class Recording:
    """Plays one model in conversations with these words, and another one in all others."""

    words: str
    one: LanguageModel
    other: LanguageModel
    name: str = "test:recording"

    async def generate(self, request: ModelRequest) -> ModelResponse:
        chosen = self.one if self.words in [message.text for message in request.messages] else self.other
        return await chosen.generate(request)

    async def aclose(self) -> None:
        """Nothing is held."""


@pytest.fixture(scope="module")
async def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Record a run with every kind of answer, the message that was sent after it, and retries of a run that fails."""
    directory = tmp_path_factory.mktemp("recorded")
    pay = response("Pay.", call("pay", '{"cents": 1}', "yes"))
    fails = ListModel(pay, GONE, GONE, response("Look.", call("look", '{"name": "Ann"}', "seen")), response("Paid."))
    model = Recording("Try.", fails, ScriptedModel.from_text(SCRIPT, "test"))
    async with running_app(app, directory, model=model, clock=True) as engine:
        retries = await _retried(engine)
        run = await engine.start("Pay them.")
        await engine.request(run, kind="question")
        waiting = {request.tool_call_id: request for request in await engine.pending(run)}
        await engine.decide(waiting["yes"], "approve", by="ann")
        await engine.decide(waiting["edited"], "edit", args={"cents": 22}, by="bob")
        await engine.decide(waiting["no"], "reject", message="Too much.", by="ann")
        await engine.decide(waiting["both"], "approve", by="cy")
        await engine.decide(waiting["both"], "approve", by="ann", message="Fine.")
        await engine.decide(waiting["asked"], "respond", args={"answer": "the first"}, by="starter")
        await engine.forward(run, timedelta(hours=2))
        ended = await engine.ended(run)
        assert ended.status == "completed", ended.reason
        async with engine.services.database.read() as conn:
            messages = await run_views.conversation_messages(conn, ended.conversation_id)
        first, requests = await engine.fixture(run), await engine.request_details(ended)
        later = await engine.start("And Bo?", after=run)
        await engine.ended(later)
        return Recorded(first, await engine.fixture(later), *retries, ended, messages, requests)


async def _retried(engine: RunningApp) -> list[Fixture]:
    runs = [await engine.start("Try.")]
    await engine.decide(await engine.request(runs[0]), "approve")
    for _attempt in range(2):
        await engine.ended(runs[-1])
        runs.append((await retry.retry(engine.services, STARTER, runs[-1])).id)
    await engine.ended(runs[-1])
    run = await engine.run(runs[-1])
    assert (run.is_retry, run.forked_from_run_id, run.status) == (True, runs[1], "completed")
    return [await engine.fixture(each) for each in runs]


def by_call(report_or_text: object) -> set[tuple[str, str]]:
    return {(each.tool_call_id, each.kind) for each in report_or_text.divergences}


async def test_a_fixture_has_what_happened_and_nothing_of_the_machine(recorded: Recorded) -> None:
    """Texts are exact, people are role words, the same run gives the same file, and the file round-trips."""
    first, later = recorded.first, recorded.later
    text = first.as_text()
    assert parse_fixture(text, "run.json") == first
    assert text.startswith('{\n  "turngate_fixture": 1,\n  "agent": "payer"')
    assert not [each for each in ("ann", "bob", "run_", "conv_", "req_", "dec_", "msg_") if each in text]
    calls = first.calls
    assert calls["yes"].input == '{"cents":  1}'
    assert calls["broken"].input == '{"cents": '
    decided = {name: [(d.verb, d.by) for d in call.request.decisions] for name, call in calls.items() if call.request}
    assert decided == {
        "yes": [("approve", "operator")],
        "edited": [("edit", "operator-2")],
        "no": [("reject", "operator")],
        "late": [],
        "both": [("approve", "operator-3"), ("approve", "operator")],
        "asked": [("respond", "starter")],
    }
    assert (calls["late"].request.ended, calls["edited"].ran_with) == ("expired", '{"cents": 22}')
    assert isinstance(calls["no"].result, Failure)
    assert calls["no"].result.fields["operator"] == "operator"
    assert [response.malformed for response in first.responses] == ["", "a brace is missing", "", ""]
    assert [message.role for message in later.before[:3]] == ["user", "assistant", "tool"]
    assert (later.input, list(later.calls)) == ("And Bo?", ["again"])


@pytest.mark.exhaustive
async def test_a_users_tests_replay_it_with_and_without_a_loop(recorded: Recorded, tmp_path: Path) -> None:
    """With the pytest plugin the same app gives no divergence, hours of expiry included; a swapped tool gives one."""
    for name, fixture in (("run.json", recorded.first), ("small.json", recorded.later)):
        (tmp_path / name).write_text(fixture.as_text(), encoding="utf-8")
    (tmp_path / "test_users.py").write_text(USERS_TESTS, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n", encoding="utf-8")
    plugins = ("-p", "pytest_asyncio.plugin", "-p", "turngate.pytest_plugin", "-p", "no:cacheprovider")
    run = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pytest", "-q", *plugins, f"--basetemp={tmp_path}/t"),
        cwd=tmp_path,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(TESTS), "PYTEST_ADDOPTS": ""},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(run.communicate(), timeout=120)
    assert run.returncode == 0, output.decode()
    assert b"2 passed" in output


async def test_a_retry_is_played_from_where_the_failed_run_ended_and_runs_no_tool_that_it_need_not(
    recorded: Recorded, tmp_path: Path
) -> None:
    """The file of a retry has no input: its messages end with what the failed run did.

    Tools answer as they did; their own handlers run where the test says so.
    """
    failed, failed_again, fixture = recorded.failed, recorded.failed_again, recorded.retried
    assert (failed.input, [len(each.responses) for each in (failed, failed_again, fixture)]) == ("Try.", [1, 0, 2])
    assert [message.role for message in fixture.before] == ["user", "assistant", "tool"]
    assert '"input": null' not in fixture.as_text()
    assert parse_fixture(fixture.as_text(), "run.json") == fixture
    counted, ran = _counting()
    (await replay_fixture(counted, fixture, tmp_path)).check()
    assert ran == []


@pytest.mark.exhaustive
async def test_tools_run_where_the_test_wants_it(recorded: Recorded, tmp_path: Path) -> None:
    """With their own handlers; a call without a recorded result fails. A second retry is played, too."""
    later, (counted, ran) = recorded.later, _counting()
    (await replay_fixture(counted, later, _fresh(tmp_path, "recorded"))).check()
    assert ran == []
    (await replay_fixture(counted, later, _fresh(tmp_path, "own"), results="handlers")).check()
    assert ran == ["Bo"]
    step = later.responses[0]
    calls = tuple(each.model_copy(update={"result": None}) for each in step.calls)
    without = later.model_copy(update={"responses": (step.model_copy(update={"calls": calls}), *later.responses[1:])})
    report = await replay_fixture(counted, without, _fresh(tmp_path, "without"))
    assert by_call(report) == {("again", "result")}
    assert ran == ["Bo"]
    (await replay_fixture(app, recorded.failed_again, _fresh(tmp_path, "third"))).check()


def _counting() -> tuple[App, list[str]]:
    """Return the app with a handler that says for whom it ran, and what it says."""
    ran: list[str] = []

    async def looks(params: Name) -> str:
        ran.append(params.name)
        return f"seen {params.name}"

    return app.with_handlers({"look": looks}), ran


def _fresh(directory: Path, name: str) -> Path:
    (directory / name).mkdir()
    return directory / name


def test_a_tool_answers_as_recorded() -> None:
    """A bare value, a model and a declared failure are what the handler returned or raised; another failure is not."""

    class Gone(ToolFailure):
        reason: str

    @tool(effect="read", failures=[Gone])
    async def find(params: Name) -> Amount:
        """Find."""
        return Amount(cents=1)

    @tool(effect="read")
    async def count(params: Name) -> int:
        """Count."""
        return 1

    def recorded(result: Ok | Failure | None) -> FixtureCall:
        return FixtureCall(id="c", tool="find", input="{}", result=result)

    assert _recorded_answer(find, recorded(Ok(value={"cents": 5}))) == Amount(cents=5)
    assert _recorded_answer(count, recorded(Ok(value={"value": 5}))) == 5
    with pytest.raises(Gone) as gone:
        _recorded_answer(find, recorded(Failure(kind="gone", reason="?", fields={"reason": "sold"})))
    assert gone.value.fields == {"reason": "sold"}
    for unknown in (Failure(kind="timeout", reason="too slow"), None):
        with pytest.raises(LookupError, match="pass a handler for it"):
            _recorded_answer(find, recorded(unknown))


@pytest.mark.exhaustive
async def test_a_changed_app_is_named_call_by_call(recorded: Recorded, tmp_path: Path) -> None:
    """A tool with another result, a call that no longer asks, and a denied call are each named."""
    first = recorded.first

    async def pays_less(params: Amount) -> dict[str, int]:
        return {"paid": params.cents - 1}

    rules = [
        Rule(name="free", verdict="allow", tools=["pay_slowly"]),
        Rule(name="no", verdict="deny", tools=["look"]),
        TWO,
    ]
    changed = App(agents=app.agents, policy=Policy(rule=rules))
    report = await replay_fixture(changed, first, tmp_path, handlers={"pay": pays_less})
    assert by_call(report) == {
        ("seen", "verdict"),
        ("seen", "result"),
        ("yes", "result"),
        ("edited", "result"),
        ("late", "not_asked"),
        ("late", "result"),
    }
    with pytest.raises(
        AssertionError, match=r"(?s)differs from its fixture in 6 place.*call yes \(pay\): was .*1.*now .*0"
    ):
        report.check()


@pytest.mark.exhaustive
async def test_a_request_without_a_recorded_decision_is_not_approved(recorded: Recorded, tmp_path: Path) -> None:
    """It ends the replay: its call does not run, and every call is still closed."""
    first = recorded.first
    paid = []

    async def pays(params: Amount) -> dict[str, int]:
        paid.append(params.cents)
        return {"paid": params.cents}

    step = first.responses[0]
    calls = tuple(each.model_copy(update={"request": None}) if each.id == "yes" else each for each in step.calls)
    cut = first.model_copy(update={"responses": (step.model_copy(update={"calls": calls}), *first.responses[1:])})
    report = await replay_fixture(app, cut, tmp_path, handlers={"pay": pays})
    assert 1 not in paid
    assert {("yes", "unrecorded_request"), ("yes", "asked"), ("broken", "call_missing"), ("", "run_ended")} <= by_call(
        report
    )
    assert not {"not_closed_once", "not_reconciled"} & {each.kind for each in report.divergences}
    with pytest.raises(AssertionError, match=r"no decision for it\. It was not approved automatically"):
        report.check()


@pytest.mark.exhaustive
async def test_the_conversation_before_is_there_and_i1_is_checked(recorded: Recorded, tmp_path: Path) -> None:
    """A run that continues a conversation gets its messages; calls that have no answer in them are named."""
    later = recorded.later
    torn = later.model_copy(update={"before": later.before[:2]})
    report = await replay_fixture(app, torn, tmp_path)
    assert by_call(report) == {("", "not_reconciled")}


def test_what_a_replay_compares(recorded: Recorded) -> None:
    """Each difference between two records of a run is one divergence of its kind; the same record gives none."""
    first = recorded.first
    history = history_of(first)

    def kinds(
        call_id: str = "yes", *, history: list[Message] = history, ignore: str = "", **changes: object
    ) -> list[str]:
        responses = [
            step.model_copy(
                update={"calls": tuple(c.model_copy(update=changes) if c.id == call_id else c for c in step.calls)}
            )
            for step in first.responses
        ]
        replayed = ReplayedRun(run_id="r", responses=responses, ended=first.ended, reason="", history=history)
        report = compare(first, replayed, any_result_of=[ignore])
        return [each.kind for each in report.divergences]

    request = first.calls["yes"].request
    assert kinds() == []
    assert kinds("seen", request=request) == ["asked"]
    assert kinds(request=None) == ["not_asked"]
    assert kinds("broken", verdict="deny") == ["verdict"]
    assert kinds("edited", ran_with=None) == ["ran_with"]
    assert kinds("late", request=request) == ["request_ended"]
    assert kinds(result=Ok(value={"paid": 2})) == ["result"]
    assert kinds(result=Ok(value={"paid": 2}), ignore="pay") == []
    assert kinds(result=Failure(kind="timeout"), ignore="pay") == ["result"]
    assert kinds(history=[]) == ["not_closed_once"] * 8
    assert kinds(history=[*history, history[2]]) == ["not_closed_once"] * 7 + ["not_reconciled"]
    other = first.ended.model_copy(update={"final_text": "Not done."})
    replayed = ReplayedRun(run_id="r", responses=first.responses, ended=other, reason="", history=history)
    report = compare(first, replayed)
    assert [str(each) for each in report.divergences] == ["[run_ended] the answer: was Done., and is now Not done."]


def test_a_directory_and_the_runs_own_id_are_placeholders(recorded: Recorded) -> None:
    """In results, at any depth, and in the reply; what the model sent stays exact."""
    run = recorded.run
    place = f"/home/ann/work/a.txt of {run.id}"
    step = run.steps[0]
    seen = step.calls[0].model_copy(update={"input": f'"{place}"', "result": Ok(value={"in": [{"it": place}]})})
    moved = run.model_copy(
        update={
            "workspace": "/home/ann/work",
            "final_text": place,
            "steps": [step.model_copy(update={"calls": [seen, *step.calls[1:]]}), *run.steps[1:]],
        }
    )
    fixture = recorded.again(moved)
    assert fixture.workspace
    assert fixture.ended.final_text == "<workspace>/a.txt of <run>"
    assert fixture.calls["seen"].result == Ok(value={"in": [{"it": "<workspace>/a.txt of <run>"}]})
    assert fixture.calls["seen"].input == f'"{place}"'


def test_a_run_that_a_fixture_cannot_repeat_is_not_exported(recorded: Recorded) -> None:
    """Each refusal names the run or the call, and says why."""
    run, messages = recorded.run, recorded.messages
    step = run.steps[0]
    request = step.calls[1].requests[0]

    def with_requests(*requests: CallRequest) -> RunDetail:
        call = step.calls[1].model_copy(update={"requests": list(requests)})
        return run.model_copy(update={"steps": [step.model_copy(update={"calls": [call]})]})

    own = [message for message in messages if message.run_id == run.id]
    cases = (
        (run.model_copy(update={"parent_run_id": "run_up"}), own, "is a sub-agent's, and answers a call of run run_up"),
        (
            with_requests(request.model_copy(update={"kind": "outcome"})),
            own,
            r"call yes \(pay\) .* ended without saying whether it took effect",
        ),
        (with_requests(request, request), own, "was asked for again because what it depends on had changed"),
        (with_requests(request.model_copy(update={"status": "superseded"})), own, "a message came in between"),
        (run, [*own, own[0]], "was sent a message while it worked"),
        (run, [own[0].model_copy(update={"parts": own[0].parts * 2}), *own[1:]], "started with more than a text"),
    )
    for changed, history, says in cases:
        with pytest.raises(NotExportableError, match=says):
            recorded.again(changed, history)


async def test_the_recorded_model_finds_its_place_in_any_request(recorded: Recorded) -> None:
    """The conversation determines the next response, even without its beginning; after the last one the model fails."""
    first = recorded.first
    model, history = RecordedModel(first), history_of(first)
    corrective = user_message(EMPTY_RESPONSE + ADVICE)
    history = [*history[:3], history[3], corrective, *history[4:]]
    for cut, place in (
        (history[:1], 0),
        (history[:3], 1),
        (history[:5], 2),
        (history[1:5], 2),
        (history[2:7], 3),
        (history[5:7], 3),
    ):
        answer = await model.generate(ModelRequest(messages=cut))
        assert answer.message.text == first.responses[place].text, place
        assert [call.input for call in answer.message.calls] == [call.input for call in first.responses[place].calls]
    with pytest.raises(ModelError, match=r"holds 4 response\(s\)") as failed:
        await model.generate(ModelRequest(messages=history))
    assert (failed.value.error_class, failed.value.retryable) == ("bad_response", False)
    away = first.model_copy(update={"ended": FixtureEnd(status="failed", error_class="context_length")})
    with pytest.raises(ModelError) as failed:
        await RecordedModel(away).generate(ModelRequest(messages=history))
    assert failed.value.error_class == "context_length"


def history_of(fixture: Fixture) -> list[Message]:
    history = [user_message(fixture.input)]
    for step in fixture.responses:
        calls = tuple(ToolCallPart(tool_call_id=c.id, tool_name=c.tool, input=c.input) for c in step.calls)
        results = tuple(ToolResultPart(tool_call_id=c.id, tool_name=c.tool, result=c.result) for c in step.calls)
        history.append(Message(role="assistant", parts=calls))
        if results:
            history.append(Message(role="tool", parts=results))
    return history


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "run.json is not JSON"),
        ("[]", r'run.json is not a fixture: it has no "turngate_fixture"'),
        ('{"turngate_fixture": 2}', "of version 2, and this release reads 1"),
        ('{"turngate_fixture": 1, "agent": "a", "model": "m", "input": "x", "mood": 1}', r"ended: .*mood: "),
    ],
)
def test_an_invalid_fixture_is_refused_with_the_place(text: str, says: str) -> None:
    """Not JSON, not a fixture, one of a later release, or one with missing or unknown members."""
    with pytest.raises(FixtureFormError, match=says):
        parse_fixture(text, "run.json")


async def test_a_replay_that_cannot_start_says_what_is_missing(recorded: Recorded, tmp_path: Path) -> None:
    """No file, an unknown agent, or no workspace: refused before anything is started."""
    first = recorded.first
    for fixture, says in (
        (tmp_path / "none.json", "none.json cannot be read"),
        (first.model_copy(update={"agent": "other"}), "a run of agent 'other'; the app's agents are: payer"),
        (first.model_copy(update={"workspace": True}), "pass one that holds the same files"),
    ):
        with pytest.raises(ConfigurationError, match=says):
            await replay_fixture(app, fixture, tmp_path)


class Paying:
    """A model that pays two sums, and as the judge allows the small one."""

    name = "scripted:paying"

    async def generate(self, request: ModelRequest) -> ModelResponse:
        if request.output == ANSWER_SCHEMA:
            small = call_in_question(request.messages)["arguments"] == '{"cents": 1}'
            return self._says(TextPart(text='{"verdict": "%s", "reason": "So it is."}' % ("allow" if small else "ask")))
        if request.messages[-1].role == "tool":
            return self._says(TextPart(text="Paid."))
        calls = [("small", '{"cents": 1}'), ("large", '{"cents": 2}')]
        return self._says(*(ToolCallPart(tool_call_id=each, tool_name="pay", input=text) for each, text in calls))

    def _says(self, *parts: TextPart | ToolCallPart) -> ModelResponse:
        reason = "tool_calls" if isinstance(parts[0], ToolCallPart) else "stop"
        return ModelResponse(message=Message(role="assistant", parts=parts), finish_reason=reason, model=self.name)

    async def aclose(self) -> None:
        """Nothing is held."""


@pytest.mark.exhaustive
async def test_a_call_that_the_judge_allowed_runs_without_a_person(tmp_path: Path) -> None:
    """The recorded judgement replaces the judge; if the app has none any more, the missing request is named."""
    judged = replace(
        app, policy=None, judge=Judge(model="scripted:judge", criteria="Allow small sums.", mode="enforce")
    )
    (tmp_path / "recorded").mkdir()
    async with running_app(judged, tmp_path / "recorded", model=Paying(), answers_judge=True) as engine:
        run = await engine.start("Pay them.")
        await engine.decide(await engine.request(run), "approve")
        await engine.ended(run)
        fixture = await engine.fixture(run)
    assert [(call.id, call.verdict, call.judged) for call in fixture.calls.values()] == [
        ("small", "allow", True),
        ("large", "ask", False),
    ]
    assert parse_fixture(fixture.as_text(), "run.json") == fixture
    (tmp_path / "again").mkdir()
    (await replay_fixture(judged, fixture, tmp_path / "again")).check()
    (tmp_path / "without").mkdir()
    report = await replay_fixture(replace(judged, judge=None), fixture, tmp_path / "without")
    assert ("small", "unrecorded_request") in by_call(report)
