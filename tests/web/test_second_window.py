"""What a window says when someone else, or another window, decides the request that it shows."""

from __future__ import annotations

import json
import re
from dataclasses import replace

from playwright.async_api import expect
from support.engine.stack import OPERATOR
from support.stores.changed_rows import changed

from turngate.store import tables

BOB = replace(OPERATOR, name="bob")


def refund(order: str) -> str:
    return json.dumps({"order": order, "cents": 7})


async def test_other_windows_say_who_decided(site, open_page):
    """One in which no one types shows the decision, and a screen reader hears it; one in which someone types keeps the text.

    There the buttons are off and no key decides, until a reload.
    """
    request = await site.gated("refund", refund("two windows"))
    page, idle = [await open_page(f"/requests/{request.id}") for _ in range(2)]
    await page.locator("#reject-message").fill("I was about to say no, because")
    await site.stack.decide(request, "approve", by=BOB)
    for window in (page, idle):
        await expect(window.locator("[data-say]")).to_contain_text("bob approved this.")
    await expect(idle.locator("#decision")).to_contain_text("Approved by bob")
    await expect(page.locator("[data-stale]")).to_contain_text(
        "bob approved this. Nothing can be decided here any more."
    )
    for name in ("Approve", "Reject"):
        await expect(page.get_by_role("button", name=name, exact=True)).to_be_disabled()
    await page.keyboard.press("Escape")
    await page.keyboard.press("a")
    await page.keyboard.press("a")
    await expect(page.locator("#reject-message")).to_have_value("I was about to say no, because")
    await expect(page.get_by_role("button", name="Approve", exact=True)).to_have_text("Approve")
    await page.get_by_role("link", name="Reload").click()
    await expect(page.locator("#decision")).to_contain_text("Approved by bob")
    await site.ended(request)


async def test_several_calls_say_which_of_them_was_decided_meanwhile(site, open_page):
    """On the page of several calls, the one that someone else decided says so and is offered no more, also without a stream."""
    waiting = await site.gated_step(*(("refund", refund(f"m-{each}")) for each in range(3)))
    page = await open_page(f"/requests/bulk?run_id={waiting[0].run_id}")
    await site.stack.decide(waiting[1], "reject", by=BOB)
    await expect(page.locator(f'[data-of="{waiting[1].id}"]')).to_contain_text("bob has rejected this meanwhile.")
    await expect(page.locator(f'[data-of="{waiting[0].id}"] [data-meanwhile]')).to_have_text("")
    await expect(page.get_by_role("button", name="Reject 2")).to_be_enabled()
    await page.locator("#reject-message").fill("not today")
    await page.evaluate("dispatchEvent(new PageTransitionEvent('pagehide'))")  # its stream is closed
    await site.stack.decide(waiting[2], "approve", by=BOB)
    await expect(page.locator("#main.settling")).to_have_count(0)
    await page.get_by_role("button", name="Reject 2").click()
    await expect(page.locator(f'[data-of="{waiting[2].id}"]')).to_contain_text("This is no longer pending.")
    await expect(page.locator("#reject-message")).to_have_value("not today")
    await expect(page.locator("#main.settling")).to_have_count(0)
    await page.get_by_role("button", name="Reject 1").click()
    await expect(page.locator("h1")).to_have_text("1 of 1 decided")
    await site.ended(waiting[0])


async def test_an_approval_is_taken_back_before_its_call_starts(site, open_page, open_plain):
    """The page counts down, and leads to the request that asks again; without JavaScript, too. Someone else's window says so."""
    request = await site.gated("refund", refund("in its grace"))
    terms = json.dumps({"grace_seconds": 3600})
    async with changed(site.stack.database, tables.requests, {"id": request.id}, terms=terms):
        plain = await open_plain(f"/requests/{request.id}")
        assert "until then you can take the approval back" in plain.text
        await plain.press("Approve")
        assert re.search(r"The call starts in (59 min|1 h), at ", plain.text)
        other = await open_page(f"/requests/{request.id}", operator="zoe")
        await expect(other.locator("#decision")).to_contain_text("Approved by ada")
        await plain.press("Take back your approval")
        assert "You took your approval back." in plain.text
        await expect(other.locator("#void")).to_contain_text("This approval no longer counts")
        await expect(other.locator("[data-countdown]")).to_have_count(0)
        assert "ada took an approval of this call back." in plain.text
        assert plain.url != f"{site.url}/requests/{request.id}"
        page = await open_page(plain.url.removeprefix(site.url))
        await page.get_by_role("button", name="Approve", exact=True).click()
        await expect(page.locator("[data-withdraw]")).to_be_visible()
        await page.keyboard.press("z")
        await expect(page.locator("[data-withdraw]")).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(page.locator(".why")).to_contain_text("ada took an approval of this call back.")
        await page.get_by_role("button", name="Reject", exact=True).click()
        await expect(page.locator("#decision")).to_contain_text("Rejected by ada")
        await plain.open(f"/requests/{request.id}")
        assert "This answer no longer counts." in plain.text
        assert "data-withdraw" not in plain.html
    await site.ended(request)
