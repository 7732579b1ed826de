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


async def test_a_run_is_started_interrupted_and_continued(site, open_plain):
    """By forms alone: start a run, interrupt it with a reason, send the next message, read the answer."""
    page = await open_plain("/runs/new")
    task = json.dumps(["ok", "refund", '{"order": "form", "cents": 1}'])
    await page.press("Start", {"input": task, "workspace": "/nowhere/at/all"})
    assert 'id="workspace-complaint"' in page.html
    await page.press("Start", {"workspace": ""})
    run_id = page.url.rsplit("/", 1)[1]
    run = await run_of(site, run_id)
    await site.stack.request(run)
    await page.open(f"/runs/{run_id}")
    await page.press("Pause this run")
    await site.stack.event(run, "run.paused")
    await page.open(f"/runs/{run_id}")
    assert "ada paused this run" in page.text
    await page.press("Resume this run")
    await site.stack.event(run, "run.resumed")
    await page.open(f"/runs/{run_id}")
    await page.press("Send")
    assert 'id="input-complaint"' in page.html
    await page.press("Switch", {"model": "no such"})
    assert "provider:name" in page.text
    await page.press("Switch", {"model": "scripted:other"})
    assert "other chosen by ada" in page.text
    await page.press("Interrupt", {"reason": "wrong order"})
    await site.stack.ended(run)
    await page.open(f"/runs/{run_id}")
    assert "wrong order" in page.text
    assert "interrupted" in page.text
    await page.press("Send")
    assert 'id="input-complaint"' in page.html
    await page.press("Send", {"input": "and now?"})
    following = await run_of(site, page.url.rsplit("/", 1)[1])
    assert following.id != run_id
    assert following.conversation_id == run.conversation_id
    await site.stack.ended(following)
    await page.open(f"/runs/{following.id}")
    assert "The answer is 42." in page.text


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
