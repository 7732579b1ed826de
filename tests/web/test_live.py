"""Pages that update themselves, and never at the wrong moment."""

import re
from dataclasses import replace
from urllib.parse import urlencode

from playwright.async_api import expect
from support.servers.black_hole import black_hole

from turngate.activities.execution.progress import reporting
from turngate.approvals_api.pages import STATIC_DIR
from turngate.domain.conversation.messages import Delta
from turngate.store.live import deltas
from turngate.store.live.deltas import DeltaBatch

BUSY = "#main.settling"


async def test_a_dead_connection_is_noticed(site, quick_site, open_page):
    """A connection that carries nothing and was never closed: the page says so, sends nothing unchecked, and recovers."""
    request = await site.gated("shell", '{"argv": ["silent"]}')
    async with black_hole(quick_site.url) as hole:
        page = await open_page(f"/requests/{request.id}", at=replace(quick_site, url=hole.url))
        await page.clock.install()
        await page.add_init_script("AbortSignal.timeout = ((timeout) => () => timeout(500))(AbortSignal.timeout)")
        async with page.expect_request(lambda each: "/events?" in each.url):
            await page.reload()
        bar = page.locator("[data-link]")
        await expect(bar).to_be_hidden()
        hole.swallow()
        await site.stack.decide(request, "reject", message="no")
        await page.clock.fast_forward(10_000)
        await expect(bar).to_have_text(
            re.compile(r"^Not connected since \d\d:\d\d \S+\. What you see may be out of date\."), use_inner_text=True
        )
        await page.get_by_role("button", name="Approve", exact=True).click()
        await expect(page.locator("[data-unsent-note]")).to_contain_text(
            "Nothing was sent: the server does not answer."
        )
        hole.release()
        await page.clock.fast_forward(10_000)
        await expect(page.locator("#decision")).to_contain_text("Rejected by operator")
        await expect(bar).to_be_hidden()
        await page.context.set_offline(True)
        await expect(bar).to_contain_text("This device is offline. Not connected since")
        await page.context.set_offline(False)
        await expect(bar).to_be_hidden()
        await page.close()
    await site.ended(request)


async def test_a_page_that_comes_back_looks_before_it_decides(site, open_page):
    """Restored from the back/forward cache it updates at once; and without a live stream, a button looks before it sends."""
    request = await site.gated("shell", '{"argv": ["restored"]}')
    page, other = [await open_page(f"/requests/{request.id}") for _ in range(2)]
    for each in (page, other):
        await each.evaluate(
            "dispatchEvent(new PageTransitionEvent('pagehide'))"
        )  # as the cache does: the stream is closed
    sent = []
    other.on(
        "request", lambda each: sent.append(each) if each.method == "POST" and "presence" not in each.url else None
    )
    await site.stack.decide(request, "reject", message="no")
    await other.get_by_role("button", name="Approve", exact=True).click()
    await expect(other.locator("#decision")).to_contain_text("Rejected by operator")
    await expect(page.get_by_role("button", name="Approve", exact=True)).to_be_visible()
    await page.evaluate("dispatchEvent(new PageTransitionEvent('pageshow', { persisted: true }))")
    await expect(page.locator("#decision")).to_contain_text("Rejected by operator")
    assert sent == []
    await site.ended(request)


async def test_the_way_to_the_next_request_appears(site, open_page):
    """A request that opens after the last one was decided: the page leads there, and `n` does, without a reload."""
    query = urlencode({"list": urlencode({"search": "one-after-the-other"})})
    first = await site.gated("refund", '{"order": "one-after-the-other", "cents": 1}')
    page = await open_page(f"/requests/{first.id}?{query}")
    await site.stack.decide(first, "reject", message="no")
    await expect(page.locator("#next")).to_contain_text("No other request is pending in this list.")
    second = await site.gated("refund", '{"order": "one-after-the-other", "cents": 2}')
    await expect(page.locator("#next")).to_contain_text("Next pending request")
    await page.keyboard.press("n")
    await page.wait_for_url(f"**/requests/{second.id}?**")
    await site.stack.interrupt(await site.run(second))


