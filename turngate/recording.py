"""Turn a run, as the API shows it, into a fixture (:mod:`turngate.domain.runs.fixtures`). Pure: it reads nothing itself.

People's names become role words, and the run's id and directory become placeholders. So two records of the same events are
equal, regardless of who ran the agent and where.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, cast, get_args

from pydantic import JsonValue

from turngate.domain.agents.no_progress import is_nudge
from turngate.domain.conversation.malformed import UNREADABLE, is_corrective, problem_in
from turngate.domain.conversation.messages import Message, ToolResultPart, user_message
from turngate.domain.errors import ConflictError
from turngate.domain.policy.judged_verdict import JUDGE_RULE
from turngate.domain.runs.fixtures import (
    Ending,
    Fixture,
    FixtureCall,
    FixtureDecision,
    FixtureEnd,
    FixtureRequest,
    FixtureResponse,
)
from turngate.domain.tools.control_calls import HandOff, WaitUntil
from turngate.domain.tools.results import Failure, Ok
from turngate.wire.calls import CallView
from turngate.wire.requests import RequestDetail
from turngate.wire.runs import MessageView, RunDetail, StepView

STARTER_WORD: Final = "starter"
OPERATOR_WORD: Final = "operator"


class NotExportableError(ConflictError):
    """The run has something that a fixture cannot play again; the message says what, and what to do instead."""

    code = "not_exportable"


def record(run: RunDetail, messages: Sequence[MessageView], requests: Mapping[str, RequestDetail]) -> Fixture:
    """Return the run as a fixture.

    Args:
        run: a run that ended.
        messages: its conversation from the first message on.
        requests: request id → detail, of every request of the run's calls.

    Raises:
        NotExportableError: the run cannot be played again from a file.
    """
    _refuse_unplayable(run)
    before, text = _input(run, messages)
    return Fixture(
        agent=run.agent,
        model=run.model,
        workspace=run.workspace is not None,
        unattended=None if run.attended else run.unattended_asks,
        before=before,
        input=text,
        responses=recorded_responses(run, requests),
        ended=recorded_end(run),
    )


def recorded_responses(run: RunDetail, requests: Mapping[str, RequestDetail]) -> tuple[FixtureResponse, ...]:
    """Return the run's responses with their calls as in a fixture, even of a run that :func:`record` refuses."""
    names = _Names(run)
    return tuple(_response(step, requests, names) for step in run.steps)


def recorded_end(run: RunDetail) -> FixtureEnd:
    """Return how the run ended, as in a fixture."""
    return FixtureEnd(status=run.status, error_class=run.error_class, final_text=_Names(run).text(run.final_text))


def request_ids(run: RunDetail) -> list[str]:
    """Return the ids of every request that the run's calls opened, in their order."""
    return [request.id for step in run.steps for call in step.calls for request in call.requests]


def _refuse_unplayable(run: RunDetail) -> None:
    if run.status == "running":
        raise NotExportableError(f"run {run.id} is still live: export it when it has ended")
    if run.erased is not None:
        raise NotExportableError(f"{run.erased.says} So run {run.id} can't become a fixture any more")
    if run.status == "interrupted":
        raise NotExportableError(
            f"run {run.id} was interrupted, and an instant cannot be played again: start the same task in a test and "
            "interrupt it there (turngate.testing.running_app, engine.interrupt)"
        )
    if run.parent_run_id is not None:
        raise NotExportableError(
            f"run {run.id} is a sub-agent's, and answers a call of run {run.parent_run_id}: a test starts its own "
            "agent. Start this agent with the same task, and export that run"
        )
    if run.replay_of_run_id is not None:
        raise NotExportableError(
            f"run {run.id} is a dry run, in which no tool ran: export run {run.replay_of_run_id}, whose results it uses"
        )
    if run.own is not None and (run.own.tools is not None or run.own.policy is not None):
        raise NotExportableError(
            f"run {run.id} overrides tools or policy, and a test uses the app's: export a run without overrides, such as a "
            "fork with --plain"
        )
    for step in run.steps:
        for call in step.calls:
            why = _unplayable(call)
            if why is not None:
                raise NotExportableError(
                    f"call {call.tool_call_id} ({call.tool_name}) in step {step.step} of run {run.id} {why}",
                    tool_call_id=call.tool_call_id,
                )


def _unplayable(call: CallView) -> str | None:
    """Return why a call cannot be played again, as the rest of a sentence; None when it can."""
    if call.child_run_id is not None:
        return f"was answered by a sub-agent's run ({call.child_run_id}), whose model and gates are not in a fixture"
    if call.by_engine:
        return "asked to extend a budget, and a fixture does not say when the budget was used up"
    match call.signal:
        case WaitUntil():
            return "held the run on a timer, which a test would have to wait for"
        case HandOff():
            return "handed the run over to another agent: a fixture is a run of one agent"
    if any(request.kind == "outcome" for request in call.requests):
        return "ended without saying whether it took effect, and a test can't repeat what a person found out"
    if len(call.requests) > 1:
        return "was asked for again because what it depends on had changed, and a fixture does not have that change"
    request = call.request
    if request is not None and request.status not in get_args(Ending):
        return f"has a request that ended as {request.status}: a message came in between, which is not in a fixture"
    return None


