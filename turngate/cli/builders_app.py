"""The builder's app and its models, as commands load them, describe them and warn about them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, get_args

from turngate.domain.agents.app import Agent
from turngate.domain.agents.model_profiles import Profiles
from turngate.domain.policy.policy import evaluate
from turngate.domain.runs.budgets import SCRIPTED, is_free
from turngate.domain.tools.summary import free_texts
from turngate.domain.tools.tool import Tool, ToolKind
from turngate.models.openai.strict import NotStrictError, strict_schema
from turngate.models.profiles import find_models_file
from turngate.models.registry import build_models
from turngate.policies.lint import doubts
from turngate.runtime.app_loader import LoadedApp
from turngate.runtime.settings import Settings
from turngate.toolkits.mcp import SERVER_PROGRAMS, odd_tools

KIND_WORDS: Final[dict[ToolKind, str]] = {
    "local": "tools",
    "provider": "run by the provider",
    "signal": "control calls",
    "interaction": "asks people by",
    "agent": "sub-agents",
    "external": "run by other programs",
}


def scripts_of(agent: Agent, profiles: Profiles) -> list[str]:
    """Return the scripts that may answer for an agent, ``scripted:FILE`` each: its model's first, then those of its fallbacks."""
    chain = (agent.model, *profiles.fallbacks(agent.model, tuple(agent.fallback)))
    specs = (profiles.model(spec) for spec in chain)
    return list(dict.fromkeys(spec for spec in specs if is_free(spec)))


def app_files(app: LoadedApp, settings: Settings, of_models: Profiles) -> list[Path]:
    """Return what a loaded app and its deployment obey besides modules.

    That is: its policy, its scripts, the profiles of its models, the programs of its MCP servers, and what settings name.
    """
    specs = [spec for agent in app.agents.values() for spec in scripts_of(agent, of_models)]
    scripts = [app.base / spec.removeprefix(SCRIPTED) for spec in specs]
    profiles = find_models_file(settings.models_file, settings.data_dir, app.base)
    named = (*scripts, app.policy_file, profiles, *sorted(SERVER_PROGRAMS), *settings.obeyed_files)
    return [path for path in named if path is not None]


def agent_lines(app: LoadedApp) -> Iterator[tuple[str, str]]:
    """Yield ``agent`` or ``sub-agent`` and the rest of the line: name, callers, model, tools by kind. Sub-agents come last."""
    callers = app.app.callers
    for agent in sorted(app.agents.values(), key=lambda agent: agent.name in callers):
        of = callers.get(agent.name)
        whose = f" of {', '.join(of)}" if of else ""
        yield "sub-agent" if of else "agent", f"{agent.name}{whose} ({agent.model}); {tools_by_kind(agent)}"


def tools_by_kind(agent: Agent) -> str:
    """Return the names of an agent's tools, after words for their kind."""
    names = {kind: [tool.name for tool in agent.toolkit if tool.kind == kind] for kind in get_args(ToolKind)}
    return (
        "; ".join(f"{KIND_WORDS[kind]}: {', '.join(of_kind)}" for kind, of_kind in names.items() if of_kind)
        or "no tools"
    )


def warnings(app: LoadedApp) -> Iterator[str]:
    """Yield what is allowed and may still be a mistake.

    That is: tools that nothing runs, that no model gets or understands, rules that do not do what they seem to say, and tools
    of MCP servers that can't be read.
    """
    undescribed = {tool.name: tool for agent in app.agents.values() for tool in agent.toolkit if not tool.description}
    for tool in undescribed.values():
        yield (
            f"tool {tool.name!r}{tool.where} has no description, so the model knows only its name and its arguments: write a "
            "docstring that says what the tool does"
        )
    yield from _free_summaries(app)
    yield from _not_strict(app)
    for agent in app.agents.values():
        for tool in agent.toolkit:
            if tool.kind == "local" and tool.handler is None:
                yield (
                    f"tool {tool.name!r} of agent {agent.name!r} has no handler: each call of it fails with "
                    f"non_local_tool. Add a handler with toolkit.handlers({{{tool.name!r}: function}}), or remove the tool"
                )
            elif tool.kind == "provider" and (refused := _not_offered(app, agent, tool)):
                yield refused
    for doubt in doubts(app.policy, {name: list(agent.toolkit) for name, agent in app.agents.items()}):
        yield f"rule {doubt.rule!r}: {doubt.message}"
    yield from odd_tools()


def _not_strict(app: LoadedApp) -> Iterator[str]:
    """Yield the tools whose ``strict=True`` has no effect with any provider, because of their schemas."""
    tools = {tool.name: tool for agent in app.agents.values() for tool in agent.toolkit if tool.strict}
    for tool in tools.values():
        try:
            strict_schema(tool.manifest.parameters)
        except NotStrictError as why:
            yield (
                f"tool {tool.name!r}{tool.where} is declared strict and is sent without it: {why}. Change its parameters, or "
                "leave out strict=True"
            )


def _free_summaries(app: LoadedApp) -> Iterator[str]:
    tools = {tool.name: tool for agent in app.agents.values() for tool in agent.toolkit}
    for tool in tools.values():
        if tool.summary is None:
            continue
        names = free_texts(tool.summary, tool.manifest.parameters, tool.parameters.python_type)
        if names is None:
            yield (
                f"tool {tool.name!r}{tool.where}: its summary is made by {tool.summary!r}, which fails on arguments that were "
                "made up to try it. Check that it repeats no text that the model writes freely"
            )
        elif names:
            yield (
                f"tool {tool.name!r}{tool.where}: the model writes {' and '.join(map(repr, names))} freely, and the tool's "
                "summary, which people read first, repeats it. Make the summary from what the call does, or bound the "
                "argument (max_length, a pattern, an enum)"
            )


def _not_offered(app: LoadedApp, agent: Agent, tool: Tool) -> str | None:
    verdict = evaluate(app.policy, tool, None, agent=agent.name)
    if verdict.answer == "allow":
        return None
    return (
        f"tool {tool.name!r} of agent {agent.name!r} runs at the model's provider, where no one can approve a call first, and "
        f"the policy answers {verdict.answer} (rule {verdict.rule!r}): the model does not get the tool. Allow it with a "
        "rule, or remove it"
    )


def require_model_names(settings: Settings, app: LoadedApp) -> None:
    """Require that each model's name is a profile's or has a known provider. No model is asked, and no key is checked.

    An agent's own ``provider:name`` that cannot be used is only a warning, later: the other agents' runs still work.

    Raises ConfigurationError, which names the file or the agent; also when the file of profiles is wrong.
    """
    models = build_models(settings, script_base=app.base)
    models.require_profiles()
    for agent in app.agents.values():
        if ":" not in agent.model:
            models.require_known(agent.model, place=f"model of agent {agent.name!r}")
        for spec in agent.fallback:
            models.require_known(spec, place=f"fallback of agent {agent.name!r}")
    if app.app.judge is not None:
        models.require_known(app.app.judge.model, place="model of the judge")
