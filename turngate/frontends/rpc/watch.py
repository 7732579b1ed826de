"""``run.watch``: a run's events, and what is said live, as JSON-RPC notifications."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, Final

from turngate.client import StreamItem, TurngateClient
from turngate.domain.errors import TurngateError
from turngate.frontends.rpc.parameters import Unwatch, WatchBegun, WatchRun, WatchStopped
from turngate.frontends.rpc.wire import application_error, notification
from turngate.text.link_words import LinkState
from turngate.wire.events import DeltaView, EventView

EVENT: Final = "run.event"
PROGRESS: Final = "run.progress"
DELTA: Final = "run.delta"
CONNECTION: Final = "run.connection"
ENDED: Final = "run.watch_ended"

Send = Callable[[dict[str, Any]], Awaitable[None]]


class Watches:
    """The watches of one connection. Each ends with its run's last event, with :meth:`stop`, or with the connection."""

    def __init__(self, client: TurngateClient, send: Send) -> None:
        self._client = client
        self._send = send
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._answered: dict[str, asyncio.Event] = {}
        self._telling: set[asyncio.Task[None]] = set()

    async def watch(self, params: WatchRun) -> WatchBegun:
        """Watch a run; nothing is sent before :meth:`begin`. Raises NotFoundError, as a request should."""
        await self._client.get_run(params.run_id)
        watch_id = f"watch_{secrets.token_hex(8)}"
        self._answered[watch_id] = asyncio.Event()
        self._tasks[watch_id] = asyncio.create_task(self._follow(watch_id, params))
        return WatchBegun(watch_id=watch_id, run_id=params.run_id)

    def begin(self, watch_id: str) -> None:
        """Let a watch tell: its client has the answer that names it."""
        self._answered[watch_id].set()

    async def stop(self, params: Unwatch) -> WatchStopped:
        """Stop a watch; the run continues."""
        task = self._tasks.get(params.watch_id)
        return WatchStopped(stopped=task is not None and task.cancel())

    async def close(self) -> None:
        """Stop every watch."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, watch_id: str, params: WatchRun) -> None:
        try:
            await self._answered[watch_id].wait()
            error = await self._tell_all(watch_id, params)
            await self._tell(ENDED, watch_id, run_id=params.run_id, error=error)
        finally:
            del self._tasks[watch_id], self._answered[watch_id]

    async def _tell_all(self, watch_id: str, params: WatchRun) -> dict[str, Any] | None:
        try:
            async for item in self._client.follow_events(
                params.run_id,
                after=params.after,
                with_progress=params.progress,
                with_deltas=params.deltas,
                on_link=self._link_teller(watch_id),
            ):
                method, name = _kind(item)
                await self._tell(method, watch_id, **{name: item.model_dump(mode="json")})
        except TurngateError as error:
            return application_error(error).body
        return None

    def _link_teller(self, watch_id: str) -> Callable[[bool], None]:
        """Return what tells that the watch lost its connection, and that it has one again."""
        link_state = LinkState()

        def tell(is_open: bool) -> None:
            if link_state.change(is_open=is_open) is not None:
                task = asyncio.create_task(self._tell(CONNECTION, watch_id, connected=is_open))
                self._telling.add(task)
                task.add_done_callback(self._telling.discard)

        return tell

    async def _tell(self, method: str, watch_id: str, **params: Any) -> None:
        await self._send(notification(method, {"watch_id": watch_id, **params}))


def _kind(item: StreamItem) -> tuple[str, str]:
    if isinstance(item, EventView):
        return EVENT, "event"
    return (DELTA, "delta") if isinstance(item, DeltaView) else (PROGRESS, "progress")
