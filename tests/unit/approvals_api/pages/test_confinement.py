"""A request says how the processes of its call are confined, on the page and in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update
from support.planted.pages import STATES, pages_of
from support.planted.text import Filling
from support.stores.changed_rows import log_requests_again

from turngate.approvals_api.requests.views import request_detail
from turngate.cli.follow.request import show_request
from turngate.cli.terminal import out
from turngate.domain.tools.tool import ProcessConfinement
from turngate.store.tables import requests

UNCONFINED = ProcessConfinement(confined=False, text="Runs unconfined: it can reach this inbox.")


@pytest.mark.exhaustive
async def test_an_unconfined_call_says_so_in_red(
    sqlite_template: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where nothing confines it, the page says it in red and the terminal in capitals; a call without processes says nothing."""
    async with pages_of(Filling("x"), sqlite_template, tmp_path / "confinement") as served:
        async with served.database.write() as conn:
            await conn.execute(update(requests).where(requests.c.id == "rq_approval").values(confinement=None))
            await log_requests_again(conn)
        assert 'id="confinement"' not in await served.html(STATES["approval"])
        async with served.database.write() as conn:
            await conn.execute(
                update(requests).where(requests.c.id == "rq_approval").values(confinement=UNCONFINED.model_dump_json())
            )
            await log_requests_again(conn)
        page = await served.html(STATES["approval"])
        async with served.database.read() as conn:
            detail = await request_detail(conn, "rq_approval")
    assert f'<strong class="unconfined"><bdi lang translate=no>{UNCONFINED.text}</bdi></strong>' in page
    assert detail.confinement == UNCONFINED
    out.cache_clear()
    show_request(detail)
    output = " ".join(capsys.readouterr().out.split())
    out.cache_clear()
    assert f"UNCONFINED {UNCONFINED.text}" in output
