"""What a handler is given besides its parameters."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from turngate.domain.errors import ConfigurationError


class NoWorkspaceError(ConfigurationError):
    """A tool needs a directory, and the run was started without one."""


@dataclass(frozen=True, kw_only=True)
class ToolContext:
    """What a handler is given besides its parameters.

    ``idempotency_key``: the same on every attempt of one call. ``workspace``: the run's directory, or None when the run
    has none. ``deadline``: aware UTC; the call is cancelled then. ``cancelled``: set when the run is interrupted.
    ``precondition``: what the call depends on, as JSON, as it was found unchanged just before the start; None: no person approved
    the call, or its tool has no precondition. ``places``: path as the call writes it → the real place that rules judged, of those
    that a rule looked at: a tool must open no other.
    """

    run_id: str
    tool_call_id: str
    idempotency_key: str
    workspace: Path | None
    deadline: datetime
    precondition: str | None = None
    places: Mapping[str, str] = field(default_factory=dict)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    partial: Callable[[str], None] = lambda _text: None
    """Keep this text as the call's partial output, should it be cancelled before it returns."""
    emit: Callable[[JsonValue], None] = lambda _event: None
    """Show progress (text, or any JSON value) to those who watch the run. Never blocks and never fails; if a tool emits
    faster than it can be shown, the oldest are left out. Not part of the result, nor of the conversation."""

    def require_workspace(self) -> Path:
        """Return the workspace; raises NoWorkspaceError when the run was started without one."""
        if self.workspace is None:
            raise NoWorkspaceError("this tool needs a workspace: start the run with one (`--workspace DIR`)")
        return self.workspace

    @cached_property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger for the operators of the worker; each line names the run and the call."""
        return _CallLogger(logging.getLogger("turngate.tool"), {"run": self.run_id, "call": self.tool_call_id})


class _CallLogger(logging.LoggerAdapter[logging.Logger]):
    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Put run and call before the message."""
        named = self.extra or {}
        return f"[run {named.get('run')} call {named.get('call')}] {msg}", kwargs
