"""Long calls in a real browser: what is folded, zoomed away or below the screen is not approved."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from playwright.async_api import Browser, Page, expect
from support.api.store_app import desk_on
from support.engine.stack import until
from support.pages.browser import ADDRESS, PageBrowser, browse

SCREENS = {"phone": {"width": 320, "height": 568}, "desktop": {"width": 1280, "height": 720}}
ON_EACH_SCREEN = pytest.mark.parametrize(
    "viewport", [SCREENS["phone"], pytest.param(SCREENS["desktop"], marks=pytest.mark.exhaustive)], ids=SCREENS
)
LINES = "".join(f"line {number}\n" for number in range(45))
NEW = "".join("changed\n" if number in {20, 900} else f"line {number}\n" for number in range(1_000))
HUNK = "@@ -{0},3 +{0},3 @@\n line {1}\n-line {2}\n+changed\n line {3}\n"
DIFF = "--- a/x\n+++ b/x\n" + "".join(HUNK.format(n, n - 1, n, n + 1) for n in (20, 900))
CALL = "document.querySelector('[data-must-see]')"
APPROVE = "[data-approve]"


@asynccontextmanager
async def opened(browser: Browser, database, requests, path: str = "/requests/rq_0", **options) -> AsyncIterator[Page]:
    """Open the page of these calls, as it is served, in a browser that reaches no server: what it sends is noted."""
    async with desk_on(database) as desk:
        run = await desk.run()
        for number, changes in enumerate(requests):
            await desk.put(run, f"rq_{number}", tool_call_id=str(number), **changes)
        html = (await (await desk.person("ann")).get(path)).text
    async with browse(browser, {"it": html}, **options) as pages:
        await pages.page.goto(f"{ADDRESS}/shown/0")
        await pages.page.wait_for_selector("html[data-ready]")
        pages.page.sent = pages
        yield pages.page


def sent_by(page: Page) -> list[str]:
    pages: PageBrowser = page.sent
    return pages.noted


async def read_to_the_end(page: Page) -> None:
    """Scroll through the call to what is next, as a person who reads it, until the page has taken note of all of it."""
    await page.evaluate("scrollTo({ top: 0, behavior: 'instant' })")
    await until(lambda: is_read(page), "all of the call on the screen")
    await page.evaluate(f"{CALL}.scrollIntoView({{ block: 'end', behavior: 'instant' }})")


async def is_read(page: Page) -> bool:
    """Forget what the page has noted, wait until it looks again, and go to what was not on the screen."""
    await page.evaluate(f"delete {CALL}.dataset.seenTo")
    await page.wait_for_selector("[data-must-see][data-seen-to]")
    return await page.evaluate(
        f"""() => {{
            const box = {CALL}.getBoundingClientRect();
            const seen = Number({CALL}.dataset.seenTo);
            if (seen < box.height - 2) scrollBy({{ top: box.top + seen - 10, behavior: "instant" }});
            return seen >= box.height - 2;
        }}"""
    )


async def expect_sent(page: Page) -> None:
    """The approval leaves the browser: a POST, which no one answers here."""
    await until(lambda: asyncio.sleep(0, sent_by(page)), "the approval")


async def hold(page: Page, key: str) -> None:
    for _repeat in range(30):
        await page.keyboard.down(key)
    await page.keyboard.up(key)


async def press_a_twice(page: Page) -> None:
    await page.keyboard.press("a")
    await page.wait_for_selector(f"{APPROVE}[data-ready]")
    await page.keyboard.press("a")


async def expect_refused(page: Page) -> None:
    """Nothing arms or presses the button: no key, held key or bouncing key, no click, no jump to the end."""
    press = "document.body.dispatchEvent(new KeyboardEvent('keydown', { key: 'a', bubbles: true }));"
    await page.evaluate("scrollTo({ top: document.body.scrollHeight, behavior: 'instant' })")
    for act in (lambda: page.keyboard.press("a"), lambda: hold(page, "a"), lambda: page.evaluate(press * 3)):
        await act()
        await expect(page.locator(f"{APPROVE}.armed")).to_have_count(0)
    await page.evaluate(f"document.querySelector('{APPROVE}').click()")
    assert sent_by(page) == []


@ON_EACH_SCREEN
async def test_what_is_folded_is_opened_and_read_before_it_is_approved(browser, sqlite, viewport):
    """A value longer than a screen is folded. It can't be approved before it was open and all of it on the screen."""
    call = {"input": json.dumps({"note": LINES, "last": "the end"})}
    async with opened(browser, sqlite, [call], viewport=viewport) as page:
        fold = page.locator("#argument-1")
        await expect(fold.locator("summary")).to_have_text("25 more lines")
        await expect(fold).not_to_have_attribute("open", "")
        await expect(page.locator(".arguments").get_by_text("the end")).to_be_visible()
        await read_to_the_end(page)  # but for the fold
        await page.evaluate(f"document.querySelector('{APPROVE}').click()")
        await expect(page.locator("[data-say]")).to_contain_text("There is more of the call below")
        await expect(fold).to_have_attribute("open", "")
        await expect_refused(page)
        await read_to_the_end(page)
        await press_a_twice(page)
        await expect_sent(page)


async def test_what_was_seen_does_not_count_for_what_moves_into_its_place(browser, sqlite):
    """Folding and unfolding moves lines: what lies below has to be seen again, and an open fold that was folded again, too."""
    call = {"input": json.dumps({"note": LINES, "other": LINES})}
    async with opened(browser, sqlite, [call], viewport=SCREENS["desktop"]) as page:
        await page.keyboard.press("f")
        await read_to_the_end(page)
        await page.locator("#argument-1 > summary").evaluate("each => each.click()")
        await expect_refused(page)
        await page.evaluate("document.querySelectorAll('.fold').forEach(each => { each.open = true; })")
        await expect_refused(page)
        await read_to_the_end(page)
        await press_a_twice(page)
        await expect_sent(page)


