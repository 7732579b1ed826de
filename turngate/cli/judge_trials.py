"""The judge against people: what it said of calls of the store, or what a model says of them now. Stores nothing."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Final

from activities.planning.judge import Heard, ToJudge, asked_about
from turngate.cli import stores, terminal
from turngate.cli.app_loading import load_builders_app
from turngate.cli.model_wiring import build_models
from turngate.cli.policy_files import read_text
from turngate.domain.agents.model_profiles import Profiles
from turngate.domain.errors import ConfigurationError
from turngate.domain.policy.judge import Judge
from turngate.models.registry import Models
from turngate.policies.judge_reports import JudgeReport, decided
from turngate.runtime.settings import Settings, load_settings
from turngate.store.clock import as_text
from turngate.store.policy import judgements
from turngate.store.requests.requests import Request
from turngate.text.plain_text import plain_line

ASKED_WITHOUT_YES: Final = 50
ASKED_AT_MOST: Final = 1_000
AT_ONCE: Final = 4


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What is to be looked at. ``criteria``: a file; None: those of the app's judge."""

    data_dir: Path | None
    since: datetime | None
    limit: int
    examples: int
    app_name: str | None = None
    criteria: Path | None = None
    yes: bool = False


@dataclass(frozen=True)
class _Models:
    models: Models
    profiles: Profiles


async def recorded(trial: Trial) -> JudgeReport:
    """Return what judges said of the newest calls when they were made, and what people decided then."""
    report = JudgeReport(examples_kept=trial.examples)
    begun = None if trial.since is None else as_text(trial.since)
    async with stores.opened_store(load_settings(data_dir=trial.data_dir)) as database:
        async for call in judgements.newest(database, limit=trial.limit, since=begun):
            named = call.request_id or call.tool_call_id
            report.add(call.judgement, decided(call.status, call.verb), run_id=call.run_id, named=named)
    return report


async def asked_now(model: str, trial: Trial) -> JudgeReport:
    """Ask a model about the newest calls that people approved or rejected. Each request is paid for.

    Raises:
        ConfigurationError: no criteria, no such model, or more than 50 calls without ``yes``.
    """
    judge, base = _judge(model, trial)
    settings = load_settings(data_dir=trial.data_dir)
    begun = None if trial.since is None else as_text(trial.since)
    async with stores.opened_store(settings) as database:
        limit = min(trial.limit, ASKED_AT_MOST)
        asked = await judgements.decided_by_people(database, limit=limit, since=begun)
    if len(asked) > ASKED_WITHOUT_YES and not trial.yes:
        raise ConfigurationError(
            f"this asks {model!r} about {len(asked):,} calls, and each is paid for: add --yes, or --limit {ASKED_WITHOUT_YES}"
        )
    terminal.note(f"asking {plain_line(model, 100)} about {len(asked):,} call(s)")
    return await _asked(judge, asked, settings, base, trial.examples)


async def _asked(judge: Judge, asked: list[Request], settings: Settings, base: Path, examples: int) -> JudgeReport:
    models = build_models(settings, script_base=base)
    places, heard = asyncio.Semaphore(AT_ONCE), dict[str, Heard]()
    with_models = _Models(models, models.profiles)
    try:
        models.resolve(judge.model)  # one that is not there is said once, and not as an answer to each call

        async def ask(request: Request) -> None:
            call = ToJudge(
                tool_call_id=request.id,
                tool=request.tool,
                raw_input=request.input,
                digest=request.digest,
                asked_by=request.rule,
            )
            async with places:
                heard.update(await asked_about(with_models, judge, [call]))

        await asyncio.gather(*(ask(request) for request in asked))
    finally:
        await models.aclose()
    report = JudgeReport(model=judge.model, examples_kept=examples)
    for request in asked:
        by_people = decided(request.status, request.verb)
        report.add(heard[request.id].judgement, by_people, run_id=request.run_id, named=request.id)
    return report


def _judge(model: str, trial: Trial) -> tuple[Judge, Path]:
    """Return who is asked, as the app's judge is where it has one; and where relative paths of models start."""
    app = None if trial.app_name is None else load_builders_app(trial.app_name)
    base = Path.cwd() if app is None else app.base
    declared = None if app is None else app.app.judge
    criteria = None if trial.criteria is None else read_text(trial.criteria, what="--criteria")
    if declared is not None:
        return replace(declared, model=model, mode="shadow", criteria=criteria or declared.criteria), base
    if criteria is None:
        raise ConfigurationError("a judge needs criteria: --criteria FILE, or --app with an app that has a judge")
    return Judge(model=model, criteria=criteria), base
