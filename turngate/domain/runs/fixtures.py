"""A fixture: one recorded run as a file, to run an agent against in a test. Pure.

Owns the form (``"turngate_fixture": 1``), its reading and its writing. It holds what the run met from outside (its input,
the model's responses, people's decisions, expiries) and its results, and nothing of the machine it ran on: no ids but
those of calls, no times, no names of people (``starter``, ``operator``, ``operator-2``, …), no directories.
"""

from __future__ import annotations

import json
from typing import Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from turngate.domain.conversation.messages import FinishReason, Message
from turngate.domain.errors import ConfigurationError
from turngate.domain.requests import RunStatus, UnattendedAsks, Verb
from turngate.domain.runs.outcomes import RunOutcome, outcome_of
from turngate.domain.text.hidden_text import escape_hidden
from turngate.domain.tools.results import ToolResult

VERSION: Final = 1
MARK: Final = "turngate_fixture"

Ending = Literal["approved", "rejected", "responded", "expired", "cancelled"]
"""How a recorded request ended. ``cancelled``: its run failed while it waited."""


class _Form(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FixtureDecision(_Form):
    """What a person answered. ``args``: exact JSON text, None without. ``by``: a role word."""

    verb: Verb
    args: str | None = None
    message: str = ""
    by: str


class FixtureRequest(_Form):
    """One request of a call. ``decisions``: in order, several where several had to agree; empty when none was made."""

    kind: Literal["approval", "question"]
    ended: Ending
    decisions: tuple[FixtureDecision, ...] = ()


class FixtureCall(_Form):
    """One call. ``input``: the exact text the model sent. ``ran_with``: what ran in its place.

    ``verdict``: None for a call that policy never saw (an unknown tool, arguments that do not fit). ``judged``: the judge let it
    run. ``request``: None when no one was asked.
    """

    id: str
    tool: str
    input: str
    verdict: Literal["allow", "ask", "deny"] | None = None
    rule: str | None = None
    judged: bool = False
    request: FixtureRequest | None = None
    ran_with: str | None = None
    result: ToolResult | None = None


class FixtureResponse(_Form):
    """One response of the model, with its calls. ``malformed``: why nothing could be made of it; empty for a whole one."""

    text: str = ""
    reasoning: str = ""
    finish_reason: FinishReason
    malformed: str = ""
    calls: tuple[FixtureCall, ...] = ()


class FixtureEnd(_Form):
    """How the run ended. ``error_class``: of a failed one. ``final_text``: of a completed one.

    ``outcome``: derived from the first two, for people who read the file.
    """

    status: RunStatus
    error_class: str = ""
    final_text: str = ""
    outcome: RunOutcome | None = None

    @model_validator(mode="after")
    def _say_outcome(self) -> Self:
        object.__setattr__(self, "outcome", outcome_of(self.status, self.error_class))
        return self


class Fixture(_Form):
    """A recorded run.

    ``before``: the messages of the conversation that the run found; empty when it began one. ``input``: None: it retried
    another run, so it continued from those messages without a new one. ``workspace``: whether it
    worked in a directory (which one, the replay says). ``unattended``: None when someone attended it.
    """

    turngate_fixture: Literal[1] = VERSION
    agent: str
    model: str
    workspace: bool = False
    unattended: UnattendedAsks | None = None
    before: tuple[Message, ...] = ()
    input: str | None = None
    responses: tuple[FixtureResponse, ...] = ()
    ended: FixtureEnd

    @property
    def calls(self) -> dict[str, FixtureCall]:
        """The run's calls by id, in order."""
        return {call.id: call for response in self.responses for call in response.calls}

    @property
    def expires(self) -> bool:
        """Whether a request of the run ran out of time."""
        return any(call.request is not None and call.request.ended == "expired" for call in self.calls.values())

    def as_text(self) -> str:
        """Return the file's text: indented JSON, members in the order of the form; the same run gives the same text."""
        # Numbers of results were floats in the store already; texts of arguments are strings and stay exact.
        tree = {MARK: VERSION, **_without_empty(self.model_dump(mode="json"))}
        return (
            escape_hidden(json.dumps(tree, ensure_ascii=False, indent=2)) + "\n"
        )  # it is read in editors and terminals


class FixtureFormError(ConfigurationError):
    """The file is not a fixture that this release reads; the message gives the place of each problem."""

    code = "not_a_fixture"


def parse_fixture(text: str, source: str) -> Fixture:
    """Return the fixture in this text; ``source`` names it in errors. Raises FixtureFormError."""
    try:
        tree = json.loads(text)
    except ValueError as error:
        raise FixtureFormError(f"{source} is not JSON: {error}. Write it with `turngate export RUN -o FILE`.") from None
    version = tree.get(MARK) if isinstance(tree, dict) else None
    if version is None:
        raise FixtureFormError(f'{source} is not a fixture: it has no "{MARK}". Write one with `turngate export RUN`.')
    if version != VERSION:
        raise FixtureFormError(
            f"{source} is a fixture of version {version!r}, and this release reads {VERSION}: "
            "install the release that wrote it, or export the run again"
        )
    try:
        fixture = Fixture.model_validate_json(text)
    except ValidationError as error:
        problems = [
            f"{'.'.join(str(step) for step in issue['loc']) or 'the fixture'}: {issue['msg']}"
            for issue in error.errors(include_url=False, include_context=False, include_input=False)
        ]
        raise FixtureFormError(f"{source} is not a fixture: {'; '.join(problems)}", problems=problems) from None
    ids = [call.id for response in fixture.responses for call in response.calls]
    twice = sorted({each for each in ids if ids.count(each) > 1})
    if twice:
        raise FixtureFormError(f"{source} is not a fixture: call id {twice[0]!r} occurs {ids.count(twice[0])} times")
    return fixture


def _without_empty(tree: dict[str, Any]) -> dict[str, Any]:
    """Leave out empty values. Messages and results stay whole: in them an empty text is a text."""
    filled: dict[str, Any] = {}
    for name, value in tree.items():
        if name == "before":
            filled[name] = [_bare(message) for message in value]
        elif name in {"result", "input"} and value is not None:
            filled[name] = value
            continue
        elif isinstance(value, dict):
            filled[name] = _without_empty(value)
        elif isinstance(value, list):
            filled[name] = [_without_empty(each) for each in value]
        else:
            filled[name] = value
        if filled[name] in (None, False, "", [], {}):
            del filled[name]
    return filled


def _bare(message: dict[str, Any]) -> dict[str, Any]:
    parts = [
        {name: value for name, value in part.items() if value is not None and name != "provider_options"}
        for part in message["parts"]
    ]
    return {"role": message["role"], "parts": parts}