async def test_keys_count_by_their_place_where_letters_are_others(site, open_page):
    """On a layout of other letters the key where `r` would be is `r`; on a Latin one, what it types; never with a modifier."""
    request = await site.gated("refund", '{"order": "layouts", "cents": 1}')
    page = await open_page(f"/requests/{request.id}")

    async def focus_after(*keys):
        return await page.evaluate(
            """keys => {
                document.activeElement.blur();
                for (const [key, code, more] of keys) {
                    const pressed = { key, code, bubbles: true, cancelable: true, ...more };
                    document.body.dispatchEvent(new KeyboardEvent("keydown", pressed));
                }
                return document.activeElement.id;
            }""",
            keys,
        )

    for key in "rкρקق":  # noqa: RUF001 - Latin, Russian, Greek, Hebrew, Arabic
        assert await focus_after((key, "KeyR")) == "reject-message"
    assert await focus_after(("ד", "KeyS"), ("'", "KeyW")) == "comment"  # Hebrew has no letter there
    for key, code, more in (
        ("p", "KeyR", {}),  # Dvorak
        ("é", "KeyR", {}),
        (",", "KeyW", {}),  # Dvorak
        ("к", "KeyR", {"ctrlKey": True}),
        ("к", "KeyR", {"isComposing": True}),
        ("Dead", "KeyR", {}),
        ("Process", "KeyR", {}),
    ):
        assert await focus_after((key, code, more)) == ""
    assert await focus_after(("r", "KeyO")) == "reject-message"  # Dvorak
    await site.stack.interrupt(await site.run(request))


async def test_buttons_are_inert_just_after_a_swap(site, open_page):
    """A click in the half second after the page changed under the hand does nothing; a later one does."""
    request = await site.gated("shell", '{"argv": ["swap"]}')
    page = await open_page(f"/requests/{request.id}")
    # A page whose state differs from the server's is swapped at the next event: here, another run's start.
    await page.evaluate("document.querySelector('#main').dataset.state = 'older'")
    await page.evaluate(
        """() => new MutationObserver((_changes, observer) => {
            if (!document.querySelector('#main.settling')) return;
            observer.disconnect();
            document.querySelector('[data-approve]').click();
            document.documentElement.dataset.clicked = 'yes';
        }).observe(document.body, { subtree: true, childList: true, attributes: true })"""
    )
    await site.gated("refund", '{"order": "other", "cents": 1}')
    await page.wait_for_selector("html[data-clicked]")
    await expect(page.locator("[data-say]")).to_contain_text("Check it, then press again")
    assert (await site.now(request)).status == "pending"
    await page.wait_for_selector("#main:not(.settling)")
    await page.get_by_role("button", name="Approve", exact=True).click()
    await expect(page.locator("#decision")).to_contain_text("Approved by ada")
    await site.ended(request)


async def test_the_module_knows_every_event_type(site):
    """EventSource only receives the types that it registers, so the module names every type that the engine writes."""
    source = (STATIC_DIR / "turngate.js").read_text()
    request = await site.gated("refund", '{"order": "events", "cents": 1}')
    await site.stack.decide(request, "approve")
    await site.ended(request)
    written = {event.type for event in await site.stack.events(await site.run(request))}
    assert written
    assert {kind for kind in written if f'"{kind}"' not in source} == set()


