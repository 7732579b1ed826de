"""How long a request was on the screen, and how much of its call, goes with the decision."""

import json

import pytest
from playwright.async_api import expect

from turngate.store.requests import requests

PHONE = {"width": 320, "height": 568}


async def look_at(site, request):
    """The time and the share of the decision that won."""
    won = (await site.now(request)).decision_id
    async with site.stack.database.read() as conn:
        decision = await requests.decision(conn, won)
    return decision.looked_ms, decision.seen_percent


async def test_an_approval_says_how_long_the_call_was_seen(site, open_page):
    """What a person approves was all on the screen; the time in which the page was hidden doesn't count."""
    request = await site.gated("refund", json.dumps({"order": "look-1", "cents": 7}))
    page = await open_page(f"/requests/{request.id}")
    await page.evaluate(
        """() => {
            const now = performance.now.bind(performance);
            let later = 7_000;
            performance.now = () => now() + later;
            const show = (hidden) => {
                Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
                document.dispatchEvent(new Event("visibilitychange"));
            };
            show(true);
            later += 3_600_000;
            show(false);
        }"""
    )
    await page.get_by_role("button", name="Approve", exact=True).click()
    await expect(page.locator("#decision")).to_contain_text("Approved by ada")
    await expect(page.locator("[data-look]")).to_contain_text(
        "with 100 % of the call on the screen, as their browser or terminal says"
    )
    looked, seen = await look_at(site, request)
    assert 7_000 <= looked < 3_600_000
    assert seen == 100
    await site.ended(request)


async def test_a_rejection_says_how_much_of_the_call_was_seen(site, open_page):
    """Of a call that is longer than the screen less than all was seen, and the decided request says so."""
    note = "".join(f"line {number}\n" for number in range(150))
    request = await site.gated("refund", json.dumps({"order": "look-2", "cents": 1, "note": note}))
    page = await open_page(f"/requests/{request.id}", viewport=PHONE)
    await page.locator("[data-bar]").get_by_role("button", name="Reject").click()
    await expect(page.locator("#decision")).to_contain_text("Rejected by ada")
    looked, seen = await look_at(site, request)
    assert looked > 0
    assert seen < 100
    await expect(page.locator("[data-look]")).to_contain_text(f"with {seen} % of the call on the screen")
    await site.ended(request)


async def test_each_of_several_calls_has_its_share(site, open_page):
    """Of several calls that are rejected together, the last one, below the screen, was not seen; the time is the page's."""
    waiting = await site.gated_step(*(("refund", json.dumps({"order": f"look-{n}", "cents": 7})) for n in range(8)))
    page = await open_page(f"/requests/bulk?run_id={waiting[0].run_id}", viewport=PHONE)
    await page.locator(".several").wait_for()
    in_order = [await each.get_attribute("data-of") for each in await page.locator(".several [data-of]").all()]
    await page.evaluate("document.querySelector('button.reject').click()")
    await expect(page.locator("h1")).to_have_text("8 of 8 decided")
    looks = {each.id: await look_at(site, each) for each in waiting}
    times = {looked for looked, _ in looks.values()}
    assert len(times) == 1
    assert times.pop() > 0
    seen = [looks[each][1] for each in in_order]
    assert seen == sorted(seen, reverse=True)
    assert seen[-1] == 0
    for each in waiting:
        await site.ended(each)


@pytest.mark.parametrize(
    ("path", "done"),
    [
        ("/requests/{}", "Rejected by ada"),
        pytest.param("/requests/bulk?run_id={}", "1 of 1 decided", marks=pytest.mark.exhaustive),
    ],
)
async def test_without_javascript_nothing_is_known_of_the_look(site, open_plain, path, done):
    """The decision is taken all the same, and the decided request says nothing of a look."""
    request = await site.gated("refund", json.dumps({"order": f"look-{len(path)}", "cents": 7}))
    page = await open_plain(path.format(request.run_id if "bulk" in path else request.id))
    await page.press("Reject")
    assert done in page.text
    assert await look_at(site, request) == (None, None)
    await page.open(f"/requests/{request.id}")
    assert "Rejected by ada" in page.section("decision")
    assert "data-look" not in page.html
    await site.ended(request)
