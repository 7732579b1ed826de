"""The JSON-RPC methods: one row each, with its parameters, its answer and what it calls of the API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import TypeAdapter

from turngate.client import TurngateClient
from turngate.client.requests import Where
from turngate.client.runs import RunsWhere
from turngate.frontends.rpc import parameters as take
from turngate.wire.agents import AgentView, ModelChoice
from turngate.wire.decisions import DecisionResult
from turngate.wire.requests import RequestDetail, RequestItem
from turngate.wire.runs import RunDetail, RunSummary
from turngate.wire.view import Page


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method. ``call``: from the API's client and the checked parameters to an answer of ``result``."""

    summary: str
    params: type[take.Params]
    result: TypeAdapter[Any]
    call: Callable[[TurngateClient, Any], Awaitable[Any]]


async def _start(client: TurngateClient, params: take.StartRun) -> RunSummary:
    return await client.start_run(
        agent=params.agent,
        text=params.input,
        conversation_id=params.conversation_id,
        workspace=params.workspace,
        model=params.model,
        unattended=params.unattended,
        idempotency_key=params.idempotency_key,
    )


async def _send(client: TurngateClient, params: take.SendMessage) -> RunSummary:
    return await client.send_message(
        params.run_id, params.input, while_running=params.while_running, idempotency_key=params.idempotency_key
    )


async def _interrupt(client: TurngateClient, params: take.StopRun) -> RunSummary:
    return await client.interrupt(params.run_id, reason=params.reason)


async def _pause(client: TurngateClient, params: take.StopRun) -> RunSummary:
    return await client.pause(params.run_id, reason=params.reason)


async def _resume(client: TurngateClient, params: take.OneRun) -> RunSummary:
    return await client.resume(params.run_id)


async def _get_run(client: TurngateClient, params: take.OneRun) -> RunDetail:
    return await client.get_run(params.run_id)


async def _list_runs(client: TurngateClient, params: take.ListRuns) -> Page[RunSummary]:
    where: RunsWhere = {
        "status": params.status,
        "search": params.search,
        "agent": params.agent,
        "cause": params.cause,
    }
    return await client.list_runs(limit=params.limit, cursor=params.cursor, **where)


async def _list_requests(client: TurngateClient, params: take.ListRequests) -> Page[RequestItem]:
    filters: Any = params.model_dump(exclude_none=True, exclude={"limit", "cursor"})
    where: Where = filters
    return await client.list_requests(limit=params.limit, cursor=params.cursor, **where)


async def _get_request(client: TurngateClient, params: take.OneRequest) -> RequestDetail:
    return await client.get_request(params.request_id)


async def _decide(client: TurngateClient, params: take.Decide) -> DecisionResult:
    return await client.decide(params.request_id, params.order, decision_id=params.decision_id)


async def _list_agents(client: TurngateClient, _params: take.Nothing) -> list[AgentView]:
    return await client.list_agents()


async def _list_models(client: TurngateClient, _params: take.Nothing) -> list[ModelChoice]:
    return await client.list_models()


async def _switch_model(client: TurngateClient, params: take.SwitchModel) -> RunSummary:
    return await client.switch_model(params.run_id, params.model)


_RUN: Final = TypeAdapter(RunSummary)

METHODS: Final[Mapping[str, Method]] = {
    "run.start": Method(summary="Start a run.", params=take.StartRun, result=_RUN, call=_start),
    "run.send": Method(
        summary="Say something more in a run's conversation; answers with the run that takes it.",
        params=take.SendMessage,
        result=_RUN,
        call=_send,
    ),
    "run.interrupt": Method(summary="Stop a run.", params=take.StopRun, result=_RUN, call=_interrupt),
    "run.pause": Method(
        summary="Hold a run: nothing new starts until it is resumed.", params=take.StopRun, result=_RUN, call=_pause
    ),
    "run.resume": Method(summary="Resume a paused run.", params=take.OneRun, result=_RUN, call=_resume),
    "run.switch_model": Method(
        summary="Let another model answer a live run's next request.",
        params=take.SwitchModel,
        result=_RUN,
        call=_switch_model,
    ),
    "run.get": Method(
        summary="Show a run with its steps, its calls and its answer.",
        params=take.OneRun,
        result=TypeAdapter(RunDetail),
        call=_get_run,
    ),
    "run.list": Method(
        summary="One page of runs, the newest first.",
        params=take.ListRuns,
        result=TypeAdapter(Page[RunSummary]),
        call=_list_runs,
    ),
    "requests.list": Method(
        summary="One page of requests: those that wait for a decision, or others.",
        params=take.ListRequests,
        result=TypeAdapter(Page[RequestItem]),
        call=_list_requests,
    ),
    "requests.get": Method(
        summary="Show a request with everything needed to decide it.",
        params=take.OneRequest,
        result=TypeAdapter(RequestDetail),
        call=_get_request,
    ),
    "requests.decide": Method(
        summary="Decide a request. Needs a token that may decide; the API says no to any other.",
        params=take.Decide,
        result=TypeAdapter(DecisionResult),
        call=_decide,
    ),
    "agents.list": Method(
        summary="The agents that workers have published.",
        params=take.Nothing,
        result=TypeAdapter(list[AgentView]),
        call=_list_agents,
    ),
    "models.list": Method(
        summary="The models to choose from: profiles, and the agents' own.",
        params=take.Nothing,
        result=TypeAdapter(list[ModelChoice]),
        call=_list_models,
    ),
}
