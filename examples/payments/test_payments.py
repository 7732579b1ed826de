"""The payments app under test: a question in the middle of the work, and a payment that starts once."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

from payments_app import HERE, Paid, Payment, app, ledger

from turngate import Failure, Ok, ToolContext
from turngate.testing import running_app


async def test_the_answer_is_shown_where_the_payment_is_approved(tmp_path: Path) -> None:
    """The person answers a question; their answer is an argument of the payment, and its request says so."""
    ledger.paid.clear()
    async with running_app(app, tmp_path) as engine:
        run = await engine.start("Pay invoice R-7.")
        question = await engine.request(run, kind="question")
        await engine.decide(question, "respond", args={"account": "DE-NEW-42"})
        gate = await engine.request(run, tool="pay")
        assert ledger.paid == {}
        assert gate.summary == "Pay 840.00 for R-7 to DE-NEW-42"
        details = await engine.request_details(await engine.run(run))
        origins = details[gate.id].origins
        assert origins is not None
        assert [each.places[0].kind for each in origins.items if each.at == "/account"] == ["answer"]
        await engine.decide(gate, "approve")
        assert (await engine.ended(run)).status == "completed"
        (call,) = await engine.calls(run, "pay")
    assert isinstance(call.result, Ok)
    (payment,) = ledger.paid.values()
    assert (payment.account, payment.amount) == ("DE-NEW-42", Decimal("840.00"))


async def test_an_account_that_is_made_up_is_not_paid(tmp_path: Path) -> None:
    """Even when a person approves it: the payment checks the account before it pays, and the agent reads the failure."""
    ledger.paid.clear()
    script = (HERE / "script.yaml").read_text(encoding="utf-8").replace("account: DE-NEW-42", "account: XX-99")
    async with running_app(app, tmp_path, script=script) as engine:
        run = await engine.start("Pay invoice R-7.")
        await engine.decide(await engine.request(run, kind="question"), "respond", args={"account": "DE-NEW-42"})
        await engine.decide(await engine.request(run, tool="pay"), "approve")
        await engine.ended(run)
        (call,) = await engine.calls(run, "pay")
    assert isinstance(call.result, Failure)
    assert call.result.kind == "account_not_known"
    assert ledger.paid == {}


async def test_a_payment_whose_answer_is_lost_is_not_made_again(tmp_path: Path) -> None:
    """That is no failure: a person finds it in the ledger, and the agent reads that it was paid."""
    booked: dict[str, Payment] = {}

    async def pay_without_answer(params: Payment, ctx: ToolContext) -> Paid:
        booked[ctx.idempotency_key] = params
        raise TimeoutError

    async with running_app(app, tmp_path, handlers={"pay": pay_without_answer}) as engine:
        run = await engine.start("Pay invoice R-7.")
        await engine.decide(await engine.request(run, kind="question"), "respond", args={"account": "DE-NEW-42"})
        await engine.decide(await engine.request(run, tool="pay"), "approve")
        doubt = await engine.request(run, kind="outcome")
        (key,) = booked
        lost = (await engine.request_details(await engine.run(run)))[doubt.id].lost_start
        assert lost is not None
        assert lost.check_with == f"Look for {key} among the ledger's payments"
        await engine.decide(doubt, "respond", outcome="happened", args={"payment_id": key})
        assert (await engine.ended(run)).status == "completed"
        (call,) = await engine.calls(run, "pay")
    assert call.result == Ok(value={"payment_id": key})
    assert len(booked) == 1
