from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Literal

import pytest
from pydantic import BaseModel, Field

from turngate import Agent, App, Policy, Rule, Toolkit, declare_tool, interaction_tool, provider_tool, sub_agent, tool
from turngate.cli.builders_app import agent_lines, app_files, tools_by_kind, warnings
from turngate.cli.commands.setup.doctor import Finding, examine
from turngate.domain.agents.model_profiles import Profiles
from turngate.runtime import embedded_temporal
from turngate.runtime.app_loader import LoadedApp, check_app
from turngate.runtime.settings import load_settings
from turngate.toolkits.control_calls import finish
from turngate.toolkits.mcp import SERVER_PROGRAMS, StdioServer


class Params(BaseModel):
    text: str


@tool(effect="read", ask=False)
async def look(params: Params) -> str:
    """Look."""
    return params.text


ask = interaction_tool(name="ask", description="Ask.", params=Params, answer=Params)
search = provider_tool(name="web_search", description="Search.", provider={"openai": {"type": "web_search"}})
apart = declare_tool(name="apart", description="Elsewhere.", params=Params, success=str)


def loaded(*tools, policy: Policy | None = None, more: tuple[Agent, ...] = ()) -> LoadedApp:
    support = Agent(name="support", instructions="", toolkit=Toolkit.of(*tools), model="scripted:s")
    return check_app(App(agents=[support, *more], policy=policy), base=Path())


def helper(*tools) -> Agent:
    return Agent(name="helper", instructions="", toolkit=Toolkit.of(*tools), model="scripted:h")


def test_an_agent_is_listed_with_its_tools_by_kind():
    """Each kind has a word, in one order, whatever order the tools have."""
    app = loaded(sub_agent(helper()), finish, ask, search, look)
    assert tools_by_kind(app.agents["support"]) == (
        "tools: look; run by the provider: web_search; control calls: finish; asks people by: ask; sub-agents: helper"
    )
    assert tools_by_kind(app.agents["helper"]) == "no tools"


def test_sub_agents_are_listed_last_with_the_agents_that_call_them():
    """One that the app offers itself is no sub-agent, also when another agent calls it."""
    app = loaded(sub_agent(helper(look)), look)
    assert list(agent_lines(app)) == [
        ("agent", "support (scripted:s); tools: look; sub-agents: helper"),
        ("sub-agent", "helper of support (scripted:h); tools: look"),
    ]
    offered = loaded(sub_agent("helper"), more=(helper(),))
    assert [what for what, _line in agent_lines(offered)] == ["agent", "agent"]


def test_i13_what_settings_and_servers_name_is_held_like_the_app(tmp_path: Path):
    """I13: whatever this deployment runs, obeys or trusts because a setting or an MCP server names it."""
    names = (
        "push.sh",
        "push.py",
        "notifications.toml",
        "retention.toml",
        "ca.pem",
        "server.py",
        "local/__init__.py",
        "local/serve/__main__.py",
        "serve",
        "pre.js",
        ".env",
        "app.js",
        "wrapped.py",
        "inner.sh",
    )
    files = {name: tmp_path / name for name in names}
    (tmp_path / "local/serve").mkdir(parents=True)
    for file in files.values():
        file.touch(mode=0o755)
    servers = (
        ["python3", "-W", "ignore", "server.py", "data.db"],
        ["uv", "run", "python", "-um", "local.serve", "data.db"],
        ["node", "--env-file", ".env", "--require=./pre.js", "./app"],
        ["env", "A=1", "timeout", "9", "python3", "wrapped.py"],
        ["sh", "-c", f"cd {tmp_path}; exec './inner.sh' # {'x' * 5_000}"],
        [str(files["serve"]), "data.db"],
    )
    (tmp_path / "data.db").touch()
    started = [StdioServer(command=words, cwd=tmp_path, writable=[tmp_path / "data.db"]) for words in servers]
    programs = {file for server in started for file in server.programs}
    assert tmp_path / "data.db" in StdioServer(command=servers[0], cwd=tmp_path).programs
    settings = load_settings(
        data_dir=tmp_path / "data",
        audit_key_file=tmp_path / "keys/key",
        audit_heads=tmp_path / "heads",
        audit_heads_command=f"{files['push.sh']} --quiet {files['push.py']}",
        notifications=files["notifications.toml"],
        retention=files["retention.toml"],
        temporal_tls_server_ca=files["ca.pem"],
    )
    SERVER_PROGRAMS.update(programs)
    try:
        held = app_files(loaded(look), settings, Profiles())
    finally:
        SERVER_PROGRAMS.difference_update(programs)
    assert set(files.values()) <= set(held)
    assert tmp_path / "data.db" not in held


def test_a_tool_that_nothing_here_runs_is_warned_of():
    """The warning names the tool, the agent, what happens to its calls, and the fix."""
    [warning] = warnings(loaded(sub_agent(helper(apart)), look))
    assert "'apart' of agent 'helper'" in warning
    assert "non_local_tool" in warning
    assert "toolkit.handlers({'apart': function})" in warning


