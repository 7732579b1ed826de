"""SIGINT for the programs that tests start."""

from __future__ import annotations

import signal


def restore_sigint() -> None:
    """Handle SIGINT again where this process was started with SIGINT ignored; otherwise change nothing.

    A shell without job control ignores SIGINT in its background jobs, so that a Ctrl-C in the terminal spares them. Every
    program that such a job starts inherits that. Ours respect it, so they would miss the SIGINT that a test sends them.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
