"""A model's answer while it is written: its deltas go to the store, where watchers find them.

Deltas are for watchers only. They go to the store, never into workflow history, and are the first thing to be lost when the
store is away: the model is neither delayed nor fails because of it. What was shown is taken back before the failure of an
attempt is reported, so that no one mixes it with the next attempt's words.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from functools import cached_property, partial
from typing import Any, Final

import structlog

from turngate.activities.engine.bounded_flush import end_or_abandon
from turngate.domain.conversation.live_text import LiveText
from turngate.domain.conversation.messages import Delta, DeltaKind, ModelResponse
from turngate.domain.conversation.secret_texts import secret_texts
from turngate.domain.errors import TurngateError
from turngate.domain.tools.secrets import MASKED
from turngate.models.port import LanguageModel, ModelRequest, StreamingModel
from turngate.store.database import Connection, Database
from turngate.store.live import deltas
from turngate.store.live.deltas import Attempt, DeltaBatch

log = structlog.get_logger(__name__)

INTERVAL_SECONDS: Final = 0.03
"""Between two writes while deltas come; the first words are written at once."""
MAX_UNFINISHED_CHARS: Final = 2_000
"""Of the text of a failed attempt, for people who ask later what had been shown."""
MAX_BATCH_CHARS: Final = 16 * 1024
"""Of one row. No one reads a model live that says more in between."""


class LiveDeltas:
    """Asks models so that they can be watched. ``on`` False: as if none of them could stream."""

    def __init__(self, database: Database, *, on: bool) -> None:
        self._database = database
        self._on = on
        self._written: set[tuple[str, int]] = set()
        self._taken_back: dict[tuple[str, int], str] = {}

    async def answer(self, model: LanguageModel, request: ModelRequest, run_id: str, step: int) -> ModelResponse:
        """Return the model's response to a request of this step. Raises what the model raises.

        When it returns, no more deltas are written: all of them have been, or none, where the response was faster than the
        first write. (Streams send what is missing with the stored response.) When it raises, what was shown has been taken back.
        """
        if not self._on or not isinstance(model, StreamingModel):
            return await model.generate(request)
        writer = _Writer(self._database, run_id, step, _Masks(request))
        try:
            response = await model.stream(request, writer.add)
        except BaseException as error:
            if await writer.take_back(_reason(error)):
                self._written.add((run_id, step))
                if isinstance(error, Exception):  # else the step is given up, and no failure is reported
                    self._taken_back[run_id, step] = writer.text
            raise
        if await writer.finish():
            self._written.add((run_id, step))
        return response

    def taken_back(self, run_id: str, step: int) -> str | None:
        """Return, once, the text that was shown of the attempt that just failed; None: nothing of it had been shown.

        It is clipped, and without secrets, as watchers saw it.
        """
        return self._taken_back.pop((run_id, step), None)

    async def forget(self, conn: Connection, run_id: str, step: int) -> None:
        """Delete the deltas that this worker wrote of a step whose response is stored in the same transaction."""
        self._taken_back.pop((run_id, step), None)
        if (run_id, step) in self._written:
            self._written.discard((run_id, step))
            await deltas.forget(conn, run_id, step)


class _Writer:
    """Writes the deltas of one attempt, in batches."""

    def __init__(self, database: Database, run_id: str, step: int, masks: _Masks) -> None:
        self._database = database
        self._run_id = run_id
        self._step = step
        self._masks = masks
        self._waiting: list[Delta] = []
        self._text = ""
        self._attempt: Attempt | None = None
        self._n = 0
        self._lost = 0
        self._task: asyncio.Task[None] | None = None
        self._is_writing = False
        self._closed = False
        self._failed = False

    def add(self, delta: Delta) -> None:
        """Keep what may be shown of a delta until the next write; the first one, or one after a silence, is written at once."""
        if self._closed:
            return
        visible = self._masks.delta(delta)
        if visible is None:
            return
        self._keep(visible)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._write_all(), name=f"deltas-{self._run_id}-{self._step}")

    def _keep(self, visible: Delta) -> None:
        self._waiting.append(visible)
        if visible.kind == "text" and len(self._text) <= MAX_UNFINISHED_CHARS:
            self._text += visible.text

    @property
    def text(self) -> str:
        """The beginning of the answer's text, as watchers may see it."""
        clipped = self._text[:MAX_UNFINISHED_CHARS]
        return clipped if clipped == self._text else f"{clipped}…"

    async def finish(self) -> bool:
        """Write the rest of a response of which something was shown: it may take long to be stored. True: something was."""
        await self._stop()
        if self._attempt is None:
            return False
        for delta in self._masks.end():
            self._keep(delta)
        if (batch := self._take()).deltas and not self._failed:
            await end_or_abandon(asyncio.create_task(self._write(partial(self._store, batch))), self._warn_once)
        return True

    async def take_back(self, reason: str) -> bool:
        """Tell watchers that what they were shown is void, and why. True: something had been shown."""
        await self._stop()
        if self._attempt is None:
            return False
        for delta in self._masks.end(is_cut=True):
            self._keep(delta)
        attempt, n = self._attempt, self._n + 1

        async def give_up(conn: Connection) -> None:
            await deltas.give_up(conn, attempt, n, reason)

        # A task of its own: a second cancellation of the activity would otherwise keep this from the watchers.
        await end_or_abandon(asyncio.create_task(self._write(give_up)), self._warn_once)
        return True

    async def _stop(self) -> None:
        """Take nothing more, and end the write that is being made."""
        self._closed = True
        if self._task is not None and not self._task.done():
            if self._is_writing:
                await end_or_abandon(self._task, self._warn_once)
            else:
                self._task.cancel()

    async def _write_all(self) -> None:
        while not self._closed and (batch := self._take()).deltas:
            self._is_writing = True
            try:
                if not await self._write(partial(self._store, batch)):
                    self._lost += batch.dropped + sum(len(delta.text) for delta in batch.deltas)
            finally:
                self._is_writing = False
            if not self._closed:
                await asyncio.sleep(INTERVAL_SECONDS)

    async def _write(self, write: Callable[[Connection], Coroutine[Any, Any, None]]) -> bool:
        try:
            async with self._database.write() as conn:
                await write(conn)
        except Exception as error:  # noqa: BLE001 - whatever the store raises, the model continues
            self._warn_once(f"{type(error).__name__}: {error}")
            return False
        return True

    async def _store(self, batch: DeltaBatch, conn: Connection) -> None:
        if self._attempt is None:
            await deltas.sweep(conn)
            self._attempt = await deltas.begin(conn, self._run_id, self._step, batch)
            self._n = 1
            self._closed = self._closed or self._attempt is None
        elif await deltas.append(conn, self._attempt, self._n + 1, batch):
            self._n += 1
        else:
            self._closed = True  # another attempt writes for the step

    def _take(self) -> DeltaBatch:
        """Return what waits: deltas of one part joined, and the oldest text dropped where there is too much."""
        joined: list[Delta] = []
        for delta in self._waiting:
            last = joined[-1] if joined else None
            if last is not None and (last.part, last.kind) == (delta.part, delta.kind) and not delta.tool_name:
                joined[-1] = last.model_copy(update={"text": last.text + delta.text})
            else:
                joined.append(delta)
        self._waiting.clear()
        too_much = dropped = max(0, sum(len(delta.text) for delta in joined) - MAX_BATCH_CHARS)
        for place, delta in enumerate(joined):
            if not too_much:
                break
            cut = min(too_much, len(delta.text))
            joined[place] = delta.model_copy(update={"text": delta.text[cut:]})
            too_much -= cut
        dropped, self._lost = dropped + self._lost, 0
        return DeltaBatch(joined, dropped)

    def _warn_once(self, why: str) -> None:
        if not self._failed:
            log.warning("the deltas of a model are lost", run_id=self._run_id, step=self._step, why=why)
        self._failed = True


