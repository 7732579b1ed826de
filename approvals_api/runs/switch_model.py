"""Switching a live run's model, and the models to choose from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from turngate.approvals_api.lookups import existing_run
from turngate.approvals_api.principal import Principal
from turngate.approvals_api.runs.notes import fallback
from turngate.approvals_api.runs.order import checked_model
from turngate.approvals_api.runs.ownership import run_to_continue
from turngate.approvals_api.services import Services
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
    """Switch a live run to another model from its next model request on, and return the run; a repeat changes nothing more.

    A request that is in flight finishes. One that waits for its next attempt is sent to the new model, at once if the
    Temporal server can do that. The workflow needs no signal: each attempt of a request reads the run's model.

    Raises:
        NotFoundError: no such run.
        ConflictError: ``run_ended``; ``no_model``: its calls are external, and no model makes them.
        InvalidInputError: ``unknown_model``, or it does not fit.
        ForbiddenError: the principal may not steer runs.
    """
    principal.require("runs:write")
    spec = checked_model(model)
    async with services.database.write() as conn:
        run = await run_to_continue(conn, principal, run_id)
        if run.status != "running":
            raise _ended(run)
        if is_external(run.agent):
            raise ConflictError("the calls of this run are external: no model makes them", code="no_model")
        await require_known_model(conn, spec)
        if run.model != spec or not run.model_is_fixed or run.fell_back_from is not None:
            if not await runs.switch_model(conn, run_id, model=spec, by=principal.name):
                raise _ended(await existing_run(conn, run_id))
            payload = {"by": principal.name, "from": run.model, "to": spec, "step": run.step}
            await events.append(conn, run_id, [("run.model_switched", payload)])
            run = await existing_run(conn, run_id)
    # After a repeat, too: the first switch may have been stored by a process that died here.
    await services.gateway.expedite_model(run_id)
    return run


async def require_known_model(conn: Connection, spec: str) -> None:
    """Raise InvalidInputError ``unknown_model`` for a model that neither the app nor models.toml declares.

    A known provider is not enough: a name decides what a request costs and, for ``scripted:FILE``, which file a worker reads.
    """
    known = _choosable(await agents.every_model_name(conn))
    if spec in known:
        return
    message = (
        f"there is no model {spec!r}; the models are: {', '.join(known) or 'none'}. Add it to models.toml as a profile"
    )
    raise InvalidInputError(message, code="unknown_model", errors=[{"pointer": "/model", "message": message}])


async def fallbacks_of(conn: Connection, run_id: str) -> list[ModelFallback]:
    """Return the newest fallbacks of a run, oldest first."""
    fell_back = await events.newest(conn, run_id, "run.model_fell_back", limit=MAX_FALLBACKS)
    return [fallback(event) for event in reversed(fell_back)]


async def offered_models(conn: Connection) -> list[str]:
    """Return the names of the models to choose from: the profiles, then the agents' own models, each once."""
    return [each.name for each in await model_choices(conn)]


async def model_choices(conn: Connection) -> list[ModelChoice]:
    """Return the models to choose from: the profiles with their models, then the agents' own models, each once."""
    names = await agents.every_model_name(conn)
    choices = {
        each.name: ModelChoice(name=each.name, stands_for=each.model) for each in names if each.kind == "profile"
    }
    known = _choosable(names)
    for agent in await agents.current(conn):
        if agent.model in known:  # that of an agent that no app has any more isn't
            choices.setdefault(agent.model, ModelChoice(name=agent.model))
    return list(choices.values())


def _choosable(names: Sequence[agents.ModelName]) -> list[str]:
    """Return what the apps and models.toml declare: a provider's name alone is none."""
    return [each.name for each in names if each.kind != "provider"]


def _ended(run: Run) -> ConflictError:
    return ConflictError(f"the run has ended already: it is {run.status}", code="run_ended", status=run.status)
