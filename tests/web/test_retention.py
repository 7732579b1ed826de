"""The page Retention: an admin sees what is kept, holds a conversation, and erases it after typing its id again."""

from turngate.store.retention import erasures


async def test_an_admin_holds_releases_and_erases(site, open_plain):
    """Under a hold there is no button; a wrong id is refused and nothing goes; the right one erases, and the list says who.

    What is refused keeps what was typed. Operators see no such page.
    """
    request = await site.gated("refund", '{"order": "erase me", "cents": 1}')
    await site.stack.decide(request, "approve")
    run = await site.stack.ended(await site.run(request))
    page = await open_plain("/audit", operator="root")
    await page.follow("Retention")
    assert "Everything is kept" in page.text
    await page.press("Put on hold", {"target": "run_<b>", "reason": "a <b>lawsuit</b>"})
    assert (page.value("target"), page.value("reason")) == ("run_<b>", "a <b>lawsuit</b>")
    await page.press("Put on hold", {"target": run.id})
    assert "The hold applies" in page.text
    await page.press("See what would go", {"target": run.conversation_id})
    assert "A legal hold keeps it: a <b>lawsuit</b>" in page.text
    assert "Erase for good" not in page.text
    await page.follow("Back")
    await page.press("Remove the hold on", {"reason": "settled"})
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
    operators = await open_plain("/audit")
    assert 'href="/retention"' not in operators.html
    for path in ("/retention", "/retention/erase?target=ada"):
        assert (await operators.open(path)).status == 403
