"""Starting, following and stopping runs by form; logging in and out."""

import json
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from playwright.async_api import expect

from turngate.store.access import access
from turngate.store.runs import runs

NO_SCRIPT = {"java_script_enabled": False}


async def run_of(site, run_id):
    async with site.stack.database.read() as conn:
        return await runs.get(conn, run_id)


async def test_a_run_is_started_interrupted_and_continued(site, open_page):
    """By forms alone: start a run, interrupt it with a reason, send the next message, read the answer."""
    page = await open_page("/runs/new", **NO_SCRIPT)
    await page.get_by_label("What should it do?").fill(json.dumps(["ok", "refund", '{"order": "form", "cents": 1}']))
    await page.get_by_label("Workspace").fill("/nowhere/at/all")
    await page.get_by_role("button", name="Start").click()
    await expect(page.locator("#workspace-complaint")).to_contain_text("/nowhere/at/all")
    await page.get_by_label("Workspace").fill("")
    await page.get_by_role("button", name="Start").click()
    await page.wait_for_url("**/runs/run_*")
    run_id = page.url.rsplit("/", 1)[1]
    run = await run_of(site, run_id)
    await site.stack.request(run)
    await page.goto(f"/runs/{run_id}")
    await page.get_by_role("button", name="Pause this run").click()
    await site.stack.event(run, "run.paused")
    await page.goto(f"/runs/{run_id}")
    await expect(page.locator(".warn")).to_contain_text("ada paused this run")
    await page.get_by_role("button", name="Resume this run").click()
    await site.stack.event(run, "run.resumed")
    await page.goto(f"/runs/{run_id}")
    await page.get_by_role("button", name="Send").click()
    await expect(page.locator("#input-complaint")).to_be_visible()
    await page.goto(f"/runs/{run_id}")
    await page.locator("#switch-model > summary").click()
    await page.locator("#model").fill("no such")
    await page.get_by_role("button", name="Switch").click()
    await expect(page.locator("#model-complaint")).to_contain_text("provider:name")
    await page.locator("#model").fill("scripted:other")
    await page.get_by_role("button", name="Switch").click()
    await expect(page.locator(".task .facts")).to_contain_text("other chosen by ada")
    await page.locator("#interrupt > summary").click()
    await page.locator("#reason").fill("wrong order")
    await page.get_by_role("button", name="Interrupt").click()
    await site.stack.ended(run)
    await page.goto(f"/runs/{run_id}")
    await expect(page.locator(".title .chip.interrupted")).to_have_text("interrupted")
    await expect(page.locator(".warn")).to_contain_text("wrong order")
    await page.get_by_role("button", name="Send").click()
    await expect(page.locator("#input-complaint")).to_be_visible()
    await page.get_by_label("Next message").fill("and now?")
    await page.get_by_role("button", name="Send").click()
    await page.wait_for_url(lambda url: "/runs/run_" in url and run_id not in url)
    following = await run_of(site, page.url.rsplit("/", 1)[1])
    assert following.conversation_id == run.conversation_id
    await site.stack.ended(following)
    await page.goto(f"/runs/{following.id}")
    await expect(page.locator(".final")).to_contain_text("The answer is 42.")


async def test_a_timeline_keeps_decision_and_execution_apart(site, open_page):
    """Rule, request, decision, edited arguments, execution and result are separate entries."""
    request = await site.gated("refund", '{"order": "apart", "cents": 500}', "words of the agent")
    await site.stack.decide(request, "edit", args='{"order": "apart", "cents": 5}')
    await site.ended(request)
    page = await open_page(f"/runs/{request.run_id}")
    call = page.locator("#call-1-1")
    for text in ("asked", "tool:ask", "approved", "edit by operator", "succeeded", "cents=500", "cents=5"):
        await expect(call).to_contain_text(text)
    await expect(page.locator("#step-1")).to_contain_text("words of the agent")
    await expect(page.locator("#step-1")).to_contain_text("scripted model")


@pytest.mark.exhaustive
async def test_lists_are_filtered_and_paged_by_url(site, open_page):
    """Status tabs are links; a list longer than a page continues by a cursor, and each item is there exactly once."""
    for index in range(3):
        await site.gated("refund", json.dumps({"order": f"page-{index}", "cents": 1}))
    page = await open_page("/", **NO_SCRIPT)
    await page.get_by_role("link", name="all", exact=True).click()
    await page.wait_for_url("**/?status=all")
    seen = []
    while True:
        seen += await page.locator("[data-open]").evaluate_all("links => links.map(link => link.pathname)")
        more = page.get_by_role("link", name="More")
        if await more.count() == 0:
            break
        await more.click()
    assert len(seen) == len(set(seen))
    await page.goto("/?status=expired")
    await expect(page.locator(".empty")).to_be_visible()
    assert (await page.goto("/?cursor=nonsense")).status == 422


@pytest.mark.exhaustive
async def test_an_empty_inbox_says_what_to_do(idle_site, open_page):
    """With nothing pending the page names the next step."""
    page = await open_page("/", at=idle_site)
    await expect(page.get_by_role("link", name="Start a run").last).to_be_visible()
    await expect(page.locator(".empty")).to_contain_text("No pending requests")


async def test_times_are_in_the_readers_zone(site, open_page):
    """A time's title gives the reader's own time, with its zone, before UTC; without JavaScript it gives UTC."""
    request = await site.gated("refund", '{"order": "zone", "cents": 7}')
    instant = datetime.fromisoformat(request.created_at)
    utc = f"{instant:%Y-%m-%d %H:%M:%S} UTC"
    in_tokyo = f"{instant.astimezone(ZoneInfo('Asia/Tokyo')):%Y-%m-%d %H:%M:%S} GMT+9"
    for options, title in ({"timezone_id": "Asia/Tokyo"}, f"{in_tokyo} ({utc})"), (NO_SCRIPT, utc):
        page = await open_page(f"/requests/{request.id}", **options)
        await expect(page.locator("main time").first).to_have_attribute("title", title)


@pytest.mark.exhaustive
async def test_a_link_leads_to_its_page_through_the_login(site, open_page):
    """Someone who follows a link without being logged in sees its page after the login, not the inbox."""
    request = await site.gated("refund", '{"order": "link", "cents": 7}')
    async with site.stack.database.write() as conn:
        secret = await access.issue_link(conn, "eve")
    page = await open_page(f"/requests/{request.id}", operator="", **NO_SCRIPT)
    await page.wait_for_url("**/login")
    await page.goto(f"/login?link={secret}")
    await page.get_by_role("button", name="Log in").click()
    await page.wait_for_url(f"**/requests/{request.id}")


@pytest.mark.exhaustive
async def test_a_login_link_works_once_and_only_by_its_button(site, open_page):
    """Opening the link changes nothing; the button logs in and uses the link up; logging out ends the session."""
    async with site.stack.database.write() as conn:
        secret = await access.issue_link(conn, "eve")
    page = await open_page(f"/login?link={secret}", operator="", **NO_SCRIPT)
    await page.reload()
    await page.get_by_role("button", name="Log in").click()
    await expect(page.locator(".who")).to_contain_text("eve")
    await page.goto(f"/login?link={secret}")
    await page.get_by_role("button", name="Log in").click()
    await expect(page.locator(".warn")).to_contain_text("no longer works")
    await page.goto("/")
    await page.get_by_role("button", name="Log out").click()
    await page.wait_for_url("**/login")
    await page.goto("/runs")
    await page.wait_for_url("**/login")
    await expect(page.locator("main")).to_contain_text("turngate login-link")
