"""Every state of every page, checked by axe-core: light and dark, wide and on the smallest phone."""

from __future__ import annotations

from typing import Any

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.async_api import expect
from support.pages.browser import browse
from support.planted.pages import STATES, pages_of
from support.planted.text import Filling

ALL_RULES: dict[str, Any] = {"resultTypes": ["violations"], "preload": False}
RULES_OF_A_LOOK = {**ALL_RULES, "runOnly": ["color-contrast", "scrollable-region-focusable", "target-size"]}
"""Those that colours and width can change."""
LOOKS = {
    "wide and light": (1280, 900, "light", ALL_RULES),
    "320 px and dark": (320, 640, "dark", RULES_OF_A_LOOK),
}
ONLY_THE_DECISION = {
    *(
        "approval with an invalid edit",
        "approval with a row more",
        "approval unconfirmed",
        "approval parked and claimed",
    ),
    *("approved", "approved as edited", "answered", "outcome resolved", "expired", "cancelled", "superseded"),
}
"""States whose page is another's but for the decision: only that is looked at."""
IN_SHORT = {"inbox", "approval", "new run", "help"}
"""One of each layout. That each component is readable in every look is proven on the page of all components."""
GRAVE = {"serious", "critical"}
WIDER = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
async def pages(browser, sqlite_template, tmp_path_factory):
    """All pages full of ordinary words, in one browser page that visits them."""
    folder = tmp_path_factory.mktemp("accessible")
    async with (
        pages_of(Filling("Pay the invoice of March"), sqlite_template, folder / "pages") as served,
        browse(browser, {}, served) as pages,
    ):
        yield pages


async def grave_violations(page, options, part="html"):
    result = await page.evaluate("([part, options]) => axe.run(part, options)", [part, options])
    return [report(each) for each in result["violations"] if each["impact"] in GRAVE]


def report(violation):
    places = [f"{', '.join(map(str, node['target']))}: {node['html'][:200]}" for node in violation["nodes"][:4]]
    return "\n  ".join([f"{violation['id']} ({violation['impact']}): {violation['help']}", *places])


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in IN_SHORT else pytest.mark.exhaustive) for name in [*STATES, "help"]],
)
async def test_axe_reports_no_serious_violation(pages, name):
    """No violation of impact serious or critical in any state, in either look, and nothing scrolls sideways."""
    page = await pages.go("runs" if name == "help" else name)
    if name == "help":
        await page.evaluate("document.querySelector('#help').showModal()")
    await page.evaluate(AXE_SCRIPT)
    for look, (width, height, scheme, options) in LOOKS.items():
        await page.set_viewport_size({"width": width, "height": height})
        await page.emulate_media(color_scheme=scheme)
        part = "#decision" if name in ONLY_THE_DECISION else "html"
        assert await grave_violations(page, options, part) == [], look
        assert await page.evaluate(WIDER) <= 0, look
    assert pages.noted == []


UNFOLDED = {
    "the limits of a grant": ("approval with limits of a grant", "#grant", ".limit"),
    "the pattern of a grant": ("approval with a grant to review", "#grant", "#pattern"),
    "the places of a value": ("approval", "#call", "details.origins[open] .origin a"),
    "the forks of a run": ("run failed", "#family-table", "table a"),
    "what holds a run up": ("run running", "#stalls", "li code"),
}
"""What a person unfolds → its page, its part of it, and what is in sight there then."""
EVERY_LOOK = [(width, scheme) for width in (1280, 320) for scheme in ("light", "dark")]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.exhaustive if number else ()) for number, name in enumerate(UNFOLDED)]
)
async def test_axe_reports_nothing_of_what_a_person_unfolds(pages, name):
    """With a grant active, in every colour and width: a grant's form, the places of a value, the forks of a run, its waits."""
    state, part, inside = UNFOLDED[name]
    page = await pages.go(state)
    await expect(page.locator(".standing")).to_be_visible()
    await expect(page.locator(part).locator(inside).first).to_be_visible()
    await page.evaluate(AXE_SCRIPT)
    for width, scheme in EVERY_LOOK:
        await page.set_viewport_size({"width": width, "height": 900})
        await page.emulate_media(color_scheme=scheme)
        assert await grave_violations(page, ALL_RULES, {"include": [[part], [".standing"]]}) == [], (width, scheme)
        assert await page.evaluate(WIDER) <= 0, (width, scheme)
    assert pages.noted == []


async def test_axe_would_report_a_violation(pages):
    """The check itself works: it reports a field without a name, and grey on grey in the dark."""
    page = await pages.go("login")
    await page.evaluate(AXE_SCRIPT)
    await page.evaluate(
        """() => {
            document.querySelector("label[for=login-name]").remove();
            document.querySelector("#main h1").style.color = "var(--line)";
        }"""
    )
    (unnamed,) = [each for each in await grave_violations(page, ALL_RULES) if each.startswith("label ")]
    assert "#login-name" in unnamed
    await page.emulate_media(color_scheme="dark")
    (grey,) = await grave_violations(page, RULES_OF_A_LOOK)
    assert grey.startswith("color-contrast (serious)")


async def test_a_stored_image_is_drawn_and_nothing_is_loaded(pages):
    """Under the pages' own content policy: the real image is drawn, and images from elsewhere are not requested."""
    page = await pages.go("conversation")
    widths = await page.evaluate("[...document.querySelectorAll('main img')].map(each => each.naturalWidth)")
    assert widths == [1] * len(widths)
    assert widths
    assert pages.noted == []
