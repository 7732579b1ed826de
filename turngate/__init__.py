"""What tool authors import: ``from turngate import Agent, App, Toolkit, tool``.

Everything here is free of I/O, because importing ``turngate.domain`` (as workflow code does) runs this module first.
"""

from turngate.domain.agents import Agent, App, Limits
from turngate.domain.budgets import Price
from turngate.domain.context import Context
from turngate.domain.declaring import (
    declare_tool,
    interaction_tool,
    provider_tool,
    signal_tool,
    sub_agent,
    tool,
)
from turngate.domain.errors import ConfigurationError
from turngate.domain.hooks import Deny, HookedCall, Hooks, RunScope
from turngate.domain.judging import Judge
from turngate.domain.middleware import Invocation, Proceed
from turngate.domain.no_progress import NoProgress
from turngate.domain.parameters import Parameters
from turngate.domain.policy import Policy, Rule
from turngate.domain.presentation import CommandBlock, DiffBlock, JsonBlock, Presentation, TableBlock, TextBlock
from turngate.domain.previews import Preview
from turngate.domain.probes import DidNotHappen, Happened, ProbeAnswer
from turngate.domain.results import Failure, Ok
from turngate.domain.signals import Finish, HandOff, Signal, SwitchModel, WaitUntil
from turngate.domain.tool_context import ToolContext
from turngate.domain.tool_failures import InvalidToolInput, ToolFailure
from turngate.domain.toolkit import Toolkit
from turngate.domain.tools import Tool, ToolManifest

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
