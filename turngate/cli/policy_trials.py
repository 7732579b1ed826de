"""Rules tried without a server: on one call, and on the calls of the store. With an app, by its own tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from approvals_api.validation.exact_json import parse_exact
from turngate.cli.app_loading import load_builders_app
from turngate.domain.errors import ConfigurationError, InvalidInputError
from turngate.domain.policy.grants import Grant
from turngate.domain.policy.policy import Policy
from turngate.domain.tools.failures import InvalidToolInput
from turngate.domain.tools.known_tools import KnownTool
from turngate.domain.tools.tool import Tool
from turngate.policies.backtest import Report, judge
from turngate.policies.explain import AskedCall, explain, in_order
from turngate.policies.facts import DISTRUSTED, lies_in, without_permissions
from turngate.runtime.app_loader import LoadedApp
from turngate.runtime.settings import load_settings
from turngate.wire.policy import Explanation

GRANTS_KEPT = 1_000


def tools_by_agent(app_name: str) -> Mapping[str, Sequence[Tool]]:
    """Return agent → its tools, of an app and all its sub-agents."""
    return {name: list(agent.toolkit) for name, agent in load_builders_app(app_name).agents.items()}


def explained(
    tool: str,
    raw_args: str,
    *,
    agent: str | None,
    workspace: str | None,
    rules: Policy | None,
    app_name: str | None,
) -> Explanation:
    """Return what rules answer to one call. ``rules`` None: those of the app's own file.

    Raises:
        ConfigurationError: no such agent or tool in the app, or a name that no tool can have.
        InvalidInputError: the arguments are no JSON, or such as the app's tool does not take: policy would never be asked.
    """
    parse_exact(raw_args, pointer="/args", code="invalid_input")
    if app_name is None:
        call = AskedCall(
            tool=KnownTool(name=tool).stand_in(), raw_input=raw_args, agent=agent or "", workspace=workspace
        )
        notes = ["The tool's kind, effect and own ask are not known without --app."]
        if agent is None:
            notes.append("No agent was named: rules about some agents only are taken as not speaking of the call.")
        return explain(in_order(("file", rules or Policy())), call, notes=notes)
    app = load_builders_app(app_name)
    who, found = _found(app, tool, agent)
    try:
        params = found.decode(raw_args)
    except InvalidToolInput as wrong:
        raise InvalidInputError(f"{tool} does not take these arguments, so policy is never asked: {wrong}") from None
    notes = [] if agent is not None else [f"No agent was named, so it is asked for {who}."]
    policy = app.policy if rules is None else rules
    if rules is None and workspace is not None and app.policy_file is not None and lies_in(app.policy_file, workspace):
        policy = without_permissions(policy)
        notes.append(DISTRUSTED)
    call = AskedCall(tool=found, raw_input=raw_args, agent=who, params=params, workspace=workspace)
    return explain(in_order(("file", policy)), call, notes=notes)


async def backtested(
    policy: Policy,
    *,
    data_dir: Path | None,
    since: datetime | None,
    limit: int,
    examples: int,
    app_name: str | None,
) -> Report:
    """Return what rules answer to the newest ``limit`` calls of the store, and what changes."""
    from turngate.cli import stores  # noqa: PLC0415 - slow to import
    from turngate.store.clock import as_text  # noqa: PLC0415
    from turngate.store.policy import grants, policies, recorded_calls  # noqa: PLC0415

    app = None if app_name is None else load_builders_app(app_name)
    report = Report(examples_kept=examples)
    granted: dict[str, Grant | None] = {}
    async with stores.opened_store(load_settings(data_dir=data_dir)) as database:
        async with database.read() as conn:
            known = {
                (agent, tool.name): tool
                for each in await policies.published(conn)
                for tool in each.known_tools
                for agent in tool.agents
            }
        begun = None if since is None else as_text(since)
        async for call in recorded_calls.newest(database, limit=limit, since=begun):
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
    found = None if app is None else app.agents.get(agent)
    return None if found is None else found.toolkit.find(tool)


def _found(app: LoadedApp, tool: str, agent: str | None) -> tuple[str, Tool]:
    """Return an agent that has the tool, and the tool."""
    if agent is not None and agent not in app.agents:
        raise ConfigurationError(f"the app has no agent {agent!r}; it has: {', '.join(app.agents)}")
    for name in app.agents if agent is None else [agent]:
        declared = app.agents[name].toolkit.find(tool)
        if declared is not None:
            return name, declared
    names = sorted({each.name for found in app.agents.values() for each in found.toolkit})
    whose = "no agent of the app" if agent is None else f"the agent {agent!r} does not"
    verb = "has" if agent is None else "have"
    raise ConfigurationError(f"{whose} {verb} a tool {tool!r}; the tools are: {', '.join(names)}")
