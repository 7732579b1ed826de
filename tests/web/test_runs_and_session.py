"""Starting, following and stopping runs by form; logging in and out."""

import json
from datetime import datetime
from zoneinfo import ZoneInfo

from playwright.async_api import expect

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


async def test_times_are_in_the_readers_zone(site, open_page):
    """A time's title gives the reader's own time, with its zone, before UTC; without JavaScript it gives UTC."""
    request = await site.gated("refund", '{"order": "zone", "cents": 7}')
    instant = datetime.fromisoformat(request.created_at)
    utc = f"{instant:%Y-%m-%d %H:%M:%S} UTC"
    in_tokyo = f"{instant.astimezone(ZoneInfo('Asia/Tokyo')):%Y-%m-%d %H:%M:%S} GMT+9"
    for options, title in ({"timezone_id": "Asia/Tokyo"}, f"{in_tokyo} ({utc})"), (NO_SCRIPT, utc):
        page = await open_page(f"/requests/{request.id}", **options)
        await expect(page.locator("main time").first).to_have_attribute("title", title)
