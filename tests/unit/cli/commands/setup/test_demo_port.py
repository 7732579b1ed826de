"""The demo beside another Turngate that has its port."""

from __future__ import annotations

import socket
from pathlib import Path

from turngate.cli.commands.setup.demo import _listener
from turngate.runtime.settings import Settings


def test_i13_a_demo_on_another_port_sends_no_token_and_no_one_to_the_other_turngate(tmp_path: Path) -> None:
    """Its log-in link makes an admin, and its client has the owner's token: both are for the demo alone."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        settings = Settings(
            data_dir=tmp_path,
            api_port=taken,
            api_url=f"http://127.0.0.1:{taken}",
            public_url="https://approvals.example.com",
        )
        listener, moved = _listener(settings, fixed=False)
    with listener:
        own = f"http://127.0.0.1:{listener.getsockname()[1]}"
    assert moved.api_port != taken
    assert (moved.resolved_api_url, moved.resolved_public_url) == (own, own)
