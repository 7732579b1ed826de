"""Rules and the judge tried without a server: on one call, and on the calls of the store."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Final

from turngate.activities.planning.judge import CallToJudge, JudgeReply, ask_judge
from turngate.approvals_api.validation.exact_json import parse_exact
from turngate.cli import stores, terminal
from turngate.cli.parts.confinement import load_confined
from turngate.domain.agents.model_profiles import Profiles
from turngate.domain.errors import ConfigurationError, InvalidInputError
from turngate.domain.policy.grants import Grant
from turngate.domain.policy.judge import Judge
from turngate.domain.policy.policy import Policy
from turngate.domain.tools.failures import InvalidToolInput
from turngate.domain.tools.known_tools import KnownTool
from turngate.domain.tools.tool import Tool
from turngate.models.registry import Models, build_models
from turngate.policies.backtest import Report, judge
from turngate.policies.explain import AskedCall, explain, in_order
from turngate.policies.facts import DISTRUSTED, lies_in, without_permissions
from turngate.policies.judge_reports import JudgeReport, decided
from turngate.runtime.app_loader import LoadedApp
from turngate.runtime.policy_files import read_text
from turngate.runtime.settings import Settings, load_stack_settings
from turngate.store.clock import as_text
from turngate.store.policy import grants, judgements, policies, recorded_calls
from turngate.store.requests.requests import Request
from turngate.text.plain_text import plain_line
from turngate.wire.orders import PolicyQuestion
from turngate.wire.policy import Explanation

GRANTS_KEPT = 1_000


def tools_by_agent(app_name: str) -> Mapping[str, Sequence[Tool]]:
    """Return agent → its tools, for an app's agents and sub-agents."""
    return {name: list(agent.toolkit) for name, agent in load_confined(load_stack_settings(), app_name).agents.items()}


def explained(question: PolicyQuestion, *, rules: Policy | None, app_name: str | None) -> Explanation:
    """Return the rules' answer to one call. ``rules``: None means those of the app's own file.

    Raises:
        ConfigurationError: no such agent or tool in the app, or a name that no tool can have.
        InvalidInputError: the arguments are no JSON, or the app's tool refuses them, so that policy would never judge them.
    """
    tool, agent, workspace = question.tool, question.agent, question.workspace
    parse_exact(question.args, pointer="/args", code="invalid_input")
    if app_name is None:
        known = KnownTool(name=tool)
        call = AskedCall(tool=known.stand_in(), raw_input=question.args, agent=agent or "", workspace=workspace)
        notes = [
            "Without --app the tool's kind, effect, defaults and own ask are not known.",
            *known.unread(question.args),
        ]
        if agent is None:
            notes.append("Without --agent, rules for certain agents count as not applying.")
        return explain(in_order(("file", rules or Policy())), call, notes=notes)
    app = load_confined(load_stack_settings(), app_name)
    who, declared = _tool_of(app, tool, agent)
    try:
        params, defaults = declared.decode_new(question.args)
    except InvalidToolInput as wrong:
        raise InvalidInputError(
            f"{tool} refuses these arguments, so policy would never judge the call: {wrong}"
        ) from None
    notes = [] if agent is not None else [f"Without --agent, the call is judged as one of {who}."]
    policy = app.policy if rules is None else rules
    if rules is None and workspace is not None and app.policy_file is not None and lies_in(app.policy_file, workspace):
        policy = without_permissions(policy)
        notes.append(DISTRUSTED)
    call = AskedCall(
        tool=declared, raw_input=question.args, agent=who, params=params, workspace=workspace, defaults=defaults
    )
    return explain(in_order(("file", policy)), call, notes=notes)


async def backtested(policy: Policy, trial: Trial) -> Report:
    """Return the rules' answers to the calls of a trial, and what changes."""
    app = (
        None if trial.app_name is None else load_confined(load_stack_settings(data_dir=trial.data_dir), trial.app_name)
    )
    report = Report(examples_kept=trial.examples)
    granted: dict[str, Grant | None] = {}
    async with stores.opened_store(load_stack_settings(data_dir=trial.data_dir)) as database:
        async with database.read() as conn:
            known = {
                (agent, tool.name): tool
                for each in await policies.published(conn)
                for tool in each.known_tools
                for agent in tool.agents
            }
        begun = None if trial.since is None else as_text(trial.since)
        traced = any(rule.from_ is not None for rule in policy.rule)
        async for call in recorded_calls.newest(database, limit=trial.limit, since=begun, with_origins=traced):
            grant_id = call.verdict.grant_id
            if grant_id is not None and grant_id not in granted:
                if len(granted) >= GRANTS_KEPT:
                    granted.clear()
                async with database.read() as conn:
                    stored = await grants.get(conn, grant_id)
                granted[grant_id] = None if stored is None else stored.grant
            tool = _declared(app, call.agent, call.tool) or known.get((call.agent, call.tool))
            report.add(call, judge(policy, call, tool, granted[grant_id] if grant_id else None))
    return report


