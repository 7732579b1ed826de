"""The page of all components: readable and easy to hit, in light, dark, on phones, and in both densities."""

from __future__ import annotations

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from support.pages.browser import browse
from support.pages.components import component_page

ALL_RULES = {"resultTypes": ["violations"]}
RULES_OF_A_LOOK = {**ALL_RULES, "runOnly": ["color-contrast", "scrollable-region-focusable", "target-size"]}
"""Those that colours and width can change."""
LOOKS = {
    "light": (1280, 900, "light", ALL_RULES),
    "small phone in the dark": (320, 640, "dark", RULES_OF_A_LOOK),
    "dark": (1280, 900, "dark", RULES_OF_A_LOOK),
    "phone": (390, 844, "light", RULES_OF_A_LOOK),
}
SMALL = """least => [...document.querySelectorAll('button, .button, summary, select, textarea, input:not([type=hidden])')]
    .map(each => [each, (each.closest('label') ?? each).getBoundingClientRect()])
    .filter(([, box]) => box.height > 0 && (box.height < least || box.width < 24)).map(([each]) => each.outerHTML)"""
"""What can be pressed or filled in, and is less high than that or narrower than 24 pixels."""
WIDER = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
async def pages(browser):
    """The page in both densities."""
    html = {"comfortable": component_page(), "compact": component_page(compact=True)}
    async with browse(browser, html) as pages:
        yield pages


@pytest.mark.parametrize("density", ["comfortable", pytest.param("compact", marks=pytest.mark.exhaustive)])
async def test_every_component_is_readable_and_can_be_hit(pages, density):
    """Nothing is reported by axe, of whatever impact, what can be pressed is 24 pixels high, and nothing scrolls sideways."""
    page = await pages.go(density)
    await page.evaluate(AXE_SCRIPT)
    for look, (width, height, scheme, rules) in LOOKS.items():
        await page.set_viewport_size({"width": width, "height": height})
        await page.emulate_media(color_scheme=scheme)
        result = await page.evaluate("rules => axe.run(document, rules)", rules)
        assert [(each["id"], each["nodes"][0]["html"]) for each in result["violations"]] == [], look
        assert await page.evaluate(SMALL, 24) == [], look
        assert await page.evaluate(WIDER) <= 0, look
    assert pages.noted == []


async def test_a_finger_gets_larger_targets(browser):
    """Where the pointer is a finger, what can be pressed is 44 pixels high."""
    async with browse(browser, {"touched": component_page()}, has_touch=True, is_mobile=True) as pages:
        page = await pages.go("touched")
        await page.set_viewport_size({"width": 390, "height": 844})
        assert await page.evaluate("matchMedia('(pointer: coarse)').matches")
        buttons = page.locator("main button:not(.state), main .button")
        heights = await buttons.evaluate_all("all => all.map(each => each.getBoundingClientRect().height)")
        assert [each for each in heights if each < 41] == []


async def test_the_navigation_folds_on_a_phone(browser):
    """A phone shows the inbox and a menu that opens without a script; a wide screen shows all pages in a line."""
    async with browse(browser, {"page": component_page()}, java_script_enabled=False) as pages:
        page = pages.page
        await page.set_viewport_size({"width": 390, "height": 844})
        await page.goto("/shown/0")
        grants = page.get_by_role("navigation", name="Pages").get_by_role("link", name="Grants")
        assert await grants.count() == 0
        await page.get_by_text("Menu", exact=True).click()
        assert await grants.count() == 1
        await page.set_viewport_size({"width": 1280, "height": 900})
        assert await page.get_by_text("Menu", exact=True).is_hidden()
        assert await grants.count() == 1
