"""The page Retention: an admin sees what is kept, holds a conversation, and erases it after typing its id again."""

import os

import pytest
from playwright.async_api import expect

from turngate.store.retention import erasures


async def test_an_admin_holds_releases_and_erases(site, open_page):
    """Under a hold there is no button; a wrong id is refused and nothing goes; the right one erases, and the list says who."""
    request = await site.gated("refund", '{"order": "erase me", "cents": 1}')
    await site.stack.decide(request, "approve")
    run = await site.stack.ended(await site.run(request))
    page = await open_page("/audit", operator="root")
    await page.get_by_role("link", name="Retention").click()
    await expect(page.get_by_text("Everything is kept")).to_be_visible()
    hold = page.locator("form[action='/retention/holds']")
    await hold.get_by_label("Conversation, run or agent").fill(run.id)
    await hold.get_by_label("Why").fill("a <b>lawsuit</b>")
    await hold.get_by_role("button").click()
    await expect(page.get_by_role("status").filter(has_text="The hold applies")).to_be_visible()
    await page.get_by_label("Conversation, run or person").fill(run.conversation_id)
    await page.get_by_role("button", name="See what would go").click()
    await expect(page.get_by_text("A legal hold keeps it: a <b>lawsuit</b>")).to_be_visible()
    await expect(page.get_by_role("button", name="Erase for good")).to_have_count(0)
    await page.get_by_role("link", name="Back").click()
    await page.get_by_label("Why it can go").fill("settled")
    await page.get_by_role("button", name="Remove the hold").click()
    await expect(page.get_by_role("button", name="Remove the hold")).to_have_count(0)
    await page.get_by_label("Conversation, run or person").fill(run.conversation_id)
    await page.get_by_role("button", name="See what would go").click()
    await page.get_by_label("Why").fill("Ticket 812")
    await page.get_by_label("to confirm").fill(run.id)
    if directory := os.environ.get("TURNGATE_SCREENSHOTS"):
        await page.screenshot(path=f"{directory}/erase.png", full_page=True)
    async with page.expect_response("**/retention/erase") as refused:
        await page.get_by_role("button", name="Erase for good").click()
    assert (await refused.value).status == 422
    await expect(page.get_by_role("alert")).to_be_visible()
    await expect(page.get_by_label("Why")).to_have_value("Ticket 812")
    await expect(page.get_by_label("to confirm")).to_have_value(run.id)
    async with site.stack.database.read() as conn:
        assert await erasures.newest_of(conn, run.conversation_id) is None
    await page.get_by_label("to confirm").fill(run.conversation_id)
    await page.get_by_role("button", name="Erase for good").click()
    row = page.locator("tr").filter(has_text=run.conversation_id)
    await expect(row).to_contain_text("root")
    await expect(row).to_contain_text("Ticket 812")
    if directory := os.environ.get("TURNGATE_SCREENSHOTS"):
        await page.screenshot(path=f"{directory}/retention.png", full_page=True)
    await page.goto(f"/runs/{run.id}")
    await expect(page.locator("#erased").first).to_contain_text("by root: Ticket 812")


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
