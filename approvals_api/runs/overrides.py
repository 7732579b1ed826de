"""What a run is given of its own when it is forked or replayed: checked at the edge, taken over, told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from approvals_api.policy.rules import parsed
from approvals_api.principal import Principal
from approvals_api.validation.text import require_storable
from turngate.domain.agents.overrides import World
from turngate.domain.digest import framed_sha256
from turngate.domain.errors import ForbiddenError, InvalidInputError
from turngate.store.agents import PublishedAgent
from turngate.wire.runs import WorldView

MAX_INSTRUCTIONS_CHARS: Final = 100_000
MAX_TOOLS: Final = 1_000


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What is asked for. ``plain``: nothing is taken over from the other run; what is given counts all the same."""

    instructions: str | None = None
    tools: Sequence[str] | None = None
    policy: str | None = None
    plain: bool = False

    @property
    def fingerprint(self) -> str:
        """Equal for the same changes; empty when nothing is asked for."""
        if self == Changes():
            return ""
        texts = ["-" if text is None else f"+{text}" for text in (self.instructions, self.policy)]
        tools = ["-"] if self.tools is None else ["+", *self.tools]
        return framed_sha256(*texts, str(self.plain), *tools)


UNCHANGED: Final = Changes()


def changed_world(before: World | None, agent: PublishedAgent, changes: Changes) -> World:
    """Return the world of a run that goes on from another one with these changes.

    Args:
        before: what the other run has of its own. Its instructions and tools count for the agent that they were given for.
        agent: who begins the new run.
        changes: what is asked for.

    Raises:
        InvalidInputError: ``unknown_tool`` (the message lists those there are), ``invalid_policy``, or what does not fit.
    """
    kept = World(agent=agent.name) if before is None or changes.plain else before.for_agent(agent.name)
    given: dict[str, object] = {}
    if changes.instructions is not None:
        given["instructions"] = _instructions(changes.instructions)
    if changes.tools is not None:
        given["tools"] = _tools(changes.tools, agent)
    if changes.policy is not None:
        parsed(changes.policy, pointer="/policy")
        require_storable(changes.policy, "/policy")
        given["policy"] = changes.policy
    return kept.model_copy(update=given)


def require_policy_right(principal: Principal, world: World | None) -> None:
    """Raise ForbiddenError unless the principal may let a run with effects live under a policy of its own.

    It can open every gate, so it takes who may change the rules for everybody. What a fork or the run for a next message
    takes over counts as given: something new is said under it. In a retry nothing is.
    """
    if world is not None and world.policy is not None and not principal.may("admin"):
        raise ForbiddenError(
            f"{principal.name!r} may not give a run a policy of its own: it needs the scope admin. Fork it under the app's "
            "rules (plain), or try the policy in a dry replay.",
            code="missing_scope",
            needed=["admin"],
        )


def listed(names: str | None) -> list[str] | None:
    """Return the names of a text with commas between them; None: nothing was said."""
    return None if names is None else [name for name in (part.strip() for part in names.split(",")) if name]


def own_facts(world: World) -> dict[str, object]:
    """Return what the log says of it: digests of its texts, and the tools by name."""
    told: dict[str, object] = {"digest": world.digest}
    if world.instructions is not None:
        told["instructions"] = framed_sha256(world.instructions)
    if world.tools is not None:
        told["tools"] = list(world.tools)
    if world.policy is not None:
        told["policy"] = framed_sha256(world.policy)
    return told


def world_view(world: World | None) -> WorldView | None:
    """Return a run's world as it is shown."""
    if world is None or world.is_plain:
        return None
    return WorldView(
        agent=world.agent,
        digest=world.digest,
        instructions=world.instructions,
        tools=None if world.tools is None else list(world.tools),
        policy=world.policy,
        policy_digest=None if world.policy is None else framed_sha256(world.policy),
    )


def tools_of(agent: PublishedAgent) -> list[str]:
    """Return the names of the agent's tools, in order."""
    return [name for name in agent.tools.split(", ") if name]


def _instructions(text: str) -> str:
    if not text.strip():
        raise _invalid("/instructions", "say what the agent is to do: the instructions are empty")
    if len(text) > MAX_INSTRUCTIONS_CHARS:
        raise _invalid("/instructions", f"at most {MAX_INSTRUCTIONS_CHARS:,} characters, not {len(text):,}")
    require_storable(text, "/instructions")
    return text


def _tools(names: Sequence[str], agent: PublishedAgent) -> tuple[str, ...]:
    known = tools_of(agent)
    unknown = [name for name in names if name not in known]
    if unknown:
        there_are = f"its tools are: {', '.join(known)}" if known else "it has none"
        raise _invalid("/tools", f"agent {agent.name!r} has no tool {unknown[0]!r}; {there_are}", code="unknown_tool")
    return tuple(name for name in known if name in names)  # in its own order, each once


def _invalid(pointer: str, message: str, code: str = "invalid_input") -> InvalidInputError:
    return InvalidInputError(message, code=code, errors=[{"pointer": pointer, "message": message}])
