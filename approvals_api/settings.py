"""What the API is told from outside, as one frozen value; the composition root makes it from turngate's settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]"})
"""Names a browser on this machine may call a server that is bound to loopback."""


def is_loopback(host: str) -> bool:
    """Tell whether a bind address is loopback, and so reachable from this machine only."""
    return host in {"localhost", "::1"} or host.startswith("127.")


@dataclass(frozen=True, kw_only=True)
class ApiSettings:
    """Settings of one API process.

    ``host``: the address it is bound to; on loopback only requests for a loopback name are answered (DNS rebinding).
    ``more_host_names``: further names to answer to there, such as a reverse proxy's. ``update_wait``: how long a
    decision waits for a worker before it is sent as a Signal. ``sse_ping``: pause between heartbeat comments.
    """

    host: str = "127.0.0.1"
    more_host_names: frozenset[str] = field(default_factory=frozenset)
    heartbeat_timeout_seconds: int = 10
    update_wait: timedelta = timedelta(seconds=3)
    sse_ping: timedelta = timedelta(seconds=15)
    max_body_bytes: int = 2 * 1024 * 1024

    @property
    def host_names(self) -> frozenset[str] | None:
        """Names that requests may be addressed to, without port; None: any."""
        return LOOPBACK_NAMES | self.more_host_names if is_loopback(self.host) else None
