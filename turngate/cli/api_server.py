"""The API's HTTP server in this process: uvicorn without its signal handling, on a port that is already taken."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import signal
import socket
from collections.abc import Iterator
from typing import Final

import uvicorn
from fastapi import FastAPI
from sse_starlette.sse import AppStatus

from turngate.cli.bounded_http import ConnectionLimits, bounded_http, default_limits
from turngate.domain.errors import ConfigurationError, UnavailableError

GRACE_SECONDS: Final = 5
"""How long requests in flight may take after a stop. Event streams end within half a second."""
BACKLOG: Final = 2048
TRUSTED_PROXIES: Final = "FORWARDED_ALLOW_IPS"
"""The variable with the addresses and networks of proxies whose X-Forwarded-For and X-Forwarded-Proto count; not set: none."""


def listen(host: str, port: int, *, option: str = "--port", host_setting: str = "TURNGATE_API_HOST") -> socket.socket:
    """Take the port at the start's beginning, so that no other program can take it before the end.

    ``option``, ``host_setting``: how a user chooses another port, and another address. Raises ConfigurationError, which names the
    port and the option, when it is taken or must not be used.
    """
    try:
        family, kind, protocol, _name, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise ConfigurationError(
            f"{host!r} is no address to listen on ({error.strerror}): set {host_setting}"
        ) from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)  # Binding alone is no claim: two sockets with SO_REUSEADDR may both be bound.
    except OSError as error:
        listener.close()
        raise _refused(error, host, port, option=option, host_setting=host_setting) from None
    return listener


def _refused(error: OSError, host: str, port: int, *, option: str, host_setting: str) -> ConfigurationError:
    if error.errno == errno.EADDRINUSE:
        what = f"port {port} on {host} is taken: stop what listens there, or take another one with {option} PORT"
    elif error.errno == errno.EADDRNOTAVAIL:
        what = f"{host} is not an address of this machine: set {host_setting} to one that is"
    else:
        what = (
            f"port {port} on {host} cannot be used ({os.strerror(error.errno or 0)}): take another with {option} PORT"
        )
    return ConfigurationError(what, port=port)


class _Server(uvicorn.Server):
    """uvicorn without signal handlers: it would stop at once, before the worker, and raise the signal again."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class ApiServer:
    """The running API. ``task`` ends only when the server does."""

    def __init__(
        self,
        app: FastAPI,
        listener: socket.socket,
        *,
        access_log: bool = False,
        limits: ConnectionLimits | None = None,
        grace_seconds: int = GRACE_SECONDS,
    ) -> None:
        self._app = app
        self._listener = listener
        self._server = _Server(
            uvicorn.Config(
                app,
                log_config=None,
                log_level="warning" if not access_log else None,
                access_log=access_log,
                http=bounded_http(limits or default_limits()),
                ws="none",
                server_header=False,
                # Not uvicorn's default, which believes any program of this machine.
                forwarded_allow_ips=os.environ.get(TRUSTED_PROXIES) or [],
                lifespan="on",
                timeout_graceful_shutdown=grace_seconds,
            )
        )
        self.task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start serving, and return when requests are answered. Raises UnavailableError when the app cannot start."""
        AppStatus.should_exit = (
            False  # The library's flag is global to the process and outlives a server stopped before.
        )
        self.task = asyncio.create_task(self._serve(), name="api")
        while not self._server.started:
            if self.task.done():
                await self.task
                raise UnavailableError("the API stopped while it was starting; the log above says why")
            await asyncio.sleep(0.01)
        # What was imported and built so far stays. Without this, the collector goes through it after every few pages.
        gc.collect()
        gc.freeze()

    async def drain(self, seconds: float) -> None:
        """Say on /readyz that the API stops, and serve for this long as before, while balancers turn away from it.

        Every answer asks its client to close the connection: the next one goes to another API.
        """
        self._app.state.draining = True
        await asyncio.sleep(seconds)

    async def stop(self) -> None:
        """Accept no more connections, end event streams, let requests in flight finish, then close. Safe to repeat."""
        if self.task is None:
            self._listener.close()
            return
        self._server.handle_exit(signal.SIGTERM, None)  # also what tells sse-starlette to end its streams
        await asyncio.wait([self.task])
        AppStatus.should_exit = False  # it is of the whole process, and would end the streams of every later server

    async def _serve(self) -> None:
        try:
            await self._server.serve(sockets=[self._listener])
        except SystemExit:  # uvicorn's way to report that the app's lifespan failed; it has logged why
            raise UnavailableError("the API could not start; the log above says why") from None
