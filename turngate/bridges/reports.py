"""What a program reports of a call that it ran. The API takes every report, whatever the tool returned, at once or later.

Knows no framework, and runs no call.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from pydantic_core import to_jsonable_python

from turngate.client import TurngateClient
from turngate.domain.conversation.clipping import excerpt_of_unkeepable, in_part
from turngate.domain.errors import ConflictError, TurngateError, UnavailableError
from turngate.domain.text.json_text import without_half_pairs
from turngate.domain.tools.results import MAX_DEPTH, Failure, Ok, as_object, is_deeper
from turngate.wire.external_calls import MAX_REPORT_CHARS, ExternalStart

Answer = TypeVar("Answer")
logger = logging.getLogger(__name__)

GIVE_UP_SECONDS: Final = 120.0
"""How long the API may be unreachable before we stop waiting: long enough for a restart of the server."""
PAUSE_SECONDS: Final = 1.0
AT_ONCE_SECONDS: Final = 3.0
"""How long a result waits for its report. After it, the program continues, and so does the report."""
MAX_REASON: Final = 10_000
MAX_KIND: Final = 64


class Reports:
    """The reports of one program, some of them on their way. Belongs to one event loop; :meth:`aclose` it at the end."""

    def __init__(self, client: TurngateClient) -> None:
        self._client = client
        self._open: set[asyncio.Task[None]] = set()

    async def send(self, call: str, attempt: str, result: Ok | Failure | None, *, deadline_at: str) -> None:
        """Report the result of a call that ran, None if it is unknown; return after a moment even if that takes longer.

        Never raises for a report that fails: the caller has its result. Turngate counts a call without a report as lost at
        ``deadline_at``.
        """
        await self._wait_for(self._send(call, attempt, result, deadline_at))

    async def send_unstarted(self, call: str, attempt: str, start: Awaitable[ExternalStart]) -> None:
        """Report that nothing happened, as :meth:`send`, if this start of a call that runs once succeeds: no one waits for it."""

        async def send() -> None:
            with suppress(TurngateError):
                started = await start
                if started.run is not None and started.call.effect == "once":
                    nothing = Failure(kind="nothing_happened", reason="The program was stopped before the call ran.")
                    await self._send(call, attempt, nothing, started.run.deadline_at)

        await self._wait_for(send())

    async def _wait_for(self, report: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(report)
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        await asyncio.wait({task}, timeout=AT_ONCE_SECONDS)

    async def aclose(self) -> None:
        """Give the reports that are on their way a last moment."""
        if self._open:
            await asyncio.wait(set(self._open), timeout=AT_ONCE_SECONDS)

    async def _send(self, call: str, attempt: str, result: Ok | Failure | None, deadline_at: str) -> None:
        left = (datetime.fromisoformat(deadline_at) - datetime.now(UTC)).total_seconds()

        async def report(each: Ok | Failure | None) -> None:
            send = self._client.report_external_call
            await patiently(lambda: send(call, attempt=attempt, result=each), give_up_seconds=max(left, 0.0))

        try:
            if result is None:
                await report(None)
                return
            try:
                await report(await asyncio.to_thread(reportable, result))
            except (ConflictError, UnavailableError):
                raise
            except (TurngateError, ValueError, RecursionError) as refused:
                logger.warning("call %s ran, but its result could not be reported as it is: %s", call, refused)
                await report(_without_its_content(result, str(refused)))
        except Exception:
            logger.warning("the end of call %s could not be reported", call, exc_info=True)


async def patiently(send: Callable[[], Awaitable[Answer]], *, give_up_seconds: float = GIVE_UP_SECONDS) -> Answer:
    """Send again while the API is unreachable: a person may take days, and the API is restarted meanwhile."""
    away_since: float | None = None
    while True:
        try:
            return await send()
        except UnavailableError:
            away_since = away_since or time.monotonic()
            if time.monotonic() - away_since > give_up_seconds:
                raise
        await asyncio.sleep(PAUSE_SECONDS)


def reportable(result: Ok | Failure) -> Ok | Failure:
    """Return a result as the API takes it; of one that is too large or too deep a part, with the digest of the whole."""
    body = result.value if isinstance(result, Ok) else result.fields
    text = without_half_pairs(json.dumps(body, ensure_ascii=False, separators=(",", ":")))
    if isinstance(result, Failure):
        reason = without_half_pairs(result.reason).replace("\x00", "\N{REPLACEMENT CHARACTER}")[:MAX_REASON]
        result = Failure(kind=result.kind[:MAX_KIND] or "execution_error", reason=reason)
    if len(text) + MAX_REASON > MAX_REPORT_CHARS or is_deeper(body, MAX_DEPTH - 1):
        return in_part(result, excerpt_of_unkeepable(text))
    members = _read(text)
    return Ok(value=members) if isinstance(result, Ok) else result.model_copy(update={"fields": members})


def ok_of(value: Any) -> Ok:
    """Return what a tool returned as a result to report. A value that is not JSON is reported as its text."""
    try:
        tree = to_jsonable_python(value, fallback=str, bytes_mode="base64")
        return Ok(value=as_object(_read(without_half_pairs(json.dumps(tree, ensure_ascii=False)))))
    except (ValueError, RecursionError):  # refers to itself, say: the call has run all the same
        return Ok(value={"value": f"The tool returned a {type(value).__name__} that can't be written as JSON."})


def _read(text: str) -> Any:
    """Return what :func:`json.dumps` has written; the numbers that JSON has no word for, such as NaN, as texts."""
    return json.loads(text, parse_constant=str)


def _without_its_content(result: Ok | Failure, why: str) -> Ok | Failure:
    """Return that the call ran and how it ended, for a result that the API refuses."""
    words = f"The call ran, and its result is not recorded: {without_half_pairs(why)[:1000]}"
    return (
        Ok(value={"not_recorded": words}) if isinstance(result, Ok) else Failure(kind="execution_error", reason=words)
    )
