"""Switching a live run's model, and which names a model may have. Used by the JSON API and the pages."""

from __future__ import annotations

from typing import Final

from approvals_api.lookups import existing_run
from approvals_api.principal import Principal
from approvals_api.runs.notes import fallback
from approvals_api.runs.order import checked_model
from approvals_api.services import Services
from turngate.domain.errors import ConflictError, InvalidInputError
from turngate.domain.tools.external import is_external
from turngate.store import agents
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.runs import runs
from turngate.store.runs.runs import Run
from turngate.wire.agents import ModelChoice
from turngate.wire.explanation import ModelFallback

MAX_FALLBACKS: Final = 20


async def switch_model(services: Services, principal: Principal, run_id: str, *, model: str) -> Run:
    """Let another model answer a live run's next request, and return the run; a repeat changes nothing more.

    A request that is on its way comes to its end. One that waits to be tried again is sent to the new model, at once where
    the Temporal server can do that. The workflow need not be told: each attempt of a request reads the run's model.

    Raises:
        NotFoundError: no such run.
        ConflictError: ``run_ended``; ``no_model``: its calls come from outside, and no model makes them.
        InvalidInputError: ``unknown_model``, or it does not fit.
        ForbiddenError: the principal may not steer runs.
    """
    principal.require("runs:write")
    spec = checked_model(model)
    async with services.database.write() as conn:
        run = await existing_run(conn, run_id)
        if run.status != "running":
            raise _ended(run)
        if is_external(run.agent):
            raise ConflictError("the calls of this run come from outside: no model makes them", code="no_model")
        await require_known_model(conn, spec)
        if run.model != spec or not run.model_is_fixed or run.fell_back_from is not None:
            if not await runs.switch_model(conn, run_id, model=spec, by=principal.name):
                raise _ended(await existing_run(conn, run_id))
            told = {"by": principal.name, "from": run.model, "to": spec, "step": run.step}
            await events.append(conn, run_id, [("run.model_switched", told)])
            run = await existing_run(conn, run_id)
    # Behind a repeat, too: the switch before it may have been stored by a process that died here.
    await services.gateway.expedite_model(run_id)
    return run


async def require_known_model(conn: Connection, spec: str) -> None:
    """Raise InvalidInputError ``unknown_model`` for a name that no worker has published.

    Providers count when a worker told of them, or when an agent's own model is one's. While no worker has told of any, a
    name that no profile has is all that can be refused.
    """
    names = await agents.every_model_name(conn)
    profiles = [each.name for each in names if each.kind == "profile"]
    providers = [each.name for each in names if each.kind == "provider"]
    provider, colon, _name = spec.partition(":")
    if colon:
        of_agents = [agent.model.partition(":")[0] for agent in await agents.every(conn)]
        known_here = not providers or provider in (*providers, *of_agents)
    else:
        known_here = spec in profiles
    if known_here:
        return
    known = f"the profiles are: {', '.join(profiles) or 'none'}"
    if providers:
        known += f"; the providers, as PROVIDER:NAME: {', '.join(providers)}, and those that models.toml names"
    message = f"there is no model {spec!r}; {known}"
    raise InvalidInputError(message, code="unknown_model", errors=[{"pointer": "/model", "message": message}])


async def fallbacks_of(conn: Connection, run_id: str) -> list[ModelFallback]:
    """Return the models that stood in for others in a run, the newest of them, oldest first."""
    found = await events.newest(conn, run_id, "run.model_fell_back", limit=MAX_FALLBACKS)
    return [fallback(told) for told in reversed(found)]


async def offered_models(conn: Connection) -> list[str]:
    """Return what people are offered to choose: the profiles, then the agents' own models, each once."""
    return [each.name for each in await model_choices(conn)]


async def model_choices(conn: Connection) -> list[ModelChoice]:
    """Return the profiles with what they stand for, then the agents' own models, each once."""
    found = {
        each.name: ModelChoice(name=each.name, stands_for=each.model)
        for each in await agents.every_model_name(conn)
        if each.kind == "profile"
    }
    for agent in await agents.every(conn):
        found.setdefault(agent.model, ModelChoice(name=agent.model))
    return list(found.values())


def _ended(run: Run) -> ConflictError:
    return ConflictError(f"the run has ended already: it is {run.status}", code="run_ended", status=run.status)
