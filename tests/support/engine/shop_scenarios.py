"""What must be true of a gated tool in any framework that runs it. Each framework's test file brings its own shop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

import pytest
from support.api.gate_client import Sender

from turngate.domain.errors import ConflictError
from turngate.domain.tools.failures import NothingHappened
from turngate.domain.tools.results import Failure

Call = tuple[str, str, str]
"""Tool, raw arguments, id."""


@dataclass
class Bank:
    """The effects of the tools, in whichever process they ran."""

    paid: list[int] = field(default_factory=list)

    def refund(self, cents: int) -> dict[str, int]:
        if cents == 13:
            raise NothingHappened("the bank is closed")
        self.paid.append(cents)
        if cents == 14:
            raise ConnectionResetError("after the money went")
        return {"paid": cents}


class Shop(Protocol):
    """One process of an agent with the gated tools ``refund(cents)``, ``look_up(order)`` and ``delete_shop()``.

    Its model makes ``calls`` at once, and those with the id ``again`` after it has read the other results. Then it repeats each
    result, joined by a slash. A run that is interrupted again is stored, and waits for decisions as before.
    """

    async def ask(self) -> None:
        """Run until decisions are needed, and store what a program would store."""

    def restarted(self) -> Shop:
        """Another process: a new instance of the same agent, with what was stored."""

    async def decided(self, **options: Any) -> None:
        """Wait for the decisions."""

    async def continue_run(self) -> str:
        """Resume with the decisions and return the model's final text."""


Opening = Callable[..., Shop]
Scenario = Callable[[Sender, Opening, Bank], Awaitable[None]]


def refund(cents: int, call_id: str = "c1") -> Call:
    return ("refund", f'{{"cents": {cents}}}', call_id)


async def decided_by_a_person(sender: Sender, shop: Shop, verb: str = "approve", **body: Any) -> dict[str, Any]:
    """Decide the one request while the shop waits; returns the request as the API showed it."""
    waiting = asyncio.create_task(shop.decided())
    request = await sender.decide(verb, **body)
    await waiting
    return request


async def approved(sender: Sender, shop_for: Opening, bank: Bank) -> None:
    """People see the task, the tool as declared, the model's own bytes and words; approved, it runs, and is recorded."""
    shop = shop_for(refund(500))
    await shop.ask()
    request = await decided_by_a_person(sender, shop)
    assert (request["tool_name"], request["input"]) == ("refund", '{"cents": 500}')
    assert request["agent_words"] == "It is due."
    assert request["tasks"] == [{"agent": f"external-{sender.source}", "task": "Refund me."}]
    assert [each["doubt"] for each in request["origins"]["items"]] == ["nowhere"]
    manifest = request["manifest"]
    assert (manifest["description"], manifest["effect"]) == ("Give money back.", "once")
    assert manifest["parameters"]["properties"]["cents"]["type"] == "integer"
    assert bank.paid == []
    reply = await shop.continue_run()
    assert "500" in reply
    assert bank.paid == [500]
    call = await sender.call(request)
    assert call.state == "done"
    assert "500" in str(call.result)


async def edited(sender: Sender, shop_for: Opening, bank: Bank) -> None:
    """Edited arguments run instead of the model's, and the model reads what ran (I6)."""
    shop = shop_for(refund(500))
    await shop.ask()
    request = await decided_by_a_person(sender, shop, "edit", args={"cents": 200})
    reply = await shop.continue_run()
    assert bank.paid == [200]
    assert "200" in reply
    assert "edited" in reply or "replaced" in reply
    assert (await sender.call(request)).edited_input == '{"cents":200}'


async def answered(sender: Sender, shop_for: Opening, bank: Bank) -> None:
    """A person may answer instead of the tool: the model reads their answer as the result, and the tool does not run."""
    shop = shop_for(refund(500))
    await shop.ask()
    await decided_by_a_person(sender, shop, "respond", message="Paid by voucher.")
    assert "Paid by voucher." in await shop.continue_run()
    assert bank.paid == []


async def by_policy_alone(sender: Sender, shop_for: Opening, bank: Bank) -> None:
    """What policy allows runs, what it denies does not, and neither opens a request."""
    shop = shop_for(("look_up", '{"order": 7}', "c1"), ("delete_shop", "{}", "c2"))
    await shop.ask()
    await shop.decided()
    reply = await shop.continue_run()
    assert "order 7" in reply
    assert "Shops stay." in reply
    assert bank.paid == []
    assert await sender.none_pending()


