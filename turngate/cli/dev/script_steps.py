"""Which entry of a script each request of a run took, and a scripted model that pauses its run after each answer.

A script's place follows from the conversation alone, so the model itself says afterwards what it took. Where the run's own
answer is another one, the script was changed since, or another model answered.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from temporalio import activity

from turngate.domain.agents.model_profiles import Profiles
from turngate.domain.conversation.malformed import without_calls
from turngate.domain.conversation.messages import Message, ModelResponse
from turngate.domain.errors import ModelError
from turngate.models.port import LanguageModel, ModelRequest, OnDelta
from turngate.models.registry import Models, ModelSettings
from turngate.models.script import Case, Entry, Response
from turngate.models.scripted import ScriptedModel
from turngate.store.clock import now
from turngate.store.database import Database
from turngate.store.events import events
from turngate.store.runs import runs
from turngate.wire.playground import RunMessages, ScriptEntry, ScriptRequest, ScriptSteps
from turngate.yaml_document import Location

MOST_REQUESTS: Final = 200
"""Of a run, its newest."""
MOST_CHARS: Final = 2_000
"""Of a text of an entry, and of a call's arguments."""
BY: Final = "turngate dev"
REASON: Final = "One step at a time: the model has answered."


def script_steps(model: ScriptedModel, spec: str, run: RunMessages | None) -> ScriptSteps:
    """Return a script, and which entry each request of a run took, or why none fits."""
    taken: dict[Location, list[int]] = {}
    requests: list[ScriptRequest] = []
    following: Location | None = None
    answers = [] if run is None else list(_answers(run))
    for step, before, message in answers[-MOST_REQUESTS:]:
        request, place = _request(model, step, before, message)
        requests.append(request)
        if place is not None:
            taken.setdefault(place, []).append(step)
    if run is not None and run.asks_again:
        following, request = _following(model, run)
        requests.append(request)
    entries = (
        _entry(model, place, entry, taken.get(place, []), is_next=following is not None and _is_in(following, place))
        for place, entry in _every(model)
    )
    return ScriptSteps(
        model=spec,
        entries=tuple(entries),
        requests=tuple(requests),
        left_out=max(0, len(answers) - MOST_REQUESTS),
    )


def _answers(run: RunMessages) -> Iterator[tuple[int, list[Message], Message]]:
    """Return the answers of a run, each with its step and the messages before it."""
    messages = [message for _step, message in run.closed]
    for index, (step, message) in enumerate(run.closed):
        if step is not None and message.role == "assistant":
            yield step, messages[:index], message
    if run.open is not None:
        step, message = run.open
        yield step, messages, message


def _request(
    model: ScriptedModel, step: int, before: Sequence[Message], message: Message
) -> tuple[ScriptRequest, Location | None]:
    try:
        place, response = model.response_to(before)
    except ModelError as error:
        return ScriptRequest(step=step, why_not=error.message), None
    differs = _content(without_calls(model.answer(response, before)).message) != _content(message)
    request = ScriptRequest(step=step, place=model.script.at(place), differs=differs)
    return request, None if differs else place


def _content(message: Message) -> tuple[str, list[tuple[str, str]]]:
    return message.text, [(call.tool_name, call.input) for call in message.calls]


def _following(model: ScriptedModel, run: RunMessages) -> tuple[Location | None, ScriptRequest]:
    """Return the place that the next request takes, as far as it is known."""
    messages = [message for _step, message in run.closed]
    if run.open is not None:
        # Which case it is depends on results that aren't there yet.
        place = model.place_of(*model.turn_of([*messages, run.open[1]]))
        if any(_is_in(place, each) for each, _entry in _every(model)):
            return place, ScriptRequest(step=None, place=model.script.at(place))
        messages.append(run.open[1])
    try:
        place, _response = model.response_to(messages)
    except ModelError as error:
        return None, ScriptRequest(step=None, why_not=error.message)
    return place, ScriptRequest(step=None, place=model.script.at(place))


def _is_in(outer: Location, place: Location) -> bool:
    return place[: len(outer)] == outer


def _every(model: ScriptedModel) -> Iterator[tuple[Location, Entry | Case]]:
    """Return each response and each case of a script, with its place."""
    for run, entries in enumerate(model.script.responses_per_run):
        for index, entry in enumerate(entries):
            place = model.place_of(run, index)
            if entry.cases is None:
                yield place, entry
            for number, case in enumerate(entry.cases or ()):
                yield (*place, "cases", number), case


def _entry(
    model: ScriptedModel, place: Location, entry: Entry | Case, steps: list[int], *, is_next: bool
) -> ScriptEntry:
    return ScriptEntry(
        place=model.script.at(place),
        when=_when(entry) if isinstance(entry, Case) else "",
        text=entry.text[:MOST_CHARS],
        calls=tuple(
            (
                call.tool,
                (json.dumps(call.input, ensure_ascii=False) if call.raw_input is None else call.raw_input)[:MOST_CHARS],
            )
            for call in entry.calls
        ),
        notes=tuple(_notes(entry)),
        steps=tuple(steps),
        is_next=is_next,
    )


def _when(case: Case) -> str:
    if case.when is None:
        return "in any other case"
    return f"when {case.when.tool or 'any tool'} is {case.when.kind}"


def _notes(entry: Response) -> Iterator[str]:
    if entry.error is not None:
        yield f"fails {entry.error.times} time(s) first: {entry.error.error_class}, {entry.error.message[:MOST_CHARS]}"
    if entry.malformed:
        yield f"can't be parsed: {entry.malformed[:MOST_CHARS]}"
    if entry.finish_reason is not None:
        yield f"ends with {entry.finish_reason}"


# One step at a time


@dataclass
class Pace:
    """Whether each run pauses after each answer of a scripted model. ``database``: where."""

    database: Database
    one_step_at_a_time: bool = False

    async def answered(self) -> None:
        """Pause the run whose model has answered, before anything is done with the answer.

        Its answer is stored and its requests are opened all the same. The next thing that would start finds the run paused, as
        with any pause: that is checked in the store, so the run's workflow needs no word about it.
        """
        if not self.one_step_at_a_time:
            return
        run_id = activity.info().workflow_id
        if run_id is None:
            return
        async with self.database.write() as conn:
            if await runs.pause(conn, run_id, by=BY, reason=REASON, at=now()):
                await events.append(conn, run_id, [("run.paused", {"by": BY, "reason": REASON})])


@dataclass
class PacedModel:
    """A scripted model that lets its run pause after each answer."""

    played: ScriptedModel
    pace: Pace

    @property
    def name(self) -> str:
        """The model's own."""
        return self.played.name

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """Return the model's answer; raises as it does."""
        answer = await self.played.generate(request)
        await self.pace.answered()
        return answer

    async def stream(self, request: ModelRequest, on_delta: OnDelta) -> ModelResponse:
        """Return the model's answer, streamed; raises as it does."""
        answer = await self.played.stream(request, on_delta)
        await self.pace.answered()
        return answer

    async def aclose(self) -> None:
        """Close the model."""
        await self.played.aclose()


class PacedModels(Models):
    """The models of a worker, whose scripted ones keep a pace."""

    def __init__(self, pace: Pace, settings: ModelSettings, profiles: Profiles) -> None:
        super().__init__(settings, profiles)
        self._pace = pace

    def resolve(self, spec: str) -> LanguageModel:
        """Return the model of this spec; raises as :meth:`Models.resolve`."""
        model = super().resolve(spec)
        return PacedModel(model, self._pace) if isinstance(model, ScriptedModel) else model
