"""Declaring a tool, and reading the arguments a model sends for it (I7, I9)."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel, Field, HttpUrl, ValidationError

from turngate import ToolContext, ToolFailure, declare_tool, interaction_tool, tool
from turngate.domain.errors import ConfigurationError
from turngate.domain.text.json_pointers import decode_arguments
from turngate.domain.tools.failures import MAX_REASON_CHARS, InvalidToolInput
from turngate.domain.tools.tool import Tool
from turngate.toolkits.json_schema import JsonSchemaParameters


class Line(BaseModel):
    sku: str
    count: int = Field(ge=1)


class Order(BaseModel):
    """An order."""

    lines: list[Line]
    note: str = ""


class Empty(BaseModel):
    pass


@tool()
async def order(params: Order) -> dict[str, int]:
    """Order something."""
    return {}


@tool()
async def ping() -> None:
    """Answer."""


def complaint(of: Tool, raw_input: str) -> str:
    with pytest.raises(InvalidToolInput) as refused:
        of.decode(raw_input)
    return str(refused.value)


# Arguments


@pytest.mark.parametrize("raw_input", ["", "  \n", "{}", "null", " null\n"])
def test_no_text_means_no_arguments(raw_input: str) -> None:
    """Providers send an empty text, and models write null, for a call without arguments; rules and people read the same."""
    assert decode_arguments(raw_input or "null") == {}

    @tool()
    async def nothing(params: Empty) -> None:
        """Nothing."""

    assert nothing.decode(raw_input) == Empty()
    assert ping.decode(raw_input) is None


@pytest.mark.parametrize(
    ("raw_input", "says"),
    [
        ("not json", "arguments are not valid JSON"),
        ('{"lines": [', "arguments are not valid JSON"),
        ('{"lines": []} and so on', "arguments are not valid JSON"),
        ('{"lines": [-Infinity]}', "arguments are not valid JSON: -Infinity is no JSON number"),
        ("\ufeff{}", "arguments are not valid JSON"),
        ("[" * 100_000, "arguments are not valid JSON"),
        ("9" * 5_000, "arguments are not valid JSON"),
        ("[1]", "arguments must be a JSON object"),
        ("null", "lines: Field required"),
        ('"{}"', "arguments must be a JSON object"),
        ("{}", "lines: Field required"),
        ('{"lines": "x"}', "lines: Input should be a valid array"),
        (
            '{"lines": [{"sku": "a", "count": 1}, {"count": 0}]}',
            "lines.1.sku: Field required; lines.1.count: Input should be greater than or equal to 1",
        ),
    ],
)
def test_i9_arguments_that_do_not_fit_say_where(raw_input: str, says: str) -> None:
    """I9: every mistake is named for the model: not JSON, not an object, or each place that does not fit."""
    assert complaint(order, raw_input) == says


@pytest.mark.parametrize("raw_input", ["not json", "[]", "3"])
def test_i9_a_tool_without_parameters_still_takes_an_object(raw_input: str) -> None:
    """I9: a tool without parameters refuses anything but an object, and ignores members."""
    complaint(ping, raw_input)
    assert ping.decode('{"made": "up"}') is None


def test_i9_a_complaint_is_at_most_500_characters() -> None:
    """I9: a hundred mistakes do not flood the conversation."""
    raw_input = json.dumps({"lines": [{} for _ in range(100)]})
    says = complaint(order, raw_input)
    assert len(says) == MAX_REASON_CHARS == 500
    assert says.startswith("lines.0.sku: Field required; lines.0.count: ")


def test_i9_a_complaint_does_not_repeat_the_value() -> None:
    """I9: the value may be a secret; the message names its place and the expected type."""
    assert "hunter2" not in complaint(order, '{"lines": [{"sku": "a", "count": "hunter2"}]}')


class Transforming(BaseModel):
    url: HttpUrl
    at: datetime
    price: Decimal
    doubled: Annotated[int, AfterValidator(lambda value: value * 2)]


def test_i7_types_that_transform_are_decoded_from_json() -> None:
    """I7: URL, instant, decimal and a doubling validator become Python values, decoded once."""

    @tool()
    async def store(params: Transforming) -> None:
        """Store."""

    raw_input = '{"url": "https://x.test/a", "at": "2026-01-02T03:04:05Z", "price": "1.10", "doubled": 21}'
    decoded = store.decode(raw_input)
    assert isinstance(decoded, Transforming)
    assert (str(decoded.url), decoded.price, decoded.doubled) == ("https://x.test/a", Decimal("1.10"), 42)
    assert decoded.at == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


# Declarations


def not_async() -> Any:
    @tool()  # type: ignore[arg-type]
    def pay() -> None: ...

    return pay


def no_return() -> Any:
    @tool()
    async def pay(params: Order):  # type: ignore[no-untyped-def]
        ...

    return pay


@pytest.mark.parametrize(
    ("declare", "says"),
    [
        (not_async, "must be an async function (`async def`)"),
        (no_return, "annotate what it returns"),
    ],
)
def test_an_invalid_function_names_the_fix(declare: Callable[[], Any], says: str) -> None:
    """A wrong declaration stops the import with a sentence that says what to change."""
    with pytest.raises(ConfigurationError) as refused:
        declare()
    assert says in refused.value.message
    assert "pay" in refused.value.message


@pytest.mark.parametrize("name", ["", "9lives", "a.b", "a b", "é", "x" * 65, "pay\n"])
def test_a_name_that_providers_refuse_is_refused(name: str) -> None:
    """A tool's name must be one that every provider accepts."""
    with pytest.raises(ConfigurationError, match="is not allowed: letters, digits"):
        ping.renamed(name)
    assert ping.renamed("x" * 64).name == "x" * 64


