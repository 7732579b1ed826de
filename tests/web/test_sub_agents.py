"""Sub-agents, control calls, tools from outside and results in part, as the pages display them."""

import pytest
from playwright.async_api import expect
from support.engine.sub_agent_app import log_of, step, task

from turngate.approvals_api.pages.result_text import PAGE_CHARS
from turngate.store.runs import calls

CHARS = 2 * PAGE_CHARS + 500


async def calls_of(office, run):
    async with office.stack.database.read() as conn:
        return await calls.of_run(conn, run.id)


async def ran(office, *steps):
    """A run that has taken these steps."""
    return await office.stack.ended(await office.stack.start(task(*steps)))


async def test_a_sub_agents_request_is_decided_and_traced(office, open_page):
    """The inbox has the path; the request is decided; the child's run links to its parent's call, and back."""
    run = await office.stack.start(task(step(("researcher", {"task": task(step(("pay", {"cents": 750})))}))))
    child = await office.stack.started_below(run)
    request = await office.stack.request(child)
    page = await open_page("/", at=office)
    row = page.locator(".row", has=page.locator(f'a[href="/requests/{request.id}"]'))
    await expect(row.locator(".meta")).to_contain_text("agent \u203a researcher")
    await row.locator("[data-open]").click()
    await expect(page.locator(".effect")).to_contain_text("agent \u203a researcher")
    await expect(page.locator(".effect").get_by_role("link", name=run.id)).to_be_visible()
    await page.get_by_role("button", name="Approve", exact=True).click()
    await expect(page.locator(".given")).to_contain_text("Approved")
    await office.stack.ended(run)
    await page.goto("/runs")
    below = page.locator(".row", has=page.locator(f'a[href="/runs/{child.id}"]'))
    await expect(below.get_by_role("link", name="\u21b3 of run")).to_have_attribute("href", f"/runs/{run.id}")
    await below.locator("[data-open]").click()
    await expect(page.locator("h1")).to_have_text("Run of agent \u203a researcher")
    await page.get_by_role("link", name="the call of researcher in step 1").click()
    await page.wait_for_url(f"**/runs/{run.id}#call-1-1")
    await page.locator("#call-1-1").get_by_role("link", name="its run").click()
    await page.wait_for_url(f"**/runs/{child.id}")


@pytest.mark.exhaustive
async def test_control_calls_are_in_words(office, open_page):
    """Hand-off, model switch and the end by a control call; the answer is the call's, the last step's words stay its own."""
    run = await ran(
        office,
        step(("switch_model", {"model": "scripted:other"})),
        step(malformed="it was cut <b>off</b>"),
        step(("hand_off", {"agent": "researcher"})),
    )
    page = await open_page(f"/runs/{run.id}", at=office)
    await expect(page.locator("#call-1-1")).to_contain_text("Switched to the model scripted:other.")
    await expect(page.locator("#step-2")).to_contain_text("it was cut <b>off</b>")
    await expect(page.locator("#call-3-1")).to_contain_text("Handed the conversation over to researcher.")
    await expect(page.locator("h1")).to_have_text("Run of researcher")
    finished = await ran(office, step(("finish", {"answer": "It is 42."}), words="I end this."))
    await page.goto(f"/runs/{finished.id}")
    await expect(page.locator(".final")).to_contain_text("It is 42.")
    await expect(page.locator("#step-1 .said")).to_have_text("I end this.")
    await expect(page.locator("#call-1-1")).to_contain_text("Ended the run with its answer.")
    waits = await office.stack.start(task(step(("wait_until", {"seconds": 7200}))))
    await office.stack.event(waits, "execution.started")
    await page.goto(f"/runs/{waits.id}")
    await expect(page.locator("#call-1-1 time[data-until]")).to_have_text("in 1 h")
    await office.stack.interrupt(waits)


