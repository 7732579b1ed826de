"""A run's model on its page: its waits, switches and words; updates never disturb what a person does there."""

import re

import pytest
from playwright.async_api import expect
from support.engine.stack import person

from turngate.approvals_api.runs import send_message
from turngate.domain.conversation.messages import Delta
from turngate.store.live import deltas
from turngate.store.live.deltas import DeltaBatch
from turngate.wire.orders import MessageOrder

LISTEN = """() => {
    window.announced = [];
    const line = document.querySelector('[data-say]');
    new MutationObserver(() => window.announced.push(line.textContent)).observe(line, { childList: true });
}"""
TOP_OF_INPUT = "document.querySelector('#input').getBoundingClientRect().top"


def words(text, part=0, kind="text", name="", dropped=0):
    return DeltaBatch([Delta(kind=kind, part=part, text=text, tool_name=name)], dropped)


async def test_the_page_says_that_the_model_waits_and_a_switch_ends_it(limited_site, open_page):
    """It says until when and why; a link opens the form; an unknown name gets the known ones; the timeline says who did it."""
    run = await limited_site.stack.start("go")
    page = await open_page(f"/runs/{run.id}", at=limited_site)
    waits = page.locator("#waits")
    await expect(waits).to_contain_text(re.compile(r"retried in (8|9) min, at (\S+ )?\d\d:\d\d:\d\d \S+"))
    await expect(waits).to_contain_text("(rate_limited): come back <b>later</b>")
    await waits.get_by_role("link", name="Switch its model").click()
    await expect(page.locator("#model")).to_be_focused()
    await page.locator("#model").fill("nosuch")
    await page.get_by_role("button", name="Switch", exact=True).click()
    await expect(page.locator("#switch-model .complaint")).to_contain_text("quick. Add it to models.toml")
    await expect(page.locator("#model")).to_have_value("nosuch")
    await page.locator("#model").fill("quick")
    await page.get_by_role("button", name="Switch", exact=True).click()
    await expect(page.locator(".final")).to_contain_text("Done.")  # not in ten minutes
    step = page.locator("#step-1")
    await expect(step).to_contain_text("ada switched the model from scripted:test to quick, ")
    await step.get_by_text("1 failed attempt before").click()
    await expect(step.locator(".attempts")).to_contain_text("rate_limited come back <b>later</b>")


@pytest.mark.exhaustive
async def test_a_run_is_started_and_retried_with_a_model_of_choice(limited_site, open_page):
    """From the page too; an unknown name is refused at its control, with the known ones."""
    page = await open_page("/runs/new", at=limited_site)
    await page.locator("#input").fill("go")
    await page.locator("#model").fill("nosuch")
    await page.get_by_role("button", name="Start", exact=True).click()
    await expect(page.locator("#model-complaint")).to_contain_text("quick. Add it to models.toml")
    await page.locator("#model").fill("quick")
    await page.get_by_role("button", name="Start", exact=True).click()
    await expect(page.locator(".final")).to_contain_text("Done.")
    run = await limited_site.stack.start("go")
    await limited_site.stack.event(run, "model.retrying")
    await limited_site.stack.interrupt(run)
    await limited_site.stack.ended(run)
    await page.goto(f"/runs/{run.id}")
    await page.locator("#model").fill("quick")
    await page.get_by_role("button", name="Retry", exact=True).click()
    await expect(page.locator(".final")).to_contain_text("Done.")


@pytest.mark.exhaustive
async def test_a_page_without_javascript_has_the_models_words(idle_site, open_page):
    """All of them once; with the module the same words come live instead, and no word is there twice."""
    run = await idle_site.stack.start("go")
    async with idle_site.stack.database.write() as conn:
        attempt = await deltas.begin(conn, run.id, 1, words("<i>First</i>, "))
        await deltas.append(conn, attempt, 2, words("then\nthis.\u202e"))
        await deltas.append(conn, attempt, 3, words('{"a"', 1, "tool-call", "pay", dropped=7))
    plain = await open_page(f"/runs/{run.id}", at=idle_site, java_script_enabled=False)
    spoken = plain.locator("[data-spoken]")
    await expect(spoken.locator("h2")).to_have_text("Step 1 the model is answering")
    assert await spoken.locator("pre").all_inner_texts() == ["<i>First</i>, then\nthis.⟨U+202E⟩", '{"a"']
    await expect(spoken.locator("noscript > .dim")).to_have_text("Some of it is not shown.")
    page = await open_page(f"/runs/{run.id}", at=idle_site)
    spoken = page.locator("[data-spoken]")
    await expect(spoken.locator("pre:visible")).to_have_count(2)
    assert await spoken.locator("pre:visible").all_inner_texts() == ["<i>First</i>, then\nthis.⟨U+202E⟩", '{"a"']
    await expect(spoken.locator(".spoken-tool-call")).to_contain_text("Some of it is not shown")
    await page.reload()
    await expect(spoken.locator(".spoken-text pre")).to_have_text("<i>First</i>, then this.⟨U+202E⟩")


