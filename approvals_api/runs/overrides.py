"""Overrides of a run that is forked or dry-run: instructions, tools and policy, checked and merged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from turngate.approvals_api.policy.rules import parsed
from turngate.approvals_api.principal import Principal
from turngate.approvals_api.validation.text import require_storable
from turngate.domain.agents.overrides import RunOverrides
from turngate.domain.digest import framed_sha256, keyed_sha256
from turngate.domain.errors import ForbiddenError, InvalidInputError
from turngate.policies.rule_text import with_people
from turngate.store.agents import PublishedAgent
from turngate.wire.orders import OverridesOrder
from turngate.wire.people import id_of
from turngate.wire.runs import OverridesView

MAX_INSTRUCTIONS_CHARS: Final = 100_000
MAX_TOOLS: Final = 1_000


def changed_overrides(before: RunOverrides | None, agent: PublishedAgent, changes: OverridesOrder) -> RunOverrides:
    """Return the overrides of a run that continues from another one with these changes.

    Args:
        before: the overrides of the other run. Its instructions and tools apply only to the agent they were made for.
        agent: the agent of the new run.
        changes: the overrides that were ordered.

    Raises:
        InvalidInputError: ``unknown_tool`` (the message lists the agent's tools), ``invalid_policy``, or what does not fit.
    """
    base = RunOverrides(agent=agent.name) if before is None or changes.plain else before.for_agent(agent.name)
    instructions, tools, policy = base.instructions, base.tools, base.policy
    if changes.instructions is not None:
        instructions = _instructions(changes.instructions)
    if changes.tools is not None:
        tools = _tools(changes.tools, agent)
    if changes.policy is not None:
        require_storable(changes.policy, "/policy")
        rules = parsed(changes.policy, pointer="/policy")
        policy = with_people(changes.policy, {name: id_of(name) for name in rules.people})
    return RunOverrides(agent=base.agent, instructions=instructions, tools=tools, policy=policy)


def require_policy_right(principal: Principal, run_overrides: RunOverrides | None) -> None:
    """Raise ForbiddenError unless the principal may start a run with side effects under its own policy.

    Such a policy can open every gate, so it needs the right to change everyone's rules. A policy that a fork, or the run for a
    next message, takes over counts too: the run gets a new message under it. A retry gets none.
    """
    if run_overrides is not None and run_overrides.policy is not None and not principal.may("admin"):
        raise ForbiddenError(
            f"{principal.name!r} may not give a run a policy of its own: it needs the scope admin. Fork it under the app's "
            "rules (plain), or try the policy in a dry run.",
            code="missing_scope",
            needed=["admin"],
        )


def listed(names: str | None) -> list[str] | None:
    """Return the names of a text with commas between them; None for None."""
    return None if names is None else [name for name in (part.strip() for part in names.split(",")) if name]


def own_facts(run_overrides: RunOverrides, nonce: str) -> dict[str, object]:
    """Return what the log has of it: digests of its texts, and the tools by name. ``nonce``: the run's.

    The policy's digest is the one that pages show: a policy is compared by it.
    """
    facts: dict[str, object] = {"digest": keyed_sha256(nonce, run_overrides.digest)}
    if run_overrides.instructions is not None:
        facts["instructions"] = keyed_sha256(nonce, run_overrides.instructions)
    if run_overrides.tools is not None:
        facts["tools"] = list(run_overrides.tools)
    if run_overrides.policy is not None:
        facts["policy"] = framed_sha256(run_overrides.policy)
    return facts


def overrides_view(run_overrides: RunOverrides | None) -> OverridesView | None:
    """Return a run's overrides as they are shown; None: it has none."""
    if run_overrides is None or run_overrides.is_plain:
        return None
    return OverridesView(
        agent=run_overrides.agent,
        digest=run_overrides.digest,
        instructions=run_overrides.instructions,
        tools=None if run_overrides.tools is None else list(run_overrides.tools),
        policy=run_overrides.policy,
        policy_digest=None if run_overrides.policy is None else framed_sha256(run_overrides.policy),
    )


def tools_of(agent: PublishedAgent) -> list[str]:
    """Return the names of the agent's tools, in order."""
    return [name for name in agent.tools.split(", ") if name]


def _instructions(text: str) -> str:
    if not text.strip():
        raise _invalid("/instructions", "the instructions are empty: write what the agent should do")
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
