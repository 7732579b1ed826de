"""One strictness: a tool's JSON Schema, the decoding of a call and the check of an edit agree on every value."""

from __future__ import annotations

import json
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from types import SimpleNamespace
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from hypothesis import given, note
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, FormatChecker
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, HttpUrl, SecretStr
from support.stores.stored_requests import request_row

from turngate import InvalidToolInput, Tool, tool
from turngate.approvals_api.requests.answer_check import check_content
from turngate.domain.errors import InvalidInputError
from turngate.toolkits.json_schema import json_schema_tool
from turngate.wire.orders import DecisionOrder


class Speed(Enum):
    SLOW = "slow"
    FAST = "fast"


class Line(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=5)
    cents: int = Field(ge=0, le=100)


class Card(BaseModel):
    kind: Literal["card"]
    number: int


class Cash(BaseModel):
    kind: Literal["cash"]
    counted: bool


class Tree(BaseModel):
    name: str
    below: list[Tree] = Field(default=[], max_length=3)


def optional(kind: Any) -> Any:
    return kind | None


TYPES: dict[str, Any] = {
    "int": int,
    "float": float,
    "bool": bool,
    "str": str,
    "int or null": optional(int),
    "int or str": int | str,
    "float or bool": float | bool,
    "bounded int": Annotated[int, Field(ge=2, multiple_of=2)],
    "bounded float": Annotated[float, Field(gt=0, lt=10)],
    "short text": Annotated[str, Field(min_length=1, max_length=3)],
    "pattern": Annotated[str, Field(pattern="^[a-c]+$")],
    "list": list[int],
    "set": set[int],
    "pair": tuple[int, str],
    "mapping": dict[str, float],
    "object": Line,
    "objects": list[Line],
    "choice": Annotated[Card | Cash, Field(discriminator="kind")],
    "either": Line | Cash,
    "literal": Literal["a", 1],
    "enum": Speed,
    "tree": Tree,
    "secret": SecretStr,
    "anything": Any,
    "null": None,
    "alias": Annotated[int, Field(alias="value")],
}
"""Types of which the schema says everything."""

