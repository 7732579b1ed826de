"""A payment that needs a person's answer in the middle of its work, cut into three calls at the question.

``prepare_payment`` does the work up to the question, ``ask_account`` asks it, and ``pay`` takes the answer as an argument. So
policy judges the answer, the person who approves the payment sees it, and ``pay`` starts once. If it ends without an answer, a
person looks whether it was paid.
Run it with ``turngate up payments_app:app``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

import svcs
from pydantic import BaseModel

from turngate import Agent, App, ToolContext, ToolFailure, Toolkit, interaction_tool, tool


class InvoiceNumber(BaseModel):
    """Which invoice."""

    invoice: str


class Prepared(BaseModel):
    """What was found out about an invoice. ``question``: what only a person can say; None: the invoice can be paid."""

    amount: Decimal
    accounts: list[str]
    question: str | None = None


class AccountQuestion(BaseModel):
    """The question of ``prepare_payment``."""

    question: str
    accounts: list[str]


class AccountAnswer(BaseModel):
    """The person's answer. The page makes its form from this class."""

    account: str


class Payment(BaseModel):
    """The payment, with the account that the person named."""

    invoice: str
    account: str
    amount: Decimal


class Paid(BaseModel):
    """The payment that was made."""

    payment_id: str


class AccountNotKnown(ToolFailure):
    """The supplier has no such account. Nothing was paid."""

    accounts: list[str]


@dataclass
class Ledger:
    """Stands in for the accounting system: what invoices come to, their suppliers' accounts, and the payments by their key."""

    amounts: dict[str, Decimal] = field(default_factory=lambda: {"R-7": Decimal("840.00")})
    accounts: dict[str, list[str]] = field(default_factory=lambda: {"R-7": ["DE-OLD-11", "DE-NEW-42"]})
    paid: dict[str, Payment] = field(default_factory=dict)


@tool(effect="read", ask=False)
async def prepare_payment(params: InvoiceNumber, ledger: Ledger) -> Prepared:
    """Find out what an invoice needs before it can be paid. If the result has a question, ask it with ask_account."""
    accounts = ledger.accounts[params.invoice]
    question = None
    if len(accounts) > 1:
        question = f"The supplier of {params.invoice} has {len(accounts)} accounts. Which one is to be paid?"
    return Prepared(amount=ledger.amounts[params.invoice], accounts=accounts, question=question)


ask_account = interaction_tool(
    name="ask_account",
    description="Ask a person the question of prepare_payment, with its accounts. Use the account that they name.",
    params=AccountQuestion,
    answer=AccountAnswer,
)


@tool(
    effect="once",
    ask=True,
    summary="Pay {amount} for {invoice} to {account}",
    failures=[AccountNotKnown],
    check_with="Look for {idempotency_key} among the ledger's payments",
)
async def pay(params: Payment, ctx: ToolContext, ledger: Ledger) -> Paid:
    """Pay an invoice to an account. If prepare_payment has a question, ask it first."""
    accounts = ledger.accounts[params.invoice]
    if params.account not in accounts:  # before anything is paid
        raise AccountNotKnown(accounts=accounts)
    ledger.paid[ctx.idempotency_key] = params
    return Paid(payment_id=ctx.idempotency_key)


HERE = Path(__file__).parent
ledger = Ledger()
registry = svcs.Registry()
registry.register_value(Ledger, ledger)

app = App(
    agents=[
        Agent(
            name="payer",
            instructions="Pay the invoices that people name. Ask when it is not clear which account to pay.",
            toolkit=Toolkit.of(prepare_payment, ask_account, pay),
            model=os.environ.get("TURNGATE_MODEL") or f"scripted:{HERE / 'script.yaml'}",
        )
    ],
    services=registry,
)
