"""What stops the start of an app with an MCP server, and what a server's hints may change."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from mcp.types import Tool as ServerTool
from mcp.types import ToolAnnotations
from support.mcp.calls import children, raw_server, started_here

from turngate.cli.parts.confinement import load_confined
from turngate.domain.errors import ConfigurationError
from turngate.domain.tools.tool import Effect
from turngate.runtime.settings import load_settings
from turngate.toolkits.confinement import machine
from turngate.toolkits.mcp import StdioServer, mcp_toolkit
from turngate.toolkits.mcp_servers.calls import Calls
from turngate.toolkits.mcp_servers.declared import declared, raised

TOOLS = [
    {"name": "note", "inputSchema": {"type": "object"}},
    {"name": "slow", "inputSchema": {"type": "object"}},
    {"name": "browse.the web", "inputSchema": {"type": "object"}, "annotations": {"openWorldHint": True}},
]
STAYS_SILENT = "import sys; print('hello', flush=True); sys.stdin.buffer.readlines()"


def refused(server: StdioServer, **options: Any) -> str:
    with pytest.raises(ConfigurationError) as error:
        mcp_toolkit(server, name="under-test", **options)
    return str(error.value)


@pytest.mark.parametrize(
    ("effect", "ask", "hints", "raised_to"),
    [
        ("read", False, None, ("read", False)),
        ("read", False, {}, ("read", False)),
        ("once", None, {"read_only_hint": True, "destructive_hint": False}, ("once", None)),
        ("once", True, {"read_only_hint": True, "open_world_hint": False}, ("once", True)),
        ("idempotent", None, {"idempotent_hint": True}, ("idempotent", None)),
        ("read", False, {"read_only_hint": False}, ("once", False)),
        ("idempotent", False, {"read_only_hint": False}, ("idempotent", False)),
        ("idempotent", False, {"idempotent_hint": False}, ("once", False)),
        ("read", False, {"idempotent_hint": False, "read_only_hint": True}, ("read", False)),
        ("read", False, {"destructive_hint": True}, ("once", True)),
        ("read", False, {"destructive_hint": True, "read_only_hint": True}, ("once", True)),
        ("read", False, {"read_only_hint": True, "open_world_hint": True}, ("read", True)),
    ],
)
def test_hints_raise_the_risk(effect: Effect, ask: Any, hints: dict[str, bool] | None, raised_to: Any) -> None:
    """A server's warning makes the builder's setting stricter; a reassurance or a contradiction loosens nothing."""
    assert raised(effect, ask, None if hints is None else ToolAnnotations(**hints)) == raised_to


@pytest.mark.parametrize(
    ("hints", "declaration", "untrusted"),
    [
        (None, None, False),
        ({}, None, False),
        ({"open_world_hint": False}, None, False),
        ({"open_world_hint": True}, None, True),
        ({"open_world_hint": True}, False, False),
        ({"open_world_hint": False}, True, True),
        (None, True, True),
    ],
)
def test_an_open_world_is_untrusted_unless_declared_otherwise(
    hints: dict[str, bool] | None, declaration: bool | None, untrusted: bool, tmp_path: Path
) -> None:
    """What a tool returns that reaches into an open world may be anyone's words. The builder knows better, either way."""
    annotations = None if hints is None else ToolAnnotations(**hints)
    served = ServerTool(name="search", input_schema={"type": "object"}, annotations=annotations)
    calls = Calls(name="under-test", server=started_here(tmp_path), connect_seconds=1, answer_seconds=1)
    tool, unchecked = declared(
        served,
        calls,
        tool_name="search",
        server_version="1",
        effect="read",
        ask=None,
        untrusted=declaration,
        timeout=timedelta(minutes=1),
    )
    assert unchecked == ()
    assert tool.untrusted is untrusted


