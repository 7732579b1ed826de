"""An app under development with its playground, in one process: the real planner, the real pages, a store of its own."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from fastapi import FastAPI
from pydantic import BaseModel, Field
from support.api.api_server import session_for
from temporalio.client import Client

from turngate import Agent, App, Policy, Preview, Rule, Toolkit, tool
from turngate.activities.engine.engine import Engine
from turngate.approvals_api.app import create_app
from turngate.approvals_api.gateway.client import Gateway
from turngate.approvals_api.settings import ApiSettings
from turngate.cli.dev.script_steps import script_steps
from turngate.cli.dev.trials import try_call
from turngate.domain.tools.tool import ToolManifest
from turngate.models import ScriptedModel
from turngate.models.registry import Models, ModelSettings
from turngate.runtime.app_loader import check_app
from turngate.store.database import Database
from turngate.wire.playground import PaceOrder, RunMessages, ScriptSteps, Trial, TrialOrder
from turngate.worker import build_engine

ORIGIN = "http://127.0.0.1:8321"
RAN: list[str] = []
"""What handlers would have written down."""


class Refund(BaseModel):
    order_id: str
    amount: int = Field(ge=1)
    note: str = ""


def letter(params: Refund, _workspace: Path | None) -> Preview:
    """Show what the customer gets."""
    return Preview(kind="text", text=f"Dear customer of {params.order_id}: {params.amount} <b>euros</b>")


@tool(effect="once", preview=letter)
async def refund(params: Refund) -> None:
    """Refund an order."""
    RAN.append(params.order_id)


@tool(effect="read", ask=False)
async def look() -> str:
    """Look around."""
    RAN.append("look")
    return ""


NONE_FOR_B = Rule(
    name="none-for-b",
    verdict="deny",
    tools=["refund"],
    args=[{"at": "/order_id", "op": "eq", "value": "B"}],
    reason="B is gone.",
)
LARGE = Rule(name="large", verdict="ask", tools=["refund"], risk="high", reason="Money leaves.")
POLICY = Policy(rule=[NONE_FOR_B, LARGE])


@dataclass
class InOneProcess:
    """A playground without a worker process: what that does with a question, done here."""

    engine: Engine
    error: str = ""
    tools: Mapping[str, Sequence[ToolManifest]] = field(default_factory=dict)
    one_step_at_a_time: bool = False
    scripts: Mapping[str, Sequence[ScriptedModel]] = field(default_factory=dict)

    def script_steps(self, agent: str, script: str = "", run: RunMessages | None = None) -> ScriptSteps | None:
        models = {each.name: each for each in self.scripts.get(agent, ())}
        if not models:
            return None
        model = models.get(script) or next(iter(models.values()))
        return script_steps(model, model.name, run).model_copy(update={"of_agent": tuple(models)})

    async def set_pace(self, order: PaceOrder) -> None:
        self.one_step_at_a_time = order.one_step_at_a_time

    async def try_call(self, order: TrialOrder) -> Trial:
        return await try_call(self.engine, order)


@dataclass
class Served:
    """The pages, as someone who is logged in has them."""

    app: FastAPI
    database: Database
    playground: InOneProcess
    client: httpx.AsyncClient


@contextlib.asynccontextmanager
async def playground_on(database: Database, *, name: str = "ann") -> AsyncIterator[Served]:
    """Serve the pages with a playground, and a client that is logged in."""
    agent = Agent(name="support", instructions="Help.", toolkit=Toolkit.of(refund, look), model="scripted:s.yaml")
    loaded = check_app(App(agents=[agent], policy=POLICY), base=Path.cwd())
    engine = build_engine(loaded, database, Models(ModelSettings(script_base=Path.cwd())))
    playground = InOneProcess(engine, tools={"support": [each.manifest for each in agent.toolkit]})
    gateway = Gateway(await Client.connect("127.0.0.1:1", lazy=True))
    app = create_app(database=database, gateway=gateway, settings=ApiSettings(), playground=playground)
    cookies = await session_for(database, name)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url=ORIGIN, cookies=cookies) as client:
        yield Served(app, database, playground, client)
