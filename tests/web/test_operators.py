"""What operators do besides deciding one call: filter, claim, comment, grant, decide several at once."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from playwright.async_api import expect
from support.engine.stack import OPERATOR

from turngate.domain.policy.grants import GrantPattern, WantedGrant
from turngate.store.policy import grants

NO_SCRIPT = {"java_script_enabled": False}
SCRIPTED_OR_NOT = pytest.mark.parametrize(
    "options", [pytest.param({}, id="script"), pytest.param(NO_SCRIPT, id="no-script", marks=pytest.mark.exhaustive)]
)


def refund(order: str, cents: int = 7) -> str:
    return json.dumps({"order": order, "cents": cents})


async def test_the_filter_is_in_the_url_and_counts_what_it_lists(site, open_plain):
    """A filtered page lists, counts and links what the filter means; names of another program in a link count for nothing."""
    request = await site.gated("shell", '{"argv": ["ls", "-la"]}')
    page = await open_plain("/?tool=shell&risk=medium")
    for path in ("/?tool=shell&risk=medium", "/?colour=red&tool=shell"):
        assert (await page.open(path)).status == 200
        tools = re.findall(r"data-open><code>(.*?)</code>", re.sub(r"</?bdi[^>]*>", "", page.html))
        assert set(tools) == {"shell"}
        assert f'data-count="{len(tools)}"' in page.html
        assert f'href="/requests/{request.id}?' in page.html
    await page.open("/?risk=high&tool=shell")
    assert 'class="empty' in page.html
    await site.stack.decide(request, "reject")


async def test_a_grant_is_revoked_on_its_page(site, open_plain):
    """The banner links to the active grants; the button ends this one, and the list of all says who did."""
    await _revoke_all(site)  # others share this desk
    wanted = WantedGrant(pattern=GrantPattern(tool="refund", fixed={"order": "x"}), scope="everyone", max_uses=2)
    async with site.stack.database.write() as conn:
        await grants.create(
            conn, wanted, grants.Origin(created_by="bob", run_id=None, agent=None, role="admin"), key="page"
        )
    page = await open_plain("/")
    assert "1 active grant" in page.text
    await page.open("/grants")
    assert 'order exactly "x"' in page.text
    await page.press("Revoke")
    assert "No active grants" in page.text
    assert "active grant" not in (await page.open("/")).text
    await page.open("/grants?status=all")
    assert "revoked by ada" in page.text


async def test_an_admin_changes_the_stored_rules(site, open_plain):
    """The page explains a call; unreadable rules are refused and stay in the form; good ones apply at once. Others see none."""
    page = await open_plain("/policy?tool=deploy&args=%7B%22target%22%3A%22x%22%7D", operator="root")
    assert "releases" in page.text
    await page.open("/policy")
    broken = '[[rule]]\nname = "no looking"\nverdict = "deny"\n'
    await page.press("Check and save", {"source": broken, "comment": "watched"})
    assert "tools" in page.section("attempt")
    assert "no looking" in page.value("source")
    await page.press("Check and save", {"source": f'{broken}tools = ["look"]\nreason = "Not today."\n'})
    assert "by root" in page.text
    await page.open("/policy?tool=look&args=%7B%22target%22%3A%22x%22%7D")
    assert "deny by no looking" in page.text
    await site.stack.ended(await site.start("look", '{"target": "here"}'))
    assert {"target": "here"} not in site.ran.of("look")
    await page.press("Check and save", {"source": ""})
    assert "Check and save" not in (await open_plain("/policy")).html


async def test_a_claim_keeps_others_off_until_they_take_it_over(site, open_page):
    """While ada has claimed a request, bob's page says so and his decision is refused, until he takes the claim over."""
    request = await site.gated("refund", refund("claimed"))
    page = await open_page(f"/requests/{request.id}")
    await page.get_by_role("button", name="Claim it").click()
    await expect(page.locator(".claim")).to_contain_text("You have claimed this")
    other = await open_page(f"/requests/{request.id}", operator="bob")
    await expect(other.locator(".claim")).to_contain_text("ada has claimed this")
    await expect(other.locator("[data-presence]")).to_contain_text("ada")
    await other.get_by_role("button", name="Approve", exact=True).click()
    await expect(other.locator("#attempt")).to_contain_text("ada has claimed this request")
    await expect(other.locator("#attempt time[data-zoned]")).to_have_count(1)
    assert (await site.now(request)).status == "pending"
    await other.get_by_role("button", name="Take over").click()
    await other.get_by_role("button", name="Approve", exact=True).click()
    await expect(other.locator("#decision")).to_contain_text("Approved by bob")
    await site.ended(request)


