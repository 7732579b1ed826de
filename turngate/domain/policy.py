"""Policy: code's answer before any person. It decides; it never executes.

Order: deny rules → ask rules → allow rules → the tool's own ``ask`` → default, which is to ask. Every error on the way
(a predicate that raises, arguments that cannot be read) means ask or deny, never allow.
"""

from __future__ import annotations

import tomllib
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from turngate.domain.digest import framed_sha256
from turngate.domain.errors import ConfigurationError
from turngate.domain.tool_failures import describe_validation
from turngate.domain.tools import Tool

Answer = Literal["allow", "ask", "deny"]
Risk = Literal["low", "medium", "high"]


class Rule(BaseModel):
    """One rule: for these tools (shell-style patterns) and agents, this verdict."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str = Field(min_length=1, max_length=100)
    verdict: Answer
    tools: list[str] = Field(min_length=1)
    agents: list[str] = ["*"]
    reason: str = ""
    risk: Risk | None = None
    expires_after_seconds: int | None = Field(default=None, ge=1, le=31_536_000)
    """For ``ask``: how long the request waits before it expires, which refuses; None: the agent's limit."""
    starter_may_decide: bool = True
    """For ``ask``: whether the person who started the run may answer."""

    def matches(self, *, tool: str, agent: str) -> bool:
        """Tell whether the rule speaks of this tool and agent."""
        return any(fnmatchcase(tool, pattern) for pattern in self.tools) and any(
            fnmatchcase(agent, pattern) for pattern in self.agents
        )


class Policy(BaseModel):
    """An ordered set of rules. ``version`` is part of every digest: a decision holds for the policy it was made under."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    rule: list[Rule] = []

    @cached_property
    def version(self) -> str:
        """Twelve hex digits over the rules; the same rules have the same version everywhere."""
        return framed_sha256(self.model_dump_json())[:12]


class Verdict(BaseModel):
    """The policy's answer for one call, with the rule that gave it. Evaluated once, stored with the call."""

    model_config = ConfigDict(frozen=True)

    answer: Answer
    rule: str
    reason: str
    risk: Risk
    expires_after_seconds: int | None = None
    starter_may_decide: bool = True


_DEFAULT_RISK: dict[str, Risk] = {"read": "low", "idempotent": "medium", "once": "medium"}


def evaluate(policy: Policy, tool: Tool, params: Any, *, agent: str) -> Verdict:
    """Return the verdict for one call whose ``params`` were decoded. Never raises."""
    fallback = _DEFAULT_RISK[tool.effect]
    matching = [rule for rule in policy.rule if rule.matches(tool=tool.name, agent=agent)]
    # An interaction has nothing to run, so no rule can allow it; one may deny it or say who answers and for how long.
    for answer in ("deny", "ask") if tool.kind == "interaction" else ("deny", "ask", "allow"):
        for rule in matching:
            if rule.verdict == answer:
                return Verdict(
                    answer=rule.verdict,
                    rule=rule.name,
                    reason=rule.reason,
                    risk=rule.risk or fallback,
                    expires_after_seconds=rule.expires_after_seconds,
                    starter_may_decide=rule.starter_may_decide,
                )
    return _own_answer(tool, params, fallback)


def _own_answer(tool: Tool, params: Any, risk: Risk) -> Verdict:
    if tool.kind == "interaction":
        return Verdict(answer="ask", rule="tool:interaction", reason="The agent asks a person.", risk="low")
    if tool.ask is None:
        return Verdict(
            answer="ask", rule="default", reason="No rule speaks of this tool; the default is to ask.", risk=risk
        )
    if callable(tool.ask):
        try:
            asks = tool.ask(params)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - any failure of a predicate means ask (DESIGN §13)
            reason = f"The tool's ask predicate raised {type(error).__name__}, so a person is asked."
            return Verdict(answer="ask", rule="tool:ask-error", reason=reason, risk=risk)
    else:
        asks = tool.ask
    # Only a real False lets a call through: a predicate that forgets its return value gives None, and that asks.
    if asks is False:
        return Verdict(answer="allow", rule="tool:ask", reason="The tool does not ask for such a call.", risk=risk)
    return Verdict(answer="ask", rule="tool:ask", reason="The tool asks for such a call.", risk=risk)


def parse_policy(text: str, *, source: str) -> Policy:
    """Read a policy (TOML, ``[[rule]]`` tables). ``source`` names it in errors.

    Raises:
        ConfigurationError: not TOML, or a rule does not fit; the message says where.
    """
    try:
        return Policy.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"policy {source} is not TOML: {error}") from None
    except ValidationError as error:
        raise ConfigurationError(f"policy {source}: {describe_validation(error)}") from None
