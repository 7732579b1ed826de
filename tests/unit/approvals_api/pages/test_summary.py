"""What a call does, in one sentence: on the request page, in the inbox, on the bulk page, in the terminal and its UI."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update
from support.planted.pages import STATES, Pages, pages_of
from support.planted.text import Filling
from support.stores.changed_rows import log_requests_again

from turngate.approvals_api.requests.views import request_detail, request_page
from turngate.cli.commands.requests.requests import _row
from turngate.cli.follow.request import show_request
from turngate.cli.terminal import out
from turngate.domain.runs.inbox import InboxFilter
from turngate.domain.text.hidden_text import has_hidden
from turngate.domain.tools.summary import describe
from turngate.frontends.tui.request_text import call_text, item_text
from turngate.store.tables import requests

SENTENCE = "Refund <b>5.00 EUR</b>\u202e by 2026-11-23 09:30 UTC, not 2026-99-99 09:30 UTC"
SAFE = "Refund &lt;b&gt;5.00 EUR&lt;/b&gt;"
TIME = (
    '<time datetime="2026-11-23T09:30:00.000000+00:00" title="2026-11-23 09:30:00 UTC" data-minutes>2026-11-23 09:30 UTC</time>'
    ", not 2026-99-99 09:30 UTC"
)


async def planted(served: Pages, summary: str | None) -> None:
    async with served.database.write() as conn:
        await conn.execute(update(requests).values(summary=summary))
        await log_requests_again(conn)


async def test_each_surface_has_the_sentence(
    sqlite_template: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is inert, on one line, with its hidden characters marked; pages put its instants into the reader's zone."""
    async with pages_of(Filling("x"), sqlite_template, tmp_path / "summary") as served:
        await planted(served, SENTENCE)
        for name in ("approval", "inbox", "bulk"):
            page = await served.html(STATES[name])
            assert SAFE in page
            assert TIME in page
        async with served.database.read() as conn:
            detail = await request_detail(conn, "rq_approval")
            items = (await request_page(conn, InboxFilter(), limit=50)).items
    assert {each.summary for each in items} == {SENTENCE}
    out.cache_clear()
    show_request(detail)
    output = " ".join(capsys.readouterr().out.split())
    out.cache_clear()
    screen = " ".join(each.text.plain for each in call_text(detail).lines)
    row, line = item_text(items[0], me="ann", picked=False, width=200).plain, str(_row(items[0])[5])
    for words in (output, screen, row, line):
        assert "Refund <b>5.00 EUR</b>⟨U+202E⟩ by 2026-11-23 09:30 UTC" in words
    assert not has_hidden(line)


async def test_an_older_request_gets_a_rendered_sentence(sqlite_template: Any, tmp_path: Path) -> None:
    """A request without a stored sentence has the one that its declaration and arguments give; a list shows arguments."""
    async with pages_of(Filling("x"), sqlite_template, tmp_path / "older") as served:
        await planted(served, None)
        async with served.database.read() as conn:
            detail = await request_detail(conn, "rq_approval")
        inbox = await served.html(STATES["inbox"])
    assert detail.summary == describe(detail.manifest, detail.input)
    assert 'class="summary does"' not in inbox