async def test_a_running_tools_progress_appears_as_it_comes(site, open_page):
    """Under its call: stored lines at once and without JavaScript, the rest live, the last 20 lines, escaped and visible."""
    request = await site.gated("refund", '{"order": "p", "cents": 1}')
    run_id, call_id = request.run_id, request.tool_call_id
    await site.started(request)
    async with reporting(site.stack.database, run_id=run_id, tool_call_id=call_id) as emit:
        emit("<b>unpacking</b>\x1b[2K\u202e")
        escaped = "<b>unpacking</b>⟨U+001B⟩[2K⟨U+202E⟩"
        page = await open_page(f"/runs/{run_id}")
        lines = page.locator("#call-1-1 .progress li")
        await expect(lines).to_have_text([escaped])
        emit({"done": 3, "of": 10})
        emit("a\tb\nc<img src=x>\u200b" + "e\u0301" + "\u0301" * 5)
        live = "a⇥b⏎c<img src=x>⟨U+200B⟩" + "e" + "\u0301" * 4 + "⟨U+0301⟩" * 2
        await expect(lines).to_have_text([escaped, '{"done":3,"of":10}', live])
        plain = await open_page(f"/runs/{run_id}", java_script_enabled=False)
        # Server and module render it alike.
        assert await plain.locator("#call-1-1 .progress li").all_inner_texts() == await lines.all_inner_texts()
        for number in range(1, 31):
            emit(f"line {number}")
        await expect(lines).to_have_text([f"line {number}" for number in range(11, 31)])
        # An update of the page (here at another run's event) keeps the lines so far.
        await page.evaluate("document.querySelector('#main').dataset.state = 'older'")
        await site.gated("refund", '{"order": "meanwhile", "cents": 1}')
        await page.wait_for_selector("#main.settling")
        await expect(lines).to_have_text([f"line {number}" for number in range(11, 31)])
    assert await page.locator("#call-1-1 .progress :is(b, img)").count() == 0
    await site.stack.interrupt(await site.run(request))
    await site.ended(request)
    await expect(lines).to_have_count(0)


async def test_the_models_words_appear_as_they_come(site, open_page):
    """Escaped and visible, each word once, void if its attempt is, over an update; then the stored message replaces them."""
    request = await site.gated("refund", '{"order": "spoken", "cents": 1}')
    database, run_id = site.stack.database, request.run_id

    def words(text, part=0, kind="text", name=""):
        return DeltaBatch([Delta(kind=kind, part=part, text=text, tool_name=name)])

    async def add(attempt, n, spoken_deltas):
        async with database.write() as conn:
            assert await deltas.append(conn, attempt, n, spoken_deltas)

    async with database.write() as conn:
        attempt = await deltas.begin(conn, run_id, 2, words("<b>said</b>\x1b[2K\u202e"))
    page = await open_page(f"/runs/{run_id}")
    spoken = page.locator("[data-spoken]")
    text, hostile = spoken.locator(".spoken-text pre"), "<b>said</b>⟨U+001B⟩[2K⟨U+202E⟩"
    await expect(text).to_have_text(hostile)  # what the model said before the page was opened
    await add(attempt, 2, words("\nand more"))
    await add(attempt, 3, words('{"a": ', part=1, kind="tool-call", name="edit_file<i>"))
    await expect(spoken.locator(".spoken-tool-call")).to_contain_text("Calls edit_file<i>")
    await page.evaluate("document.querySelector('#main').dataset.state = 'older'")
    await site.gated("refund", '{"order": "meanwhile, too", "cents": 1}')
    await page.wait_for_selector("#main.settling")
    await expect(text).to_have_text(f"{hostile}\nand more")
    assert await text.inner_text() == f"{hostile}\nand more"  # to_have_text collapses white space
    assert await spoken.locator(":is(b, i)").count() == 0
    async with database.write() as conn:
        await deltas.give_up(conn, attempt, 4, "it broke off <u>")
    await expect(text).to_have_count(0)
    await expect(spoken.locator("[data-reset]")).to_have_text("Its earlier words are void: it broke off <u>")
    async with database.write() as conn:
        await deltas.begin(conn, run_id, 2, words("again"))
    await expect(text).to_have_text("again")
    plain = await open_page(f"/runs/{run_id}", java_script_enabled=False)
    await expect(plain.locator("[data-spoken]")).to_be_hidden()
    await site.stack.decide(request, "approve")
    await expect(page.locator(".final")).to_contain_text("The answer is 42.")
    await expect(spoken).to_have_count(0)
    await site.ended(request)
