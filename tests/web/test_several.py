"""Several requests decided in one act: a whole step, or any selection of the inbox."""

from __future__ import annotations

import json
import re

import pytest
from playwright.async_api import expect
from support.pages.keyboard import Keyboard

SCREENS = [{"width": 320, "height": 568}, {"width": 1280, "height": 720}]


def refund(order: str) -> str:
    return json.dumps({"order": order, "cents": 7})


@pytest.mark.parametrize(
    "viewport", [SCREENS[0], pytest.param(SCREENS[1], marks=pytest.mark.exhaustive)], ids=["phone", "desktop"]
)
async def test_a_step_is_decided_by_few_keys(site, open_page, viewport):
    """`b`, a look at every call and `a` `a` approve all of a step but what needs a decision of its own; `n` goes there."""
    mark = f"step-{viewport['width']}"
    step = [("refund", refund(f"{mark}-{number}")) for number in range(4)]
    waiting = await site.gated_step(*step, ("deploy", json.dumps({"target": mark})))
    risky = next(each for each in waiting if each.tool_name == "deploy")
    others = [each for each in waiting if each is not risky]
    page = await open_page(f"/requests/{others[0].id}", viewport=viewport)
    keys = Keyboard(page)
    await keys.press("b")
    await page.wait_for_url("**/requests/bulk?**")
    await expect(page.locator("h1")).to_have_text("May these 4 run?")
    await expect(page.locator("#left-out + .rows")).to_contain_text("it is of high risk")
    await expect(page.locator(".several")).to_contain_text(f"{mark}-3")
    await keys.read_to_the_end()
    scrolled = keys.pressed - 1
    await keys.approve()
    await expect(page.locator("h1")).to_have_text("4 of 5 decided")
    assert keys.pressed - scrolled == 3
    assert (await site.now(risky)).status == "pending"
    await keys.press("n")
    await page.wait_for_url(f"**/requests/{risky.id}")
    await site.stack.decide(risky, "reject")
    await site.ended(risky)
    assert sorted(ran["order"] for ran in site.ran.of("refund") if ran["order"].startswith(mark)) == [
        f"{mark}-{number}" for number in range(4)
    ]


async def test_calls_below_the_screen_are_not_approved(site, open_page):
    """Neither `a` nor the button approves several calls before the last of them was on the screen, nor does a held key."""
    waiting = await site.gated_step(*(("refund", refund(f"unseen-{number}")) for number in range(8)))
    page = await open_page(f"/requests/bulk?run_id={waiting[0].run_id}", viewport=SCREENS[0])
    await page.evaluate("scrollTo({ top: document.body.scrollHeight, behavior: 'instant' })")
    await page.locator("[data-approve]").click()
    await expect(page.locator("[data-say]")).to_contain_text("There is more of the call below")
    for _press in range(2):
        await page.keyboard.press("a")
    for _repeat in range(30):
        await page.keyboard.down("a")
    await page.keyboard.up("a")
    await expect(page.locator("[data-approve]")).to_have_text("Approve 8")
    assert [(await site.now(each)).status for each in waiting] == ["pending"] * 8
    await page.get_by_label("Reason to reject").fill("all wrong")
    await page.get_by_role("button", name="Reject 8").click()
    await expect(page.locator("h1")).to_have_text("8 of 8 decided")
    assert all(["all wrong" in (await site.ended(each)).settled_result.reason for each in waiting])


async def test_a_mixed_selection_is_rejected_with_one_reason(site, open_plain):
    """Without JavaScript: calls of different tools and risks are rejected together, and the way back is the list's own."""
    waiting = [
        await site.gated("refund", refund("mixed")),
        await site.gated("shell", '{"argv": ["ls"]}'),
        await site.gated("deploy", '{"target": "mixed"}'),
    ]
    page = await open_plain("/?order=age")
    await page.press("Review the selected requests", {f"pick-{each.id}": each.digest for each in waiting})
    assert "May these 2 run?" in page.text
    await page.press("Reject all", {"message": "not today"})
    assert "3 of 3 decided" in page.text
    for each in waiting:
        assert "not today" in (await site.ended(each)).settled_result.reason
    await page.follow("To the inbox")
    assert page.url.endswith("/?order=age")


async def test_a_group_of_alike_calls_says_what_differs_and_is_decided_at_once(site, open_page):
    """Of twelve alike refunds the one that differs comes first and says in what; `X` and the form decide the whole group."""
    text = json.dumps({"order": "G-1", "cents": 7, "note": "alike", "speed": "normal"})
    waiting = await site.gated_step(*[("refund", text)] * 11, ("refund", text.replace("normal", "express")))
    odd = next(each for each in waiting if "express" in each.input)
    page = await open_page(f"/?run_id={waiting[0].run_id}&group=alike", viewport=SCREENS[0])
    group = page.locator("[data-group]")
    await expect(group.locator("h2")).to_have_text("refund 11 alike; 1 differs")
    await expect(group.locator(".row").first).to_have_attribute("id", odd.id)
    await expect(group.locator(".row").first).to_contain_text("differs in speed")
    await expect(group.locator("summary")).to_have_text("10 more, the same")
    await page.keyboard.press("j")
    await page.keyboard.press("X")
    await expect(group.locator("[data-pick]:checked")).to_have_count(12)
    await page.keyboard.press("j")
    await page.keyboard.press("j")  # what is folded is passed over
    await expect(page.locator(".marked")).not_to_have_attribute("id", odd.id)
    await expect(page.locator(".marked")).to_be_visible()
    await page.keyboard.press("X")
    await expect(group.locator("[data-pick]:checked")).to_have_count(0)
    await page.get_by_role("button", name="Review all 12").click()
    await expect(page.locator("h1")).to_have_text("May these 12 run?")
    await page.get_by_label("Reason to reject").fill("twelve times the same")
    await page.get_by_role("button", name="Reject 12").click()
    await expect(page.locator("h1")).to_have_text("12 of 12 decided")
    assert "group=alike" in await page.get_by_role("link", name="To the inbox").get_attribute("href")


@pytest.mark.exhaustive
async def test_next_follows_the_groups(site, open_page):
    """With groups by run, the next request after a decision is the next one of the same run, without JavaScript, too."""
    first = await site.gated_step(("refund", refund("g-a")), ("refund", refund("g-b")))
    second = await site.gated_step(("refund", refund("g-c")), ("refund", refund("g-d")))
    page = await open_page("/?group=run&tool=refund", java_script_enabled=False)
    for members in (first, second):
        headings = page.locator("[data-group]").filter(has=page.locator(f"[id='{members[0].id}']"))
        ids = [await each.get_attribute("id") for each in await headings.locator(".row").all()]
        assert sorted(ids) == sorted(each.id for each in members)
        opened = await open_page(f"/requests/{ids[0]}?list=group%3Drun%26tool%3Drefund", java_script_enabled=False)
        await opened.get_by_role("button", name="Reject").click()
        await opened.locator("[data-next]").click()
        await expect(opened).to_have_url(re.compile(ids[1]))
        await opened.get_by_role("button", name="Reject").click()
