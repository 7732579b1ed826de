"""Both ways to declare a tool give the same tool, digests outlive upgrades, and an invalid declaration is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field, HttpUrl, PlainSerializer

from turngate import (
    ConfigurationError,
    InvalidToolInput,
    ProbeAnswer,
    Tool,
    ToolContext,
    ToolFailure,
    Toolkit,
    control_call_tool,
    declare_tool,
    interaction_tool,
    provider_tool,
    sub_agent,
    tool,
)
from turngate.domain.tools.control_calls import Finish
from turngate.toolkits.json_schema import json_schema_tool


class Refund(BaseModel):
    """What to pay back."""

    cents: int
    reason: str = ""


class Receipt(BaseModel):
    number: str


class Declined(ToolFailure):
    """The bank said no."""

    reason: str
    retry_after: int | None = None


class Elsewhere(ToolFailure):
    kind = "paid_elsewhere"
    url: HttpUrl


class Bank:
    """A service."""


async def refund(params: Refund, bank: Bank) -> Receipt:
    """Pay an amount back."""
    return Receipt(number="")


async def ping() -> None:
    """Answer."""


def declared(**options: Any) -> Tool:
    """The split form of ``refund``, without its handler."""
    return declare_tool(
        **{"name": "refund", "description": "Pay an amount back.", "params": Refund, "success": Receipt, **options}
    )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"effect": "read"},
        {"effect": "idempotent", "strict": True},
        {"failures": [Declined, Elsewhere]},
        {"failures": [Declined], "failure_mode": "raise", "ask": False, "task_queue": "bank"},
    ],
)
def test_both_forms_declare_the_same_tool(options: dict[str, Any]) -> None:
    """With its handler in the declaration or supplied later, model, operator and digest see one tool."""
    whole = tool(**options)(refund)
    split = declared(**options)
    supplied = Toolkit.of(split).handlers(refund=refund).find("refund")
    assert supplied is not None
    assert whole.manifest == split.manifest == supplied.manifest == declared(**options, handler=refund).manifest
    assert whole.manifest.digest == split.manifest.digest == supplied.manifest.digest
    assert supplied.handler == whole.handler
    assert (split.handler, split.services, supplied.services) == (None, (), (Bank,))
    for of in ("ask", "failure_mode", "task_queue", "timeout", "effect"):
        assert getattr(supplied, of) == getattr(whole, of)


def test_a_tool_without_parameters_is_the_same_in_both_forms() -> None:
    """No parameters are an object without properties, however they are left out, in raw JSON Schema too."""
    forms = [
        tool()(ping),
        declare_tool(name="ping", description="Answer.", success=None),
        declare_tool(name="ping", description="Answer.", params=None, success=None, handler=ping),
    ]
    assert len({form.manifest.digest for form in forms}) == 1
    raw = json_schema_tool(name="ping", description="Answer.")
    for form in (*forms, raw):
        assert form.manifest.parameters == {"type": "object", "properties": {}}


Cents = Annotated[Decimal, PlainSerializer(lambda value: f"{value} EUR", return_type=str), Field(description="Euros.")]


def test_an_annotated_return_type_counts() -> None:
    """``Annotated`` tells pydantic how to write a value, so both forms write and show it that way."""

    async def price() -> list[Cents]:
        """Tell a price."""
        return []

    price.__annotations__["return"] = list[Cents]
    whole = tool()(price)
    assert whole.manifest == declare_tool(name="price", description="Tell a price.", success=list[Cents]).manifest
    assert whole.success.dump_python([Decimal("1.10")], mode="json") == ["1.10 EUR"]
    assert '"Euros."' in json.dumps(whole.manifest.success)


def test_strict_is_only_in_the_manifest_if_set() -> None:
    """A provider is held to the schema only if the author says so."""
    assert [tool(strict=strict)(ping).manifest.strict for strict in (True, False)] == [True, False]
    assert tool()(ping).manifest.strict is False


def test_the_descriptor_of_a_tool() -> None:
    """Name, description and parameters are what a provider needs; members without a default are required."""
    manifest = tool()(refund).manifest
    assert (manifest.name, manifest.description, manifest.kind) == ("refund", "Pay an amount back.", "local")
    assert manifest.parameters["required"] == ["cents"]
    assert manifest.parameters["properties"] == {
        "cents": {"title": "Cents", "type": "integer"},
        "reason": {"default": "", "title": "Reason", "type": "string"},
    }


def test_failures_show_their_schemas() -> None:
    """A failure's fields are declared as a success is: kind → schema of the fields as they are written."""
    manifest = tool(failures=[Declined, Elsewhere])(refund).manifest
    assert manifest.failures == ("declined", "paid_elsewhere")
    assert set(manifest.failure_schemas) == {"declined", "paid_elsewhere"}
    declined, elsewhere = manifest.failure_schemas["declined"], manifest.failure_schemas["paid_elsewhere"]
    assert set(declined["properties"]) == {"reason", "retry_after"}  # type: ignore[arg-type]
    assert declined["additionalProperties"] is False
    assert elsewhere["properties"] == {
        "url": {"format": "uri", "maxLength": 2083, "minLength": 1, "title": "Url", "type": "string"}
    }
    assert elsewhere["required"] == ["url"]


# Digests


