"""The form of a case: what is said to which agent, in which world, who answers its gates, and what has to come of it.

The same classes are a file's form (:mod:`turngate.evals.case_files`) and what a Python program makes. A key that they do not
know is refused. Whether an app has the agents and tools that are named is :mod:`turngate.evals.planning`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    PrivateAttr,
    model_validator,
)

from turngate.domain.policy.terms import Role
from turngate.domain.requests import Outcome, RequestKind
from turngate.domain.runs.outcomes import RunOutcome
from turngate.evals.matching import checked_pattern, checked_regex

APPROVER: Final = "eval"
"""Who decides where an approver names nobody; the second of several that a quorum needs is ``eval-2``."""


class _Form(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _exactly(value: Any) -> Any:
    return {"min": value, "max": value} if isinstance(value, int) and not isinstance(value, bool) else value


def _of_tool(value: Any) -> Any:
    return {"tool": value} if isinstance(value, str) else value


def _bare(value: Any) -> Any:
    """Take a bare text of ``text:`` as what the answer has to contain."""
    return {"contains": [value]} if isinstance(value, str) else value


Pattern = Annotated[JsonValue, AfterValidator(checked_pattern)]
Regex = Annotated[str, AfterValidator(checked_regex)]
Texts = Annotated[tuple[str, ...], BeforeValidator(_listed)]
Name = Annotated[str, Field(min_length=1, max_length=200)]


class Bounds(_Form):
    """How often. In a file a number alone means exactly so often."""

    min: int = Field(default=0, ge=0)
    max: int | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _can_be_met(self) -> Self:
        if self.max is not None and self.max < self.min:
            raise ValueError(f"no number is at least {self.min} and at most {self.max}")
        return self

    def hold(self, number: int) -> bool:
        """Tell whether a number is within them."""
        return self.min <= number and (self.max is None or number <= self.max)

    def __str__(self) -> str:
        """Return them in words."""
        if self.max is None:
            return f"at least {self.min}"
        return str(self.min) if self.min == self.max else f"{self.min} to {self.max}"


Count = Annotated[Bounds, BeforeValidator(_exactly)]


class Called(_Form):
    """A call that the model made. ``args``: what its arguments have to hold; ``result``: ``ok``, or a failure's kind."""

    tool: Name
    args: Pattern = None
    result: str | None = None
    count: Count | None = None

    def __str__(self) -> str:
        """Return it in words."""
        args = "" if self.args is None else f" with {self.args}"
        return f"{self.tool}{args}{'' if self.result is None else f', result {self.result}'}"


class Text(_Form):
    """What the final answer has to be; all of them together. ``json``: the whole of it, as a JSON value."""

    contains: Texts = ()
    lacks: Texts = ()
    matches: Regex | None = None
    equals_json: JsonValue = Field(default=None, alias="json")


class Expect(_Form):
    """What has to come of a case. ``calls``: each at least once unless it says otherwise; ``in_order``: in this order.

    Calls, steps, tokens and cost are those of all its runs, its sub-agents' included.
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
    """One line of the script by which gates are answered; the first that fits a request answers it.

    ``agent``: whose call it is, a sub-agent's name too. ``when``: what the arguments have to hold. ``args``: those that run in
    place of the model's (``edit``), or the answer to a question (``respond``). ``by``: who decides, one after the other where
    several have to agree; None: ``eval``, ``eval-2``… ``times``: how many requests it answers; None: all.
    """

    tool: Name = "*"
    agent: Name = "*"
    kind: RequestKind | None = None
    when: Pattern = None
    do: Literal["approve", "edit", "reject", "respond", "expire"]
    args: JsonValue = None
    reason: str = ""
    outcome: Outcome | None = None
    by: Annotated[tuple[Name, ...] | None, BeforeValidator(_listed)] = None
    role: Role = "operator"
    times: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _says_what(self) -> Self:
        if self.do == "edit" and not isinstance(self.args, dict):
            raise ValueError("`do: edit` needs `args`: the whole arguments that run in place of the model's")
        if self.do not in {"edit", "respond"} and self.args is not None:
            raise ValueError(f"`do: {self.do}` takes no `args`; what it is for is `when`")
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


def _world(value: Any) -> Any:
    return {tool: _handler(each) for tool, each in value.items()} if isinstance(value, Mapping) else value


World = Annotated[Mapping[str, Any] | str | Callable[[], Mapping[str, Any]], BeforeValidator(_world)]


class Case(_Form):
    """One case.

    ``messages``: said one after the other in one conversation, each when the run before has completed. ``agent`` None: the
    app's first. ``model``: a spec (``provider:name`` or a profile's name), or a model object (for every agent); None: the
    agent's own. ``models``: agent → spec, sub-agents too; ``*`` stands for every agent.
    ``workspace``: a directory, of which each attempt gets a copy. ``handlers``: tool → what takes the place of its handler;
    or a function (in a file ``module:function``) that makes such a mapping anew for each attempt. ``unanswered``: what
    becomes of a gate that no approver answers. ``check``: a function of a :class:`~turngate.evals.facts.CaseRun`: False, a
    text or an error fails the case.
    """

    name: Name
    message: str | None = Field(default=None, min_length=1)
    messages: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    agent: str | None = None
    model: Any = None
    models: Mapping[Name, Name] = Field(default_factory=dict)
    workspace: Path | None = None
    handlers: World = Field(default_factory=dict)
    approvers: tuple[Approver, ...] = ()
    unanswered: Literal["fail", "reject"] = "fail"
    expect: Expect = Expect()
    check: str | Callable[..., Any] | None = None
    timeout_seconds: float = Field(default=120, gt=0, le=86_400)

    _place: str = PrivateAttr(default="")

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if (self.message is None) == (not self.messages):
            raise ValueError("give `message` or `messages`: exactly one of them")
        return self

    @property
    def said(self) -> tuple[str, ...]:
        """What is said to the agent, in order; at least one message."""
        return self.messages or (self.message or "",)

    @property
    def place(self) -> str:
        """Where it stands, for errors."""
        return self._place or f"case {self.name!r}"

    def at(self, place: str) -> Self:
        """Return the case as one that stands at a place of a file."""
        placed = self.model_copy()
        placed._place = place  # noqa: SLF001 - of our own class
        return placed