async def test_keys_claim_comment_and_open_the_grant_form(site, open_page):
    """`c` claims, `w` goes to the comment, `g` to the grant's form; none of them decides."""
    request = await site.gated("refund", refund("keys"))
    page = await open_page(f"/requests/{request.id}")
    await page.keyboard.press("c")
    await expect(page.locator(".claim")).to_contain_text("You have claimed this")
    await page.wait_for_selector("html[data-ready]")
    await page.keyboard.press("w")
    await expect(page.get_by_label("Comment for other people")).to_be_focused()
    await page.keyboard.press("Escape")
    await page.keyboard.press("g")
    await expect(page.locator("#grant .field").first).to_be_visible()
    assert (await site.now(request)).status == "pending"


async def _revoke_all(site):
    async with site.stack.database.write() as conn:
        for each in await grants.active(conn):
            await grants.revoke(conn, each.id, by="ada")


@SCRIPTED_OR_NOT
async def test_a_grant_has_limits_and_a_total(site, open_page, options):
    """The form takes a range, a beginning and a total; what they mean is displayed first, and a mistake says what it is.

    A pattern that was changed is displayed again before it is saved.
    """
    await _revoke_all(site)  # others share this desk
    mark = f"limits-{len(options)}"
    request = await site.gated("refund", refund(f"{mark}/a", 5))
    page = await open_page(f"/requests/{request.id}", **options)
    await page.locator("#grant summary").click()
    form = page.locator("#grant")
    await form.get_by_label("cents", exact=True).select_option("range")
    await form.get_by_label("cents from", exact=True).fill("1")
    await form.get_by_label("cents to", exact=True).fill("5OO")
    await form.get_by_label("order", exact=True).select_option("prefix")
    await form.get_by_label("order begins with", exact=True).fill(f"{mark}/")
    await expect(form.get_by_label("order one of", exact=True)).to_be_hidden()
    await form.get_by_label("Total of").select_option("cents")
    await form.get_by_label("at most").fill("600.5")
    await page.locator("#grant-scope").select_option("agent")
    await page.get_by_role("button", name="Show exactly what this would allow").click()
    await expect(form).to_contain_text("a plain number, such as 500 or 12.50: not '5OO'")
    await form.get_by_label("cents to", exact=True).fill("500")
    await page.get_by_role("button", name="Show exactly what this would allow").click()
    pattern = page.locator("#pattern")
    await expect(pattern).to_contain_text("cents from 1 to 500")
    await expect(pattern).to_contain_text(f'order beginning with "{mark}/"')
    await expect(pattern).to_contain_text("up to a total of 600.5 at /cents per day (UTC)")
    await page.locator("#grant-uses").fill("3")
    await page.get_by_role("button", name="Approve, and allow exactly these").click()
    await expect(pattern).to_contain_text("at most 3 times")
    assert (await site.now(request)).status == "pending"
    await page.get_by_role("button", name="Approve, and allow exactly these").click()
    await expect(page.locator("#decision")).to_contain_text("Approved by ada")
    await expect(page.locator(".standing")).to_contain_text("1 active grant")
    await site.ended(request)
    fits = await site.start("refund", refund(f"{mark}/b", 500))
    await site.stack.ended(fits)
    beyond = await site.gated("refund", refund(f"{mark}/c", 101))
    assert "and is not any more" in beyond.reason
    await page.goto("/grants")
    await expect(page.locator(".rows")).to_contain_text("500 in this day")
    await _revoke_all(site)


