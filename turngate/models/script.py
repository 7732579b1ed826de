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
from pathlib import Path
from typing import Annotated, Any, Final, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, JsonValue, PrivateAttr, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import CoreSchema, ErrorDetails

from turngate.domain.conversation.messages import FinishReason, Usage
from turngate.domain.errors import ConfigurationError, ModelErrorClass
from turngate.domain.text.suggestions import Location, did_you_mean, keys_at
from turngate.yaml_document import Document, KeyTwiceError, read_document

MAX_DELAY_SECONDS: Final = 600
RETRYABLE: Final = frozenset({"unreachable", "rate_limited", "server_error", "bad_response"})
"""Error classes after which the same request may succeed, as the real adapter says of them."""


def _only_one_of(*keys: str) -> dict[str, Any]:
    """Return the schema's part for "exactly one of these keys", which a validator checks here."""
    return {"oneOf": [{"required": [key], "properties": {key: {"type": "array"}}} for key in keys]}


class _Form(BaseModel):
    # The docstrings of classes and fields are what editors show; `json_schema_extra` is what validators check.
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Call(_Form):
    """A tool call."""

    model_config = ConfigDict(
        json_schema_extra={"not": {"required": ["input", "raw_input"], "properties": {"raw_input": {"type": "string"}}}}
    )

    tool: str
    """The tool's name. It need not exist: the model is then told that it does not."""
    input: dict[str, JsonValue] = Field(default_factory=dict)
    """The arguments."""
    raw_input: str | None = None
    """The exact text of the arguments instead, which need not be JSON."""
    id: str = ""
    """The call's id; by default the provider sent none and the engine makes one."""

    @model_validator(mode="after")
    def _one_input(self) -> Self:
        if self.raw_input is not None and "input" in self.model_fields_set:
            raise ValueError("give `input` or `raw_input`, not both")
        return self


class Tokens(_Form):
    """Token counts to report."""

    input_tokens: int = Field(default=0, ge=0)
    """Tokens of the request."""
    output_tokens: int = Field(default=0, ge=0)
    """Tokens of the answer."""

    def as_usage(self) -> Usage:
        """Return the domain's value."""
        return Usage(input_tokens=self.input_tokens, output_tokens=self.output_tokens)


class ScriptedError(_Form):
    """A failure instead of the response, as often as `times` says; afterwards the response is given."""

    error_class: ModelErrorClass = Field(alias="class")
    """What kind of failure; unreachable, rate_limited, server_error and bad_response are tried again."""
    message: str = "the script says so"
    """The provider's text."""
    times: int = Field(default=1, ge=1)
    """How often it fails, counted in each process."""

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later."""
        return self.error_class in RETRYABLE


class Response(_Form):
    """What the model answers to one request."""

    text: str = ""
    """The text of the answer. {{last_result}} is replaced by the newest tool result."""
    reasoning: str = ""
    """The model's reasoning, before the text."""
    delay_seconds: float = Field(default=0, ge=0, le=MAX_DELAY_SECONDS)
    """Seconds before the first word."""
    stream_seconds: float = Field(default=0, ge=0, le=MAX_DELAY_SECONDS)
    """Seconds over which a streamed response arrives, word by word; with an `error`, watchers see the words before it."""
    finish_reason: FinishReason | None = None
    """Why the model stopped; by default tool_calls when there are calls, else stop."""
    malformed: str = ""
    """What an adapter says about a response that it cannot parse. The engine tells the model so."""
    usage: Tokens = Tokens()
    """Tokens that the provider counts, for budgets and costs."""
    calls: tuple[Call, ...] = ()
    """The tool calls, in order."""
    error: ScriptedError | None = None
    """Fail first."""


class When(_Form):
    """True if a result directly before is of this tool and this kind."""

    tool: str | None = None
    """The tool's name; by default any."""
    kind: str
    """ok; or a failure's kind: rejected, denied, expired, timeout, execution_error… or one that the tool declares."""


class Case(Response):
    """A response under a condition."""

    when: When | None = None
    """The condition. Without one the case always matches, so only the last case may be without."""


class Entry(Response):
    """One place in the script: a response, or the cases to choose from."""

    model_config = ConfigDict(
        json_schema_extra={
            "if": {"required": ["cases"], "properties": {"cases": {"type": "array"}}},
            "then": {"maxProperties": 1},
        }
    )

    cases: Annotated[tuple[Case, ...], Field(min_length=1)] | None = None
    """Responses to choose from by the results directly before; the first that matches is given. The only key then."""

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
    """One per request of the run."""


class Script(_Form):
    """A whole script."""

    model_config = ConfigDict(json_schema_extra=_only_one_of("responses", "runs"))

    name: str | None = Field(default=None, min_length=1)
    """The model is named scripted:NAME; by default the file's stem."""
    responses: Responses | None = None
    """The responses of every run, one per request to the model."""
    runs: Annotated[tuple[Run, ...], Field(min_length=1)] | None = None
    """The responses by user message: the first run for the first message, the last run for all further ones."""

    _document: Document | None = PrivateAttr(default=None)
    _source: str = PrivateAttr(default="")

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

    def read_from(self, document: Document, source: str) -> Self:
        """Remember where the script was read, for errors. Returns the script."""
        self._document, self._source = document, source
        return self

    def at(self, path: Location) -> str:
        """Return a place of the script as errors name it: its path, the file's name, the line."""
        if self._document is None:
            return path_text(path)
        return f"{path_text(path)} ({Path(self._source).name}, line {self._document.line(path)})"


class _WithoutTitles(GenerateJsonSchema):
    """Keys need no title: editors would show the key twice."""

    def field_title_should_be_set(self, _schema: CoreSchema | FieldInfo) -> bool:
        """Return False."""
        return False