def _input(run: RunDetail, messages: Sequence[MessageView]) -> tuple[tuple[Message, ...], str | None]:
    """Return the messages before the run, and the text that started it; None: it retried another run."""
    own = [place for place, message in enumerate(messages) if message.run_id == run.id]
    sent = [place for place in own if messages[place].role == "user" and not _is_by_engine(_message(messages[place]))]
    if len(sent) > (0 if run.is_retry else 1):
        raise NotExportableError(
            f"run {run.id} was sent a message while it worked, and its time is not recorded: send the same task in one "
            "message, and export that run"
        )
    if run.is_retry:
        before = messages[: own[0]] if own else [each for each in messages if each.created_at <= run.created_at]
        return tuple(_message(message) for message in before), None
    first = messages[own[0]]
    if _message(first) != user_message(_message(first).text):
        raise NotExportableError(f"run {run.id} was started with more than a text, and a fixture has only a text")
    return tuple(_message(message) for message in messages[: own[0]]), _message(first).text


def _is_by_engine(message: Message) -> bool:
    return is_corrective(message) or is_nudge(message)


def _message(view: MessageView) -> Message:
    """Return a message without its provider's options, and without the reference to a whole result."""
    parts = []
    for part in view.parts:
        bare = part.model_copy(update={"provider_options": {}})
        parts.append(bare.model_copy(update={"whole_result": None}) if isinstance(bare, ToolResultPart) else bare)
    return Message(role=view.role, parts=tuple(parts))


def _response(step: StepView, requests: Mapping[str, RequestDetail], names: _Names) -> FixtureResponse:
    malformed = ""
    if step.corrective is not None and step.corrective.startswith(UNREADABLE):
        malformed = problem_in(step.corrective).removeprefix("it could not be parsed: ")
    return FixtureResponse.model_validate(
        {
            "text": step.text,
            "reasoning": step.reasoning,
            "finish_reason": step.finish_reason,
            "malformed": malformed,
            "calls": tuple(_call(call, requests, names) for call in step.calls),
        }
    )


def _call(call: CallView, requests: Mapping[str, RequestDetail], names: _Names) -> FixtureCall:
    verdict, request = call.verdict, call.request
    return FixtureCall(
        id=call.tool_call_id,
        tool=call.tool_name,
        input=call.input,
        verdict=None if verdict is None else verdict.answer,
        rule=None if verdict is None else verdict.rule,
        judged=verdict is not None
        and verdict.answer == "allow"
        and verdict.judged is not None
        and verdict.rule == JUDGE_RULE,
        request=None if request is None else _request(requests[request.id], names),
        ran_with=call.edited_input,
        result=None if call.result is None else names.result(call.result),
    )


def _request(request: RequestDetail, names: _Names) -> FixtureRequest:
    decisions = []
    winner = request.decision
    for approval in request.given:
        if winner is None or approval.decided_by != winner.decided_by:
            by = names.word(approval.decided_by)
            decisions.append(FixtureDecision(verb="approve", message=approval.message, by=by))
    if winner is not None:
        by = names.word(winner.decided_by)
        decisions.append(FixtureDecision(verb=winner.verb, args=winner.args, message=winner.message, by=by))
    ended = request.status if request.status in get_args(Ending) else "cancelled"
    kind = "question" if request.kind == "question" else "approval"
    return FixtureRequest(kind=kind, ended=cast("Ending", ended), decisions=tuple(decisions))


class _Names:
    """Role words for people's names, and placeholders for the run's id and directory."""

    def __init__(self, run: RunDetail) -> None:
        self._words = {run.started_by: STARTER_WORD}
        self._places = [(run.id, "<run>")]
        if run.workspace is not None:
            self._places.append((run.workspace.rstrip("/") or run.workspace, "<workspace>"))

    def word(self, name: str) -> str:
        """Return the role word of a person. The same person always gets the same word."""
        if name not in self._words:
            others = len(self._words)
            self._words[name] = OPERATOR_WORD if others == 1 else f"{OPERATOR_WORD}-{others}"
        return self._words[name]

    def text(self, text: str) -> str:
        """Return a text with placeholders."""
        for own, word in self._places:
            text = text.replace(own, word)
        return text

    def result(self, result: Ok | Failure) -> Ok | Failure:
        """Return a result with placeholders, and the role word of the person who refused."""
        if isinstance(result, Ok):
            return Ok(value={name: self._tree(value) for name, value in result.value.items()})
        fields = {name: self._tree(value) for name, value in result.fields.items()}
        refuser = result.fields.get("operator")
        if result.kind == "rejected" and isinstance(refuser, str):
            fields["operator"] = self.word(refuser)
        return Failure(kind=result.kind, reason=self.text(result.reason), fields=fields)

    def _tree(self, value: JsonValue) -> JsonValue:
        match value:
            case str():
                return self.text(value)
            case list():
                return [self._tree(each) for each in value]
            case dict():
                return {name: self._tree(each) for name, each in value.items()}
            case _:
                return value
