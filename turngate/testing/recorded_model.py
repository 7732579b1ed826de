"""A model that gives a fixture's responses: the n-th request of the run gets the n-th. It answers for the judge, too."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import cast, get_args

from turngate.domain.agents.no_progress import is_nudge
from turngate.domain.conversation.malformed import is_corrective
from turngate.domain.conversation.messages import Message, ModelResponse, Part, ReasoningPart, TextPart, ToolCallPart
from turngate.domain.errors import ModelError, ModelErrorClass
from turngate.domain.policy.judge import ANSWER_SCHEMA, asked_about
from turngate.domain.runs.fixtures import Fixture, FixtureResponse
from turngate.models.port import ModelRequest


class RecordedModel:
    """Plays a fixture's model.

    The request alone says which response is next, so an activity that is tried again gets the same one, and a context
    transform may leave out what is long past.
    """

    name = "scripted:recorded"

    def __init__(self, fixture: Fixture) -> None:
        self._responses = fixture.responses
        self._place = {call.id: at for at, given in enumerate(fixture.responses) for call in given.calls}
        self._ended_with = fixture.ended.error_class
        self._judged: dict[tuple[str, str], bool] = {}
        for call in fixture.calls.values():
            # Of two alike the judge let run one only, which one does not tell by itself: a person is asked.
            self._judged[call.tool, call.input] = call.judged and self._judged.get((call.tool, call.input), True)

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """Return the next recorded response.

        Raises:
            ModelError: the recorded run got no further response. As it failed then, or ``bad_response``; not retryable.
        """
        if request.output == ANSWER_SCHEMA:
            return self._judgement(request.messages)
        at = self._next(request.messages)
        if at < len(self._responses):
            return self._answer(self._responses[at])
        recorded = self._ended_with in get_args(ModelErrorClass)
        raise ModelError(
            f"the fixture holds {len(self._responses)} response(s), and the model was asked once more",
            error_class=cast("ModelErrorClass", self._ended_with) if recorded else "bad_response",
            retryable=False,
        )

    async def aclose(self) -> None:
        """Nothing is held."""

    def _next(self, messages: Sequence[Message]) -> int:
        """Count from the last response that one of its calls tells; where none does, from what the person said."""
        since = 0
        for message in reversed(messages):
            if message.role == "assistant":
                known = [self._place[call.tool_call_id] for call in message.calls if call.tool_call_id in self._place]
                if known:
                    return known[0] + 1 + since
                since += 1
            elif message.role == "user" and not is_corrective(message) and not is_nudge(message):
                break
        return since

    def _judgement(self, messages: Sequence[Message]) -> ModelResponse:
        """Say of a call what the judge said then: ``allow`` where it let the call run, and else ``ask``."""
        shown = asked_about(messages)
        verdict = "allow" if self._judged.get((shown["tool"], shown["arguments"])) else "ask"
        said = json.dumps({"verdict": verdict, "reason": "This is what the judge said in the recorded run."})
        message = Message(role="assistant", parts=(TextPart(text=said),))
        return ModelResponse(message=message, finish_reason="stop", model=self.name)

    def _answer(self, given: FixtureResponse) -> ModelResponse:
        parts: list[Part] = []
        if given.reasoning:
            parts.append(ReasoningPart(text=given.reasoning))
        if given.text:
            parts.append(TextPart(text=given.text))
        parts += [ToolCallPart(tool_call_id=each.id, tool_name=each.tool, input=each.input) for each in given.calls]
        return ModelResponse(
            message=Message(role="assistant", parts=tuple(parts)),
            finish_reason=given.finish_reason,
            model=self.name,
            malformed=given.malformed,
        )
