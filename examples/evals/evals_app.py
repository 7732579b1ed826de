"""A clerk that closes tickets and asks a person before it gives a credit: small enough to see what its cases prove.

Evaluate it with ``turngate eval evals_app:app cases.yaml``; set TURNGATE_MODEL to try a real model.
"""

from __future__ import annotations

import os
from decimal import Decimal

from pydantic import BaseModel, Field

from turngate import Agent, App, Limits, Price, ToolFailure, Toolkit, tool
from turngate.evals import CaseRun

SCRIPT = "scripted:clerk.yaml"
HASTY = "scripted:hasty.yaml"


class Ticket(BaseModel):
    """Which ticket."""

    number: int = Field(ge=1)


class TicketText(BaseModel):
    """The customer's text."""

    text: str


class Credit(Ticket):
    """How much for which ticket."""

    amount: Decimal = Field(gt=0, decimal_places=2)


class CreditReceipt(BaseModel):
    """The credit that was given."""

    amount: Decimal


class NoSuchTicket(ToolFailure):
    """There is no such ticket."""

    reason: str


@tool(effect="read", ask=False, failures=[NoSuchTicket])
async def read_ticket(params: Ticket) -> TicketText:
    """Read a ticket."""
    raise NoSuchTicket(reason=f"The desk is closed, so ticket {params.number} cannot be read.")


@tool(effect="once", ask=True)
async def give_credit(params: Credit) -> CreditReceipt:
    """Credit a customer's account."""
    return CreditReceipt(amount=params.amount)


@tool(effect="once", ask=True)
async def delete_ticket(params: Ticket) -> CreditReceipt:
    """Delete a ticket. This cannot be undone."""
    raise AssertionError(f"ticket {params.number} must not be deleted")


def says_the_amount(run: CaseRun) -> str | None:
    """Check that the answer names exactly the credit that was given."""
    last = [call for call in run.calls if call.tool_name == "give_credit"][-1]
    amount = Credit.model_validate_json(last.edited_input or last.input).amount
    return None if str(amount) in run.final_text else f"the answer does not name {amount}"


app = App(
    agents=[
        Agent(
            name="clerk",
            instructions="Read the ticket, give a credit where one is due, and say what you did.",
            toolkit=Toolkit.of(read_ticket, give_credit, delete_ticket),
            model=os.environ.get("TURNGATE_MODEL") or SCRIPT,
            limits=Limits(steps=6),
        )
    ],
    prices={
        SCRIPT: Price(input=Decimal(2), output=Decimal(8)),
        HASTY: Price(input=Decimal(1), output=Decimal(1)),
    },
)