def test_each_tool_of_a_server_is_declared_untrusted_or_not(tmp_path: Path) -> None:
    """By the server's tool names, or all of them at once."""
    server = raw_server(tmp_path, TOOLS)
    some = mcp_toolkit(server, name="under-test", untrusted={"note": True})
    assert {tool.name for tool in some if tool.untrusted} == {"note", "browse_the_web"}
    other = mcp_toolkit(server, name="under-test", untrusted={"browse.the web": False})
    assert not any(tool.untrusted for tool in other)
    assert all(tool.untrusted for tool in mcp_toolkit(server, name="under-test", untrusted=True))


def test_names_the_server_does_not_have(tmp_path: Path) -> None:
    """An unknown name in allow, effects, ask or untrusted stops the start and lists the server's names."""
    for argument, names in {"effects": {"noet": "read"}, "untrusted": {"noet": True}}.items():
        message = refused(raw_server(tmp_path, TOOLS), **{argument: names})
        assert message.startswith(
            f"MCP server 'under-test': {argument} names 'noet', which it does not have; it has: 'note', 'slow', 'browse.the web'"
        )


@pytest.mark.parametrize(
    ("argv", "seconds", "says"),
    [
        (["no-such-program", "--token=secret"], 60, "there is no program 'no-such-program': install it"),
        ([sys.executable, "-c", "import sys; sys.exit('no api key')"], 60, "Its stderr ends with:\nno api key"),
        (["cat"], 60, "Method not found"),
        ([sys.executable, "-c", STAYS_SILENT], 0.3, "gave no answer within 0.3 s"),
    ],
)
def test_servers_that_do_not_answer(argv: list[str], seconds: float, says: str) -> None:
    """A program that is missing, ends, or talks nonsense stops the start; the message names the server and why."""
    others = children()
    message = refused(StdioServer(command=argv), connect_timeout=timedelta(seconds=seconds))
    assert message.startswith("MCP server 'under-test': ")
    assert says in message
    assert "secret" not in message
    assert children() <= others


READS_A_TOKEN = """\
import sys
from turngate import Agent, App
from turngate.toolkits.mcp import StdioServer, mcp_toolkit
kit = mcp_toolkit(StdioServer(command=["sh", "-c", "cat data/token > seen 2>&1"], cwd="."), name="reader")
"""


def test_i13_a_server_is_confined_while_its_tools_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """I13: the data directory is hidden from a server also when it is started to load the app."""
    (tmp_path / "data").mkdir(mode=0o700)
    (tmp_path / "data/token").write_text("the-token")
    (tmp_path / "app_with_a_reader.py").write_text(READS_A_TOKEN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine, "_ways", list(machine._ways))
    try:
        with pytest.raises(ConfigurationError, match="MCP server 'reader'"):
            load_confined(load_settings(data_dir=tmp_path / "data"), "app_with_a_reader:app")
    finally:
        machine._detected.cache_clear()
    assert "No such file" in (tmp_path / "seen").read_text()


def test_invalid_servers(tmp_path: Path) -> None:
    """A command in one string, a missing directory, and a name without a tool are refused."""
    with pytest.raises(ConfigurationError, match="is a list"):
        StdioServer(command="uvx mcp-server-time")
    with pytest.raises(ConfigurationError, match="must be an existing directory"):
        StdioServer(command=["a"], cwd=tmp_path / "none")
    with pytest.raises(ConfigurationError, match="name is letters"):
        mcp_toolkit(StdioServer(command=["a"]), name="a b")


def test_without_the_package() -> None:
    """Without the extra the message says what to install, and everything else can be imported."""
    program = (
        "import sys\n"
        "sys.modules['mcp'] = None\n"
        "from turngate.domain.errors import ConfigurationError\n"
        "from turngate.toolkits.mcp import StdioServer, mcp_toolkit\n"
        "try:\n"
        "    mcp_toolkit(StdioServer(command=['a']), name='a')\n"
        "except ConfigurationError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "the extra 'mcp' is not installed" in done.stdout
