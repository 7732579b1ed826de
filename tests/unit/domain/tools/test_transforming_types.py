"""I7 in detail: a value is decoded once on input, and encoded without being decoded on output."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Base64UrlBytes, BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from support.engine.one_call import run_tool
from support.engine.transforming_parameters import Money, MoneyText, Parcel, Seal, Trail, decoded, encoded, raw, seen

from turngate import Agent, App, ConfigurationError, InvalidToolInput, ToolFailure, Toolkit, declare_tool
from turngate.domain.tools.results import Ok
from turngate.domain.tools.tool import Tool
from turngate.runtime.app_loader import check_app


def returning(value: Any, success: Any) -> Tool:
    async def handler() -> Any:
        return value

    return declare_tool(name="give", description="Give.", success=success, handler=handler)


def parcel() -> Parcel:
    return Parcel.model_construct(**decoded())


def test_i7_every_decode_gives_a_new_object() -> None:
    """I7: two decodes of one text are equal and share nothing: a change in one attempt does not reach the next."""
    store = declare_tool(name="store", description="Store.", params=Parcel)
    first, second = store.decode(raw()), store.decode(raw())
    assert seen(first) == seen(second) == decoded()
    first.trail.append("changed")
    first.tags.clear()
    assert seen(second) == decoded()
    assert seen(store.decode(raw())) == decoded()


def test_i7_a_second_decode_shows() -> None:
    """I7: with these types a second decode fails or leaves a mark, so the other tests can fail."""
    once = decoded()
    with pytest.raises(ValidationError, match="not Money"):
        Parcel.model_validate(once)
    assert TypeAdapter(Base64UrlBytes).validate_python(once["label"]) == b""
    assert TypeAdapter(Trail).validate_python(once["trail"]) == ["model", "decoded", "decoded"]


@pytest.mark.parametrize(
    ("success", "value", "wire"),
    [
        (Parcel, parcel(), encoded()),
        (Parcel | None, parcel(), encoded()),
        (Parcel | None, None, {"value": None}),
        (list[Parcel], [parcel()], {"value": [encoded()]}),
        (dict[str, Parcel], {"a": parcel()}, {"a": encoded()}),
        (MoneyText, Money("EUR", Decimal("0.70")), {"value": "EUR 0.70"}),
        (tuple[Trail, set[int]], (["a", "decoded"], {7}), {"value": [["a", "decoded"], [7]]}),
        (dict[str, MoneyText], {"fee": Money("EUR", Decimal(1))}, {"fee": "EUR 1"}),
    ],
    ids=["model", "union", "none", "list", "dict", "value", "tuple", "dict-of-values"],
)
async def test_i7_a_success_is_encoded_as_it_is(success: Any, value: Any, wire: Any) -> None:
    """I7: what a handler returns is encoded without being decoded first, wherever in its type the values are."""
    assert await run_tool(returning(value, success)) == Ok(value=wire)


async def test_i7_a_dict_in_place_of_a_model_is_decoded_once() -> None:
    """I7: if a handler passes on an API's JSON, its success type decodes it, once."""

    class Answer(BaseModel):
        model_config = ConfigDict(arbitrary_types_allowed=True)

        fee: MoneyText
        trail: Trail

    passed_on = {"fee": "EUR 0.70", "trail": ["api"]}
    assert await run_tool(returning(passed_on, Answer)) == Ok(value={"fee": "EUR 0.70", "trail": ["api", "decoded"]})


@dataclass
class Receipt:
    fee: MoneyText
    seal: Seal


async def test_i7_a_dataclass_is_encoded_as_it_is() -> None:
    """I7: a dataclass checks nothing on creation, so its values are objects already."""
    value = Receipt(fee=Money("EUR", Decimal(2)), seal=Seal(stamp=b"\xff"))
    assert await run_tool(returning(value, Receipt)) == Ok(value={"fee": "EUR 2", "seal": {"stamp": "_w=="}})


class Late(ToolFailure):
    """A declared failure with values that only encode."""

    fee: MoneyText
    trail: Trail = Field(default_factory=list)
    retry_after: timedelta | None = timedelta(0)


def test_i7_a_declared_failure_is_encoded_as_it_is() -> None:
    """I7: the values that an author raises are encoded, not decoded; the schema that the model reads agrees."""
    late = Late(fee=Money("EUR", Decimal(3)), trail=["a"], retry_after=timedelta(minutes=1))
    assert late.fields == {"fee": "EUR 3", "trail": ["a"], "retry_after": "PT1M"}
    assert Late.json_schema()["properties"]["fee"]["type"] == "string"


def test_a_declared_failure_accepts_text_that_decodes() -> None:
    """Text instead of a value is decoded by its type; a wrong, missing or unknown field fails at the ``raise``."""
    assert Late(fee="EUR 3").fields == {"fee": "EUR 3", "trail": [], "retry_after": "PT0S"}
    assert Late(fee=Money("EUR", Decimal(3)), retry_after=None).fields["retry_after"] is None
    for wrong in (
        {"fee": 3},
        {"fee": None},
        {"trail": []},
        {"fee": "EUR 3", "more": 1},
        {"fee": "EUR 3", "retry_after": "soon"},
    ):
        with pytest.raises(ValidationError):
            Late(**wrong)


def test_i7_the_model_reads_a_transforming_types_error() -> None:
    """I7, I9: the model gets the parser's message and the place, but nothing of the value."""
    store = declare_tool(name="store", description="Store.", params=Parcel)
    with pytest.raises(InvalidToolInput) as refused:
        store.decode(raw().replace('"EUR 0.70"', "70"))
    assert str(refused.value) == "fee: Value error, an amount of money is a text such as EUR 1.20, not int"


def test_a_type_without_a_json_schema_stops_the_start(tmp_path: Path) -> None:
    """It ends no run: the app does not start, and the message names the tool and the fix."""

    class Opaque:
        pass

    class Params(BaseModel):
        model_config = ConfigDict(arbitrary_types_allowed=True)

        thing: Annotated[Opaque, BeforeValidator(lambda _sent: Opaque())]

    blind = declare_tool(name="blind", description="Blind.", params=Params)
    agent = Agent(name="agent", instructions="", toolkit=Toolkit.of(blind), model="scripted:x")
    with pytest.raises(ConfigurationError, match=r"tool 'blind' .* cannot be shown to a model: .*WithJsonSchema"):
        check_app(App(agents=[agent]), base=tmp_path)


def test_a_transforming_types_schema_describes_its_text() -> None:
    """The schema describes what is sent, not what it is decoded to."""
    properties = declare_tool(name="store", description="Store.", params=Parcel).manifest.parameters["properties"]
    assert isinstance(properties, dict)
    formats = {name: properties[name].get("format") for name in ("url", "at", "label", "every")}
    assert formats == {"url": "uri", "at": "date-time", "label": "base64url", "every": "duration"}
    assert properties["fee"] == {"type": "string", "minLength": 5}
    assert json.loads(raw()).keys() == properties.keys()
