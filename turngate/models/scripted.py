"""A model that plays a script: for demos and tests. Its name always begins with ``scripted:``, so no one is fooled.

Owns the choice of the next response. The script's form is :mod:`turngate.models.script`. Holds one piece of state: how
often each ``error`` entry has failed in this process.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from turngate.domain.conversation.malformed import is_corrective
from turngate.domain.conversation.messages import (
    Delta,
    FinishReason,
    Message,
    ModelResponse,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from turngate.domain.errors import ConfigurationError, ModelError
from turngate.domain.text.suggestions import Location
from turngate.domain.tools.results import Failure, wire_text
from turngate.models.port import ModelRequest, OnDelta
from turngate.models.script import Entry, Response, Script, When, parse_script
from turngate.text_files import decoded, read_regular

MAX_SCRIPT_BYTES: Final = 1_000_000
LAST_RESULT: Final = "{{last_result}}"
MAX_LAST_RESULT_CHARS: Final = 2000
WORD: Final = re.compile(r"\s*\S+\s*|\s+")


class ScriptedModel:
    """Returns the script's next response to each request.

    The conversation alone determines which one is next (user messages choose the run, assistant messages since then the
    response), so a retry, a restart or a fork gets the same answer.
    """

    def __init__(self, script: Script, *, default_name: str) -> None:
        self.name = f"scripted:{script.name or default_name}"
        self._script = script
        self._runs = script.responses_per_run
        self._failed: Counter[Location] = Counter()

    @classmethod
    def from_file(cls, path: str | Path) -> ScriptedModel:
        """Read a YAML or JSON script: a regular file of at most :data:`MAX_SCRIPT_BYTES`. Blocking: reads a file.

        Raises ConfigurationError if it cannot be read or is not a script. The message has none of the file's content.
        """
        file = Path(path)
        try:
            text = decoded(read_regular(file, MAX_SCRIPT_BYTES))
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise ConfigurationError(f"the script {file} of a scripted model cannot be read: {reason}") from None
        return cls.from_text(text, str(file))

    @classmethod
    def from_text(cls, text: str, source: str) -> ScriptedModel:
        """Parse a script; ``source`` names it in errors, and its stem is the default name.

        Raises:
            ConfigurationError: it is not a script; the message gives the place of each problem.
        """
        return cls(parse_script(text, source), default_name=Path(source).stem)

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """Return the response the script has for this conversation.

        Raises:
            ModelError: the script's own ``error`` entry, or ``bad_response`` (not retryable) when it has no answer.
        """
        place, response = self.response_to(request.messages)
        await asyncio.sleep(response.delay_seconds)
        self._maybe_fail(response, place)
        return self.answer(response, request.messages)

    async def stream(self, request: ModelRequest, on_delta: OnDelta) -> ModelResponse:
        """Return what :meth:`generate` would return, word by word over the response's ``stream_seconds``.

        Raises:
            ModelError: as :meth:`generate`; an ``error`` entry's after every delta.
        """
        place, response = self.response_to(request.messages)
        await asyncio.sleep(response.delay_seconds)
        answer = self.answer(response, request.messages)
        deltas = list(_deltas(answer))
        for delta in deltas:
            on_delta(delta)
            if response.stream_seconds:
                await asyncio.sleep(response.stream_seconds / len(deltas))
        self._maybe_fail(response, place)
        return answer

    async def aclose(self) -> None:
        """Do nothing: the model has nothing to close."""

    @property
    def script(self) -> Script:
        """What it plays."""
        return self._script

    def response_to(self, messages: Sequence[Message]) -> tuple[Location, Response]:
        """Return the response for this conversation, and its place in the script; raises ModelError if it has none."""
        run, index = self.turn_of(messages)
        entries, place = self._runs[run], self.place_of(run, index)
        if index >= len(entries):
            last = self._script.at(self.place_of(run, len(entries) - 1))
            raise self._no_answer(
                f"has {len(entries)} response(s) for this run, and the model was asked once more: add one after {last}"
            )
        case, response = self._choose(entries[index], messages, place)
        return (*place, *case), response

    def turn_of(self, messages: Sequence[Message]) -> tuple[int, int]:
        """Return the run of the script, and the entry in it, whose turn it is; there may be no such entry."""
        # The engine's message about a malformed response is part of the same run.
        users = [
            index for index, message in enumerate(messages) if message.role == "user" and not is_corrective(message)
        ]
        run = max(0, min(len(users), len(self._runs)) - 1)
        current = messages[users[-1] + 1 :] if users else messages
        return run, sum(message.role == "assistant" for message in current)

    def place_of(self, run: int, index: int) -> Location:
        """Return the path of an entry in the script."""
        return ("responses", index) if self._script.runs is None else ("runs", run, "responses", index)

    def _choose(self, entry: Entry, messages: Sequence[Message], path: Location) -> tuple[Location, Response]:
        if entry.cases is None:
            return (), entry
        results = messages[-1].results if messages and messages[-1].role == "tool" else []
        for number, case in enumerate(entry.cases):
            if case.when is None or any(_matches(case.when, part) for part in results):
                return ("cases", number), case
        got = ", ".join(f"{part.tool_name} {_kind(part)}" for part in results) or "none"
        raise self._no_answer(
            f"has no case at {self._script.at(path)} for the results directly before it ({got}); add one without `when`"
        )

    def _maybe_fail(self, response: Response, place: Location) -> None:
        failure = response.error
        if failure is None or self._failed[place] >= failure.times:
            return
        self._failed[place] += 1
        raise ModelError(
            f"{self.name}: {failure.message}", error_class=failure.error_class, retryable=failure.retryable
        )

    def answer(self, response: Response, messages: Sequence[Message]) -> ModelResponse:
        """Return what this response of the script says in this conversation."""
        parts: list[Part] = []
        if response.reasoning:
            parts.append(ReasoningPart(text=response.reasoning))
        if response.text:
            parts.append(TextPart(text=response.text.replace(LAST_RESULT, _last_result(messages))))
        parts.extend(
            ToolCallPart(
                tool_call_id=call.id,
                tool_name=call.tool,
                input=json.dumps(call.input, ensure_ascii=False) if call.raw_input is None else call.raw_input,
            )
            for call in response.calls
        )
        finish: FinishReason = response.finish_reason or ("tool_calls" if response.calls else "stop")
        return ModelResponse(
            message=Message(role="assistant", parts=tuple(parts)),
            finish_reason=finish,
            usage=response.usage.as_usage(),
            model=self.name,
            malformed=response.malformed,
        )

    def _no_answer(self, what: str) -> ModelError:
        return ModelError(f"the script {self.name} {what}", error_class="bad_response", retryable=False)


def _deltas(answer: ModelResponse) -> Iterator[Delta]:
    for place, part in enumerate(answer.message.parts):
        match part:
            case TextPart():
                yield from (Delta(kind="text", part=place, text=word) for word in WORD.findall(part.text))
            case ReasoningPart():
                yield from (Delta(kind="reasoning", part=place, text=word) for word in WORD.findall(part.text))
            case ToolCallPart():
                yield Delta(kind="tool-call", part=place, text=part.input, tool_name=part.tool_name)
            case _:
                pass


def _kind(part: ToolResultPart) -> str:
    return part.result.kind if isinstance(part.result, Failure) else "ok"


def _matches(when: When, part: ToolResultPart) -> bool:
    return when.tool in (None, part.tool_name) and when.kind == _kind(part)


def _last_result(messages: Sequence[Message]) -> str:
    for message in reversed(messages):
        if message.results:
            last = message.results[-1]
            return wire_text(last.result, edited_input=last.edited_input)[:MAX_LAST_RESULT_CHARS]
    return ""
