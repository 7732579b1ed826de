"""What tool authors import: ``from turngate import Agent, App, Toolkit, tool``.

Everything here is free of I/O, because importing ``turngate.domain`` (as workflow code does) runs this module first.
"""

from turngate.domain.agents import Agent, App, Limits
from turngate.domain.policy import Policy, Rule
from turngate.domain.toolkit import Toolkit
from turngate.domain.tools import Preview, Tool, ToolContext, ToolFailure, interaction_tool, tool

__all__ = [
    "Agent",
    "App",
    "Limits",
    "Policy",
    "Preview",
    "Rule",
    "Tool",
    "ToolContext",
    "ToolFailure",
    "Toolkit",
    "interaction_tool",
    "tool",
]
