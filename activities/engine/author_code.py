"""Calling what an author wrote: arguments by name and type, sync functions off the event loop, failures kept in bounds."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable
from typing import Any, TypeVar

import svcs

from turngate.domain.tools.context import ToolContext
from turngate.domain.tools.injection import Injected

Answer = TypeVar("Answer")

AUTHOR_SECONDS = 30.0
"""How long one hook, precondition or probe may take; beyond it the call does not run, or a person is asked."""


class AuthorCodeError(Exception):
    """Author's code ended in a way that is no Exception: it gave itself up, or asked the process to exit."""


async def heard(author: Awaitable[Answer], *, seconds: float) -> Answer:
    """Await author's code for so long, and return what it returns. Whatever goes wrong in it is an Exception.

    ``sys.exit()`` in a hook must not end the worker, nor a CancelledError that a library let out pass for an interrupt:
    either would be tried again for a week. A cancellation from outside passes through.

    Raises:
        TimeoutError: it took longer.
        AuthorCodeError: it ended in something that is no Exception.
        Exception: whatever it raised itself.
    """
    try:
        async with asyncio.timeout(seconds):
            return await _unless_stopped(author)
    except Exception:
        raise
    except BaseException as odd:
        if from_outside(odd):
            raise
        raise AuthorCodeError(type(odd).__name__) from odd


async def _unless_stopped(author: Awaitable[Answer]) -> Answer:
    """Await author's code; what it still says after it was stopped does not count.

    Code that holds its cancellation back would turn a bound, or somebody's interrupt, into its own "go on".
    """
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - a coroutine runs in a task
    stops = task.cancelling()
    answer = await apart(author)
    if task.cancelling() > stops:
        raise asyncio.CancelledError
    return answer


async def apart(author: Awaitable[Answer]) -> Answer:
    """Await author's code in a task of its own; what it returns or raises passes through, a cancellation goes down to it.

    Code that cancels the task it runs in (a cancel scope that is never left does so for as long as the task lives) would
    otherwise cancel the activity: its call would count as lost, and what it has to store could not be stored.
    """

    async def held() -> tuple[Answer | None, BaseException | None]:
        try:
            return await author, None
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as raised:  # noqa: BLE001 - SystemExit that leaves a task ends the event loop
            return None, raised

    answer, raised = await asyncio.create_task(held())
    if raised is not None:
        raise raised
    return answer  # type: ignore[return-value]  # None only where the author's code returned it


def from_outside(odd: BaseException) -> bool:
    """Tell whether this is not the author's doing: somebody cancelled the task at hand, or the process is stopped."""
    if isinstance(odd, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    return isinstance(odd, KeyboardInterrupt | GeneratorExit)


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
    made = await asyncio.to_thread(author.function, **arguments)
    return await made if inspect.isawaitable(made) else made  # a decorator's plain wrapper around an async function
