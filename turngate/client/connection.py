"""What both clients connect with: address, headers, timeouts."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any, Final

import httpx

TIMEOUT: Final = httpx.Timeout(15.0, connect=3.0)
STREAM_TIMEOUT: Final = httpx.Timeout(15.0, connect=3.0, read=45.0)
"""Three heartbeats: a stream silent for longer is dead, though its connection may not know."""
LIMITS: Final = httpx.Limits(keepalive_expiry=2.0)
"""Below uvicorn's 5 s, which is also httpx's default: a request sent as the server closes its idle connection is lost."""


def options(url: str, token: str | None, timeout: httpx.Timeout | float | None) -> dict[str, Any]:
    """Return what an httpx client is made with."""
    headers = {"User-Agent": f"turngate-python/{version('turngate')} httpx/{httpx.__version__}"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    return {
        "base_url": f"{url}/api/v1",
        "headers": headers,
        "timeout": TIMEOUT if timeout is None else timeout,
        "limits": LIMITS,
        "trust_env": False,  # a proxy from the environment must not see tokens meant for loopback
    }
