"""A request's precedents and siblings are on the page, in the terminal and in the terminal UI, whatever is written in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update
from support.pages.html_text import ShownText
from support.planted.pages import STATES, pages_of
from support.planted.text import Filling
from support.stores.changed_rows import log_requests_again

from turngate.approvals_api.principal import Principal
from turngate.approvals_api.requests.precedents import with_precedents
from turngate.approvals_api.requests.views import request_detail
from turngate.cli.follow.request import show_request
from turngate.cli.terminal import out
from turngate.domain.likeness import features
from turngate.frontends.tui.request_text import facts_text
from turngate.store.requests import precedents
from turngate.store.tables import calls, decisions, requests
from turngate.store.tables import precedents as precedents_table

NOW = {"order": "A-102", "cents": 5000}
REASON = "Not\u202e <b>this</b>"
READER = Principal(name="ada", via="session", scopes=frozenset({"requests:read"}))


async def test_each_surface_says_what_was_decided(
    sqlite_template: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The counts with the last reason first; then the nearest with who, how it ended and what differs; and the siblings."""
    async with pages_of(Filling("x"), sqlite_template, tmp_path / "precedents") as served:
        async with served.database.write() as conn:
            await conn.execute(update(requests).values(tool_name="pay", input=json.dumps(NOW)))
            await conn.execute(update(calls).values(tool_name="pay", input=json.dumps(NOW), edited_input=None))
            was = json.dumps({**NOW, "cents": 500, "<i>": 1})
            await conn.execute(
                update(requests).where(requests.c.id == "rq_rejected").values(input=was, decided_by=REASON)
            )
            await conn.execute(update(decisions).values(message=REASON))
            await conn.execute(precedents_table.delete())
            same, other = (
                precedents.Decided(seq=seq, request_id=f"rq_{name}", tool_name="pay", input=text, verb=verb)
                for seq, (name, text, verb) in enumerate(
                    (("approved", json.dumps(NOW), "approve"), ("rejected", was, "reject"))
                )
            )
            await precedents.add(conn, [(each, features("pay", each.input)) for each in (same, other)])
            await log_requests_again(conn)
        page = await served.html(STATES["approval"])
        async with served.database.read() as conn:
            detail = await with_precedents(conn, READER, await request_detail(conn, "rq_approval"))
    assert "<i>" not in page
    assert "<b>this" not in page
    part = page.split('id="precedent"')[1].split("</section>")[0]
    text = " ".join(ShownText(part).text.split())
    for words in (
        "Approved once, rejected once. The last rejection, ",
        "Not⟨U+202E⟩ <b>this</b>",
        "The same call was approved by ",
        "/cents was 500, is 5000",
        "/<i> was 1, is not there",
    ):
        assert words in text, words
    assert "The same step" in ShownText(page).text
    assert 'href="/requests/rq_outcome"' in page
    out.cache_clear()
    show_request(detail)
    output = " ".join(capsys.readouterr().out.split())
    out.cache_clear()
    screen = " ".join(" ".join(each.text.plain for each in facts_text(detail).lines).split())
    for words in (output, screen):
        assert "\u202e" not in words
        assert "Approved once, rejected once. Last rejection: " in words
        assert "/cents was 500, is 5000" in words
        assert "the same call approved by " in words
        assert "pay {" in words
        assert "waits for a decision (rq_outcome)" in words