@SCRIPTED_OR_NOT
async def test_several_are_decided_at_once_after_a_look_at_each(site, open_page, options):
    """Selected requests are shown whole, then approved together; one that someone decided meanwhile is left out, or says so."""
    mark = f"bulk-{len(options)}"
    waiting = [await site.gated("refund", refund(f"{mark}-{number}")) for number in range(3)]
    page = await open_page("/?tool=refund", viewport={"width": 1280, "height": 1600}, **options)
    for each in waiting:
        await page.locator(f'input[name="pick-{each.id}"]').check()
    await page.get_by_role("button", name="Review the selected requests").click()
    for number in range(3):
        await expect(page.locator(".several")).to_contain_text(f"{mark}-{number}")
    await site.stack.decide(waiting[0], "reject", by=replace(OPERATOR, name="bob"))
    if options:
        await page.get_by_role("button", name="Approve 3").click()
        await expect(page.locator("h1")).to_have_text("2 of 3 decided")
        await expect(page.locator("[data-rows]")).to_contain_text("bob decided first")
    else:
        await expect(page.locator(".several")).to_contain_text("bob has rejected this meanwhile.")
        calls = page.locator("[data-must-see]")
        await page.evaluate("scrollTo({ top: document.body.scrollHeight, behavior: 'instant' })")
        whole = await calls.evaluate("calls => String(Math.round(calls.getBoundingClientRect().height))")
        await expect(calls).to_have_attribute("data-seen-to", whole)
        await expect(page.get_by_role("button", name="Approve 2")).to_be_visible()
        await expect(page.locator("#main.settling")).to_have_count(0)
        await page.get_by_role("button", name="Approve 2").click()
        await expect(page.locator("h1")).to_have_text("2 of 2 decided")
    for each in waiting:
        await site.ended(each)
    ran = [call["order"] for call in site.ran.of("refund") if call["order"].startswith(mark)]
    assert sorted(ran) == [f"{mark}-1", f"{mark}-2"]


async def test_a_list_survives_opening_and_deciding(site, open_plain):
    """What was searched for stays the list through which one goes: opening, deciding, the next one, and the way back."""
    first, second = [await site.gated("refund", refund(f"walk-{number}")) for number in (1, 2)]
    await site.gated("refund", refund("another way"))
    page = await open_plain("/?search=walk-&order=age")
    await page.follow("refund")
    assert "walk-1" in page.text
    await page.press("Approve")
    assert "Approved by ada" in page.section("decision")
    await page.follow("Next pending request")
    assert "walk-2" in page.text
    await page.press("Approve")
    assert "No other request is pending in this list" in page.text
    assert f'href="/?search=walk-&amp;order=age#{second.id}" data-up' in page.html
    for request in (first, second):
        await site.ended(request)
    assert (await page.open(f"/requests/{first.id}?list=risk%3Dred")).status == 422


@pytest.mark.exhaustive
async def test_pages_are_compact_for_those_who_want_it(site, open_page):
    """A setting of the browser: the same rows take less of the screen, but not on a phone, where fingers need the space."""
    request = await site.gated("refund", refund("dense"))
    page = await open_page("/account", viewport={"width": 1280, "height": 900}, **NO_SCRIPT)
    row = page.locator(f"#{request.id}")

    async def height() -> float:
        await page.goto("/?search=dense")
        return (await row.bounding_box())["height"]

    comfortable = await height()
    await page.goto("/account")
    await page.get_by_role("button", name="Compact pages").click()
    assert await height() < comfortable
    await page.set_viewport_size({"width": 390, "height": 800})
    assert await page.evaluate("getComputedStyle(document.documentElement).fontSize") == "15px"
    await page.goto("/account")
    await page.get_by_role("button", name="Comfortable pages").click()
    await page.set_viewport_size({"width": 1280, "height": 900})
    assert await height() == comfortable
    await site.stack.decide(request, "reject")


async def test_the_next_request_opens_by_itself_for_those_who_want_it(site, open_plain):
    """A setting of the browser: after a decision comes the next request, with a line about the one before."""
    first, second = [await site.gated("refund", refund(f"queue-{number}")) for number in (1, 2)]
    page = await open_plain("/account")
    await page.press("Open the next request")
    await page.open("/?search=queue-&order=age")
    await page.follow("refund")
    await page.press("Reject")
    assert "queue-2" in page.text
    assert "Rejected: refund, by ada" in page.text
    await page.open("/account")
    await page.press("Stay on the request")
    await page.open(f"/requests/{second.id}")
    await page.press("Approve")
    assert "Approved by ada" in page.section("decision")
    for request in (first, second):
        await site.ended(request)


async def test_the_meaning_of_a_rule_follows_what_is_typed(open_page):
    """Without a press: the sentence, then none where the fields say no rule; what is typed stays, and nothing is stored."""
    page = await open_page("/policy/rule", operator="root")
    means = page.locator("#means")
    await page.get_by_label("Name").fill("typed only")
    await page.get_by_label("Tools").fill("look")
    await expect(means).to_contain_text("Calls of look run without asking.")
    await page.get_by_label("Such calls").select_option("deny")
    await expect(means).to_contain_text("Calls of look are denied.")
    await page.get_by_label("Name").fill("")
    await expect(means).to_contain_text("The fields say no rule yet.")
    await expect(page.get_by_label("Tools")).to_have_value("look")
    await page.goto("/policy")
    await expect(page.locator("main")).not_to_contain_text("typed only")
