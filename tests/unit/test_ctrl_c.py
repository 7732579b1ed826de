"""A test's Ctrl-C reaches the program that it started."""

from __future__ import annotations

import signal
import subprocess
import sys

from support.programs.ctrl_c import restore_sigint

ASK = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"


def hears_sigint() -> bool:
    """Start a program and return whether it has SIGINT's default handler."""
    return subprocess.run([sys.executable, "-c", ASK], capture_output=True, check=True).stdout == b"True\n"


def test_a_started_program_hears_sigint() -> None:
    """It does in this session, also where the session runs in a shell's background."""
    assert hears_sigint()


def test_what_a_background_job_starts_hears_sigint_once_it_is_restored() -> None:
    """Before that it does not: it inherits that SIGINT is ignored."""
    usual = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert not hears_sigint()
        restore_sigint()
        assert hears_sigint()
    finally:
        signal.signal(signal.SIGINT, usual)


def test_another_handler_of_sigint_stays() -> None:
    """Only an ignored SIGINT is restored."""
    usual = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        restore_sigint()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGINT, usual)
