"""The last words of each response that streams: what a watcher lacks of it when it is stored.

The end of a text that may begin a credential waits in the worker, and what arrived last isn't written to the store any more. A
model that can't stream has said nothing yet. So a stream that has sent a response's words adds the rest itself, right before
the event ``step.responded``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from turngate.approvals_api.runs.masks import Masks
from turngate.approvals_api.runs.views import delta_view
from turngate.domain.conversation.messages import ReasoningPart
from turngate.store.database import Connection, Database
from turngate.store.events.events import Event
from turngate.store.live import watch
from turngate.store.live.deltas import Deltas
from turngate.store.live.watch import EVERY_RUN, StreamItem
from turngate.store.runs import messages, runs, steps
from turngate.store.sequences import MAX_NUMBER
from turngate.wire.events import DeltaView
from turngate.wire.streamed import HAS_GAPS, Streamed, as_deltas

RESPONDED = "step.responded"


class LastWords:
    """What one stream has sent of each run's response. ``of``: as ``deltas_of`` of :class:`turngate.store.live.watch.Follower`.

    ``after``: responses stored up to this event were complete before the watcher came: it has them from elsewhere.
    """

    def __init__(self, of: str, *, after: int) -> None:
        self._of = of
        self._after = after
        self._streamed: dict[str, Streamed] = defaultdict(Streamed)

    async def added(self, database: Database, batch: Sequence[StreamItem]) -> list[StreamItem | DeltaView]:
        """Return what is sent, with the last words of each response that is stored now."""
        items: list[StreamItem | DeltaView] = []
        for entry in batch:
            if isinstance(entry, Deltas):
                self._streamed[entry.run_id].take(delta_view(entry))
            elif isinstance(entry, Event) and entry.type == RESPONDED and entry.seq > self._after:
                async with database.glance() as conn:
                    last = await self._last(conn, entry, int(entry.payload["step"]))
                items += [] if last is None else [last]
                self._streamed.pop(entry.run_id, None)
            items.append(entry)
        return items

    async def _last(self, conn: Connection, event: Event, step: int) -> DeltaView | None:
        if self._of != EVERY_RUN and event.run_id not in await watch.family(conn, self._of):
            return None
        run, stored = await runs.get(conn, event.run_id), await steps.get(conn, event.run_id, step)
        if run is None or stored is None:  # deleted meanwhile
            return None
        path = await messages.path_to(conn, stored.assistant_message_id)
        masks = await Masks.of_run(conn, run, path)
        message = masks.message(path[-1]).message
        reasoning = "".join(part.text for part in message.parts if isinstance(part, ReasoningPart))
        whole = as_deltas(reasoning=reasoning, text=message.text, calls=message.calls)
        sent = self._streamed[event.run_id]
        missing = sent.missing(whole) if sent.step == step else tuple(whole)
        if missing is not None and not missing:
            return None
        # On a connection that has sent nothing of it, it is a newer attempt: what an earlier connection sent is void.
        attempt, n = (sent.attempt, sent.n + 1) if sent.step == step else (MAX_NUMBER, 1)
        return DeltaView(
            run_id=event.run_id,
            step=step,
            attempt=attempt,
            n=n,
            deltas=tuple(whole) if missing is None else missing,
            reset=HAS_GAPS if missing is None else None,
            dropped=0,
            created_at=event.created_at,
            is_last=True,
        )