@pytest.mark.exhaustive
async def test_a_result_in_part_leads_to_the_whole(office, open_page):
    """The run says how much it displays; the whole is read page by page, nothing in it is a link or an element, and saved."""
    run = await ran(office, step(("read_log", {"chars": CHARS})))
    page = await open_page(f"/runs/{run.id}", at=office, java_script_enabled=False)
    await page.locator("#details-1-1 > summary").click()
    await expect(page.locator(".in-part")).to_contain_text("Shown in part (1,000 of ")
    await page.get_by_role("link", name="The whole result").click()
    text = ""
    for part in ("1 to 20,000", "20,001 to 40,000", "40,001 to 40,500"):
        await expect(page.locator("main")).to_contain_text(f"Characters {part} of 40,500")
        assert await page.locator("main b, main script").count() == 0
        text += (await page.locator("pre.value").text_content()).replace("⟨U+202E⟩", "\u202e")
        if await page.get_by_role("link", name="Next part").count():
            await page.get_by_role("link", name="Next part").first.click()
    assert text == log_of(CHARS)
    await page.get_by_role("link", name="Previous part").first.click()
    await expect(page.locator("main")).to_contain_text("Characters 20,001 to 40,000")
    async with page.expect_download() as saved:
        await page.get_by_role("link", name="Download all of it").click()
    download = await saved.value
    assert download.suggested_filename == "result.txt"
    assert (await download.path()).read_text(encoding="utf-8") == log_of(CHARS)
    [call] = await calls_of(office, run)
    answer = await page.request.get(f"/runs/{run.id}/result.txt", params={"call": call.tool_call_id})
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert (await page.goto(f"/runs/{run.id}/result?call=none")).status == 404
    assert (await page.goto(f"/runs/{run.id}/result?call={call.tool_call_id}&offset=99999999")).status == 200
    await expect(page.locator("main")).to_contain_text("Characters 40,001 to 40,500")


@pytest.mark.exhaustive
async def test_a_calls_origin_and_precondition_are_on_its_page(office, open_page):
    """Origin and precondition are on the request's page as text."""
    booking = await office.stack.start(task(step(("ledger_book", {}))))
    page = await open_page(f"/requests/{(await office.stack.request(booking)).id}", at=office)
    await expect(page.locator(".origin")).to_contain_text("MCP serverledger<b>")
    await expect(page.locator(".origin")).to_contain_text("ab" * 32)
    deploying = await office.stack.start(task(step(("deploy", {}))))
    await page.goto(f"/requests/{(await office.stack.request(deploying)).id}")
    await expect(page.locator(".why")).to_contain_text('"release": "r1"')


async def test_a_page_says_what_changed_since_an_approval(office, open_page):
    """The second request has old and new value line by line, whose approval it replaces, and links there and back."""
    run = await office.stack.start(task(step(("deploy", {}))))
    first = await office.stack.request(run)
    office.world.release = "<b>r2</b>"
    await office.stack.decide(first, "approve")
    again = await office.stack.request(run)
    page = await open_page(f"/requests/{again.id}", at=office)
    why = page.locator(".why")
    await expect(why).to_contain_text("the approval by operator")
    await expect(why.locator(".diff .removed")).to_contain_text('"release": "r1"')
    await expect(why.locator(".diff .added")).to_contain_text('"release": "<b>r2</b>"')
    await why.get_by_role("link", name="the approval").click()
    await expect(page.locator(".why")).to_contain_text("This answer no longer counts")
    office.world.release = "r1"
    await office.stack.decide(again, "reject")
    await office.stack.ended(run)


@pytest.mark.exhaustive
async def test_a_person_starts_the_apps_own_agents_first(office, open_page):
    """Sub-agents come last in the list, marked; the app's own agent is selected."""
    page = await open_page("/runs/new", at=office)
    options = await page.locator("#agent option").all_text_contents()
    assert options == [
        "agent (scripted model)",
        "clerk (scripted model) (sub-agent)",
        "researcher (scripted model) (sub-agent)",
    ]
    await expect(page.locator("main")).to_contain_text("sub-agent of researcher")
