"""How an open page says that requests wait: in its list and title, on the app's icon, and with a sound for those who want one."""

from __future__ import annotations

import re

from playwright.async_api import expect

LISTENS = """
window.badges = [];
window.tones = 0;
Navigator.prototype.setAppBadge = async (count) => { badges.push(count); };
const create = AudioContext.prototype.createOscillator;
AudioContext.prototype.createOscillator = function createOscillator() { window.tones += 1; return create.call(this); };
"""
HAS_SOUND = "'sound' in document.body.dataset"


async def choose(page, name):
    await page.goto("/account")
    async with page.expect_navigation():  # the script looks whether the session lives before it sends a form
        await page.get_by_role("button", name=name, exact=True).click()


async def test_a_new_request_is_counted_and_makes_a_sound_if_someone_wants_it(site, open_page):
    """While the page stays open, list, badge, title and the app's icon follow the requests that wait.

    The sound is off by default; on by a button of the account page, after a click or key in the page; off again by the same.
    The account page plays it, whether it is on or off.
    """
    page = await open_page("/account", operator="sam")
    await page.add_init_script(LISTENS)
    await page.reload()
    await page.wait_for_selector("html[data-ready]")
    await page.get_by_role("button", name="Try it").click()
    await page.wait_for_function("() => tones === 2")
    for is_on in (False, True):
        if is_on:
            await choose(page, "Make a sound")
        await page.goto("/")
        await page.wait_for_selector("html[data-ready]")
        assert await page.evaluate(HAS_SOUND) == is_on
        await page.keyboard.press("j")
        before = await page.evaluate("badges.at(-1)")
        request = await site.gated("refund", '{"order": "sound", "cents": 1}')
        await page.wait_for_function("(before) => badges.at(-1) > before", arg=before)
        assert await page.evaluate("tones") == (2 if is_on else 0)
        count = await page.evaluate("badges.at(-1)")
        await expect(page.locator(f'a[href="/requests/{request.id}"]')).to_be_visible()
        await expect(page).to_have_title(re.compile(rf"^\({count}\) Inbox"))
        await expect(page.locator("[data-badge]")).to_contain_text(f"{count} pending")
        await site.stack.decide(request, "reject")
        await page.wait_for_function("(count) => badges.at(-1) < count", arg=count)
        await site.ended(request)
    await choose(page, "No sound")
    assert not await page.evaluate(HAS_SOUND)
    await page.close()