async def test_a_value_whose_changes_are_shown_may_stay_folded(browser, sqlite):
    """A file of a thousand lines with two changes is approved after a look at the diff."""
    call = {"input": json.dumps({"text": NEW}), "preview_kind": "diff", "preview": DIFF}
    async with opened(browser, sqlite, [call], viewport=SCREENS["desktop"]) as page:
        await expect(page.locator("#argument-1 > summary")).to_contain_text("the changes are above")
        await expect(page.locator("#call")).to_contain_text("12 lines, 2 changes")
        await read_to_the_end(page)
        await press_a_twice(page)
        await expect_sent(page)


async def test_at_high_risk_every_value_is_opened(browser, sqlite):
    """There the diff alone is not enough: the value has to be open and read, and the tool's name typed."""
    call = {"input": json.dumps({"text": NEW}), "preview_kind": "diff", "preview": DIFF, "risk": "high"}
    async with opened(browser, sqlite, [call], viewport=SCREENS["desktop"]) as page:
        await read_to_the_end(page)
        await page.locator("#approve-confirm").fill("pay")
        await expect_refused(page)
        await expect(page.locator("#argument-1")).to_have_attribute("open", "")


async def test_m_goes_from_change_to_change(browser, sqlite):
    """Each press of `m` brings the next change to the screen, and begins again at the end. No changed line is ever folded."""
    changes = "".join(f"@@ -{n},1 +{n},1 @@\n-old {n}\n+new {n}\n" for n in range(1, 40))
    unchanged = "@@ -50,20 +50,20 @@\n" + " same\n" * 20
    call = {"preview_kind": "diff", "preview": f"--- a\n+++ b\n{changes}{unchanged}"}
    async with opened(browser, sqlite, [call], viewport=SCREENS["phone"]) as page:
        await expect(page.locator(".diff details")).to_have_count(1)
        await expect(page.locator(".diff details :is(.added, .removed)")).to_have_count(0)
        await expect(page.locator(".diff > .added:visible")).to_have_count(39)
        for _press in range(7):
            await page.keyboard.press("m")
        await expect(page.locator(":focus")).to_contain_text("-old 7")
        await expect(page.locator(":focus")).to_be_in_viewport()
        await expect(page.locator("[data-say]")).to_have_text("Change 7 of 39.")
        for _press in range(33):
            await page.keyboard.press("m")
        await expect(page.locator(":focus")).to_contain_text("-old 1")


@ON_EACH_SCREEN
async def test_several_calls_have_their_folds_opened_and_read(browser, sqlite, viewport):
    """On the page for several, too, no call is approved while one of them is folded, or was not on the screen."""
    calls = [{"input": json.dumps({"note": LINES})}, {"preview_kind": "text", "preview": LINES}, {}]
    path = "/requests/bulk?run_id=run_1"
    async with opened(browser, sqlite, calls, path=path, viewport=viewport) as page:
        await expect(page.locator(APPROVE)).to_have_text("Approve 3")
        await read_to_the_end(page)
        await expect_refused(page)
        await page.keyboard.press("f")
        await expect_refused(page)
        await read_to_the_end(page)
        await press_a_twice(page)
        await expect_sent(page)


@pytest.mark.exhaustive
async def test_larger_letters_have_to_be_read_again(browser, sqlite):
    """Zooming the page moves every line: what was seen before doesn't count."""
    call = {"input": json.dumps({"note": "some words " * 150})}
    async with opened(browser, sqlite, [call], viewport=SCREENS["desktop"]) as page:
        await read_to_the_end(page)
        await page.set_viewport_size({"width": 640, "height": 360})  # as at 200 %
        await expect_refused(page)
        await read_to_the_end(page)
        await page.evaluate("document.documentElement.style.setProperty('font-size', '24px')")
        await expect_refused(page)
        await read_to_the_end(page)
        await press_a_twice(page)
        await expect_sent(page)


async def test_the_side_that_is_zoomed_away_was_not_on_the_screen(browser, sqlite):
    """Where two fingers have zoomed in, the right half of the lines has to be on the screen, too."""
    call = {"input": json.dumps({"order": "A-1"})}
    options = {"viewport": SCREENS["phone"], "is_mobile": True, "has_touch": True}
    async with opened(browser, sqlite, [call], **options) as page:
        devtools = await page.context.new_cdp_session(page)
        await devtools.send("Emulation.setPageScaleFactor", {"pageScaleFactor": 1.5})
        await page.reload()
        await page.wait_for_selector("html[data-ready]")
        await expect_refused(page)
        pan = {"x": 100, "y": 200, "xDistance": 0, "yDistance": 600}

        async def at_the_top() -> bool:
            await devtools.send("Input.synthesizeScrollGesture", pan)
            return await page.evaluate("visualViewport.pageTop === 0")

        await until(at_the_top, "the top of the page on the screen")  # a busy machine ends a gesture sooner
        await page.evaluate(f"scrollBy(0, {CALL}.getBoundingClientRect().top - 10)")
        await page.evaluate(f"delete {CALL}.dataset.seenTo")
        await expect(page.locator("#call")).to_have_attribute("data-seen-to", "0")

        async def panned() -> bool:
            await page.evaluate(f"scrollBy(0, {CALL}.getBoundingClientRect().top - 10)")  # a gesture may have moved it
            await devtools.send("Input.synthesizeScrollGesture", {**pan, "xDistance": -300, "yDistance": 0})
            return await is_read(page)

        await until(panned, "all of the call on the screen")
        await press_a_twice(page)
        await expect_sent(page)
