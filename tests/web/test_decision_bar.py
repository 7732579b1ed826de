"""The bar with the decision on a small screen: always in reach, and no way around reading the call."""

from __future__ import annotations

import json
import re

import pytest
from playwright.async_api import expect
from support.engine.stack import until
from support.pages.html_forms import PostedPage

PHONES = pytest.mark.parametrize(
    "viewport",
    [{"width": 320, "height": 568}, pytest.param({"width": 390, "height": 844}, marks=pytest.mark.exhaustive)],
)
NOTE = "".join(f"line {number}\n" for number in range(50))
ON_SCREEN = """(() => {
    const [call, bar] = ['#call', '.bar'].map(each => document.querySelector(each).getBoundingClientRect());
    return Math.round(Math.min(call.height, bar.top - call.top));
})()"""
SEEN = "Number(document.querySelector('#call').dataset.seenTo)"


def tall(order: str) -> str:
    return json.dumps({"order": order, "cents": 1, "note": NOTE})


async def read_to_the_end(page):
    """Scroll through the call as a person does: on after what is on the screen counts as seen."""
    unseen = page.locator("[data-unseen]")
    while await unseen.is_visible():
        on_screen = await page.evaluate(ON_SCREEN)
        await until(lambda: page.evaluate(f"{SEEN} >= {on_screen} - 2"), "what is on the screen counts as seen")  # noqa: B023
        await page.evaluate("scrollBy({ top: innerHeight * 0.5, behavior: 'instant' })")


@PHONES
async def test_the_bar_names_what_was_not_seen_and_approves_after_it_was(site, open_page, viewport):
    """Its Approve does nothing before all of the call was on the screen; it says what is missing, and leads there.

    What is below its upper edge was not on the screen, and it names an argument that begins there. Its buttons are 44 px high or
    more, the link to the unseen 24 px, and the page has room below its end for the bar.
    """
    request = await site.gated("refund", tall(f"bar-{viewport['width']}"))
    page = await open_page(f"/requests/{request.id}", viewport=viewport)
    bar = page.locator(".bar")
    approve = bar.get_by_role("button", name="Approve", exact=True)
    await expect(bar).to_be_in_viewport(ratio=1)
    await expect(bar.locator("[data-unseen]")).to_contain_text("Not seen yet:")
    assert await page.evaluate(SEEN) <= max(0, await page.evaluate(ON_SCREEN)) + 1
    named = (await bar.locator("[data-unseen]").inner_text()).removeprefix("Not seen yet: ").split(" and ")[0]
    row = await page.locator("#call .arguments > div", has=page.locator("dt", has_text=named)).bounding_box()
    top = (await bar.bounding_box())["y"]
    assert row["y"] + row["height"] > top, "the argument that it names was on the screen"
    for name in ("Approve", "Reject"):
        box = await bar.get_by_role("button", name=name, exact=True).bounding_box()
        assert min(box["width"], box["height"]) >= 44, name
    assert (await bar.locator("[data-unseen]").bounding_box())["height"] >= 24
    await page.evaluate("scrollTo({ top: document.body.scrollHeight, behavior: 'instant' })")
    last = await page.locator(".request > section").last.bounding_box()
    assert last["y"] + last["height"] <= (await bar.bounding_box())["y"], "the bar covers the page's end"
    await approve.click()
    await expect(page.locator("[data-say]")).to_contain_text("There is more of the call below")
    await expect(page.locator("#call")).to_be_in_viewport()
    await page.evaluate("scrollTo({ top: document.body.scrollHeight, behavior: 'instant' })")
    await bar.locator("[data-unseen]").click()
    await expect(page.locator("#call")).to_be_in_viewport()
    assert (await site.now(request)).status == "pending"
    await read_to_the_end(page)
    await approve.click()
    await expect(page.locator("#decision")).to_contain_text("Approved by ada")
    await site.ended(request)


async def test_without_javascript_the_bar_decides(site, open_plain):
    """Its buttons belong to the forms. The agent gets the reason that was typed, line ends and all."""
    request = await site.gated("refund", '{"order": "bar plain", "cents": 7}')
    page = await open_plain(f"/requests/{request.id}")
    bar = page.html.partition("data-bar>")[2].partition("</div>")[0]
    buttons = PostedPage(page.html).forms
    assert re.findall(r'<button [^>]*form="([^"]+)"', bar) == ["form-edit", "form-edit", "form-reject"]
    assert {each.attributes.get("id") for each in buttons} >= {"form-edit", "form-reject"}
    await page.press("Reject", {"reject-message": "Too much.\nAsk first."})
    assert "Rejected by ada" in page.section("decision")
    assert "Too much. Ask first." in page.text
    assert "data-bar>" not in page.html
    result = (await site.ended(request)).settled_result
    assert result.kind == "rejected"
    assert "Too much.\nAsk first." in result.reason


async def test_a_call_of_high_risk_leads_to_its_confirmation(site, open_page):
    """The bar can't send what needs the tool's name typed: it leads to that field."""
    request = await site.gated("deploy", '{"target": "bar"}')
    page = await open_page(f"/requests/{request.id}", viewport={"width": 390, "height": 844})
    await read_to_the_end(page)
    await page.locator(".bar").get_by_role("link", name="Approve").click()
    await expect(page.locator("#approve-confirm")).to_be_focused()
    await expect(page.locator("#approve-confirm")).to_be_in_viewport()
    assert (await site.now(request)).status == "pending"


async def test_beside_the_decision_there_is_no_bar(site, open_page):
    """A wide screen has the decision at its side, and no second set of buttons; nor has a person who may not decide."""
    request = await site.gated("refund", '{"order": "bar wide", "cents": 7}')
    page = await open_page(f"/requests/{request.id}")
    await expect(page.locator(".bar")).to_be_hidden()
    mine = await site.gated("edit_file", '{"path": "n.txt", "old": "was", "new": "is"}')
    page = await open_page(f"/requests/{mine.id}", operator=mine.not_by, viewport={"width": 390, "height": 844})
    await expect(page.locator("#decision .warn")).to_contain_text("You can't decide this")
    await expect(page.locator(".bar")).to_have_count(0)
