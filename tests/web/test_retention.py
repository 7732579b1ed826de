"""The page Retention: an admin sees what is kept, holds a conversation, and erases it after typing its id again."""

import html

import pytest
from playwright.async_api import expect

from turngate.store.retention import erasures


async def test_an_admin_holds_releases_and_erases(site, open_plain):
    """Under a hold there is no button; a wrong id is refused and nothing goes; the right one erases, and the list says who."""
    request = await site.gated("refund", '{"order": "erase me", "cents": 1}')
    await site.stack.decide(request, "approve")
    run = await site.stack.ended(await site.run(request))
    page = await open_plain("/audit", operator="root")
    await page.follow("Retention")
    assert "Everything is kept" in page.text
    await page.press("Put on hold", {"target": run.id, "reason": "a <b>lawsuit</b>"})
    assert "The hold applies" in page.text
    await page.press("See what would go", {"target": run.conversation_id})
    assert "A legal hold keeps it: a <b>lawsuit</b>" in page.text
    assert "Erase for good" not in page.text
    await page.follow("Back")
    remove = html.unescape(page.html.partition('aria-label="Remove')[2].partition('"')[0])
    await page.press(f"Remove{remove}", {"reason": "settled"})
    assert "Remove the hold" not in page.text
    await page.press("See what would go", {"target": run.conversation_id})
    wish = {"reason": "Ticket 812", "confirm": run.id}
    await page.press("Erase for good", wish)
    assert (page.status, 'role="alert"' in page.html) == (422, True)
    assert {name: page.value(name) for name in wish} == wish
    async with site.stack.database.read() as conn:
        assert await erasures.newest_of(conn, run.conversation_id) is None
    await page.press("Erase for good", {"confirm": run.conversation_id})
    [row] = [each for each in page.html.split("<tr") if run.conversation_id in each]
    assert "root" in row
    assert "Ticket 812" in row


@pytest.mark.exhaustive
async def test_what_was_typed_stays_where_it_cannot_be_done(site, open_page):
    """A hold on nothing, and an erasure of no one: the page says so, and the form has the words still."""
    page = await open_page("/retention", operator="root")
    hold = page.locator("form[action='/retention/holds']")
    await hold.get_by_label("Conversation, run or agent").fill("run_<b>")
    await hold.get_by_label("Why").fill("a typo")
    await hold.get_by_role("button").click()
    await expect(page.get_by_role("alert")).to_contain_text("run_<b>")
    await expect(hold.get_by_label("Conversation, run or agent")).to_have_value("run_<b>")
    await expect(hold.get_by_label("Why")).to_have_value("a typo")
    await page.get_by_label("Conversation, run or person").fill("no one")
    await page.get_by_role("button", name="See what would go").click()
    await expect(page.get_by_role("alert")).to_contain_text("no one")
    await expect(page.get_by_label("Conversation, run or person")).to_have_value("no one")


@pytest.mark.exhaustive
async def test_operators_see_no_such_page(site, open_page):
    """No link, and 403 for every address of it."""
    page = await open_page("/audit")
    await expect(page.locator("a[href='/retention']")).to_have_count(0)
    for path in ("/retention", "/retention/erase?target=ada"):
        assert (await page.request.get(path)).status == 403
