"""A scripted model's script: its schema, and how to parse it from YAML or JSON.

Owns the schema (one pydantic model per mapping of the file; an unknown key is refused) and errors that give the place. A
script::

    name: fix-the-test              # default: the file's stem
    responses:                      # one per request of a run; or `runs:`, a list of {responses: …}, one per user message
      - text: "I will look."
        calls:
          - {tool: read_file, input: {path: a.py}}
          - {tool: bash, raw_input: '{"command": '}    # exact text, which need not be JSON
      - {text: "It is the third line.", stream_seconds: 2}    # arrives word by word, for people who watch
      - {malformed: "its call was never closed"}       # cannot be parsed; the engine tells the model so
      - cases:                      # chosen by the results directly before; the first match wins
          - {when: {tool: edit_file, kind: rejected}, text: "Understood, I leave it."}
          - {text: "Done: {{last_result}}"}
"""

from __future__ import annotations

import json
from difflib import get_close_matches
from typing import Annotated, Any, Final, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator
from pydantic_core import ErrorDetails

from turngate.domain.conversation.messages import FinishReason, Usage
from turngate.domain.errors import ConfigurationError, ModelErrorClass

MAX_DELAY_SECONDS: Final = 600
RETRYABLE: Final = frozenset({"unreachable", "rate_limited", "server_error", "bad_response"})
"""Error classes after which the same request may succeed, as the real adapter says of them."""


class _Form(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Call(_Form):
    """One tool call. ``input``: a mapping, sent as JSON; ``raw_input``: the exact text; ``id`` "": the provider sent none."""

    tool: str
    input: dict[str, JsonValue] = Field(default_factory=dict)
    raw_input: str | None = None
    id: str = ""

    @model_validator(mode="after")
    def _one_input(self) -> Self:
        if self.raw_input is not None and "input" in self.model_fields_set:
            raise ValueError("give `input` or `raw_input`, not both")
        return self


class Tokens(_Form):
    """Token counts to report."""

    input_tokens: int = Field(default=0, ge=0)
    output_tokens: int = Field(default=0, ge=0)

    def as_usage(self) -> Usage:
        """Return the domain's value."""
        return Usage(input_tokens=self.input_tokens, output_tokens=self.output_tokens)


class ScriptedError(_Form):
    """Fail with this the first ``times`` times the response is reached in this process."""

    error_class: ModelErrorClass = Field(alias="class")
    message: str = "the script says so"
    times: int = Field(default=1, ge=1)

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later."""
        return self.error_class in RETRYABLE


class Response(_Form):
    """What the model answers. ``finish_reason`` None: ``tool_calls`` when there are calls, else ``stop``.

    ``malformed``: what a provider's adapter would say about a response that it cannot parse. ``stream_seconds``: how long a
    streamed response takes, piece by piece; with an ``error``, watchers see the pieces before it.
    """

    text: str = ""
    reasoning: str = ""
    delay_seconds: float = Field(default=0, ge=0, le=MAX_DELAY_SECONDS)
    stream_seconds: float = Field(default=0, ge=0, le=MAX_DELAY_SECONDS)
    finish_reason: FinishReason | None = None
    malformed: str = ""
    usage: Tokens = Tokens()
    calls: tuple[Call, ...] = ()
    error: ScriptedError | None = None


class When(_Form):
    """True if some result directly before is of ``tool`` (None: any) and this kind: ``ok`` or a failure's."""

    tool: str | None = None
    kind: str


class Case(Response):
    """A response under a condition; without one it always matches."""

    when: When | None = None


class Entry(Response):
    """One place in the script: a response, or the cases to choose from."""

    cases: Annotated[tuple[Case, ...], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if self.cases is None:
            return self
        beside = sorted(self.model_fields_set - {"cases"})
        if beside:
            raise ValueError(f"`cases` must be the only key; move {', '.join(beside)} into the cases")
        if any(case.when is None for case in self.cases[:-1]):
            raise ValueError("a case without `when` always matches, so only the last case may be without")
        return self


Responses = Annotated[tuple[Entry, ...], Field(min_length=1)]


class Run(_Form):
    """The responses to one user message."""

    responses: Responses


class Script(_Form):
    """A whole script."""

    name: str | None = Field(default=None, min_length=1)
    responses: Responses | None = None
    runs: Annotated[tuple[Run, ...], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.responses is None) == (self.runs is None):
            raise ValueError("a script has `responses` (for every run) or `runs` (one per user message): exactly one")
        return self

    @property
    def responses_per_run(self) -> tuple[tuple[Entry, ...], ...]:
        """Return the entries of each run; at least one run."""
        if self.runs is not None:
            return tuple(run.responses for run in self.runs)
        return (self.responses or (),)


class _Loader(yaml.SafeLoader):
    """YAML without dates: ``due: 2026-01-31`` in a call's input is text, because JSON has no dates."""

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Return the next node. Raises YAMLError when it nests too deep for a script, long before Python would."""
        self._depth += 1
        try:
            if self._depth > MAX_NESTING:
                raise yaml.YAMLError("it nests too deep")
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


MAX_NESTING: Final = 100

_KEYS: Final = sorted({key for form in (Script, Entry, Case, When, Call, Tokens) for key in form.model_fields})


def parse_script(text: str, source: str) -> Script:
    """Return the script in this YAML or JSON text.

    Raises:
        ConfigurationError: not YAML, or not a script; says ``source`` and the place of each problem.
    """
    try:
        document = _load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # The place alone: the error's own text quotes the file, and this message may reach the program that named it.
        mark = getattr(error, "problem_mark", None)
        place = "" if mark is None else f": line {mark.line + 1}, column {mark.column + 1}"
        raise ConfigurationError(f"{source} is not YAML{place}") from None
    try:
        return Script.model_validate(document)
    except ValidationError as error:
        problems = [
            _problem(issue) for issue in error.errors(include_url=False, include_context=False, include_input=False)
        ]
        raise ConfigurationError(f"{source} is not a script: {'; '.join(problems)}", problems=problems) from None


def _load(text: str) -> Any:
    # JSON first: it may be indented with tabs, which YAML refuses.
    try:
        return json.loads(text)
    except ValueError:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader with one resolver fewer


def _problem(issue: ErrorDetails) -> str:
    if issue["type"] != "extra_forbidden":
        return f"{_place(issue['loc'])}: {issue['msg'].removeprefix('Value error, ')}"
    # The unknown key is the file's content. One of the known keys that resembles it is not.
    similar = get_close_matches(str(issue["loc"][-1]), _KEYS, 1)
    meant = f": did you mean {similar[0]!r}?" if similar else ""
    return f"{_place(issue['loc'][:-1])}: has a key that is not known there{meant}"


def _place(location: tuple[int | str, ...]) -> str:
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in location)
    return "".join(steps).removeprefix(".") or "the script"
