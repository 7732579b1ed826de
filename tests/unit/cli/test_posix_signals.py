"""The end of a server's process: SIGTERM ends it soon, whatever does not end with it."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from contextlib import ExitStack

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


CASES = ((TASK, "", 0), (THREAD, "", 0), (TASK, "raise RuntimeError", 3))


def test_a_server_ends_although_something_does_not() -> None:
    """A task that ignores its cancellation, and a thread that no one can stop, hold no process; its exit code stays."""
    with ExitStack() as ending:
        servers = []
        for leaves, ends, _code in CASES:
            program = textwrap.dedent(SERVER).format(leaves=leaves, ends=ends)
            command = [sys.executable, "-c", program]
            servers.append(
                ending.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
            )
            ending.callback(servers[-1].kill)
        for server in servers:
            assert server.stdout is not None
            assert server.stdout.readline() == b"up\n"
            server.send_signal(signal.SIGTERM)
        for server, (leaves, _ends, code) in zip(servers, CASES, strict=True):
            _, errors = server.communicate(timeout=120)
            assert server.returncode == code, errors.decode()
            if leaves == TASK:
                assert b"deaf one at deaf (<string>:8) > sleep (tasks.py:" in errors