async def test_the_end_of_a_long_answer_is_followed_unless_the_reader_scrolls_up(site, open_page):
    """The text scrolls in a box of its own, and nothing below it moves away from a person who writes there."""
    request = await site.gated("refund", '{"order": "long answer", "cents": 1}')

    async def say(n, text):
        async with site.stack.database.write() as conn:
            assert await deltas.append(conn, attempt, n, words(text))

    async with site.stack.database.write() as conn:
        attempt = await deltas.begin(conn, request.run_id, 2, words("line\n" * 10))
    page = await open_page(f"/runs/{request.run_id}", viewport={"width": 1000, "height": 500})
    box = page.locator(".spoken-text pre")
    await expect(box).to_contain_text("line")
    await page.locator("#input").focus()
    top = await page.evaluate(TOP_OF_INPUT)
    await say(2, "line\n" * 200 + "end 1")
    await expect(box).to_contain_text("end 1")
    assert abs(await page.evaluate(TOP_OF_INPUT) - top) < 2
    to_end = "each => each.scrollHeight - each.scrollTop - each.clientHeight"
    assert await box.evaluate(to_end) < 2
    await box.evaluate("each => { each.scrollTop = 30 }")
    await say(3, "\nline" * 50 + "end 2")
    await expect(box).to_contain_text("end 2")
    assert await box.evaluate("each => each.scrollTop") == 30
    await site.stack.interrupt(await site.run(request))


async def test_the_timeline_continues_while_a_person_writes_to_the_run(site, open_page):
    """Text, focus and caret stay, in the same place of the screen; if the run ends meanwhile, the bar appears instead."""
    request = await site.gated("refund", '{"order": "write", "cents": 1}')
    page = await open_page(f"/runs/{request.run_id}", viewport={"width": 1000, "height": 500})
    field = page.locator("#input")
    await field.fill("half a sent")
    await field.evaluate("each => each.setSelectionRange(2, 5)")
    # Not every browser keeps the scroll position by itself, as Chromium does.
    await page.evaluate("document.documentElement.style.overflowAnchor = 'none'")
    top = await page.evaluate(TOP_OF_INPUT)
    await send_message.send(
        site.stack.services,
        person("bob"),
        request.run_id,
        MessageOrder(input="And <b>this</b>.", while_running="queue"),
    )
    await expect(page.get_by_role("heading", name="Messages that this run has not read yet")).to_be_visible()
    assert abs(await page.evaluate(TOP_OF_INPUT) - top) < 2
    assert await field.evaluate("each => [each.value, each.selectionStart, each.selectionEnd]") == ["half a sent", 2, 5]
    await expect(field).to_be_focused()
    await expect(page.locator("[data-stale]")).to_be_hidden()
    await site.stack.decide(request, "reject", message="no")
    await expect(page.locator("[data-stale]")).to_be_visible()
    await expect(field).to_have_value("half a sent")
    await site.ended(request)


async def test_an_update_keeps_the_selection(site, open_page):
    """While a person copies from a run's page, the bar offers the new state; without a selection it comes by itself."""
    request = await site.gated("refund", '{"order": "copied", "cents": 1}')
    page = await open_page(f"/runs/{request.run_id}")
    await page.evaluate("getSelection().selectAllChildren(document.querySelector('#call-1-1'))")
    await site.stack.decide(request, "approve")
    bar = page.locator("[data-stale]")
    await expect(bar).to_be_visible()
    await expect(bar).not_to_contain_text("will be lost", use_inner_text=True)
    assert "copied" in await page.evaluate("getSelection().toString()")
    await page.evaluate("getSelection().removeAllRanges()")
    await expect(page.locator(".final")).to_contain_text("The answer is 42.")
    await expect(bar).to_be_hidden()
    await site.ended(request)


async def test_a_runs_page_follows_the_run_to_its_answer(site, open_page):
    """What the reader opened stays open, and the call that they read stays in its place below the answer that appears.

    A screen reader announces what matters once: how the run ended, and no word for each step or update in between.
    """
    request = await site.gated("refund", '{"order": "followed", "cents": 1}')
    page = await open_page(f"/runs/{request.run_id}", viewport={"width": 1000, "height": 300})
    await expect(page.locator(".title .chip")).to_have_text("running")
    await page.locator("#details-1-1 > summary").click()
    await page.evaluate(LISTEN)
    await send_message.send(
        site.stack.services, person("bob"), request.run_id, MessageOrder(input="Later.", while_running="queue")
    )
    await page.wait_for_selector("#waiting-title")
    assert await page.evaluate("window.announced") == []
    await page.locator("#call-1-1").evaluate("each => each.scrollIntoView({ block: 'start' })")
    top = "document.querySelector('#step-1').getBoundingClientRect().top"
    before = await page.evaluate(top)
    await site.stack.decide(request, "approve")
    await page.wait_for_selector("#main[data-status=completed] .final")
    assert abs(await page.evaluate(top) - before) < 2
    await expect(page.locator(".title .chip")).to_have_text("completed")
    await expect(page.locator(".final")).to_contain_text("The answer is 42.")
    await expect(page.locator("#details-1-1")).to_have_attribute("open", "")
    await expect(page.locator("#call-1-1")).to_contain_text("succeeded")
    announced = await page.evaluate("window.announced")
    assert announced[-1:] == ["The run is completed."]
    assert announced[:-1] in ([], ["The run continues."])
    await site.ended(request)
