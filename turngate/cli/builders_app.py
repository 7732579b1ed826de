"""What a builder's app consists of, in a line per agent, and what in it works otherwise than its builder may think. Pure."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from typing import Final, get_args

from turngate.domain.agents.app import Agent
from turngate.domain.errors import ConfigurationError, TurngateError
from turngate.domain.policy.policy import evaluate
from turngate.domain.tools.tool import Tool, ToolKind
from turngate.runtime.app_loader import LoadedApp, load_app

# Loading the builder's app for a command: a mistake in the app's own code is told as theirs, with its place.


def load_builders_app(target: str) -> LoadedApp:
    """Return the app; raises as :func:`turngate.runtime.app_loader.load_app`.

    Whatever the app's module raises at import is a ConfigurationError too, with the file and line it came from.
    """
    try:
        return load_app(target)
    except TurngateError:
        raise
    except SyntaxError as error:
        raise ConfigurationError(f"{target} cannot be loaded: {error}") from error
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise ConfigurationError(
            f"{target} cannot be loaded: {type(error).__name__}: {error} ({place.filename}, line {place.lineno})"
        ) from error


KIND_SAID: Final[dict[ToolKind, str]] = {
    "local": "tools",
    "provider": "run by the provider",
    "signal": "signals",
    "interaction": "asks people by",
    "agent": "sub-agents",
    "external": "run by other programs",
}


def agent_lines(app: LoadedApp) -> Iterator[tuple[str, str]]:
    """Yield each agent with its model, whose sub-agent it is, and its tools by kind; sub-agents come last.

    Each as (``agent`` or ``sub-agent``, the rest of the line).
    """
    callers = app.app.callers
    for agent in sorted(app.agents.values(), key=lambda agent: agent.name in callers):
        of = callers.get(agent.name)
        whose = f" of {', '.join(of)}" if of else ""
        yield "sub-agent" if of else "agent", f"{agent.name}{whose} ({agent.model}); {tools_by_kind(agent)}"


def tools_by_kind(agent: Agent) -> str:
    """Return the names of an agent's tools, behind a word for their kind."""
    names = {kind: [tool.name for tool in agent.toolkit if tool.kind == kind] for kind in get_args(ToolKind)}
    return "; ".join(f"{KIND_SAID[kind]}: {', '.join(found)}" for kind, found in names.items() if found) or "no tools"


def warnings(app: LoadedApp) -> Iterator[str]:
    """Yield what is allowed and may still be a mistake: tools that nothing runs, and tools that no model hears of."""
    for agent in app.agents.values():
        for tool in agent.toolkit:
            if tool.kind == "local" and tool.handler is None:
                yield (
                    f"tool {tool.name!r} of agent {agent.name!r} is declared without a handler: each call of it is "
                    f"answered with the failure non_local_tool. Give it one with "
                    f"toolkit.handlers({{{tool.name!r}: function}}), or leave it out"
                )
            elif tool.kind == "provider" and (refused := _not_offered(app, agent, tool)):
                yield refused


def _not_offered(app: LoadedApp, agent: Agent, tool: Tool) -> str | None:
    verdict = evaluate(app.policy, tool, None, agent=agent.name)
    if verdict.answer == "allow":
        return None
    return (
        f"tool {tool.name!r} of agent {agent.name!r} is run by the model's provider, where nobody can be asked first, and "
        f"the policy's answer is to {verdict.answer} (rule {verdict.rule!r}): the model is not told of it. Allow it with a "
        "rule, or leave it out"
    )
