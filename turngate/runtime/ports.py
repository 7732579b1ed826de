"""Loopback ports for servers we start: is one free, and which one to take."""

from __future__ import annotations

import secrets
import socket
from typing import Final

LOWEST: Final = 20_000
HIGHEST: Final = 31_999
"""Below Linux's ephemeral range (32768-60999). A client that reconnects in a loop to a loopback port *inside* that range
may be given the very same port as its source and connect to itself (TCP simultaneous open); the restarted server then
finds its port taken, by us."""


def is_free(port: int) -> bool:
    """Return whether a server could listen on 127.0.0.1:``port`` now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do, or connections of the last server that are still in TIME_WAIT would count as taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen(1)
        except OSError:
            return False
    return True


def choose_port() -> int:
    """Return a free loopback port, chosen at random so that stacks which start together seldom meet."""
    span = HIGHEST - LOWEST + 1
    first = secrets.randbelow(span)
    for offset in range(span):
        port = LOWEST + (first + offset) % span
        if is_free(port):
            return port
    raise OSError(f"no free port between {LOWEST} and {HIGHEST} on 127.0.0.1")
