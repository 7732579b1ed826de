"""The options of ``@tool`` and ``declare_tool``, for Python and for a type checker.

mypy checks this module (``modules`` in pyproject.toml). Strict mypy refuses a ``type: ignore`` that it does not need, so each
one below is an error that a builder's own checker shows at that place.
"""

from __future__ import annotations

from datetime import timedelta

import pytest
from pydantic import BaseModel

from turngate import Tool, declare_tool, tool
from turngate.domain.tools.declare import SplitToolOptions, ToolOptions
from turngate.toolkits.json_schema import json_schema_tool


class Params(BaseModel):
    amount: int


async def pay(params: Params) -> str:
    """Pay."""
    return str(params.amount)


def asks(params: Params) -> bool:
    return params.amount > 5


def test_every_option_reaches_the_tool() -> None:
    """The tool has what the decorator sets, and the checker accepts each option."""
    declared: Tool = tool(
        effect="idempotent",
        ask=asks,
        failures=[],
        failure_mode="raise",
        timeout=timedelta(seconds=5),
        task_queue="elsewhere",
        strict=True,
        untrusted=True,
        summary="Pay {amount}",
        preview=None,
        probe=None,
        precondition=None,
        present=None,
        name="settle",
        description="Settle.",
    )(pay)
    assert (declared.effect, declared.ask, declared.failure_mode) == ("idempotent", asks, "raise")
    assert (declared.timeout, declared.task_queue, declared.strict) == (timedelta(seconds=5), "elsewhere", True)
    assert (declared.name, declared.description, declared.untrusted) == ("settle", "Settle.", True)
    assert declared.summary == "Pay {amount}"


def test_a_tool_without_options_is_once_and_has_ten_minutes() -> None:
    """The defaults are careful: the engine never repeats it, policy's default applies, the model reads declared failures."""
    declared = tool()(pay)
    assert (declared.effect, declared.ask, declared.failure_mode) == ("once", None, "return")
    assert (declared.timeout, declared.task_queue, declared.strict) == (timedelta(minutes=10), None, False)


def test_a_misspelled_option_is_an_error() -> None:
    """Each form refuses an unknown option, at the call and in a type checker."""
    with pytest.raises(TypeError, match=r"tool\(\) got an unexpected keyword argument 'efect'"):
        tool(efect="once")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"declare_tool\(\) got an unexpected keyword argument 'efect'"):
        declare_tool(name="a", description="b", efect="once")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'efect'"):
        json_schema_tool(name="a", description="b", efect="once")  # type: ignore[call-arg]


OPTIONS = {"name", "description", *ToolOptions.__annotations__}


@pytest.mark.parametrize("field", sorted(Tool.__dataclass_fields__.keys() - OPTIONS))
def test_derived_fields_of_a_tool_cannot_be_set(field: str) -> None:
    """The declaration itself computes kind, middleware and manifest parts."""
    with pytest.raises(TypeError, match=f"tool\\(\\) got an unexpected keyword argument '{field}'"):
        tool(**{field: None})  # type: ignore[arg-type]


def test_handler_and_origin_belong_to_the_split_form() -> None:
    """The decorator has its handler already; only the split form takes one."""
    assert SplitToolOptions.__annotations__.keys() - ToolOptions.__annotations__.keys() == {"handler", "origin"}
    with pytest.raises(TypeError, match="unexpected keyword argument 'handler'"):
        tool(handler=pay)  # type: ignore[call-arg]


def values_of_a_wrong_type() -> None:
    """Never called: what a type checker refuses in a builder's code."""
    tool(effect="twice")  # type: ignore[arg-type]
    tool(ask="yes")  # type: ignore[arg-type]
    tool(timeout=5)  # type: ignore[arg-type]
    tool(strict="yes")  # type: ignore[arg-type]
    tool(failure_mode="ignore")  # type: ignore[arg-type]
    tool(failures=[ValueError])  # type: ignore[list-item]
    tool(preview=asks)  # type: ignore[arg-type]
    tool(present="text")  # type: ignore[arg-type]
    declare_tool(name="a", description="b", handler="c")  # type: ignore[arg-type]
    declare_tool(name="a", description="b", origin=["c"])  # type: ignore[arg-type]
