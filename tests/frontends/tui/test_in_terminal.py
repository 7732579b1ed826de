"""The terminal UI as its user uses it: a process with a real terminal."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from support.api.api_server import Api
from support.api.frontend_app import secret
from support.programs.terminal_process import InTerminal


async def test_the_command_decides_in_a_real_terminal(api: Api, tmp_path: Path) -> None:
    """`turngate tui` opens the inbox with the other commands' environment; keys decide, and `q` leaves with code 0."""
    request = await api.gated("pay 5")
    token = await secret(api, "grace", "requests:read", "requests:decide")

    def sit() -> int:
        terminal = InTerminal(
            "tui",
            cwd=tmp_path,
            TURNGATE_API_URL=api.url,
            TURNGATE_TOKEN=token,
            NO_COLOR="1",
            COLUMNS="80",
            LINES="24",
        )
        terminal.wait_for("1 waits for a person")
        terminal.press("\x1b[200~\raa\x1b[201~")  # a bracketed paste
        terminal.press("a")
        terminal.wait_for("This is the call")
        time.sleep(0.4)  # a person looks
        terminal.press("a")
        terminal.wait_for("again to approve")
        time.sleep(0.3)
        terminal.press("a")
        terminal.wait_for("approved by")
        terminal.press("q")
        return terminal.exit_code()

    assert await asyncio.to_thread(sit) == 0
    decided = (await api.operator.get(f"/api/v1/requests/{request['id']}")).json()
    assert (decided["status"], decided["decided_by"]) == ("approved", "grace")