STRICTER: dict[str, tuple[Any, Any, Any]] = {
    "decimal": (Decimal, "1.10", "ten"),
    "datetime": (datetime, "2026-01-31T09:30:00Z", "yesterday"),
    "url": (HttpUrl, "https://example.com", "example"),
    "own validator": (Annotated[int, AfterValidator(lambda sent: 1 // (sent % 2) and sent)], 1, 2),
    "large integer": (int, 10**30, 1e30),
}
"""Types with a value of each that the tool takes, and one that fits the schema and that only the tool's own code refuses."""

LOOSER: dict[str, tuple[Any, Any]] = {
    "own conversion": (Annotated[int, BeforeValidator(int)], "5"),
    "instant": (datetime, 1_700_000_000),
    "date": (date, "2026-01-31T00:00:00"),
    "uuid": (UUID, "12345678123456781234567812345678"),
    "set": (set[int], [1, 1]),
}
"""Types with a value that pydantic takes and the schema does not."""

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 200),
    st.sampled_from([0.0, 1.0, 2.0, 1.5, -0.5, 1e3, 100.0, 9.99]),
    st.sampled_from(["", "a", "abc", "abcd", "5", "1.0", "true", "slow", "FAST", "card", "cash", "x y z ü"]),
)
KEYS = st.sampled_from(["name", "cents", "kind", "number", "counted", "below", "value", "other"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=6,
)
FITTING = st.one_of(
    st.fixed_dictionaries({"name": SCALARS, "cents": SCALARS}),
    st.fixed_dictionaries({"kind": st.sampled_from(["card", "cash", "x"]), "number": SCALARS, "counted": SCALARS}),
    st.fixed_dictionaries({"name": SCALARS, "below": st.lists(st.fixed_dictionaries({"name": SCALARS}), max_size=4)}),
    st.lists(st.one_of(st.integers(0, 3), SCALARS), max_size=3),
    st.dictionaries(KEYS, st.floats(0, 5), max_size=3),
    st.tuples(SCALARS, SCALARS).map(list),
)


def taking(kind: Any) -> Tool:
    """Declare a tool with one argument of this type."""
    return taking_all(type("Params", (BaseModel,), {"__annotations__": {"value": kind}, "__module__": __name__}))


def taking_all(model: type[BaseModel]) -> Tool:
    async def take(params: Any) -> None:
        """Take it."""

    take.__annotations__["params"] = model
    return tool(name="take", ask=True)(take)


TOOLS = {name: taking(kind) for name, kind in TYPES.items()}
TOOLS["raw schema"] = json_schema_tool(
    name="take",
    description="Take it.",
    parameters=TOOLS["objects"].manifest.parameters,
)


def decodes(declared: Tool, text: str) -> bool:
    try:
        declared.decode(text)
    except InvalidToolInput:
        return False
    return True


def edits(declared: Tool, text: str) -> bool:
    """Whether the API takes an edit to these arguments."""
    run: Any = SimpleNamespace(id="run")
    request = request_row(run, "rq", manifest=declared.manifest.model_dump_json())
    try:
        check_content(request, DecisionOrder(verb="edit", digest="d", args=text))
    except InvalidInputError:
        return False
    return True


def accepts(declared: Tool, value: Any) -> bool:
    """Whether the schema does, by a validator that is not ours; it would check more formats where it finds packages for them."""
    checker = FormatChecker(["date", "email", "ipv4", "ipv6", "uuid"])
    return Draft202012Validator(declared.manifest.parameters, format_checker=checker).is_valid(value)


def agree(declared: Tool, value: Any) -> bool:
    text = json.dumps(value)
    answers = {accepts(declared, value), decodes(declared, text), edits(declared, text)}
    assert len(answers) == 1, (text, accepts(declared, value), decodes(declared, text), edits(declared, text))
    return answers.pop()


@given(value=st.one_of(VALUES, FITTING))
def test_schema_call_and_edit_agree(value: Any) -> None:
    """Whatever the type and the JSON value are, the three accept it, or all refuse it."""
    for name, declared in TOOLS.items():
        note(f"a value of type {name}")
        agree(declared, {"value": value})


@given(value=VALUES)
def test_they_agree_on_what_is_no_object_too(value: Any) -> None:
    """Arguments of any JSON type."""
    agree(TOOLS["anything"], value)


@pytest.mark.parametrize(
    ("name", "value", "fits"),
    [
        ("int", True, False),
        ("int", "1", False),
        ("int", 1.0, True),
        ("int", 1.5, False),
        ("float", 1, True),
        ("float", False, False),
        ("bool", 1, False),
        ("bool", "true", False),
        ("str", 5, False),
        ("int or null", True, False),
        ("list", [1, True], False),
        ("objects", [{"name": "a", "cents": True}], False),
        ("objects", [{"name": "a", "cents": 3.0}], True),
    ],
)
def test_json_types_are_not_converted(name: str, value: Any, fits: bool) -> None:
    """A boolean is no number, a text is no number, and 1.0 is the integer 1."""
    assert agree(TOOLS[name], {"value": value}) is fits


@pytest.mark.parametrize("name", STRICTER)
def test_a_tools_own_validation_may_be_stricter_than_its_schema(name: str) -> None:
    """Decimals, dates, URLs and validators take what fits the schema and their own rules: an edit meets those at the door."""
    kind, good, bad = STRICTER[name]
    declared = taking(kind)
    assert agree(declared, {"value": good})
    text = json.dumps({"value": bad})
    assert (accepts(declared, {"value": bad}), decodes(declared, text), edits(declared, text)) == (True, False, True)


@pytest.mark.parametrize("name", LOOSER)
def test_a_tools_own_validation_is_never_looser_than_its_schema(name: str) -> None:
    """What pydantic would convert is refused where the schema says so."""
    kind, value = LOOSER[name]
    assert not agree(taking(kind), {"value": value})


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("int", "5", "value: Input should be of JSON type integer"),
        ("int or null", True, "value: Input should be of JSON type integer or null"),
        ("set", [1, 1], "value: Input has non-unique elements"),
        ("int", "x", "value: Input should be a valid integer, unable to parse string as an integer"),
    ],
)
def test_the_model_can_read_what_is_wrong(name: str, value: Any, words: str) -> None:
    """The complaint names the place and the type, and quotes no value."""
    with pytest.raises(InvalidToolInput) as refused:
        TOOLS[name].decode(json.dumps({"value": value}))
    assert str(refused.value) == words


def test_a_schema_that_cannot_be_checked_leaves_it_to_pydantic() -> None:
    """A pattern that only Python's engine reads neither breaks the tool nor loosens it."""

    class Params(BaseModel):
        model_config = ConfigDict(regex_engine="python-re")

        value: Annotated[str, Field(pattern="^(?!x)")]

    declared = taking_all(Params)
    assert decodes(declared, '{"value": "a"}')
    assert not decodes(declared, '{"value": "x"}')
