"""An error as the user sees it: one message and an exit code, never a traceback.

Exit codes: 0 done · 1 it failed · 2 the command or the configuration is wrong · 3 the run was interrupted ·
4 a dry run differs from its record · 130 stopped by Ctrl-C · 141 no one reads the output any more.
"""

from __future__ import annotations

import errno
import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import typer
from typer.core import TyperGroup

from turngate.cli import terminal
from turngate.domain.errors import ConfigurationError, TurngateError
from turngate.text.plain_text import plain

EXIT_WENT_WRONG: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED_RUN: Final = 3
EXIT_DIVERGED: Final = 4
EXIT_CTRL_C: Final = 130
EXIT_UNREAD: Final = 141
"""What a shell reports for a program that SIGPIPE ended."""

NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Errors of a full disk, which only its owner can fix."""


class Commands(TyperGroup):
    """The commands. Their errors are reported here."""

    def invoke(self, ctx: Any) -> Any:  # typer's base class takes its own, private Context
        """Run the command."""
        with reported():
            return super().invoke(ctx)


@contextmanager
def reported() -> Iterator[None]:
    """Print an error, and exit with the code for it."""
    try:
        yield
    except TurngateError as error:
        from turngate.wire.people import named  # noqa: PLC0415 - slow to import, and most commands end well

        terminal.error(plain(named(str(error))))
        _show_trace()
        code = EXIT_USAGE if isinstance(error, ConfigurationError) else EXIT_WENT_WRONG
        raise typer.Exit(code) from None
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_CTRL_C) from None
    except (typer.Exit, typer.Abort):
        raise
    except Exception as error:
        if _is_unread(error):
            raise typer.Exit(EXIT_UNREAD) from None
        if _is_usage(error):
            raise
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            terminal.error(plain(f"{error.filename or 'the output'} cannot be written: {error.strerror}"))
            raise typer.Exit(EXIT_WENT_WRONG) from None
        from turngate.http_environment import problem_of  # noqa: PLC0415 - httpx is slow to import

        if isinstance(error, (OSError, ImportError, ValueError)) and (problem := problem_of(os.environ)):
            terminal.error(plain(f"{problem} ({type(error).__name__}: {error})"))
            _show_trace()
            raise typer.Exit(EXIT_USAGE) from None
        terminal.error(
            plain(f"{type(error).__name__}: {error}. This is a bug in Turngate. Please report it ")
            + "with the output under TURNGATE_LOG_LEVEL=debug"
        )
        _show_trace()
        raise typer.Exit(EXIT_WENT_WRONG) from None


def _is_usage(error: Exception) -> bool:
    """Return whether an error is one of usage, which typer itself prints."""
    return hasattr(error, "exit_code")  # its class has no public name that all versions of typer share


def _is_unread(error: Exception) -> bool:
    """Return whether the reader of stdout is gone (``turngate runs | head``)."""
    return isinstance(error, OSError) and error.errno == errno.EPIPE


def _show_trace() -> None:
    if terminal.wants_traceback():
        traceback.print_exc()
