"""From the function that describes a call to the method that makes it, with its parameters, types and docstring."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from turngate.client.calls import Call, Result
from turngate.wire.view import Page

P = ParamSpec("P")
Item = TypeVar("Item")


class AsyncSender(Protocol):
    """Sends calls without blocking."""

    async def send(self, call: Call[Result], /) -> Result:
        """Send one call; return its answer."""


class Sender(Protocol):
    """Sends calls."""

    def send(self, call: Call[Result], /) -> Result:
        """Send one call; return its answer."""


def awaited(describe: Callable[P, Call[Result]]) -> Callable[Concatenate[AsyncSender, P], Coroutine[Any, Any, Result]]:
    """Return the method that makes this call, to be awaited."""

    @functools.wraps(describe)
    async def method(self: AsyncSender, /, *args: P.args, **kwargs: P.kwargs) -> Result:
        return await self.send(describe(*args, **kwargs))

    return _as_method(method, describe)


def blocking(describe: Callable[P, Call[Result]]) -> Callable[Concatenate[Sender, P], Result]:
    """Return the method that makes this call and waits for its answer."""

    @functools.wraps(describe)
    def method(self: Sender, /, *args: P.args, **kwargs: P.kwargs) -> Result:
        return self.send(describe(*args, **kwargs))

    return _as_method(method, describe)


def awaited_each(
    describe: Callable[P, Call[Page[Item]]],
) -> Callable[Concatenate[AsyncSender, P], AsyncIterator[Item]]:
    """Return the method that yields every item from this page on; each further page is fetched when it is reached."""

    @functools.wraps(describe)
    async def method(self: AsyncSender, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[Item]:
        call: Call[Page[Item]] | None = describe(*args, **kwargs)
        while call is not None:
            page = await self.send(call)
            for item in page.items:
                yield item
            call = None if page.next_cursor is None else call.after(page.next_cursor)

    return _as_method(method, describe, doc=_EACH)


def blocking_each(describe: Callable[P, Call[Page[Item]]]) -> Callable[Concatenate[Sender, P], Iterator[Item]]:
    """Return the method that yields every item from this page on; each further page is fetched when it is reached."""

    @functools.wraps(describe)
    def method(self: Sender, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[Item]:
        call: Call[Page[Item]] | None = describe(*args, **kwargs)
        while call is not None:
            page = self.send(call)
            yield from page.items
            call = None if page.next_cursor is None else call.after(page.next_cursor)

    return _as_method(method, describe, doc=_EACH)


_EACH = "Yield every one, page by page; ``limit`` is how many a page has. Parameters as of ``{name}``."
Method = TypeVar("Method", bound=Callable[..., Any])


def _as_method(method: Method, describe: Callable[..., Any], doc: str | None = None) -> Method:
    """Say the signature with ``self``: left to itself, ``help()`` takes the first parameter for it and hides that one."""
    signature = inspect.signature(describe)
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    described: Any = method
    described.__signature__ = signature.replace(
        parameters=[own, *signature.parameters.values()], return_annotation=inspect.Signature.empty
    )
    if doc is not None:
        described.__doc__ = doc.format(name=describe.__name__)
    return method
