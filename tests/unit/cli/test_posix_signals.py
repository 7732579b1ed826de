"""The end of a server's process: SIGTERM ends it soon, whatever does not end with it."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time

import pytest

from turngate.cli.posix_signals import LEFTOVER_SECONDS

SERVER = """
    import asyncio, threading, time
    from turngate.cli.posix_signals import leave, run_server, stop_on_posix_signals

    async def deaf():
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                pass

    async def serve():
        with stop_on_posix_signals() as stop:
            stop.running()
            {leaves}
            print("up", flush=True)
            await stop.requested.wait()
        {ends}

    code = 3
    try:
        run_server(serve())
        code = 0
    finally:
        leave(code)
"""
TASK = 'left = asyncio.create_task(deaf(), name="deaf one")'
THREAD = "left = asyncio.create_task(asyncio.to_thread(time.sleep, 60)); await asyncio.sleep(0.1)"


@pytest.mark.parametrize(
    ("leaves", "ends", "code"),
    [(TASK, "", 0), (THREAD, "", 0), (TASK, "raise RuntimeError", 3)],
    ids=["a task", "a thread", "a task, after an error"],
)
def test_a_server_ends_although_something_does_not(leaves: str, ends: str, code: int) -> None:
    """A task that ignores its cancellation, and a thread that no one can stop, hold no process; its exit code stays."""
    program = textwrap.dedent(SERVER).format(leaves=leaves, ends=ends)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == b"up\n"
            began = time.monotonic()
            server.send_signal(signal.SIGTERM)
            _, errors = server.communicate(timeout=LEFTOVER_SECONDS + 20)
        finally:
            server.kill()
    assert server.returncode == code, errors.decode()
    assert time.monotonic() - began < LEFTOVER_SECONDS + 10
    if leaves == TASK:
        assert b"deaf one at deaf (<string>:8) > sleep (tasks.py:" in errors