def test_i6_a_tool_has_the_same_digest_in_each_build() -> None:
    """I6: an approval that waits while a build replaces another counts there: what changes these asks about every call again."""
    choose = interaction_tool(name="choose", description="Ask which.", params=Refund, answer=Receipt)
    digests = {
        each.name: each.manifest.digest[:16]
        for each in (tool(effect="once", ask=True)(refund), tool(effect="read", strict=True)(ping), choose)
    }
    assert digests == {"refund": "b146dc3c0e92b0e6", "ping": "5b16d04d871a1553", "choose": "5934c948da751606"}


def test_i6_what_is_shown_of_a_tool_is_in_its_digest() -> None:
    """I6: a tool's origin, its provider's options and its failures' fields are shown, so they are in the digest."""

    class OtherDeclined(ToolFailure):
        kind = "declined"
        reason: str

    digests = [
        declared().manifest.digest,
        declared(origin={"server": "a"}).manifest.digest,
        declared(origin={"server": "b"}).manifest.digest,
        declared(failures=[Declined]).manifest.digest,
        declared(failures=[OtherDeclined]).manifest.digest,
        provider_tool(name="refund", description="Pay an amount back.", provider={"a": {}}).manifest.digest,
        provider_tool(name="refund", description="Pay an amount back.", provider={"a": {"type": "x"}}).manifest.digest,
    ]
    assert len(set(digests)) == len(digests)


# Refusals


class Denied(ToolFailure):
    reason: str


class DeclinedTwice(ToolFailure):
    kind = "declined"


async def takes_text(text: str) -> str:
    """Take text."""
    return text


async def takes_other(params: Receipt) -> Receipt:
    """Take something else."""
    return params


async def takes_anything(*params: Refund) -> None:
    """Take any number."""


async def knows(key: str, ctx: ToolContext) -> ProbeAnswer:
    return None


async def depends(params: Receipt) -> str:
    return ""


REFUSED: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "str": (lambda: tool()(takes_text), ["'takes_text'", "'text' is annotated str", "one pydantic model"]),
    "str, split": (
        lambda: declare_tool(name="a", description="", handler=takes_text),
        ["'a'", "'text' is annotated str", "one pydantic model"],
    ),
    "positional": (lambda: tool()(takes_anything), ["'takes_anything'", "*params", "by name"]),
    "other parameters": (
        lambda: declared(handler=takes_other),
        ["'refund'", "Refund parameters", "takes_other", "Receipt"],
    ),
    "probe": (lambda: tool(probe=knows)(refund), ["the probe of tool 'refund'", "idempotency key"]),
    "precondition": (lambda: tool(precondition=depends)(refund), ["'refund'", "precondition", "Receipt"]),
    "engine's word": (
        lambda: tool(failures=[Denied])(refund),
        ["Denied", "'denied'", "the engine's own word", "kind ="],
    ),
    "one kind twice": (
        lambda: tool(failures=[Declined, DeclinedTwice])(refund),
        ["DeclinedTwice", "'declined'", "kind ="],
    ),
    "not a failure": (lambda: tool(failures=[ValueError])(refund), ["ToolFailure", "ValueError"]),  # type: ignore[list-item]
    "params": (lambda: declared(params=dict), ["pydantic model, a Parameters or None", "dict"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_invalid_declaration_names_the_fix(case: str) -> None:
    """Each is refused at import, with the tool's name and what to write instead."""
    declare, says = REFUSED[case]
    with pytest.raises(ConfigurationError) as refused:
        declare()
    for words in says:
        assert words in refused.value.message


def test_i9_a_decoder_that_breaks_means_a_wrong_input() -> None:
    """I9: if an author's own ``Parameters`` raises anything, the input is invalid and the call does not run."""

    class Broken:
        python_type = dict

        def json_schema(self) -> dict[str, Any]:
            return {"type": "object"}

        def decode(self, raw_input: str) -> Any:
            raise LookupError(raw_input)

    broken = declare_tool(name="broken", description="Broken.", params=Broken())
    with pytest.raises(InvalidToolInput) as invalid:
        broken.decode('{"secret": 1}')
    assert invalid.value.problem == "wrong_shape"
    assert "LookupError" in str(invalid.value)
    assert "secret" not in str(invalid.value)


@pytest.mark.parametrize("kind", ["interaction", "signal", "provider", "agent"])
def test_kinds_that_have_no_handler(kind: str) -> None:
    """Each has its kind, holds no handler and accepts none; the model sees one descriptor shape for all."""
    declared = {
        "interaction": interaction_tool(name="t", description="d", params=Refund, answer=Receipt),
        "signal": control_call_tool(
            name="t", description="d", params=Refund, interpret=lambda params: Finish(answer=params.reason)
        ),
        "provider": provider_tool(name="t", description="d", provider={"a": {}}),
        "agent": sub_agent("helper", name="t", description="d"),
    }[kind]
    assert (declared.kind, declared.manifest.kind, declared.handler, declared.services) == (kind, kind, None, ())
    assert declared.manifest.parameters["type"] == "object"
    with pytest.raises(ConfigurationError, match=f"of kind {kind}, which has no handler"):
        Toolkit.of(declared).handlers(t=ping)
    wrapped = Toolkit.of(declared).wrap(lambda _invocation, proceed: proceed()).find("t")
    assert wrapped is declared
