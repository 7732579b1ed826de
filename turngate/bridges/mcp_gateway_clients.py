"""The clients in front of a gateway: who hears that the tools changed, and why a client gave a call up.

Both eras of the protocol: notifications on the connection, and since 2026-07-28 on a ``subscriptions/listen`` stream.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.session import ServerSession
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged

log = logging.getLogger("turngate.mcp_gateway")

SESSION: Final = "mcp-session-id"
MOST_REMEMBERED: Final = 1_000
_OUT_OF_TIME: Final = ("timed out", "timeout", "time-out", "time out", "deadline exceeded")
"""In the reason of a cancellation: the client's patience ended, and not its user's wish (the SDKs' own words)."""


class FrontServer(Server[Any]):
    """A server that says of itself that its list of tools may change."""

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        """Return what the handshake says."""
        changes = notification_options or NotificationOptions(tools_changed=True)
        return super().create_initialization_options(changes, experimental_capabilities, extensions)


class Clients:
    """Those of one gateway. :meth:`watch` goes among its server's middleware, ``listen`` serves its subscriptions."""

    def __init__(self) -> None:
        self._bus = InMemorySubscriptionBus()
        self.listen = ListenHandler(self._bus)
        self._sessions: OrderedDict[str, ServerSession] = OrderedDict()
        self._reasons: OrderedDict[tuple[str, str], str] = OrderedDict()

    async def watch(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Note who came, and which call was cancelled for which reason."""
        if ctx.method == "notifications/initialized":
            _remember(self._sessions, _session(ctx), ctx.session)
        elif ctx.method == "notifications/cancelled":
            told: Mapping[str, Any] = ctx.params or {}
            _remember(self._reasons, (_session(ctx), str(told.get("requestId"))), str(told.get("reason") or ""))
        return await call_next(ctx)

    def ran_out_of_time(self, ctx: ServerRequestContext[Any, Any]) -> bool:
        """Tell whether a cancelled request was given up because its client does not wait any longer."""
        reason = self._reasons.get((_session(ctx), str(ctx.request_id)), "").lower()
        return any(words in reason for words in _OUT_OF_TIME)

    async def tools_changed(self) -> None:
        """Tell everybody to list the tools again."""
        await self._bus.publish(ToolsListChanged())
        for key, session in list(self._sessions.items()):
            try:
                await session.send_tool_list_changed()
            except Exception:  # a client that is gone fails in its transport's own way
                log.debug("a client could not be told that the tools changed", exc_info=True)
                self._sessions.pop(key, None)


def _session(ctx: ServerRequestContext[Any, Any]) -> str:
    """Name the connection: ids of requests are the client's own, and several clients count from one."""
    headers = getattr(ctx.request, "headers", None)
    return "" if headers is None else str(headers.get(SESSION, ""))


def _remember(kept: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    kept[key] = value
    if len(kept) > MOST_REMEMBERED:
        kept.popitem(last=False)