class _Masks:
    """Masks the deltas of one attempt by the secrets in the conversation and in itself. ``request``: what the model was sent."""

    def __init__(self, request: ModelRequest) -> None:
        self._request = request
        self._texts: dict[int, tuple[DeltaKind, LiveText]] = {}
        self._names: dict[int, str] = {}
        self._marked: set[int] = set()

    def delta(self, delta: Delta) -> Delta | None:
        """Return a delta as it may be shown now; None: nothing of it."""
        if delta.kind == "tool-call" and delta.tool_name:
            self._names[delta.part] = delta.tool_name
        if delta.kind == "tool-call" and self._is_hidden(delta.part):
            text = MASKED if delta.text and delta.part not in self._marked else ""
            self._marked |= {delta.part} if text else set()
        else:
            _kind, live = self._texts.setdefault(delta.part, (delta.kind, LiveText(self._values)))
            text = live.add(delta.text)
        return delta.model_copy(update={"text": text}) if text or delta.tool_name else None

    def end(self, *, is_cut: bool = False) -> Iterator[Delta]:
        """Yield what of each part still waited, in order. ``is_cut``: the attempt broke off."""
        for part, (kind, live) in self._texts.items():
            if text := live.end(is_cut=is_cut):
                yield Delta(kind=kind, part=part, text=text)

    def _is_hidden(self, part: int) -> bool:
        """Tell whether a call's arguments are not shown before they are whole: only then is known where their secrets are."""
        name = self._names.get(part)
        return any(each.has_secrets for each in self._request.tools if name in {None, each.name})

    @cached_property
    def _values(self) -> frozenset[str]:
        tools = {each.name: each for each in self._request.tools}
        texts = (secret_texts(each, lambda part: tools.get(part.tool_name)) for each in self._request.messages)
        return frozenset[str]().union(*texts)


def _reason(error: BaseException) -> str:
    """Return why an attempt failed, in a few words for people."""
    if isinstance(error, asyncio.CancelledError):
        return "it was stopped"
    return error.message if isinstance(error, TurngateError) else type(error).__name__
