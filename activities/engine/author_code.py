"""Calling what an author wrote: arguments by name and type, sync functions off the event loop, failures within bounds."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, Final, TypeVar

from turngate.domain.tools.context import ToolContext
from turngate.domain.tools.injection import Injected
from turngate.runtime.services import svcs

Result = TypeVar("Result")

AUTHOR_SECONDS = 30.0
"""How long one hook, precondition or probe may take; beyond it the call does not run, or a person is asked."""
MOST_VIEWS_OVERDUE: Final = 4
MOST_HANDLERS_OVERDUE: Final = 32
"""How many calls of one preview or presenter, and of one handler, precondition or probe may hang in threads."""


class AuthorCodeError(Exception):
    """Author's code ended with something that is no Exception: it cancelled itself, or asked the process to exit."""


async def await_author(author: Awaitable[Result], *, seconds: float) -> Result:
    """Await author's code, at most this long, and return what it returns. Whatever goes wrong in it is an Exception.

    ``sys.exit()`` in a hook must not end the worker, and a CancelledError that escapes from a library must not look like an
    interrupt: either would be retried for a week. A cancellation from outside passes through.

    Raises:
        TimeoutError: it took longer.
        AuthorCodeError: it ended with something that is no Exception.
        Exception: whatever it raised itself.
    """
    try:
        async with asyncio.timeout(seconds):
            return await _unless_stopped(author)
    except Exception:
        raise
    except BaseException as odd:
        if is_from_outside(odd):
            raise
        raise AuthorCodeError(type(odd).__name__) from odd


async def _unless_stopped(author: Awaitable[Result]) -> Result:
    """Await author's code; what it returns after it was stopped does not count.

    Otherwise code that suppresses its cancellation could turn a time limit, or an interrupt, into its own approval.
    """
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - a coroutine runs in a task
    stops = task.cancelling()
    answer = await in_own_task(author)
    if task.cancelling() > stops:
        raise asyncio.CancelledError
    return answer


async def in_own_task(author: Awaitable[Result]) -> Result:
    """Await author's code in a task of its own. What it returns or raises passes through; a cancellation reaches it.

    Code that cancels the task it runs in (a cancel scope that is never left does so for as long as the task lives) would
    otherwise cancel the activity: its call would count as lost, and its result could not be stored.
    """

    async def result_or_error() -> tuple[Result | None, BaseException | None]:
        try:
            return await author, None
        except KeyboardInterrupt:
            raise
        except GeneratorExit:  # the author's; or this coroutine is closed, and no one gets what it returns
            return None, AuthorCodeError("GeneratorExit")
        except BaseException as raised:  # noqa: BLE001 - SystemExit that leaves a task ends the event loop
            return None, raised

    answer, raised = await asyncio.create_task(result_or_error())
    if raised is not None:
        raise raised
    return answer  # type: ignore[return-value]  # None only where the author's code returned it


def is_from_outside(odd: BaseException) -> bool:
    """Tell whether this is not the author's doing: the current task was cancelled, or the process is being stopped."""
    if isinstance(odd, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    return isinstance(odd, KeyboardInterrupt | GeneratorExit)


class OverdueError(Exception):
    """Too many earlier calls of the function still run, although no one waits for them any more."""


_overdue: Counter[Callable[..., Any]] = Counter()
"""Function → calls that still run in a thread after they were given up. Changed on the event loop only."""


async def in_own_thread(call: Callable[[], Result], *, of: Callable[..., Any], most_overdue: int) -> Result:
    """Make a call of an author's sync function in a thread of its own, and return what it returns.

    No thread can be stopped. So one that never ends takes no place that others need, as it would in a shared pool; the process
    ends without waiting for it; and a function (``of``) of which ``most_overdue`` calls hang isn't called again.

    Raises OverdueError; and whatever the function raises.
    """
    if _overdue[of] >= most_overdue:
        raise OverdueError(f"{most_overdue} earlier calls of it still run")
    loop, context = asyncio.get_running_loop(), copy_context()
    future: asyncio.Future[Result] = loop.create_future()

    def end(settle: Callable[[Any], None], outcome: Any) -> None:
        if not future.cancelled():
            settle(outcome)
            return
        _overdue[of] -= 1
        if not _overdue[of]:
            del _overdue[of]

    def run() -> None:
        settle: Callable[[Any], None]
        outcome: Any
        try:
            settle, outcome = future.set_result, context.run(call)
        except StopIteration as raised:  # no future takes that
            settle, outcome = future.set_exception, RuntimeError(repr(raised))
        except BaseException as raised:  # noqa: BLE001 - it belongs to the caller, as from a pool
            settle, outcome = future.set_exception, raised
        with suppress(RuntimeError):  # the loop is closed: the process ends
            loop.call_soon_threadsafe(end, settle, outcome)

    threading.Thread(target=run, name="author's code", daemon=True).start()
    try:
        return await future
    finally:
        if future.cancelled():
            _overdue[of] += 1


class ServiceError(Exception):
    """A service that a function wants injected could not be made; the function was not called."""

    def __init__(self, service: type) -> None:
        super().__init__(f"its service {getattr(service, '__name__', service)} could not be made")


def what_failed(error: BaseException) -> str:
    """Return who is to blame for an error of author's code, in a few words: never its text, which may hold anything."""
    return str(error) if isinstance(error, ServiceError) else type(error).__name__


async def call_injected(
    author: Injected,
    services: svcs.Container,
    *,
    params: Any = None,
    ctx: ToolContext | None = None,
    key: str | None = None,
    starting: Callable[[], object] = lambda: None,
) -> Any:
    """Call an author's function with the arguments it declares. What it returns or raises passes through.

    ``starting`` is called right before it. Raises ServiceError if it was not called.
    """
    arguments: dict[str, Any] = {}
    if author.params_name is not None:
        arguments[author.params_name] = params
    if author.ctx_name is not None:
        arguments[author.ctx_name] = ctx
    if author.key_name is not None:
        arguments[author.key_name] = key
    for name, service in author.services:
        try:
            arguments[name] = await services.aget(service)
        except Exception as error:
            raise ServiceError(service) from error
    starting()
    if author.is_async:
        return await author.function(**arguments)
    answer = await in_own_thread(
        partial(author.function, **arguments), of=author.function, most_overdue=MOST_HANDLERS_OVERDUE
    )
    return (
        await answer if inspect.isawaitable(answer) else answer
    )  # a decorator's plain wrapper around an async function
