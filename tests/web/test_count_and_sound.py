"""How a page that is open says that requests wait: in its title, on the app's icon, and with a sound for those who want one."""

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


async def opened(open_page, operator, path="/"):
    page = await open_page(path, operator=operator)
    await page.add_init_script(LISTENS)
    await page.goto(path)
    await page.wait_for_selector("html[data-ready]")
    return page


async def choose(page, name):
    await page.goto("/account")
    async with page.expect_navigation():  # the script looks whether the session lives before it sends a form
        await page.get_by_role("button", name=name, exact=True).click()


async def test_the_count_is_in_the_title_and_on_the_icon(site, open_page):
    """Both follow the requests that wait, while the page stays open."""
    page = await opened(open_page, "una")
    before = (await page.evaluate("badges")).pop()
    request = await site.gated("refund", '{"order": "badge", "cents": 1}')
    await page.wait_for_function("(before) => badges.at(-1) > before", arg=before)
    count = (await page.evaluate("badges")).pop()
    await expect(page).to_have_title(re.compile(rf"^\({count}\) "))
    await expect(page.locator("[data-badge]")).to_contain_text(f"{count} pending")
    await site.stack.decide(request, "reject")
    await page.wait_for_function("(count) => badges.at(-1) < count", arg=count)
    await site.ended(request)


async def test_a_new_request_makes_a_sound_if_someone_wants_it(site, open_page):
    """Off by default; on by a button of the account page, after a click or key in the page; off again by the same.

    The account page plays it, whether it is on or off.
    """
    page = await opened(open_page, "sam", "/account")
    await page.get_by_role("button", name="Try it").click()
    await page.wait_for_function("() => tones === 2")
    for is_on in (False, True, False):
        if is_on:
            await choose(page, "Make a sound")
        elif await page.evaluate("'sound' in document.body.dataset"):
            await choose(page, "No sound")
        await page.goto("/")
        await page.wait_for_selector("html[data-ready]")
        await page.keyboard.press("j")
        before = await page.evaluate("badges.at(-1)")
        request = await site.gated("refund", '{"order": "sound", "cents": 1}')
        await page.wait_for_function("(before) => badges.at(-1) > before", arg=before)
        assert await page.evaluate("tones") == (2 if is_on else 0)
        await site.stack.decide(request, "reject")
        await site.ended(request)
