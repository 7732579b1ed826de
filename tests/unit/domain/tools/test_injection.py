"""Reading an author's function: what it asks for is known before anything starts, and all of it can be given."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from turngate import ToolContext, ToolFailure, tool
from turngate.domain.errors import ConfigurationError
from turngate.domain.tools.injection import injected


class Params(BaseModel):
    x: int


class Other(BaseModel):
    y: int


class Ledger:
    """A service."""


async def everything(ledger: Ledger, params: Params, ctx: ToolContext, *, key: str, second: Other) -> int:
    return 1


async def raw(params: dict[str, Any]) -> None: ...


def plain() -> None: ...


async def positional(params: Params, /) -> None: ...


async def variable(*ledger: Ledger) -> None: ...


async def keywords(**ledger: Ledger) -> None: ...


async def two_keys(key: str, other: str) -> None: ...


async def two_contexts(one: ToolContext, other: ToolContext) -> None: ...


async def unknown(params: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821 - the point


async def bare(params) -> None:  # type: ignore[no-untyped-def]
    ...


def test_everything_is_known_by_its_type() -> None:
    """The first model is the parameters, a later one a service; context and key by their types, in any order."""
    asked = injected(everything, what="tool 'x'")
    assert (asked.params_name, asked.params_type) == ("params", Params)
    assert (asked.ctx_name, asked.key_name) == ("ctx", "key")
    assert asked.services == (("ledger", Ledger), ("second", Other))
    assert (asked.returns, asked.is_async) == (int, True)
    assert asked.source.endswith("everything")


def test_what_is_not_asked_for_is_not_given() -> None:
    """A function without parameters, sync or not, asks for nothing; raw JSON parameters are a dict."""
    asked = injected(plain, what="the probe of tool 'x'")
    assert (asked.params_name, asked.ctx_name, asked.key_name, asked.services) == (None, None, None, ())
    assert not asked.is_async
    assert injected(raw, what="tool 'x'").params_type is dict


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (positional, "cannot be given by name"),
        (variable, "cannot be given by name"),
        (keywords, "cannot be given by name"),
        (two_keys, "two parameters are annotated str"),
        (two_contexts, "two parameters are annotated ToolContext"),
        (unknown, "'Nowhere', which is not defined in its module; define or import it"),
        (bare, "annotate the parameter 'params' with a type"),
    ],
)
def test_what_cannot_be_given_is_refused_where_it_is_declared(function: Any, says: str) -> None:
    """The name of the tool and the fix, at import; not a TypeError in front of a call that a person has approved."""
    with pytest.raises(ConfigurationError, match="tool 'x'") as refused:
        injected(function, what="tool 'x'")
    assert says in refused.value.message


def probed(params: Params, key: str) -> None: ...


def probed_in_context(ctx: ToolContext) -> None: ...


def depends_on_key(params: Params, key: str) -> int:
    return 1


def depends_on_other(params: Other) -> int:
    return 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"probe": probed}, "the probe of tool 'pay' is given the idempotency key"),
        ({"probe": probed_in_context}, "the probe of tool 'pay' is given the idempotency key"),
        ({"precondition": depends_on_key}, "annotate 'key' with one of these"),
        ({"precondition": depends_on_other}, "takes Other: annotate the precondition with what is declared"),
    ],
)
def test_a_probe_and_a_precondition_ask_for_what_they_are_given(options: Any, says: str) -> None:
    """Of a lost call only its key is left; a precondition decides on the tool's own parameters."""
    with pytest.raises(ConfigurationError) as refused:

        @tool(**options)
        async def pay(params: Params) -> None:
            """Pay."""

    assert says in refused.value.message


@pytest.mark.parametrize("kind", ["denied", "rejected", "expired", "cancelled", "interrupted"])
def test_i12_no_tool_speaks_of_a_refusal(kind: str) -> None:
    """I12: these kinds say who refused a call, and a repeat of a refused call is closed without asking anyone."""
    failure = type(kind.capitalize(), (ToolFailure,), {"__annotations__": {"reason": str}})
    with pytest.raises(ConfigurationError, match=f"'{kind}', which is the engine's own word"):

        @tool(failures=[failure])
        async def pay(params: Params) -> None:
            """Pay."""
