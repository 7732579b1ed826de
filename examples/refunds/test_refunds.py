"""The refunds app under test: the real engine, and another handler for the same descriptor."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

from refunds_app import HERE, Receipt, RefundParams, app

from turngate import Failure, Ok
from turngate.testing import running_app


async def test_a_refund_waits_for_a_person_and_runs_once(tmp_path: Path) -> None:
    """A refund of 75.00 needs an approval; then the replaced handler runs with exactly the approved arguments."""
    paid: list[Decimal] = []

    async def dry_refund(params: RefundParams) -> Receipt:
        paid.append(params.amount)
        return Receipt(order_id=params.order_id, refunded=params.amount, left=Decimal(0))

    async with running_app(app, tmp_path, handlers={"refund": dry_refund}) as engine:
        run = await engine.start("The lamp of order A-100 arrived broken.")
        request = await engine.request(run, tool="refund")
        assert paid == []
        await engine.decide(request, "approve")
        ended = await engine.ended(run)
        (call,) = await engine.calls(run, "refund")
    assert (ended.status, paid) == ("completed", [Decimal("75.00")])
    assert isinstance(call.result, Ok)


async def test_a_rejected_refund_tells_the_customer_why(tmp_path: Path) -> None:
    """After a rejection nothing is paid, and the agent reads the reason."""
    script = (HERE / "script.yaml").read_text(encoding="utf-8")
    async with running_app(app, tmp_path, script=script) as engine:
        run = await engine.start("The lamp of order A-100 arrived broken.")
        await engine.decide(await engine.request(run), "reject", message="Ask for a photo first.")
        ended = await engine.ended(run)
        (call,) = await engine.calls(run, "refund")
    assert isinstance(call.result, Failure)
    assert call.result.kind == "rejected"
    assert "Ask for a photo first." in ended.final_text
