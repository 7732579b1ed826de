"""A person who approves fast, in a real browser: the button counts the seconds that the server wants."""

from __future__ import annotations

from playwright.async_api import expect
from support.api.store_app import desk_on
from support.pages.browser import browse
from support.pages.html_forms import PostedPage

from turngate.approvals_api.settings import ApiSettings

WAIT = 3_000
"""Seconds, instead of the server's ten: the test's own time is a part of them."""


async def test_the_button_is_off_until_the_wait_is_over(browser, sqlite):
    """It says how long, no key presses it meanwhile, and it works afterwards."""
    async with desk_on(sqlite, ApiSettings(approval_pace=1)) as desk:
        desk.services.pace.clock = lambda: 1_000.0
        run = await desk.run()
        for number in range(2):
            await desk.put(run, f"rq_{number}")
        ann = await desk.person("ann")
        for number in range(2):
            form = PostedPage((await ann.get(f"/requests/rq_{number}")).text).form("approve")
            answer = await ann.post(f"/requests/rq_{number}", data=form.sent)
    waits = answer.text.replace('data-wait="10"', f'data-wait="{WAIT}"')
    assert waits != answer.text
    async with browse(browser, {"waits": waits}) as opened:
        await opened.page.clock.install()
        page = await opened.go("waits")
        button = page.locator("[data-approve]")
        await expect(button).to_be_disabled()
        await expect(button).to_contain_text("Approve (in ")
        await expect(page.locator("#attempt")).to_contain_text("Take a breath. You approved 1 call")
        await page.keyboard.press("a")
        await page.keyboard.press("a")
        await expect(button).to_contain_text("Approve (in ")
        await page.clock.fast_forward((WAIT - 60) * 1_000)
        await expect(page.locator("[data-say]")).to_contain_text("Not connected")  # said once, so not over what follows
        await page.clock.fast_forward(61_000)
        await expect(button).to_be_enabled()
        await expect(button).to_have_text("Approve")
        await expect(page.locator("[data-say]")).to_have_text("You can approve it now.")
        assert opened.noted == []
