"""Calling what a tool's author wrote: arguments by name and type, sync functions off the event loop."""

from __future__ import annotations

import asyncio
from typing import Any

import svcs

from turngate.domain.injection import Injected
from turngate.domain.tool_context import ToolContext


async def call_injected(
    author: Injected,
    services: svcs.Container,
    *,
    params: Any = None,
    ctx: ToolContext | None = None,
    key: str | None = None,
) -> Any:
    """Call an author's function with what it asks for, and return what it returns; whatever it raises passes through."""
    arguments: dict[str, Any] = {}
    if author.params_name is not None:
        arguments[author.params_name] = params
    if author.ctx_name is not None:
        arguments[author.ctx_name] = ctx
    if author.key_name is not None:
        arguments[author.key_name] = key
    for name, service in author.services:
        arguments[name] = await services.aget(service)
    if author.is_async:
        return await author.function(**arguments)
    return await asyncio.to_thread(author.function, **arguments)
