"""What tool authors import: ``from turngate import Agent, App, Toolkit, tool``.

Everything here is free of I/O, because importing ``turngate.domain`` (as workflow code does) runs this module first. Each name
is imported when it is first used: the command line and the client run this module too, and need few of them.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    __version__: str

    from turngate.domain.agents.app import Agent, App, Limits, sub_agent
    from turngate.domain.agents.context_window import Context
    from turngate.domain.agents.hooks import Deny, HookedCall, Hooks, RunScope
    from turngate.domain.agents.no_progress import NoProgress
    from turngate.domain.errors import ConfigurationError
    from turngate.domain.policy.judge import Judge
    from turngate.domain.policy.policy import Policy, Rule
    from turngate.domain.runs.budgets import Price
    from turngate.domain.tools.context import ToolContext
    from turngate.domain.tools.control_calls import ControlCall, Finish, HandOff, SwitchModel, WaitUntil
    from turngate.domain.tools.declare import control_call_tool, declare_tool, interaction_tool, provider_tool, tool
    from turngate.domain.tools.failures import InvalidToolInput, NothingHappened, OutcomeUnknown, ToolFailure
    from turngate.domain.tools.middleware import Invocation, Proceed
    from turngate.domain.tools.parameters import Parameters
    from turngate.domain.tools.presentation import (
        CommandBlock,
        DiffBlock,
        JsonBlock,
        Presentation,
        TableBlock,
        TextBlock,
    )
    from turngate.domain.tools.preview import Preview
    from turngate.domain.tools.probes import DidNotHappen, Happened, ProbeAnswer
    from turngate.domain.tools.results import Failure, Ok
    from turngate.domain.tools.tool import Tool, ToolManifest
    from turngate.domain.tools.toolkit import Toolkit

__all__ = [
    "Agent",
    "App",
    "CommandBlock",
    "ConfigurationError",
    "Context",
    "ControlCall",
    "Deny",
    "DidNotHappen",
    "DiffBlock",
    "Failure",
    "Finish",
    "HandOff",
    "Happened",
    "HookedCall",
    "Hooks",
    "InvalidToolInput",
    "Invocation",
    "JsonBlock",
    "Judge",
    "Limits",
    "NoProgress",
    "NothingHappened",
    "Ok",
    "OutcomeUnknown",
    "Parameters",
    "Policy",
    "Presentation",
    "Preview",
    "Price",
    "ProbeAnswer",
    "Proceed",
    "Rule",
    "RunScope",
    "SwitchModel",
    "TableBlock",
    "TextBlock",
    "Tool",
    "ToolContext",
    "ToolFailure",
    "ToolManifest",
    "Toolkit",
    "WaitUntil",
    "control_call_tool",
    "declare_tool",
    "interaction_tool",
    "provider_tool",
    "sub_agent",
    "tool",
]

_EXPORTS: Final = {
    "turngate.domain.agents.app": ("Agent", "App", "Limits", "sub_agent"),
    "turngate.domain.agents.context_window": ("Context",),
    "turngate.domain.agents.hooks": ("Deny", "HookedCall", "Hooks", "RunScope"),
    "turngate.domain.agents.no_progress": ("NoProgress",),
    "turngate.domain.errors": ("ConfigurationError",),
    "turngate.domain.policy.judge": ("Judge",),
    "turngate.domain.policy.policy": ("Policy", "Rule"),
    "turngate.domain.runs.budgets": ("Price",),
    "turngate.domain.tools.context": ("ToolContext",),
    "turngate.domain.tools.control_calls": ("Finish", "HandOff", "ControlCall", "SwitchModel", "WaitUntil"),
    "turngate.domain.tools.declare": ("declare_tool", "interaction_tool", "provider_tool", "control_call_tool", "tool"),
    "turngate.domain.tools.failures": ("InvalidToolInput", "NothingHappened", "OutcomeUnknown", "ToolFailure"),
    "turngate.domain.tools.middleware": ("Invocation", "Proceed"),
    "turngate.domain.tools.parameters": ("Parameters",),
    "turngate.domain.tools.presentation": (
        "CommandBlock",
        "DiffBlock",
        "JsonBlock",
        "Presentation",
        "TableBlock",
        "TextBlock",
    ),
    "turngate.domain.tools.preview": ("Preview",),
    "turngate.domain.tools.probes": ("DidNotHappen", "Happened", "ProbeAnswer"),
    "turngate.domain.tools.results": ("Failure", "Ok"),
    "turngate.domain.tools.tool": ("Tool", "ToolManifest"),
    "turngate.domain.tools.toolkit": ("Toolkit",),
}
# httpx imports its command line where rich and click are installed, which costs each process a fifth of a second. None: as if
# they weren't. (What else is private to httpx is in turngate.toolkits.http_client.safe_connect.)
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]

_MODULE_OF: Final = {name: module for module, names in _EXPORTS.items() for name in names}


def __getattr__(name: str) -> object:
    """Import a public name, or look up the installed version (PEP 562).

    Raises:
        ImportError: The name is one of tool authors, and only the distribution ``turngate-client`` is installed.
    """
    value: object
    if name == "__version__":
        distribution = "turngate-client" if _is_client_only() else "turngate"
        value = import_module("importlib.metadata").version(distribution)  # a tenth of the time that --help takes
    elif name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    elif _is_client_only():
        raise ImportError(
            f"turngate.{name} is for programs that declare agents and tools. Only turngate-client is installed here, which has "
            "turngate.client, turngate.wire and turngate.domain. Install the distribution turngate, too.",
            name=__name__,
        )
    else:
        value = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def _is_client_only() -> bool:
    """Return whether these files are those of ``turngate-client``, which has none of the server."""
    return find_spec("turngate.runtime") is None


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted({*globals(), *__all__})