@pytest.mark.parametrize("timeout", [timedelta(0), timedelta(milliseconds=999), timedelta(days=7, seconds=1)])
def test_a_timeout_is_a_second_to_a_week(timeout: timedelta) -> None:
    """A timeout outside its range is refused where it is written."""
    with pytest.raises(ConfigurationError, match="between 1 second and 7 days"):
        tool(timeout=timeout)(ping.handler.function)  # type: ignore[union-attr]


def test_a_context_without_a_workspace_names_the_option() -> None:
    """A tool that needs a directory fails with the option that sets one."""
    ctx = ToolContext(
        run_id="r", tool_call_id="c", idempotency_key="k", workspace=None, deadline=datetime(2026, 1, 1, tzinfo=UTC)
    )
    with pytest.raises(ConfigurationError, match="--workspace DIR"):
        ctx.require_workspace()


# Descriptors


def described(**options: Any) -> str:
    handler = options.pop("handler", order.handler.function)  # type: ignore[union-attr]
    return tool(**options)(handler).manifest.digest


async def takes_other(params: Line) -> dict[str, int]:
    """Order something."""
    return {}


async def gives_other(params: Order) -> dict[str, str]:
    """Order something."""
    return {}


class Declined(ToolFailure):
    reason: str


def test_i6_the_manifest_changes_when_anything_shown_changes() -> None:
    """I6: name, description, effect, failures, strictness, parameters and result are in the digest; nothing else is."""
    unchanged = described()
    assert described(ask=True, timeout=timedelta(hours=1), task_queue="q", failure_mode="raise") == unchanged
    others = [
        described(name="order2"),
        described(description="Order something else."),
        described(effect="read"),
        described(failures=[Declined]),
        described(strict=True),
        described(handler=takes_other, name="order"),
        described(handler=gives_other, name="order"),
        interaction_tool(name="order", description="Order something.", params=Order, answer=Order).manifest.digest,
    ]
    assert len({unchanged, *others}) == len(others) + 1


# Declared failures


class RefundDeclined(ToolFailure):
    reason: str
    cents: int = 0
    at: datetime | None = None


class LateRefund(RefundDeclined):
    days: int


class Named(ToolFailure):
    kind = "gone"


def test_a_failures_fields_are_those_of_its_class() -> None:
    """Fields are typed, defaulted, inherited, and JSON when the model reads them."""
    at = datetime(2026, 1, 2, tzinfo=UTC)
    assert RefundDeclined(reason="no", at=at).fields == {"reason": "no", "cents": 0, "at": "2026-01-02T00:00:00Z"}
    assert LateRefund(reason="no", days=3).fields == {"reason": "no", "cents": 0, "at": None, "days": 3}
    assert Named().fields == {}


def test_a_failures_kind_is_its_class_name_by_default() -> None:
    """The kind comes from the class name unless the class sets one; a subclass has its own."""
    assert [each.kind for each in (RefundDeclined, LateRefund, Named)] == ["refund_declined", "late_refund", "gone"]


@pytest.mark.parametrize("fields", [{}, {"reason": 1}, {"reason": "no", "amount": 3}])
def test_a_failure_raised_with_wrong_fields_fails_where_it_is_raised(fields: dict[str, Any]) -> None:
    """A missing, mistyped or unknown field is the author's bug and shows at the ``raise``, not at the model."""
    with pytest.raises(ValidationError):
        RefundDeclined(**fields)


def stock(params: Order) -> int:
    return len(params.lines)


class Checked(BaseModel):
    cents: Annotated[int, AfterValidator(lambda cents: cents)]


class Nested(BaseModel):
    checked: dict[str, list[Checked]]


class Defaulted(BaseModel):
    cents: list[int] = Field(default_factory=lambda: [1])


class Started(BaseModel):
    cents: int

    def model_post_init(self, _context: object, /) -> None:
        self.cents += 1


class Built(BaseModel):
    cents: int

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)


class Linked(BaseModel):
    after: Linked | None = None
    at: datetime | None = None
    price: Decimal = Decimal(0)


@pytest.mark.parametrize(
    ("params", "options", "has_code"),
    [
        (Order, {}, False),
        (Order, {"ask": True}, False),
        (Empty, {"ask": False}, False),
        (None, {}, False),
        (Linked, {}, False),
        (Order, {"ask": lambda _order: True}, True),
        (Order, {"preview": lambda _order: "what"}, True),
        (Order, {"summary": "Pay"}, False),
        (Order, {"summary": lambda _order: "Pay"}, True),
        (Order, {"precondition": stock}, True),
        (Checked, {}, True),
        (Nested, {}, True),
        (Defaulted, {}, True),
        (Started, {}, True),
        (Built, {}, True),
        (JsonSchemaParameters({"type": "object"}), {}, True),
    ],
)
def test_i14_a_tool_tells_whether_its_author_has_a_say_in_planning(
    params: Any, options: dict[str, Any], *, has_code: bool
) -> None:
    """I14: predicate, preview, summary, precondition, validators and foreign schema are called once the response is stored."""
    declared = declare_tool(name="pay", description="Pay.", params=params, **options)
    assert declared.has_planning_code is has_code
