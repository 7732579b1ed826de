"""Lists without a row: they say what to do next."""

from __future__ import annotations

import pytest
from support.planted.pages import STATES, pages_of
from support.planted.text import Filling

EMPTY = [
    *(
        "inbox empty",
        "inbox without hits",
        "inbox with a filter",
        "inbox of no status",
        "runs empty",
        "runs of no status",
    ),
    *("grants empty", "schedules empty", "new run without agents"),
]


@pytest.fixture(scope="module")
async def html(sqlite_template, tmp_path_factory):
    """Return the empty pages, by state."""
    folder = tmp_path_factory.mktemp("empty")
    async with pages_of(Filling("Pay the invoice of March"), sqlite_template, folder / "pages") as served:
        return {name: await served.html(STATES[name]) for name in EMPTY}


@pytest.mark.parametrize("name", EMPTY)
async def test_an_empty_list_leads_further(html, name):
    """There is a link or a command for the next step."""
    _, mark, rest = html[name].partition('<div class="empty">')
    assert mark
    empty = rest.partition("</div>")[0]
    assert "<a " in empty or "<code>" in empty


async def test_a_search_without_hits_leads_to_all_requests(html):
    """The same words can be looked for among decided requests, too, with one click."""
    assert '<a href="/?status=all&amp;search=no-such-words">' in html["inbox without hits"]
