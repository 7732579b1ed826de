"""Every state of every page, looked at by axe-core: light and dark, wide and on the smallest phone."""

from __future__ import annotations

import pytest
from axe_playwright_python.async_playwright import Axe
from planted_pages import STATES, Filling, pages_of
from shown_pages import shown

LOOKS = {
    "wide and light": {"width": 1280, "height": 900, "scheme": "light"},
    "320 px and dark": {"width": 320, "height": 640, "scheme": "dark"},
}
GRAVE = {"serious", "critical"}
WIDER = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
async def pages(browser, sqlite_template, tmp_path_factory):
    """All pages full of ordinary words, in one browser page that walks through them."""
    folder = tmp_path_factory.mktemp("accessible")
    async with pages_of(Filling("Pay the invoice of March"), sqlite_template, folder / "pages") as served:
        html = {name: await served.html(state) for name, state in STATES.items()}
    async with shown(browser, html, bypass_csp=True) as made:
        yield made


def report(violation):
    places = [f"{', '.join(map(str, node['target']))}: {node['html'][:200]}" for node in violation["nodes"][:4]]
    return "\n  ".join([f"{violation['id']} ({violation['impact']}): {violation['help']}", *places])


@pytest.mark.parametrize("name", [*STATES, "help"])
async def test_axe_finds_nothing_serious(pages, name):
    """No violation of impact serious or critical in any state, in either look, and nothing scrolls sideways."""
    page = await pages.go("approval" if name == "help" else name)
    if name == "help":
        await page.evaluate("document.querySelector('#help').showModal()")
    for look, wanted in LOOKS.items():
        await page.set_viewport_size({"width": wanted["width"], "height": wanted["height"]})
        await page.emulate_media(color_scheme=wanted["scheme"])
        found = (await Axe().run(page)).response["violations"]
        grave = [report(each) for each in found if each["impact"] in GRAVE]
        assert grave == [], look
        assert await page.evaluate(WIDER) <= 0, look
