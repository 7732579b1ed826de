"""A case: the messages, the agent and its handlers, the approvers, and what is expected.

A file of cases and a Python program use the same classes. They refuse unknown keys. :mod:`turngate.evals.planning` checks that
the app has the agents and tools that a case names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    PrivateAttr,
    ValidationError,
    model_validator,
)

from turngate.domain.errors import ConfigurationError
from turngate.domain.policy.terms import Role
from turngate.domain.requests import RequestKind, Resolution
from turngate.domain.runs.outcomes import RunOutcome
from turngate.domain.text.suggestions import did_you_mean, keys_at
from turngate.evals.patterns import checked_pattern, checked_regex
from turngate.text_files import NotTextError, read_text, why_unreadable
from turngate.yaml_document import Document, KeyTwiceError, read_document

APPROVER: Final = "eval"
"""Who decides if an approver has no ``by``. If a quorum needs more people, they are ``eval-2``, ``eval-3``…"""


class _Form(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _exactly(value: Any) -> Any:
    return {"min": value, "max": value} if isinstance(value, int) and not isinstance(value, bool) else value


def _of_tool(value: Any) -> Any:
    return {"tool": value} if isinstance(value, str) else value


def _bare(value: Any) -> Any:
    """Read a bare text in ``text:`` as what the answer must contain."""
    return {"contains": [value]} if isinstance(value, str) else value


Pattern = Annotated[JsonValue, AfterValidator(checked_pattern)]
Regex = Annotated[str, AfterValidator(checked_regex)]
Texts = Annotated[tuple[str, ...], BeforeValidator(_listed)]
Name = Annotated[str, Field(min_length=1, max_length=200)]


class Bounds(_Form):
    """How often. In a file, a number alone means exactly that often."""

    min: int = Field(default=0, ge=0)
    max: int | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _can_be_met(self) -> Self:
        if self.max is not None and self.max < self.min:
            raise ValueError(f"no number is at least {self.min} and at most {self.max}")
        return self

    def hold(self, number: int) -> bool:
        """Whether a number is within them."""
        return self.min <= number and (self.max is None or number <= self.max)

    def __str__(self) -> str:
        """Return them in words."""
        if self.max is None:
            return f"at least {self.min}"
        return str(self.min) if self.min == self.max else f"{self.min} to {self.max}"


Count = Annotated[Bounds, BeforeValidator(_exactly)]


class Called(_Form):
    """A call by the model. ``args``: a pattern for its arguments; ``result``: ``ok``, or a failure's kind."""

    tool: Name
    args: Pattern = None
    result: str | None = None
    count: Count | None = None

    def __str__(self) -> str:
        """Return it in words."""
        args = "" if self.args is None else f" with {self.args}"
        return f"{self.tool}{args}{'' if self.result is None else f', result {self.result}'}"


class Text(_Form):
    """Conditions on the final answer; all must hold. ``json``: the whole answer, as a JSON value."""

    contains: Texts = ()
    lacks: Texts = ()
    matches: Regex | None = None
    equals_json: JsonValue = Field(default=None, alias="json")


