"""What groups of errors are about."""

from __future__ import annotations

from collections.abc import Iterator


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors in a group, however deep; an error that is no group is its own."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from leaves(each)
    else:
        yield error
