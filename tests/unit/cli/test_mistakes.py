"""Mistakes that builders make, and what they read then. One row each: what they wrote, what they ran, what it says.

A row changes one thing in files that are right: ``shop.py``, ``policy.toml``, ``script.yaml``, ``models.toml``. To add a mistake,
add a row, unless a test of the declaration, the policy or the settings has the same sentence.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from typer.testing import CliRunner

from turngate.cli import builders_app, terminal
from turngate.cli.main import app
from turngate.runtime.app_loader import load_app

SHOP = '''\
from pydantic import BaseModel
from turngate import Agent, App, Limits, Policy, Rule, Toolkit, ToolContext, declare_tool, sub_agent, tool
import svcs


class Refund(BaseModel):
    order_id: str
    amount: int


class Payments: ...


@tool(effect="once")
async def refund(params: Refund, payments: Payments) -> str:
    """Refund an order."""
    return "done"


registry = svcs.Registry()
registry.register_value(Payments, Payments())
agent = Agent(
    name="support",
    instructions="Help.",
    toolkit=Toolkit.of(refund),
    model="scripted:script.yaml",
)
app = App(agents=[agent], services=registry, policy="policy.toml")
'''
POLICY = """\
[[rule]]
name = "large"
verdict = "ask"
tools = ["refund"]
args = [{ at = "/amount", op = "gt", value = 50 }]
"""
FILES = {
    "shop.py": SHOP,
    "policy.toml": POLICY,
    "script.yaml": "responses:\n- text: hello\n",
    "models.toml": '[profile.fast]\nmodel = "scripted:script.yaml"\n',
    "cases.yaml": "cases:\n- name: greets\n  message: hello\n",
}
LOAD = "models shop:app"
"""The quickest command that loads an app; every other one loads it by the same function."""


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """``swap``: in ``file``, this text for that one. ``says``: what stderr or stdout has to contain, each of them."""

    id: str
    says: tuple[str, ...]
    swap: tuple[str, str] | None = None
    file: str = "shop.py"
    run: str = LOAD
    settings: dict[str, str] = field(default_factory=dict)
    code: int = 2


def app_mistake(id_: str, old: str, new: str, *says: str) -> Mistake:
    return Mistake(id=id_, swap=(old, new), says=says)


def file_mistake(id_: str, file: str, old: str, new: str, *says: str, run: str = LOAD, code: int = 2) -> Mistake:
    return Mistake(id=id_, file=file, swap=(old, new), says=says, run=run, code=code)


def command(id_: str, run: str, *says: str, code: int = 2, **settings: str) -> Mistake:
    return Mistake(id=id_, run=run, says=says, code=code, settings=settings)


DECLARATIONS = [
    app_mistake(
        "tools",
        "toolkit=T",
        "tools=T",
        "Agent() has no parameter 'tools'. In Turngate that is toolkit=",
        "→ shop.py, line 25",
    ),
    app_mistake(
        "toolkits", "toolkit=", "toolkits=", "Agent() has no parameter 'toolkits'. Did you mean 'toolkit'?", "line 25"
    ),
    app_mistake(
        "system prompt", "instructions=", "system_prompt=", "In Turngate that is instructions=…", "shop.py, line 24"
    ),
    app_mistake("agent", "agents=[agent]", "agent=agent", "App() has no parameter 'agent'. Did you mean 'agents'?"),
    app_mistake("one agent", "agents=[agent]", "agents=agent", "an App takes a list of agents: App(agents=[agent])"),
    app_mistake("no agent", "agents=[agent]", "agents=[]", "an App needs at least one agent", "→ shop.py, line 28"),
    app_mistake("a tool as agent", "agents=[agent]", "agents=[refund]", "an App's agents are made with Agent(…)"),
    app_mistake(
        "agents by position", "agents=[agent], ", "[agent], ", "App() takes its arguments by name: App(agents=…)"
    ),
    app_mistake("no model", '    model="scripted:script.yaml",\n', "", "Agent() needs 'model'"),
    app_mistake(
        "an agent's name", '"support"', '"Support Desk"', "agent name 'Support Desk' is not allowed: lower-case letters"
    ),
    app_mistake(
        "a list as toolkit",
        "Toolkit.of(refund)",
        "[refund]",
        "agent 'support': toolkit must be a Toolkit: toolkit=Toolkit.of(tool, …), not of type list",
    ),
    app_mistake(
        "a dict as limits",
        "model=",
        "limits={'steps': 3}, model=",
        "limits must be Limits(steps=…, …), not of type dict",
    ),
    app_mistake(
        "limits' key",
        "model=",
        "limits=Limits(step=3), model=",
        "Limits: step: there is no such key. Did you mean 'steps'?",
        "shop.py, line 26",
    ),
    app_mistake(
        "limits' value",
        "model=",
        "limits=Limits(steps='many'), model=",
        "Limits: steps: Input should be a valid integer",
        "shop.py, line 26",
    ),
    app_mistake(
        "while running",
        "model=",
        "while_running='injct', model=",
        "while_running is one of queue, inject, supersede, not 'injct'. Did you mean 'inject'?",
    ),
    app_mistake("output", "model=", "output=dict, model=", "output is a pydantic model (a class), not <class 'dict'>"),
    app_mistake("services as a dict", "=registry", "={}", "the app's services are a dict, not a svcs.Registry"),
    app_mistake(
        "a dict as policy", '"policy.toml"', "{}", "policy must be a Policy or a file's path, not of type dict"
    ),
    app_mistake(
        "an unknown sub-agent",
        "of(refund)",
        "of(refund, sub_agent('helper'))",
        "answered by an agent 'helper', and there is none; the agents are: support",
    ),
]

TOOLS = [
    app_mistake(
        "effect",
        '"once"',
        '"reads"',
        "tool 'refund': effect is one of read, idempotent, once, not 'reads'. Did you mean 'read'?",
        "→ shop.py, line 14",
        '@tool(effect="reads")',
    ),
    app_mistake(
        "async preview",
        '@tool(effect="once")',
        'async def look(params, workspace): ...\n\n\n@tool(effect="once", preview=look)',
        "tool 'refund': preview is a plain function (`def`), not an async one",
    ),
    app_mistake("effects", "effect=", "effects=", "tool() has no parameter 'effects'. Did you mean 'effect'?"),
    app_mistake("risk", 'effect="once"', 'risk="high"', "tool() has no parameter 'risk'", "a rule of the policy"),
    app_mistake("needs approval", 'effect="once"', "needs_approval=True", "In Turngate that is ask=True"),
    app_mistake(
        "ask as a text", 'effect="once"', 'ask="always"', "ask is True, False, or a function of the parameters"
    ),
    app_mistake(
        "timeout as a number",
        'effect="once"',
        "timeout=30",
        "timeout is a timedelta, such as timedelta(seconds=30), not 30",
    ),
    app_mistake(
        "failure mode", 'effect="once"', 'failure_mode="throw"', "failure_mode is one of return, raise, not 'throw'"
    ),
    app_mistake("preview as a text", 'effect="once"', 'preview="x"', "preview is a function, not 'x'"),
    app_mistake(
        "an unknown placeholder",
        'effect="once"',
        'summary="Pay {amont}"',
        "its summary names 'amont', which is no argument",
    ),
    app_mistake(
        "no JSON pointer",
        'effect="once"',
        'secret=["amount"]',
        "'amount' is not a JSON pointer: write it like '/amount'",
    ),
    app_mistake(
        "references without a secret",
        'effect="once"',
        'references=["key"]',
        "tool 'refund' takes references, and declares no argument secret",
    ),
    app_mistake(
        "no parentheses",
        '@tool(effect="once")',
        "@tool",
        '@tool needs parentheses: write @tool(effect="once")',
        "line 14",
    ),
    app_mistake(
        "no decorator",
        '@tool(effect="once")\n',
        "",
        'refund is not declared as a tool: write @tool(effect="once") above it',
    ),
    app_mistake(
        "no annotation",
        ", payments: Payments",
        ", payments",
        "tool 'refund': annotate the parameter 'payments' with a type",
    ),
    app_mistake("params as a dict", "params: Refund", "params: dict", "annotate 'params' with a pydantic model"),
    app_mistake(
        "arguments one by one",
        "params: Refund",
        "order_id: str",
        "put the arguments the model sends into one pydantic model",
    ),
    app_mistake(
        "a return type without JSON",
        "-> str",
        "-> Payments",
        "tool 'refund' returns Payments, which pydantic can't write as JSON",
    ),
    app_mistake(
        "an argument without JSON",
        "class Refund",
        "class Card: ...\n\n\nclass Refund(BaseModel):\n    card: Card\n\n\nclass Refund",
        "Card",
        "Use types with a JSON form",
        "shop.py, line 9",
    ),
    app_mistake(
        "no service",
        "registry.register_value(Payments, Payments())\n",
        "",
        "services are missing: tool 'refund' needs Payments (shop.py, line 14). Register each",
    ),
    app_mistake(
        "a list of tools", "of(refund)", "of([refund])", "Toolkit.of was called with a list: pass the tools one by one"
    ),
    app_mistake(
        "a toolkit in a toolkit",
        "of(refund)",
        "of(Toolkit.of(refund))",
        "Toolkit.compose(kit, …) makes one toolkit of several",
    ),
    app_mistake(
        "twice",
        "of(refund)",
        "of(refund, refund)",
        "tool 'refund' is declared twice: by shop.refund (shop.py, line 14) and by shop.refund",
    ),
    app_mistake(
        "no toolkit's maker",
        "Toolkit.of(",
        "Toolkit(",
        "a toolkit is made with Toolkit.of(tool, …), not with Toolkit(…)",
    ),
    app_mistake("a tool's name", "async def refund", "async def réfund", "tool name 'réfund' is not allowed"),
]

MODULES = [
    app_mistake(
        "an undefined name",
        "of(refund)",
        "of(refnd)",
        "name 'refnd' is not defined. Did you mean 'refund'?",
        "→ shop.py, line 25",
    ),
    app_mistake(
        "a name from further down",
        "amount: int",
        "amount: Payments",
        *(
            # From there on, a class is made before its annotations are read, so the name is known and its type is the mistake.
            ("tool 'refund' (shop.py, line 14) cannot be shown", "<class 'shop.Payments'>")
            if sys.version_info >= (3, 14)
            else ("it is defined further down, in line 11. Move the definition up", "in Refund")
        ),
    ),
    app_mistake(
        "an unknown import",
        "import Agent,",
        "import Agnt,",
        "there is no 'Agnt' in 'turngate'. Did you mean 'Agent'?",
        "shop.py, line 2",
    ),
    app_mistake(
        "a missing package",
        "import svcs",
        "import svcss",
        "it imports 'svcss', which is not installed. Did you mean 'svcs'?",
        "shop.py, line 3",
    ),
    app_mistake(
        "a missing part of a package",
        "import svcs",
        "import turngate.tolkits",
        "there is no module 'tolkits' in 'turngate'. Did you mean 'toolkits'?",
    ),
    app_mistake(
        "an attribute",
        "svcs.Registry",
        "svcs.Registri",
        "AttributeError: module 'svcs' has no attribute 'Registri'. Did you mean 'Registry'?",
    ),
    app_mistake("syntax", "class Refund(", "class Refund((", "SyntaxError: ", "→ shop.py, line"),
    app_mistake(
        "an exception of one's own",
        "registry = ",
        "def connect():\n    raise ValueError('no database')\n\n\nconnect()\nregistry = ",
        "cannot be loaded: ValueError: no database",
        "    shop.py, line 24\n        connect()\n  → shop.py, line 21, in connect",
    ),
    app_mistake(
        "an exit",
        "registry = ",
        "import sys\nsys.exit('bye')\nregistry = ",
        "it called sys.exit('bye') while it was imported",
    ),
    app_mistake("no app", "\napp = ", "\nap = ", "module 'shop' has no attribute 'app'; its apps: ap"),
    app_mistake(
        "an app that is a function",
        "\napp = App(agents=[agent], ",
        "\ndef app(): return App(agents=[agent], ",
        "'shop:app' is a function (shop.py, line 28), not a turngate.App: call it in the module",
    ),
    app_mistake(
        "an app that is an agent",
        "\napp = App",
        "\napp = agent\nApp",
        "'shop:app' is an Agent, not a turngate.App: write app = App(agents=[app])",
    ),
    command("another attribute", "models shop:ap", "module 'shop' has no attribute 'ap'; its apps: app"),
    command(
        "another module",
        "models shopp:app",
        "there is no module 'shopp' in ",
        "on PYTHONPATH. Did you mean 'shop'?",
        "turngate init",
    ),
    command("a file", "models shop.py", "'shop.py' is not of the form module:attribute, such as shop:app"),
]


def policy_mistake(id_: str, old: str, new: str, *says: str) -> Mistake:
    return file_mistake(id_, "policy.toml", old, new, *says)


POLICIES = [
    policy_mistake(
        "a rule's key",
        "verdict",
        "verdct",
        "error: policy.toml:3: rule.0.verdct: there is no such key. Did you mean 'verdict'?\n",
    ),
    policy_mistake(
        "a rule's key that is shorter",
        "tools",
        "expires = 3\ntools",
        "policy.toml:4: rule.0.expires",
        "Did you mean 'expires_after_seconds'?",
    ),
    policy_mistake(
        "a verdict", '"ask"', '"asks"', "policy.toml:3: rule.0.verdict: Input should be 'allow', 'ask' or 'deny'"
    ),
    policy_mistake(
        "a risk",
        "tools",
        'risk = "hgh"\ntools',
        "policy.toml:4: rule.0.risk: Input should be 'low', 'medium' or 'high'",
    ),
    policy_mistake(
        "a number as a text",
        "tools",
        'quorum = "two"\ntools',
        "policy.toml:4: rule.0.quorum: Input should be a valid integer",
    ),
    policy_mistake(
        "a bare string", '["refund"]', '"refund"', "policy.toml:4: rule.0.tools: Input should be a valid list"
    ),
    policy_mistake("no name", 'name = "large"\n', "", "policy.toml:1: rule.0.name: Field required"),
    policy_mistake(
        "a matcher's operator", '"gt"', '">"', "policy.toml:5: rule.0.args.0.op: Input should be 'eq', 'ne', 'lt'"
    ),
    policy_mistake(
        "a matcher's key",
        "value",
        "valu",
        "policy.toml:5: rule.0.args.0.valu: there is no such key. Did you mean 'value'?",
    ),
    policy_mistake(
        "rules", "[[rule]]", "[[rules]]", "policy.toml:1: rules: there is no such key. Did you mean 'rule'?"
    ),
    policy_mistake("one bracket", "[[rule]]", "[rule]", "each rule is a table of its own, which begins with [[rule]]"),
    policy_mistake("no TOML", '"large"', "large", "policy.toml:2:8: is not TOML: Invalid value"),
    app_mistake(
        "no such file",
        '"policy.toml"',
        '"policies.toml"',
        "the policy file 'policies.toml' cannot be read: No such file or directory",
    ),
    app_mistake(
        "a rule in Python",
        '"policy.toml"',
        "Policy(rule=[Rule(name='x', verdict='alow', tools=['*'])])",
        "Rule: verdict: Input should be 'allow', 'ask' or 'deny'",
        "shop.py, line 28",
    ),
    app_mistake(
        "rules in Python",
        '"policy.toml"',
        "Policy(rules=[])",
        "Policy: rules: there is no such key. Did you mean 'rule'?",
    ),
]

FILES_AND_COMMANDS = [
    file_mistake("no provider", "shop.py", '"scripted:script.yaml"', '"gpt-5"', "gpt-5", code=1),
    file_mistake(
        "a script's key",
        "script.yaml",
        "text:",
        "txt:",
        "line 2",
        "Did you mean 'text'?",
        run="models shop:app",
        code=1,
    ),
    file_mistake("no script", "shop.py", "script.yaml", "skript.yaml", "skript.yaml", code=1),
    file_mistake(
        "a profile's key",
        "models.toml",
        "model =",
        "modle =",
        "[profile.fast]: ",
        "modle: there is no such key. Did you mean 'model'?",
    ),
    file_mistake(
        "a case's key",
        "cases.yaml",
        "message",
        "mesage",
        "cases.yaml, line 3: cases[0].mesage: there is no such key. Did you mean 'message'?",
        run="eval shop:app cases.yaml",
    ),
    command("no cases", "eval shop:app case.yaml", "the file of cases case.yaml cannot be read"),
    command(
        "a setting's name",
        "worker shop:app",
        "warning: TURNGATE_MODLE is no setting. Did you mean TURNGATE_MODEL?\n",
        TURNGATE_MODLE="scripted:script.yaml",
        TURNGATE_API_PORT="abc",  # ends the command before it starts anything
    ),
    command(
        "a setting's name, whatever the command",
        "runs",
        "warning: TURNGATE_RETENTON is no setting. Did you mean TURNGATE_RETENTION?\n",
        TURNGATE_RETENTON="retention.toml",
        TURNGATE_API_PORT="abc",
    ),
    command("a command", "modles shop:app", "No such command 'modles'. Did you mean 'models'"),
    command("an option", "models shop:app --prob", "No such option: --prob", "--probe"),
    command("a port", "up shop:app --port 99999", "--port", "less than or equal to 65535"),
    command("a directory that is used", "init .", ". is not an empty directory: choose an empty or a new one"),
]

MISTAKES = [*DECLARATIONS, *TOOLS, *MODULES, *POLICIES, *FILES_AND_COMMANDS]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with files that are right, whose modules are forgotten at the end."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("TURNGATE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    terminal.out.cache_clear()
    terminal.err.cache_clear()
    yield tmp_path
    sys.modules.pop("shop", None)
    terminal.out.cache_clear()
    terminal.err.cache_clear()


def test_the_files_are_right_as_they_are() -> None:
    """So each row's message comes from its own change."""
    assert CliRunner().invoke(app, LOAD.split()).exit_code == 0
    assert list(builders_app.warnings(load_app("shop:app"))) == []


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.id)
def test_a_mistake_is_named_with_its_place_and_the_fix(here: Path, mistake: Mistake) -> None:
    """No traceback, no line of Turngate: the builder's line, what is wrong, what may have been meant."""
    if mistake.swap is not None:
        old, new = mistake.swap
        assert old in FILES[mistake.file]
        (here / mistake.file).write_text(FILES[mistake.file].replace(old, new, 1), encoding="utf-8")
    result = CliRunner().invoke(app, mistake.run.split(), env=mistake.settings)
    output = result.stderr + result.stdout
    assert [text for text in mistake.says if text not in output] == [], output
    assert "Traceback" not in output
    assert "site-packages" not in output
    assert "turngate/domain" not in output
    assert result.exit_code == mistake.code


