"""Which model answers a step, and which one when that cannot be used.

A person's switch and a fallback that was taken hold until the run's end or the next switch. Else the agent's hooks may
choose for each step; else it is the run's own.
"""

from __future__ import annotations

from dataclasses import replace

from turngate.activities.engine.author_code import await_author
from turngate.activities.engine.costs import lacks_price
from turngate.activities.engine.engine import Engine, resolved
from turngate.activities.engine.error_log import Where, quoted, report
from turngate.activities.engine.run_step import RunStep
from turngate.domain.agents.app import Agent
from turngate.domain.agents.model_profiles import MAX_SPEC_CHARS, Profiles, falls_back
from turngate.domain.errors import ConfigurationError, ModelError
from turngate.models.port import LanguageModel
from turngate.store.events import events
from turngate.store.runs import runs, steps

CHOICE_SECONDS = 10.0
"""Of one hook; every step waits for it."""


class ModelRouter:
    """Chooses models for the runs of an engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def spec_for(self, step: RunStep) -> str:
        """Return which model to ask for this step: ``provider:name`` or a profile's name.

        A dry run asks the model that answered the recorded step, unless a model was chosen for the dry run.
        """
        run = step.run
        if run.model_is_fixed:
            return run.model
        if run.replay_of_run_id is not None:
            async with self._engine.database.read() as conn:
                recorded = await steps.get(conn, run.replay_of_run_id, step.number + (run.forked_from_step or 0))
            if recorded is not None and recorded.model_spec is not None:
                return recorded.model_spec
        spec = run.model
        for hook in step.agent.hooks:
            try:
                choice = await await_author(hook.model_for_step(step.scope, spec), seconds=CHOICE_SECONDS)
                spec = _spec(choice) or spec
            except Exception as error:  # noqa: BLE001 - reported, with its traceback
                where = Where(run_id=run.id, step=step.number)
                await report(self._engine, "model_for_step hook failed", error, where, hook=type(hook).__name__)
        return spec

    async def resolve(self, agent: Agent, spec: str) -> LanguageModel:
        """Return the model of a spec.

        Raises:
            ConfigurationError: it cannot be used here, or the agent has a limit of cost and the model has no price.
        """
        if lacks_price(self._engine, agent, spec):
            raise ConfigurationError(
                f"agent {agent.name!r} has a limit of cost, and {spec!r} has no price: add it to App(prices=…), "
                "or price_in and price_out to its profile"
            )
        return await resolved(self._engine.models, spec)

    async def fall_back(
        self, step: RunStep, spec: str, error: ModelError | ConfigurationError, error_id: str
    ) -> runs.Run | None:
        """Let the next model of the configured list take over, and return the run with it.

        ``error_id``: under which the error is stored. None: another model would not help, the list is at its end, or the run
        has ended. A model that was switched to meanwhile stays.
        """
        run = step.run
        if not falls_back(error):
            return None
        before = None if run.fell_back_from is None or spec != run.model else run.fell_back_from
        to = self._engine.profiles.after(spec, fell_back_from=before, more=tuple(step.agent.fallback))
        if to is None:
            return None
        error_class = error.error_class if isinstance(error, ModelError) else "configuration"
        async with self._engine.database.write() as conn:
            if await runs.fall_back(conn, run, model=to, instead_of=before or spec):
                payload = {"step": step.number, "from": spec, "to": to, "instead_of": before or spec}
                payload |= {"error_class": error_class, "message": quoted(error.message, error_id)}
                await events.append(conn, run.id, [("run.model_fell_back", payload)])
                return replace(run, model=to, fell_back_from=before or spec)
            now = await runs.get(conn, run.id)
        switched = now is not None and now.status == "running" and now.model != run.model
        return now if switched else None


def _spec(answer: object) -> str | None:
    """Return what a hook chose; raises TypeError for what is no spec."""
    if answer is None:
        return None
    if not isinstance(answer, str) or not answer or len(answer) > MAX_SPEC_CHARS:
        raise TypeError("model_for_step must return provider:name, a profile's name, or None")
    return answer


def window_of(profiles: Profiles, spec: str) -> int | None:
    """Return how many tokens the model of a spec takes; None: no profile says.

    A model that is named without a profile has the window that a profile of the same model states: it is the model's.
    """
    if spec in profiles:
        return profiles[spec].context_window
    windows = (each.context_window for each in profiles.values() if each.model == spec)
    return next((window for window in windows if window is not None), None)
