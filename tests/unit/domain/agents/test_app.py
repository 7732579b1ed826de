"""A builder's program: what is refused before anything starts, and when an agent counts as a new version."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from turngate import Agent, App, Limits, Toolkit, tool
from turngate.domain.errors import ConfigurationError, DuplicateToolNameError, MissingServicesError, TurngateError


@tool()
async def ping() -> None:
    """Answer."""


def agent(**changes: Any) -> Agent:
    declared = {"name": "support", "instructions": "Be kind.", "toolkit": Toolkit.of(ping), "model": "scripted:x"}
    return Agent(**{**declared, **changes})


@pytest.mark.parametrize("name", ["", "Support", "a b", "a/b", "-a", "é", "a" * 65, "a\n"])
def test_an_agents_name_must_fit_urls_and_rules(name: str) -> None:
    """A name that does not fit is refused with a message that says what is allowed."""
    with pytest.raises(ConfigurationError, match="lower-case letters, digits"):
        agent(name=name)
    assert agent(name="a" * 64).name == "a" * 64


def test_an_app_needs_an_agent() -> None:
    """An app without agents is refused with what to write."""
    with pytest.raises(ConfigurationError, match=r"App\(agents=\[Agent\("):
        App(agents=[])


def test_two_agents_of_one_name_are_refused() -> None:
    """A run names its agent, so a name means one agent."""
    with pytest.raises(ConfigurationError, match="'support' is declared 2 times; rename one"):
        App(agents=[agent(), agent(name="sales"), agent()])


def test_an_agent_is_looked_up_by_its_exact_name() -> None:
    """An undeclared name gives no agent."""
    app = App(agents=[agent(), agent(name="sales")])
    assert app.find("sales") is app.agents[1]
    assert app.find("Sales") is None


def test_the_version_changes_when_the_agent_does() -> None:
    """A change of instructions, model or tools makes a new version; limits and the description do not."""
    version = agent().version
    assert agent(description="x", limits=Limits(steps=3)).version == version
    others = {
        agent(name="sales").version,
        agent(instructions="Be brief.").version,
        agent(model="scripted:y").version,
        agent(toolkit=Toolkit.of()).version,
        agent(toolkit=Toolkit.namespace("a", Toolkit.of(ping))).version,
    }
    assert len({version, *others}) == 6
    assert len(version) == 12


@pytest.mark.parametrize(
    "limits",
    [
        {"steps": 0},
        {"concurrency": 0},
        {"concurrency": 65},
        {"malformed_in_a_row": 0},
        {"model_retry": timedelta(0)},
        {"fallback_after_retry": "attended"},
        {"step": 3},
    ],
)
def test_a_limit_outside_its_range_is_refused(limits: dict[str, Any]) -> None:
    """A misspelled limit is refused too: a limit that silently does nothing is worse than none."""
    with pytest.raises(ValidationError):
        Limits(**limits)


def test_errors_carry_a_code_a_fix_and_details() -> None:
    """Every deliberate error is a TurngateError with a stable code, a message that says the fix, and JSON details."""
    duplicate = DuplicateToolNameError("search", "a.search", "b.search")
    missing = MissingServicesError([("refund", "Payments", "shop.py, line 3"), ("look", "Index", "")])
    assert isinstance(duplicate, TurngateError)
    assert (duplicate.code, duplicate.details["sources"]) == ("duplicate_tool_name", ["a.search", "b.search"])
    assert missing.details["missing"][1] == {"tool": "look", "service": "Index"}
    assert "register_value" in str(missing)
    assert "'refund' needs Payments (shop.py, line 3); tool 'look' needs Index. Register" in str(missing)
    assert TurngateError("x", code="special").error_code == "special"
    assert TurngateError("x").error_code == "error"


@pytest.mark.parametrize("name", ["extend_budget", "turngate_answer"])
def test_a_name_of_the_engines_own_is_refused(name: str) -> None:
    """A tool with such a name would get the engine's calls, or the model's answer would count as a call of it."""

    @tool(name=name)
    async def mine() -> None:
        """Do something."""

    with pytest.raises(ConfigurationError, match=f"the name '{name}' is the engine's own"):
        Agent(name="a", instructions="", toolkit=Toolkit.of(mine), model="scripted:x")
