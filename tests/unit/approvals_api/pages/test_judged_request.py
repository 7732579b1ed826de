"""A judge's words are next to the request, on the page and in the terminal, labelled as a model's."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from support.planted.pages import STATES, pages_of
from support.planted.text import Filling

from turngate.approvals_api.requests.views import request_detail
from turngate.cli.follow.request import show_request
from turngate.cli.terminal import out
from turngate.text.run_words import judgement_words

REASON = "small\u202e enough"


class _Judged(HTMLParser):
    """Return the text of the page's part about the judge."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.text, self.inside = "", 0
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if ("id", "judged") in attrs or (self.inside and tag == "div"):
            self.inside += 1

    def handle_endtag(self, tag: str) -> None:
        self.inside -= self.inside > 0 and tag == "div"

    def handle_data(self, data: str) -> None:
        self.text += data if self.inside else ""


async def test_the_judges_words_are_labelled(
    sqlite_template: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its name, its verdict, its words with hidden characters spelled out; a failure's message is not a model's words."""
    async with (
        pages_of(Filling(REASON), sqlite_template, tmp_path / "judged") as served,
        served.database.read() as conn,
    ):
        page = " ".join(_Judged(await served.html(STATES["approval"])).text.split())
        detail = await request_detail(conn, "rq_approval")
    for piece in ("The judge (model ", ") would have allowed this: ", "U+202E", "A model's words. They have no effect"):
        assert piece in page
    assert "\u202e" not in page
    out.cache_clear()
    show_request(detail)
    output = " ".join(capsys.readouterr().out.split())
    out.cache_clear()
    assert "the judge (model small" in output
    assert "would have allowed this: “small" in output
    assert "(a model's words)" in output
    assert detail.judged is not None
    failed = detail.judged.model_copy(update={"verdict": "ask", "problem": "timeout", "reason": "It was late."})
    assert judgement_words(failed).endswith("gave no answer: It was late.")