class Expect(_Form):
    """What is expected of a case. ``calls``: each at least once unless it has a ``count``; ``in_order``: in this order.

    Calls, steps, tokens and cost are those of all its runs, sub-agents' included.
    """

    outcome: RunOutcome = "completed"
    text: Annotated[Text, BeforeValidator(_bare)] = Text()
    calls: tuple[Annotated[Called, BeforeValidator(_of_tool)], ...] = ()
    in_order: bool = False
    not_called: tuple[Annotated[Called, BeforeValidator(_of_tool)], ...] = ()
    asks: Count | None = None
    max_steps: int | None = Field(default=None, ge=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_cost: Decimal | None = Field(default=None, ge=0, allow_inf_nan=False)


class Approver(_Form):
    """A scripted approver. The first one that fits a request answers it.

    ``agent``: the agent that makes the call, or a sub-agent. ``when``: a pattern for the arguments. ``args``: the arguments
    that run instead of the model's (``edit``), or the answer to a question (``respond``). ``by``: who decides, one after the
    other if several people must agree; None: ``eval``, ``eval-2``… ``times``: how many requests it answers; None: all.
    """

    tool: Name = "*"
    agent: Name = "*"
    kind: RequestKind | None = None
    when: Pattern = None
    do: Literal["approve", "edit", "reject", "respond", "expire"]
    args: JsonValue = None
    reason: str = ""
    outcome: Resolution | None = None
    by: Annotated[tuple[Name, ...] | None, BeforeValidator(_listed)] = None
    role: Role = "operator"
    times: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _has_its_arguments(self) -> Self:
        if self.do == "edit" and not isinstance(self.args, dict):
            raise ValueError("`do: edit` needs `args`: the whole arguments that run instead of the model's")
        if self.do not in {"edit", "respond"} and self.args is not None:
            raise ValueError(f"`do: {self.do}` takes no `args`; to match arguments, use `when`")
        return self


class Returns(_Form):
    """A handler that gives this result each time it is called."""

    returns: JsonValue


class Fails(_Form):
    """A handler that raises one of its tool's declared failures: ``kind``, and the failure's own fields."""

    fails: dict[str, JsonValue]


def _handler(value: Any) -> Any:
    if isinstance(value, dict):
        return (Fails if "fails" in value else Returns).model_validate(value)
    if isinstance(value, str | Returns | Fails) or callable(value):
        return value
    raise ValueError("a handler is {returns: …}, {fails: {kind: …}}, module:function, or an async function")


def _handlers(value: Any) -> Any:
    return {tool: _handler(each) for tool, each in value.items()} if isinstance(value, Mapping) else value


Handlers = Annotated[Mapping[str, Any] | str | Callable[[], Mapping[str, Any]], BeforeValidator(_handlers)]


class Case(_Form):
    """One case.

    ``messages``: sent one after the other in one conversation, each when the run before has completed. ``agent`` None: the
    app's first. ``model``: a spec (``provider:name`` or a profile's name), or a model object (for every agent); None: the
    agent's own. ``models``: agent → spec, sub-agents too; ``*`` stands for every agent.
    ``workspace``: a directory; each attempt gets a copy. ``handlers``: tool → what replaces its handler; or a function (in a
    file ``module:function``) that returns such a mapping for each attempt. ``unanswered``: what happens to a request that no
    approver answers. ``check``: a function of a :class:`~turngate.evals.facts.CaseRun`; if it returns False or a text, or
    raises, the case fails.
    """

    name: Name
    message: str | None = Field(default=None, min_length=1)
    messages: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    agent: str | None = None
    model: Any = None
    models: Mapping[Name, Name] = Field(default_factory=dict)
    workspace: Path | None = None
    handlers: Handlers = Field(default_factory=dict)
    approvers: tuple[Approver, ...] = ()
    unanswered: Literal["fail", "reject"] = "fail"
    expect: Expect = Expect()
    check: str | Callable[..., Any] | None = None
    timeout_seconds: float = Field(default=120, gt=0, le=86_400)

    _place: str = PrivateAttr(default="")

    @model_validator(mode="after")
    def _has_messages(self) -> Self:
        if (self.message is None) == (not self.messages):
            raise ValueError("give `message` or `messages`: exactly one of them")
        return self

    @property
    def prompts(self) -> tuple[str, ...]:
        """The messages to the agent, in order; at least one."""
        return self.messages or (self.message or "",)

    @property
    def place(self) -> str:
        """Where the case is, for errors."""
        return self._place or f"case {self.name!r}"

    def at(self, place: str) -> Self:
        """Return the case with its place in a file."""
        placed = self.model_copy()
        placed._place = place  # noqa: SLF001 - of our own class
        return placed


# Cases from a YAML or JSON file; every error names the file, the line and the place in it.
#
# A file is a mapping of ``cases`` (a list) and ``defaults`` (any keys of a case but ``name``). A case's own key overrides the
# defaults', with two exceptions: its handlers are added to theirs, and its approvers come before theirs.


TOP: Final = frozenset({"cases", "defaults"})


def load_cases(path: str | Path) -> list[Case]:
    """Read a file of cases. A ``workspace`` in it is relative to the file.

    Raises ConfigurationError: it cannot be read, or is not a file of cases; names each problem with its line and place.
    """
    file = Path(path)
    try:
        text = read_text(file)
    except (OSError, NotTextError) as error:
        reason = why_unreadable(error)
        raise ConfigurationError(f"the file of cases {file} cannot be read: {reason}") from None
    return [_relative_to(case, file.resolve().parent) for case in parse_cases(text, str(file))]


def parse_cases(text: str, source: str) -> list[Case]:
    """Return the cases of a file's text. Raises ConfigurationError as :func:`load_cases`; ``source`` names the file."""
    try:
        read = read_document(text)
    except KeyTwiceError as error:
        raise ConfigurationError(f"{source}{error.place}: {error.problem}; delete one of the two") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{source} is not YAML: {' '.join(str(error).split())}") from None
    document = read.value
    problems = _Problems(source, read)
    if not isinstance(document, dict) or not isinstance(document.get("cases"), list) or not document["cases"]:
        raise ConfigurationError(f"{source} has no cases: write `cases:`, and a list of them below it")
    for key in document.keys() - TOP:
        problems.add((key,), "there is no such key; the keys are `cases` and `defaults`")
    defaults = document.get("defaults") or {}
    if not isinstance(defaults, dict):
        problems.add(("defaults",), "it must be a mapping: a case's keys, for all cases")
        defaults = {}
    cases: list[Case] = []
    for number, own in enumerate(document["cases"]):
        if not isinstance(own, dict):
            problems.add(("cases", number), "a case must be a mapping, with a `name` and a `message`")
            continue
        try:
            case = Case.model_validate(_merged(defaults, own))
        except ValidationError as error:
            problems.add_all(error, ("cases", number), own, defaults)
            continue
        if any(case.name == other.name for other in cases):
            problems.add(("cases", number, "name"), f"there is another case {case.name!r}: names must be unique")
        cases.append(case.at(f"{problems.at(('cases', number))} ({case.name!r})"))
    problems.refuse()
    return cases


def _merged(defaults: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    merged = {**defaults, **own}
    if "message" in own or "messages" in own:
        merged = {key: value for key, value in merged.items() if key not in {"message", "messages"} or key in own}
    if isinstance(own.get("handlers"), dict) and isinstance(defaults.get("handlers"), dict):
        merged["handlers"] = {**defaults["handlers"], **own["handlers"]}
    if isinstance(own.get("approvers"), list) and isinstance(defaults.get("approvers"), list):
        merged["approvers"] = [*own["approvers"], *defaults["approvers"]]
    return merged


def _relative_to(case: Case, directory: Path) -> Case:
    if case.workspace is None:
        return case
    return case.model_copy(update={"workspace": directory / case.workspace.expanduser()}).at(case.place)


class _Problems:
    """What is wrong with a file, without repeats."""

    def __init__(self, source: str, document: Document) -> None:
        self._source = source
        self._document = document
        self._messages: list[str] = []

    def at(self, path: tuple[int | str, ...]) -> str:
        """Return file, line and place of a path into the document."""
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
        return f"{self._source}, line {self._document.line(path)}: {''.join(steps).removeprefix('.')}"

    def add(self, path: tuple[int | str, ...], message: str) -> None:
        """Note a problem."""
        placed = f"{self.at(path)}: {message}"
        if placed not in self._messages:
            self._messages.append(placed)

    def add_all(
        self, error: ValidationError, path: tuple[int | str, ...], own: dict[str, Any], defaults: dict[str, Any]
    ) -> None:
        """Note the errors of a case's validation, each at its place in the file."""
        for issue in error.errors(include_url=False, include_context=False, include_input=False):
            place = issue["loc"]
            if place[:1] == ("approvers",) and isinstance(place[1:2], tuple) and len(place) > 1:
                before = len(own.get("approvers") or ())
                at = place[1] if isinstance(place[1], int) else 0
                shared = at >= before
                place = ("approvers", at - before if shared else at, *place[2:])
            else:
                shared = bool(place) and place[0] not in own and place[0] in defaults
            message = issue["msg"].removeprefix("Value error, ")
            if issue["type"] == "extra_forbidden":
                known = keys_at(Case, issue["loc"][:-1])
                message = f"there is no such key.{did_you_mean(str(place[-1]), known)}"
            self.add((("defaults",) if shared else path) + place, message)

    def refuse(self) -> None:
        """Raise ConfigurationError if anything was noted."""
        if self._messages:
            raise ConfigurationError("; ".join(self._messages), problems=self._messages)
