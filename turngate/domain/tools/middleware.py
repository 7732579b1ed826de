"""Middleware: a function around the handlers of a toolkit's local tools."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from turngate.domain.tools.context import ToolContext

Proceed = Callable[[], Awaitable[Any]]


@dataclass(frozen=True, kw_only=True)
class Invocation:
    """One start of a handler. ``params``: decoded, the very value the handler gets; it must not be changed (I6)."""

    tool_name: str
    params: Any
    ctx: ToolContext


Middleware = Callable[[Invocation, Proceed], Awaitable[Any]]
"""``async def audit(invocation, proceed): …; return await proceed()``. It may answer without proceeding, raise one of
the tool's declared failures, or change what comes back."""
