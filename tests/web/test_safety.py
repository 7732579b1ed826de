"""What an agent or a tool wrote stays text; the pages fit a small screen; every control has a name."""

import pytest
from playwright.async_api import expect
from support.pages.browser import browse
from support.pages.icons import ICONS
from support.planted.hostile_texts import EVERYTHING, EVERYTHING_IN_JSON, EVERYTHING_IN_RAW_JSON
from support.planted.pages import pages_of
from support.planted.text import PIXEL, Filling

from turngate.domain.text.hidden_text import is_hidden

LONG = "x" * 400
PAGES = ["approval", "run completed"]
MORE_PAGES = [
    *("inbox", "conversation"),
    *("approval with a diff", "approval of a command", "question", "rejected", "run running"),
    *("result", "new run", "grants", "audit", "not found", "run retrying", "external call", "fork summarised"),
]
"""One of each layout; that hostile text is only text in every state is proven without a browser."""
OWNED = "window.owned = () => { window.wasOwned = true; }"
POINT_AT_ALL = """() => document.querySelectorAll('body *').forEach(each => {
    for (const type of ['mouseover', 'focus', 'error', 'load']) each.dispatchEvent(new Event(type));
})"""
DRAWN = f'img.picture[src="data:image/png;base64,{PIXEL}"]'
"""The one stored image that is what it says it is; the others are only text."""
LOOK = """ICONS => {
    document.querySelectorAll('main details').forEach(each => { each.open = true });
    return {
    elements: document.querySelectorAll('main script, main img:not(DRAWN), main b, main iframe, main style').length
        + [...document.querySelectorAll('main svg:not(.drawing)')].filter(each => !ICONS.includes(each.outerHTML)).length
        + document.querySelectorAll('svg.drawing :not(path, rect, text, title, a)').length,
    links: [...document.querySelectorAll('main a')].map(link => link.href.baseVal ?? link.href)
        .filter(href => href.includes('evil')).length,
    text: document.querySelector('main').textContent
        + [...document.querySelectorAll('main textarea, main input:not([type=hidden])')].map(each => each.value).join(''),
    wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    unnamed: [...document.querySelectorAll('main input:not([type=hidden]), main textarea, main select')]
        .filter(each => !each.labels.length && !each.getAttribute('aria-label')).map(each => each.outerHTML),
    doubled: [...document.querySelectorAll('[id]')].map(each => each.id).filter((id, at, all) => all.indexOf(id) !== at),
    };
}""".replace("DRAWN", DRAWN)


@pytest.fixture(scope="module")
async def hostile_pages(browser, sqlite_template, tmp_path_factory):
    """Pages with every hostile text and a very long word in each field, on the smallest phone, without the CSP's help."""
    folder = tmp_path_factory.mktemp("hostile")
    texts = [f"{each} {LONG}" for each in (EVERYTHING, EVERYTHING_IN_JSON, EVERYTHING_IN_RAW_JSON)]
    async with (
        pages_of(Filling(*texts), sqlite_template, folder / "pages") as served,
        browse(browser, {}, served, bypass_csp=True, viewport={"width": 320, "height": 640}) as pages,
    ):
        await pages.page.add_init_script(OWNED)
        yield pages


@pytest.mark.parametrize("name", [*PAGES, *(pytest.param(name, marks=pytest.mark.exhaustive) for name in MORE_PAGES)])
async def test_hostile_text_does_nothing_and_fits_320_pixels(hostile_pages, name):
    """With every hostile text in every field no script runs, no dialog opens, no request leaves, no element or link appears.

    Each hidden character is spelled out. Nothing scrolls sideways, even long words; every control has a name, every id
    is unique. A table that is wider than the page scrolls in its own box, which takes the focus.
    """
    page = await hostile_pages.go(name)
    await page.evaluate(POINT_AT_ALL)
    seen = await page.evaluate(LOOK, ICONS)
    assert (seen["elements"], seen["links"]) == (0, 0)
    assert await page.evaluate("window.wasOwned === undefined")
    assert hostile_pages.noted == []
    assert [hex(ord(char)) for char in set(seen["text"]) if is_hidden(char)] == []
    assert (seen["unnamed"], seen["doubled"]) == ([], [])
    assert seen["wide"] <= 0
    if name == "run completed":
        table = page.get_by_role("region", name="Table").first
        await expect(table).to_be_visible()
        assert await table.evaluate("each => each.scrollWidth > each.clientWidth"), "the table's own box doesn't scroll"
        await table.focus()
        await expect(table).to_be_focused()


async def test_a_requests_page_has_its_parts_in_order_and_marked_up(site, open_page):
    """The call, calls like it, the decision, why, effect, the agent's words, the comments: for eyes and ears (DESIGN §15).

    A diff has its added and removed lines marked; a command has each word apart.
    """
    edit = await site.gated("edit_file", '{"path": "n.txt", "old": "was", "new": "is"}')
    page = await open_page(f"/requests/{edit.id}")
    order = await page.evaluate("[...document.querySelectorAll('.request > section')].map(each => each.classList[0])")
    assert order == ["call", "precedent", "decision", "why", "effect", "words-of-agent", "comments", "conversation"]
    await expect(page.locator(".digest")).to_contain_text(edit.digest)
    await expect(page.locator(".effect")).to_contain_text("scripted model")
    await expect(page.locator(".diff .added .code")).to_have_text("+is")
    await expect(page.locator(".diff .removed .code")).to_have_text("-was")
    command = await site.gated("shell", '{"argv": ["rm", "-rf", "my dir"]}')
    await page.goto(f"/requests/{command.id}")
    await expect(page.locator(".command")).to_have_text("rm -rf 'my dir'")
    await expect(page.locator(".words li")).to_have_text(["rm", "-rf", "my dir"])
