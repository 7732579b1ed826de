"""An agent with a sub-agent, control calls and tools from outside, and a model that follows its task step by step."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel
from support.engine.stack import call, says

from turngate import Agent, Limits, Toolkit, declare_tool, sub_agent, tool
from turngate.domain.conversation.messages import Message, ModelResponse
from turngate.domain.tools.tool import Tool
from turngate.models.port import ModelRequest
from turngate.toolkits.control_calls import finish, hand_off, switch_model, wait_until

ORIGIN = {"mcp_server": "ledger<b>", "server_version": "1.2", "manifest_digest": "ab" * 32}
LIMITS = Limits(result_chars=1_000)


class Amount(BaseModel):
    cents: int


class Size(BaseModel):
    chars: int


class Nothing(BaseModel):
    pass


def step(*calls: tuple[str, Any], words: str = "", malformed: str = "") -> dict[str, Any]:
    """One response of the model: ``(tool, arguments)`` each."""
    return {"words": words, "calls": calls, "malformed": malformed}


def task(*steps: dict[str, Any]) -> str:
    """What to send as a run's input: the model takes one step after the other, then says that it is done."""
    return json.dumps(steps)


class Acting:
    """Takes the n-th step of its conversation's first message at its n-th request."""

    name = "scripted:acting"

    async def generate(self, request: ModelRequest) -> ModelResponse:
        messages = [message for message in request.messages if message.role != "system"]
        steps = json.loads(messages[0].text)
        taken = sum(message.role == "assistant" for message in messages)
        if taken >= len(steps):
            return says("All done.")
        now = steps[taken]
        if now["malformed"]:
            empty = Message(role="assistant", parts=())
            return ModelResponse(message=empty, finish_reason="other", model=self.name, malformed=now["malformed"])
        return says(now["words"], *(call(name, json.dumps(arguments)) for name, arguments in now["calls"]))

    async def aclose(self) -> None:
        return None


@dataclass
class World:
    """What the tools act on. ``release``: what ``deploy`` depends on."""

    paid: list[int] = field(default_factory=list)
    deployed: list[str] = field(default_factory=list)
    release: str = "r1"

    def tools(self) -> tuple[Tool, ...]:
        """The top agent's tools: its sub-agent ``researcher`` may pay, read much, and ask a sub-agent of its own."""

        @tool(effect="once", ask=True)
        async def pay(params: Amount) -> dict[str, int]:
            """Pay an amount."""
            self.paid.append(params.cents)
            return {"paid": params.cents}

        @tool(effect="read", ask=False)
        async def read_log(params: Size) -> str:
            """Read a long log."""
            return log_of(params.chars)

        @tool(effect="read", ask=False)
        async def list_rows(params: Size) -> dict[str, Any]:
            """List many rows."""
            return {"rows": [{"n": n, "rate": 1.10} for n in range(params.chars)], "more": None}

        @tool(effect="once", ask=True, precondition=lambda: {"release": self.release})
        async def deploy() -> str:
            """Put the release live."""
            self.deployed.append(self.release)
            return self.release

        async def book(params: Nothing) -> dict[str, Any]:
            return {"booked": True}

        ledger = declare_tool(
            name="ledger_book",
            description="Book an entry.",
            params=Nothing,
            success=dict[str, Any],
            effect="once",
            ask=True,
            origin=ORIGIN,
            handler=book,
        )
        clerk = Agent(name="clerk", instructions="Pay.", toolkit=Toolkit.of(pay), model="scripted:acting")
        researcher = Agent(
            name="researcher",
            instructions="Find out.",
            toolkit=Toolkit.of(pay, read_log, sub_agent(clerk)),
            model="scripted:acting",
            description="Finds things out",
            limits=LIMITS,
        )
        control_calls = (finish, wait_until, hand_off("researcher"), switch_model("scripted:other"))
        return (pay, read_log, list_rows, deploy, ledger, sub_agent(researcher), *control_calls)


def log_of(chars: int) -> str:
    """A log of so many characters: numbered lines with an invisible character."""
    lines = (f"{number:06} line \u202e of the <b>log</b>\n" for number in range(chars // 10))
    return "".join(lines)[:chars]
