"""One call at the door, with no engine at work: its rows are written as planning and a decision write them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import svcs
from support.stores.stored_requests import live_run, request_row

from turngate.activities.engine.engine import Engine
from turngate.activities.execution.door import Door
from turngate.activities.execution.preflight import Findings
from turngate.activities.planning.requests import request_id_of
from turngate.domain.agents.app import Agent
from turngate.domain.agents.hooks import Hooks
from turngate.domain.contract import RunToolInput
from turngate.domain.digest import repeat_key
from turngate.domain.policy.policy import Policy, Rule, Verdict
from turngate.domain.policy.terms import AskTerms
from turngate.domain.tools.tool import Tool
from turngate.domain.tools.toolkit import Toolkit
from turngate.models.registry import Models, ModelSettings
from turngate.store.clock import now
from turngate.store.database import Database
from turngate.store.events import events
from turngate.store.evidence import opening_event, planned_digests
from turngate.store.requests import requests
from turngate.store.runs import calls, executions

ALLOW_ALL = Policy(rule=[Rule(name="all", verdict="allow", tools=["*"])])
ASK_ALL = Policy(rule=[Rule(name="all", verdict="ask", tools=["*"])])
ALLOWED = Verdict(answer="allow", rule="all", reason="", risk="low")


class CallAtDoor:
    """A planned call of one tool. ``disposition``: ``run`` as if policy had allowed it, ``ask`` as if it had asked."""

    def __init__(
        self, database: Database, tool: Tool, *, policy: Policy = ALLOW_ALL, hooks: Sequence[Hooks] = ()
    ) -> None:
        agent = Agent(name="agent", instructions="", toolkit=Toolkit.of(tool), model="scripted:test", hooks=hooks)
        self.database, self.tool = database, tool
        self.engine = Engine(
            database=database,
            agents={"agent": agent},
            policy=policy,
            services=svcs.Registry(),
            models=Models(ModelSettings()),
        )

    async def plan(
        self,
        raw_input: str = "{}",
        *,
        disposition: calls.Disposition = "run",
        verdict: Verdict = ALLOWED,
        defaults: str | None = None,
        **run: Any,
    ) -> None:
        """Write the run and its call. ``run``: fields of the new run."""
        async with self.database.write() as conn:
            self.run = await live_run(conn, "run_1", **run)
            call = calls.Call(
                run_id=self.run.id,
                tool_call_id="c1",
                step=1,
                position=0,
                tool_name=self.tool.name,
                input=raw_input,
                repeat_key=repeat_key(self.tool.name, raw_input),
                disposition=disposition,
                verdict=verdict.model_dump_json(exclude_defaults=True),
                digest="",
                policy_version="p",
                effect=self.tool.effect,
                defaults=defaults,
            )
            self.call = replace(call, digest=call.digest_with(self.tool))
            await calls.insert_planned(conn, [self.call])
            responded = {"step": 1, **events.digests(**planned_digests([self.call]))}
            await events.append(conn, self.run.id, [("step.responded", responded)])

    async def approve(
        self,
        *,
        precondition: str | None = None,
        ago: timedelta = timedelta(0),
        not_by: str | None = None,
        columns: Mapping[str, str] | None = None,
        **terms: Any,
    ) -> requests.Request:
        """Write the request that asked about the call, approved by vic; the door finds it. ``columns``: more of the request."""
        request = request_row(
            self.run,
            request_id_of(self.run.id, "c1", "approval"),
            tool_call_id="c1",
            tool_name=self.tool.name,
            digest=self.call.digest,
            precondition=precondition,
            not_by=not_by,
            terms=AskTerms(**terms).model_dump_json(exclude_defaults=True),
            **(columns or {}),
        )
        async with self.database.write() as conn:
            await requests.insert_all(conn, [request])
            won = {"decision_id": "d1", "verb": "approve", "by": "vic"}
            await requests.settle(conn, request.id, requests.Ending(status="approved", at=now() - ago, **won))
            decided = await requests.get(conn, request.id)
            assert decided is not None
            names = ("status", "verb", "decision_id", "approvals")
            payload = {name: getattr(decided, name) for name in names} | {"by": "vic", "at": decided.decided_at}
            decided_event = ("request.decided", {"request_id": request.id, **payload})
            await events.append(conn, self.run.id, [opening_event(request), decided_event])
        return request

    async def begin(self, state: str = "executing", *, starts: int = 1) -> None:
        """Write that the call was started before, so many times."""
        async with self.database.write() as conn:
            names = {"run_id": self.run.id, "tool_call_id": "c1"}
            await executions.begin(
                conn, executions.NewExecution(**names, digest=self.call.digest, decision_id=None, idempotency_key="key")
            )
            for _start in range(starts - 1):
                lost = await executions.get(conn, **names)
                assert lost is not None
                await executions.begin_again(conn, lost, decision_id=None, worker="w", build="b")
            if state != "executing":
                await executions.finish(conn, **names, state=state)

    @asynccontextmanager
    async def door(self, findings: Findings | None = None) -> AsyncIterator[Door]:
        """The call at its door, in a write transaction."""
        order = RunToolInput(run_id=self.run.id, call="c1")
        async with self.database.write() as conn:
            yield await Door.at(self.engine, conn, order, findings)

    async def stored(self) -> calls.Call:
        """The call as it is stored now."""
        async with self.database.read() as conn:
            call = await calls.get(conn, self.run.id, "c1")
        assert call is not None
        return call

    async def execution(self) -> executions.Execution | None:
        """The call's execution as it is stored now."""
        async with self.database.read() as conn:
            return await executions.get(conn, self.run.id, "c1")

    async def event_types(self) -> list[str]:
        """The types of the run's events after the response that planned the call."""
        async with self.database.read() as conn:
            return [event.type for event in await events.after(conn, 0, run_id=self.run.id)][1:]