def _declared(app: LoadedApp | None, agent: str, tool: str) -> Tool | None:
    owner = None if app is None else app.agents.get(agent)
    return None if owner is None else owner.toolkit.find(tool)


def _tool_of(app: LoadedApp, tool: str, agent: str | None) -> tuple[str, Tool]:
    """Return an agent that has the tool, and the tool."""
    if agent is not None and agent not in app.agents:
        raise ConfigurationError(f"the app has no agent {agent!r}; it has: {', '.join(app.agents)}")
    for name in app.agents if agent is None else [agent]:
        declared = app.agents[name].toolkit.find(tool)
        if declared is not None:
            return name, declared
    names = sorted({each.name for owner in app.agents.values() for each in owner.toolkit})
    whose = "no agent of the app" if agent is None else f"the agent {agent!r} does not"
    verb = "has" if agent is None else "have"
    raise ConfigurationError(f"{whose} {verb} a tool {tool!r}; the tools are: {', '.join(names)}")


ASKED_WITHOUT_YES: Final = 50
ASKED_AT_MOST: Final = 1_000
AT_ONCE: Final = 4


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Which calls to judge, and how. ``criteria``: a file; None means those of the app's judge."""

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
    """Return the judge's answers to the newest calls when they were made, and people's decisions."""
    report = JudgeReport(examples_kept=trial.examples)
    begun = None if trial.since is None else as_text(trial.since)
    async with stores.opened_store(load_stack_settings(data_dir=trial.data_dir)) as database:
        async for call in judgements.newest(database, limit=trial.limit, since=begun):
            named = call.request_id or call.tool_call_id
            report.add(call.judgement, decided(call.status, call.verb), run_id=call.run_id, named=named)
    return report


async def ask_now(model: str, trial: Trial) -> JudgeReport:
    """Ask a model about the newest calls that people approved or rejected. Each request costs money.

    Raises:
        ConfigurationError: no criteria, no such model, or more than 50 calls without ``yes``.
    """
    judge, base = _judge(model, trial)
    settings = load_stack_settings(data_dir=trial.data_dir)
    begun = None if trial.since is None else as_text(trial.since)
    async with stores.opened_store(settings) as database:
        limit = min(trial.limit, ASKED_AT_MOST)
        requests = await judgements.decided_by_people(database, limit=limit, since=begun)
    if len(requests) > ASKED_WITHOUT_YES and not trial.yes:
        raise ConfigurationError(
            f"this asks {model!r} about {len(requests):,} calls, and each costs money: add --yes, or --limit {ASKED_WITHOUT_YES}"
        )
    terminal.note(f"asking {plain_line(model, 100)} about {len(requests):,} call(s)")
    return await _ask_about(judge, requests, settings, base, trial.examples)


async def _ask_about(
    judge: Judge, requests: list[Request], settings: Settings, base: Path, examples: int
) -> JudgeReport:
    models = build_models(settings, script_base=base)
    places, answers = asyncio.Semaphore(AT_ONCE), dict[str, JudgeReply]()
    with_models = _Models(models, models.profiles)
    try:
        models.resolve(judge.model)  # a missing model is one error, not an answer to each call

        async def ask(request: Request) -> None:
            call = CallToJudge(
                tool_call_id=request.id,
                tool=request.tool,
                raw_input=request.input,
                digest=request.digest,
                asked_by=request.rule,
            )
            async with places:
                answers.update(await ask_judge(with_models, judge, [call]))

        await asyncio.gather(*(ask(request) for request in requests))
    finally:
        await models.aclose()
    report = JudgeReport(model=judge.model, examples_kept=examples)
    for request in requests:
        by_people = decided(request.status, request.verb)
        report.add(answers[request.id].judgement, by_people, run_id=request.run_id, named=request.id)
    return report


def _judge(model: str, trial: Trial) -> tuple[Judge, Path]:
    """Return the judge to ask, declared as the app's judge if it has one, and the base of the models' relative paths."""
    app = (
        None if trial.app_name is None else load_confined(load_stack_settings(data_dir=trial.data_dir), trial.app_name)
    )
    base = Path.cwd() if app is None else app.base
    declared = None if app is None else app.app.judge
    criteria = None if trial.criteria is None else read_text(trial.criteria, what="--criteria")
    if declared is not None:
        return replace(declared, model=model, mode="shadow", criteria=criteria or declared.criteria), base
    if criteria is None:
        raise ConfigurationError("a judge needs criteria: use --criteria FILE, or --app with an app that has a judge")
    return Judge(model=model, criteria=criteria), base
