"""Reading an author's function: what it needs is known before anything starts, and all of it can be supplied."""

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


def test_arguments_are_recognised_by_type() -> None:
    """The first model is the parameters, a later one a service; context and key are found by type, in any order."""
    needs = injected(everything, what="tool 'x'")
    assert (needs.params_name, needs.params_type) == ("params", Params)
    assert (needs.ctx_name, needs.key_name) == ("ctx", "key")
    assert needs.services == (("ledger", Ledger), ("second", Other))
    assert (needs.returns, needs.is_async) == (int, True)
    assert needs.source.endswith("everything")


def test_a_function_gets_only_what_it_declares() -> None:
    """A function without parameters, async or not, needs nothing; raw JSON parameters are a dict."""
    needs = injected(plain, what="the probe of tool 'x'")
    assert (needs.params_name, needs.ctx_name, needs.key_name, needs.services) == (None, None, None, ())
    assert not needs.is_async
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
def test_an_unsatisfiable_argument_is_refused_at_import(function: Any, says: str) -> None:
    """The error names the tool and the fix; it is no TypeError in front of a call that a person has approved."""
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
def test_a_probe_and_a_precondition_need_only_what_exists(options: Any, says: str) -> None:
    """Only the key of a lost call is left; a precondition decides on the tool's own parameters."""
    with pytest.raises(ConfigurationError) as refused:

        @tool(**options)
        async def pay(params: Params) -> None:
            """Pay."""

    assert says in refused.value.message


@pytest.mark.parametrize("kind", ["denied", "rejected", "expired", "cancelled", "interrupted", "unknown"])
def test_i12_no_tool_may_use_a_kind_of_refusal(kind: str) -> None:
    """I12: these kinds say who refused a call, and a repeat of a refused call is closed without a request.

    Nor the kind of an unknown outcome: a handler raises OutcomeUnknown, so that it has one path (I3).
    """
    failure = type(kind.capitalize(), (ToolFailure,), {"__annotations__": {"reason": str}})
    with pytest.raises(ConfigurationError, match=f"'{kind}', which is the engine's own word"):

        @tool(failures=[failure])
        async def pay(params: Params) -> None:
            """Pay."""