def test_there_is_a_row_for_every_mistake_that_was_tried() -> None:
    """57 were tried when the table began. Each has a name of its own."""
    assert len(MISTAKES) >= 57
    assert len({mistake.id for mistake in MISTAKES}) == len(MISTAKES)


def test_a_tool_without_docstring_is_warned_of_once(here: Path) -> None:
    """Its model sees an empty description. The warning has file and line, however many agents share the tool."""
    other = "app = App(agents=[agent, Agent(name='other', instructions='', toolkit=agent.toolkit, model='a:b')], "
    text = SHOP.replace('    """Refund an order."""\n', "").replace("app = App(agents=[agent], ", other)
    (here / "shop.py").write_text(text, encoding="utf-8")
    [warning] = builders_app.warnings(load_app("shop:app"))
    assert "tool 'refund' (shop.py, line 14) has no description" in warning
    assert "docstring" in warning


def test_a_rule_about_no_tool_is_warned_of(here: Path) -> None:
    """A deny rule with a misspelled tool would deny nothing, and no one would notice."""
    (here / "policy.toml").write_text(POLICY.replace('"refund"', '"refnd"'), encoding="utf-8")
    [warning] = builders_app.warnings(load_app("shop:app"))
    assert "rule 'large': no agent of the app has a tool that fits 'refnd'" in warning
    assert "Did you mean 'refund'?" in warning