def script_schema() -> str:
    """Return the JSON Schema of scripts, as text for a file.

    It refuses what :func:`parse_script` refuses, but for two things that draft 7, which every editor knows, cannot say: that
    only the last case may be without a ``when``, and that no key is there twice.
    """
    schema = Script.model_json_schema(schema_generator=_WithoutTitles)
    named = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        **schema,
        "title": "Turngate: a scripted model's script",
    }
    return json.dumps(named, indent=1, ensure_ascii=False) + "\n"


WORDS_OF_OTHERS: Final = {
    "arguments": "input",
    "args": "input",
    "parameters": "input",
    "params": "input",
    "function": "tool",
    "name": "tool",
    "tool_calls": "calls",
    "content": "text",
    "message": "text",
    "answer": "text",
    "steps": "responses",
    "result": "kind",
}
"""What other formats call a key."""

BELOW: Final = {
    "text": "responses",
    "calls": "responses",
    "cases": "responses",
    "tool": "calls",
    "input": "calls",
    "raw_input": "calls",
    "when": "cases",
    "kind": "when",
    "class": "error",
    "times": "error",
    "input_tokens": "usage",
    "output_tokens": "usage",
}
"""Key → the key that it belongs below."""

SHAPES: Final = {
    "responses": "{text: …, calls: […]}",
    "runs": "{responses: […]}",
    "cases": "{when: {tool: …, kind: …}, text: …}",
    "when": "{tool: …, kind: …}",
    "calls": "{tool: …, input: {…}}",
    "input": "{name: value}; for the exact text of the arguments there is `raw_input`",
    "error": "{class: server_error, message: …}",
    "usage": "{input_tokens: …, output_tokens: …}",
}
"""Key → what its mapping looks like."""


def parse_script(text: str, source: str) -> Script:
    """Return the script in this YAML or JSON text.

    Raises:
        ConfigurationError: not YAML, or not a script; says ``source``, and each problem with its line and place. Nothing of the
            text is in it, because it may reach the program that named the file.
    """
    try:
        document = read_document(text)
    except KeyTwiceError as error:
        raise ConfigurationError(f"{source}{error.place}: {error.problem}; delete one of the two") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = "" if mark is None else f": line {mark.line + 1}, column {mark.column + 1}"
        raise ConfigurationError(f"{source} is not YAML{place}") from None
    try:
        script = Script.model_validate(document.value)
    except ValidationError as error:
        problems = [
            f"line {document.line(issue['loc'])}, {_where(issue)}: {_problem(issue)}" for issue in _causes(error)
        ]
        raise ConfigurationError(f"{source} is not a script: {'; '.join(problems)}", problems=problems) from None
    return script.read_from(document, source)


def _causes(error: ValidationError) -> list[ErrorDetails]:
    """Return the issues that no other one explains: neither a list whose entry is wrong nor a key that was written otherwise."""
    issues = error.errors(include_url=False)
    unknown = [issue["loc"] for issue in issues if issue["type"] == "extra_forbidden"]
    explained = {(*path[:-1], _translated(str(path[-1]), keys_at(Script, path[:-1]))) for path in unknown}
    explained |= {issue["loc"][:length] for issue in issues for length in range(len(issue["loc"]))}
    return [issue for issue in issues if issue["loc"] not in explained]


def _where(issue: ErrorDetails) -> str:
    """Return the place of an issue; an unknown key is the file's content, so it is that of its mapping."""
    return path_text(issue["loc"][:-1] if issue["type"] == "extra_forbidden" else issue["loc"])


def path_text(location: Location) -> str:
    """Return a path as keys and numbers; below a call's input the keys are the file's content."""
    known = location[: location.index("input") + 1] if "input" in location else location
    steps = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in known]
    return "".join(steps).removeprefix(".") or "the script"


def _problem(issue: ErrorDetails) -> str:
    """Return what is wrong and what was meant, without a word of the file that is no word of scripts."""
    location, expected = issue["loc"], issue.get("ctx", {}).get("expected", "")
    match issue["type"]:
        case "extra_forbidden":
            return f"there is no such key.{_meant(str(location[-1]), keys_at(Script, location[:-1]))}"
        case "missing":
            return f"`{location[-1]}` is missing"
        case "literal_error":
            return f"it is one of {expected}.{did_you_mean(str(issue['input']), _words(expected))}"
        case "string_type":
            of = "a key" if location[-1:] == ("[key]",) else "it"
            return f"{of} has to be text; put it in quotes"
        case "tuple_type":
            return "it has to be a list: one `- …` line for each"
        case "too_short":
            return "the list is empty; it needs at least one entry"
        case "model_type" | "dict_type" | "model_attributes_type":
            keys = [step for step in location if isinstance(step, str)]
            return f"it has to be a mapping: {SHAPES[keys[-1]] if keys else '{responses: […]}'}"
        case _:
            return issue["msg"].removeprefix("Value error, ").replace("Input should be", "it has to be")


def _words(expected: str) -> list[str]:
    """Return the words of a text like ``'a', 'b' or 'c'``."""
    return expected.split("'")[1::2]


def _translated(key: str, known: list[str]) -> str:
    """Return the script's word for another format's, or nothing."""
    word = WORDS_OF_OTHERS.get(key, "")
    return word if word in known else ""


def _meant(key: str, known: list[str]) -> str:
    if word := _translated(key, known):
        return f" Did you mean {word!r}?"
    if key in BELOW:
        return f" {key!r} belongs below {BELOW[key]!r}."
    return did_you_mean(key, known)
