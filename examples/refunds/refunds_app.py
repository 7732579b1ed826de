"""A support agent whose refunds are real tools: declared apart from their handlers, gated, previewed, and safe to lose.

It shows the whole vocabulary of one tool: parameters and result as types, declared failures, an ``ask`` predicate, a
sentence of what a call does, a preview, a precondition (is the order still as it was when a person said yes?), a probe
(did a lost refund happen?), a presenter, middleware and a hook. Run it with ``turngate up refunds_app:app``.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import svcs
from pydantic import BaseModel, Field, JsonValue

from turngate import (
    Agent,
    App,
    Deny,
    DidNotHappen,
    Failure,
    Happened,
    HookedCall,
    Hooks,
    Invocation,
    Limits,
    Ok,
    Presentation,
    Preview,
    ProbeAnswer,
    Proceed,
    RunScope,
    TableBlock,
    TextBlock,
    ToolContext,
    ToolFailure,
    Toolkit,
    declare_tool,
    tool,
)
from turngate.toolkits.context import KeepRecent

HERE = Path(__file__).parent


@dataclass
class Shop:
    """Stands in for the shop's own system: the orders, and the refunds by their key."""

    paid: dict[str, Decimal] = field(default_factory=lambda: {"A-100": Decimal("75.00"), "A-101": Decimal("12.50")})
    refunds: dict[str, Decimal] = field(default_factory=dict)

    def open_amount(self, order_id: str) -> Decimal:
        """Return what may still be paid back."""
        return self.paid[order_id]

    def refund(self, order_id: str, amount: Decimal, key: str) -> Decimal:
        """Pay back, once per key, and return what is left."""
        if key not in self.refunds:
            self.refunds[key] = amount
            self.paid[order_id] -= amount
        return self.paid[order_id]


class OrderId(BaseModel):
    """Which order."""

    order_id: str = Field(pattern=r"^[A-Z]-\d+$")


class Order(BaseModel):
    """The shop's record of an order."""

    order_id: str
    open_amount: Decimal


class RefundParams(OrderId):
    """How much of which order, and why."""

    amount: Decimal = Field(gt=0, decimal_places=2, json_schema_extra={"currency": "EUR"})
    reason: str = Field(min_length=1, max_length=500)


class Receipt(BaseModel):
    """What was paid back, and what is left."""

    order_id: str
    refunded: Decimal
    left: Decimal


class UnknownOrder(ToolFailure):
    """The shop has no such order."""

    reason: str


class RefundTooHigh(ToolFailure):
    """More than is left of the order."""

    reason: str
    left: str


@tool(effect="read", ask=False, failures=[UnknownOrder])
async def look_up_order(params: OrderId, shop: Shop) -> Order:
    """Look up an order and what may still be paid back of it."""
    if params.order_id not in shop.paid:
        raise UnknownOrder(reason=f"There is no order {params.order_id}.")
    return Order(order_id=params.order_id, open_amount=shop.open_amount(params.order_id))


def what_will_be_paid(params: RefundParams, _workspace: Path | None) -> Preview:
    """Show the operator one clear sentence."""
    return Preview(kind="text", text=f"Pay back {params.amount} of order {params.order_id}: {params.reason}")


def still_open(params: RefundParams, shop: Shop) -> JsonValue:
    """Return what the refund depends on. If it changes between yes and payment, the person is asked again."""
    return str(shop.paid.get(params.order_id))


def was_paid(key: str, shop: Shop) -> ProbeAnswer:
    """Say what happened to a refund whose worker died: the shop stores every payment under its key."""
    return Happened({"refunded": str(shop.refunds[key])}) if key in shop.refunds else DidNotHappen()


def receipt_for_people(params: RefundParams, result: Ok | Failure) -> Presentation:
    """Draw the receipt as a table."""
    if isinstance(result, Failure):
        return (TextBlock(text=result.reason),)
    row = (params.order_id, result.value.get("refunded"), result.value.get("left"))
    return (TableBlock(columns=("order", "refunded", "left"), rows=(row,)),)


# Declared apart from its handler, so that tests and evals can replace the handler and keep the descriptor.
refund = declare_tool(
    name="refund",
    description="Pay money back to the customer of an order.",
    params=RefundParams,
    success=Receipt,
    effect="once",
    ask=lambda params: params.amount > 20,
    failures=[UnknownOrder, RefundTooHigh],
    summary="Pay back {amount} of order {order_id}",
    preview=what_will_be_paid,
    precondition=still_open,
    probe=was_paid,
    present=receipt_for_people,
)


async def refund_by_shop(params: RefundParams, ctx: ToolContext, shop: Shop) -> Receipt:
    """Pay back through the shop, under the call's own key."""
    if params.order_id not in shop.paid:
        raise UnknownOrder(reason=f"There is no order {params.order_id}.")
    left = shop.open_amount(params.order_id)
    if params.amount > left:
        raise RefundTooHigh(reason=f"Only {left} is left of order {params.order_id}.", left=str(left))
    ctx.emit(f"paying back {params.amount}")
    ctx.logger.info("refund of %s for %s", params.amount, params.order_id)
    left = shop.refund(params.order_id, params.amount, ctx.idempotency_key)
    return Receipt(order_id=params.order_id, refunded=params.amount, left=left)


async def audit(invocation: Invocation, proceed: Proceed) -> Any:
    """Log how long each tool ran, even if it failed: middleware around every handler of the toolkit."""
    started = time.monotonic()
    try:
        return await proceed()
    finally:
        invocation.ctx.logger.info("%s took %.3f s", invocation.tool_name, time.monotonic() - started)


class DailyLimit(Hooks):
    """A limit on all refunds of a day, no matter who approves."""

    def __init__(self, shop: Shop, most: Decimal) -> None:
        self._shop, self._most = shop, most

    async def before_tool(self, scope: RunScope, call: HookedCall) -> Deny | None:
        """Deny a refund that would exceed the limit. A hook can deny a call, but never allow one."""
        if not isinstance(call.params, RefundParams):
            return None
        total = sum(self._shop.refunds.values(), call.params.amount)
        return Deny(f"That would be {total} today, and {self._most} is the most.") if total > self._most else None


shop = Shop()
registry = svcs.Registry()
registry.register_value(Shop, shop)

app = App(
    agents=[
        Agent(
            name="support",
            instructions="Look up the order first. Refund only what the customer is owed, and say what you did.",
            toolkit=Toolkit.of(look_up_order, refund).handlers(refund=refund_by_shop).wrap(audit),
            model=os.environ.get("TURNGATE_MODEL") or f"scripted:{HERE / 'script.yaml'}",
            limits=Limits(steps=10),
            hooks=[DailyLimit(shop, most=Decimal(500)), KeepRecent(200)],
        )
    ],
    services=registry,
    policy=HERE / "policy.toml",
)
