"""What tool authors import: ``from turngate import Agent, App, Toolkit, tool``.

Everything here is free of I/O, because importing ``turngate.domain`` (as workflow code does) runs this module first.
"""

from turngate.domain.agents.app import Agent, App, Limits, sub_agent
from turngate.domain.agents.context_window import Context
from turngate.domain.agents.hooks import Deny, HookedCall, Hooks, RunScope
from turngate.domain.agents.no_progress import NoProgress
from turngate.domain.errors import ConfigurationError
from turngate.domain.policy.judge import Judge
from turngate.domain.policy.policy import Policy, Rule
from turngate.domain.runs.budgets import Price
from turngate.domain.tools.context import ToolContext
from turngate.domain.tools.control_calls import Finish, HandOff, Signal, SwitchModel, WaitUntil
from turngate.domain.tools.declare import declare_tool, interaction_tool, provider_tool, signal_tool, tool
from turngate.domain.tools.failures import InvalidToolInput, ToolFailure
from turngate.domain.tools.middleware import Invocation, Proceed
from turngate.domain.tools.parameters import Parameters
from turngate.domain.tools.presentation import CommandBlock, DiffBlock, JsonBlock, Presentation, TableBlock, TextBlock
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
    "Ok",
    "Parameters",
    "Policy",
    "Presentation",
    "Preview",
    "Price",
    "ProbeAnswer",
    "Proceed",
    "Rule",
    "RunScope",
    "Signal",
    "SwitchModel",
    "TableBlock",
    "TextBlock",
    "Tool",
    "ToolContext",
    "ToolFailure",
    "ToolManifest",
    "Toolkit",
    "WaitUntil",
    "declare_tool",
    "interaction_tool",
    "provider_tool",
    "signal_tool",
    "sub_agent",
    "tool",
]