async def several_at_once(sender: Sender, shop_for: Opening, bank: Bank) -> None:
    """All calls of a step get a request before any is decided, and each gets its own decision, in any order.

    A rejection reaches the model with the person's reason, and nothing runs.
    """
    shop = shop_for(refund(500, "c1"), refund(600, "c2"))
    await shop.ask()
    waiting = asyncio.create_task(shop.decided())
    by_id = {each["tool_call_id"].rpartition(":")[2]: each for each in await sender.pending(2)}
    assert (await sender.api.decide(by_id["c2"], "reject", message="Too much.")).status_code == 200
    await sender.decide()
    await waiting
    assert "Too much." in await shop.continue_run()
    assert bank.paid == [500]


async def repeated(sender: Sender, shop_for: Opening, bank: Bank) -> None:
    """A model that repeats a rejected call reads that it was refused, and no second request is opened (I12)."""
    shop = shop_for(refund(500), refund(500, "again"))
    await shop.ask()
    await decided_by_a_person(sender, shop, "reject", message="Too much.")
    await shop.continue_run()
    await shop.decided(wait=timedelta(seconds=20))
    reply = await shop.continue_run()
    assert reply.count("They said: Too much.") == 2
    assert "no one was asked again" in reply
    assert bank.paid == []
    assert await sender.none_pending()


async def restarted_twice(sender: Sender, shop_for: Opening, bank: Bank) -> None:
    """When a process dies while its request waits, the next one gets the decision, and no second request is opened.

    When that one dies before it stored what its tool returned, the third gets the result, and the tool ran once (I3).
    """
    shop = shop_for(refund(500))
    await shop.ask()
    with pytest.raises(ConflictError, match="not decided yet"):
        await shop.decided(wait=timedelta(0))
    second = shop.restarted()
    await decided_by_a_person(sender, second)
    third = second.restarted()
    assert "500" in await second.continue_run()
    await third.decided()
    assert "500" in await third.continue_run()
    assert bank.paid == [500]
    assert await sender.none_pending()


async def failing(sender: Sender, shop_for: Opening, bank: Bank) -> None:
    """A tool that fails is reported as failed; the next process reads the failure and does not run the tool again."""
    shop = shop_for(refund(13))
    await shop.ask()
    request = await decided_by_a_person(sender, shop)
    again = shop.restarted()
    with pytest.raises(NothingHappened, match="the bank is closed"):
        await shop.continue_run()
    result = (await sender.call(request)).result
    assert isinstance(result, Failure)
    assert "the bank is closed" in result.reason
    await again.decided()
    reply = await again.continue_run()
    assert "the bank is closed" in reply
    assert "rejected" not in reply


async def unknown(sender: Sender, shop_for: Opening, bank: Bank) -> None:
    """A tool that raises after its effect: the model reads that it may have happened, and a person is asked what did (I3)."""
    shop = shop_for(refund(14))
    await shop.ask()
    await decided_by_a_person(sender, shop)
    again = shop.restarted()
    reply = await shop.continue_run()
    assert "may have taken effect: do not repeat it" in reply
    assert "try again" not in reply
    (request,) = await sender.pending()
    assert request["kind"] == "outcome"
    assert "ConnectionResetError" in request["reason"]
    assert (await sender.call(request)).state == "unknown"
    answer = await sender.api.decide(request, "respond", outcome="happened", args={"paid": 14})
    assert answer.status_code == 200, answer.text
    await again.decided()
    assert "14" in await again.continue_run()
    assert bank.paid == [14]


async def approved_past_the_gate(sender: Sender, shop: Shop, bank: Bank) -> None:
    """A program that approves its own call gets nowhere: the tool still waits for a person's decision, who sees the task (I2)."""
    waiting = asyncio.create_task(shop.continue_run())
    request = await sender.decide("reject", message="Not by yourself.")
    assert [each["task"] for each in request["tasks"]] == ["Refund me."]
    assert "Not by yourself." in await waiting
    assert bank.paid == []


SCENARIOS: tuple[Scenario, ...] = (
    approved,
    edited,
    answered,
    by_policy_alone,
    several_at_once,
    repeated,
    restarted_twice,
    failing,
    unknown,
)