@pytest.mark.parametrize("verdict", ["deny", "ask"])
def test_a_provider_tool_that_no_model_gets_is_warned_of(verdict):
    """No one can approve a call before the provider runs it. The warning names the rule that keeps the tool back."""
    policy = Policy(rule=[Rule(name="no-web", verdict=verdict, tools=["web_*"])])
    [warning] = warnings(loaded(search, policy=policy))
    assert "'web_search' of agent 'support'" in warning
    assert "'no-web'" in warning
    assert list(warnings(loaded(search))) == []


class Order(BaseModel):
    id: str = Field(default="A-1", pattern=r"^A-\d$")
    note: str = ""


class Change(BaseModel):
    sql: str = Field(description="One statement.")
    why: str = ""
    note: str = Field(default="", description="The reason for the change.")
    reason: Literal["fraud", "goodwill"] = "fraud"
    purpose: str = Field(default="", max_length=40)
    title: str = ""
    order: Order | None = None
    at: datetime = datetime(2026, 1, 31, tzinfo=UTC)
    urgent: bool = False
    count: int = Field(default=1, ge=1)


def noted(order: Order) -> str:
    return f"Change: {order.note}"


@pytest.mark.parametrize(
    ("summary", "named"),
    [
        ("Change the database: {why}", "'why'"),
        ("Change: {note}", "'note'"),
        ("{title}", "'title'"),
        ("Change {order.note}", "'order.note'"),
        ("Change {order}", "'order.note'"),
        (lambda params: f"Change: {params.why}", "'why'"),
        (lambda params: noted(params.order), "'order.note'"),
        (partial(lambda _prefix, params: " ".join(each.note for each in [params.order]), ""), "'order.note'"),
        (lambda params: f"Change {params}", "'why' and 'note' and 'order.note'"),
        (str, "'why' and 'note' and 'order.note'"),
        (lambda params: f"Change {params.model_dump()}", "'why' and 'note' and 'order.note'"),
        (lambda params: "Change: {w}".format_map({name[0]: each for name, each in params}), "'why'"),
        (lambda params: "Change: {why}".format(**params.model_dump()), "'why'"),
        (lambda params: f"Change: {getattr(params, 'wh' + 'y').title()}", "'why'"),
        (lambda params: f"Change {params.at:%d %B}: {params.order.note}", "'order.note'"),
        (lambda params: params.why if params.urgent and params.count > 1000 else "Change", "'why'"),
        (lambda params: "Change" if params.urgent or params.order else f"Change: {params.why}", "'why'"),
        (str.upper, "fails on arguments that were made up"),
        (lambda params: f"Change {params.count:,}: {params.purpose}, {params.reason}", None),
        ("Change {title}: {sql}, for {reason} ({purpose})", None),
        (lambda params: params.sql, None),
    ],
)
def test_a_summary_that_the_model_writes_is_warned_of(summary, named):
    """What says why a call is right, and a text that is the whole summary; not what the call is about, nor what is bounded."""

    @tool(summary=summary)
    async def change(params: Change) -> str:
        """Change the database."""
        return params.sql

    named_in = [each for each in warnings(loaded(change)) if "summary" in each]
    assert [named in each for each in named_in] == ([] if named is None else [True])


class Anything(BaseModel):
    """Arguments that no provider can hold a model to."""

    values: dict[str, int]


def test_a_strict_tool_that_is_sent_without_it_is_warned_of():
    """The schema says what strict can't: the doctor names the tool and the place. One that fits is sent strictly."""

    @tool(effect="read", strict=True)
    async def free(params: Anything) -> str:
        """Take anything."""
        return str(params)

    @tool(effect="read", strict=True)
    async def closed(params: Params) -> str:
        """Take what fits."""
        return str(params)

    [line] = [each for each in warnings(loaded(free, closed)) if "strict" in each]
    assert line.startswith("tool 'free' ")
    assert "values" in line


async def test_the_doctor_lists_agents_and_warns_without_failing(tmp_path: Path, monkeypatch):
    """A warning is shown as one, and everything is still in order."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "surveyed_app.py").write_text(
        "from turngate import Agent, App, Toolkit, declare_tool, sub_agent\n"
        "tool = declare_tool(name='apart', description='Far.', params=None, success=str)\n"
        "helper = Agent(name='helper', instructions='', toolkit=Toolkit.of(tool), model='scripted:s')\n"
        "kit = Toolkit.of(sub_agent(helper))\n"
        "app = App(agents=[Agent(name='support', instructions='', toolkit=kit, model='scripted:s')])\n"
    )
    settings = load_settings(data_dir=tmp_path / "data", api_port=embedded_temporal.choose_port())
    shown_findings: list[Finding] = []
    findings = await examine(settings, "surveyed_app:app", probe=False, show=shown_findings.append)
    assert [finding.text for finding in findings if finding.what == "agent"] == [
        "support (scripted:s); sub-agents: helper"
    ]
    assert [finding.text for finding in findings if finding.what == "sub-agent"] == [
        "helper of support (scripted:s); tools: apart"
    ]
    warnings = [finding for finding in findings if finding.warns]
    assert [finding.what for finding in warnings] == ["warning"], warnings
    [warned] = warnings
    assert (warned.what, warned.good) == ("warning", True)
