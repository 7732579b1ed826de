"""What a page says when a decision does not win; nothing typed is lost."""

import re

import pytest
from playwright.async_api import expect
from support.api.login_app import PASSWORD
from support.servers.oidc_provider import PASSWORD as PROVIDERS_PASSWORD

from turngate.approvals_api.http.authentication import SESSION_COOKIE
from turngate.approvals_api.http.rate_limits import RateLimits
from turngate.approvals_api.recovery.redelivery import redeliver
from turngate.approvals_api.settings import RateLimitSettings
from turngate.store.access import people, sessions, users
from turngate.store.access.passwords import hash_password

NO_SCRIPT = {"java_script_enabled": False}


async def form_of(page, action):
    """The controls of one of the page's forms, as the browser would send them."""
    return await page.evaluate(
        "action => Object.fromEntries(new FormData(document.querySelector(`[data-form='${action}']`)))", action
    )


def is_decision(answer) -> bool:
    """Whether this answers a decision, and not what the page posts by itself, such as a person's presence."""
    return answer.request.method == "POST" and not answer.url.endswith("/presence")


async def test_a_double_click_is_one_decision(site, open_page):
    """Two clicks in a row lead to the approved request, not to an error."""
    request = await site.gated("refund", '{"order": "clicks", "cents": 1}')
    page = await open_page(f"/requests/{request.id}")
    await page.locator("[data-approve]").dblclick()
    await expect(page.locator("#decision")).to_contain_text("Approved by ada")
    await site.ended(request)
    assert len([ran for ran in site.ran.of("refund") if ran["order"] == "clicks"]) == 1


async def test_the_loser_sees_the_winner_and_what_was_typed(site, open_plain):
    """409: who was first and what they decided, with the loser's own words still on the page."""
    request = await site.gated("refund", '{"order": "race", "cents": 1}')
    page = await open_plain(f"/requests/{request.id}", operator="bob")
    await site.stack.decide(request, "approve")
    await page.press("Reject", {"reject-message": "a long and careful reason"})
    assert page.status == 409
    for words in ("operator decided first", "Approved by operator", "a long and careful reason"):
        assert words in page.text
    await site.ended(request)


async def test_a_form_of_another_session_decides_nothing(site, open_page):
    """A form token of another session is refused with 403, and the typed text is still there."""
    request = await site.gated("refund", '{"order": "token", "cents": 1}')
    page = await open_page(f"/requests/{request.id}")
    await page.evaluate("document.querySelectorAll('[name=csrf_token]').forEach(each => { each.value = 'stale' })")
    await page.locator("#reject-message").fill("my reason")
    async with page.expect_response(is_decision) as posted:
        await page.get_by_role("button", name="Reject").click()
    assert (await posted.value).status == 403
    await expect(page.locator("#attempt")).to_contain_text("from before you logged in")
    await expect(page.locator("#reject-message")).to_have_value("my reason")
    assert (await site.now(request)).status == "pending"
    await page.get_by_role("button", name="Reject").click()
    await expect(page.locator("#decision")).to_contain_text("Rejected by ada")
    await site.ended(request)


TEXT = "The amount is twice\nthat of the invoice."


async def typed_when_the_session_ends(site, open_page, name, *, at=None, **options):
    """A page with a reason that was typed and sent after its session had ended; its request, and what it posted to it."""
    request = await site.gated("refund", '{"order": "ended", "cents": 1}')
    page = await open_page(f"/requests/{request.id}", operator=name, at=at or site, **options)
    sent = []
    page.on("request", lambda each: sent.append(each) if each.method == "POST" and each.url == page.url else None)
    await page.locator("#reject-message").fill(TEXT)
    async with site.stack.database.write() as conn:
        await sessions.revoke_all(conn, await people.id_of(conn, name), by="root")
    await page.get_by_role("button", name="Reject").click()
    return page, request, sent


async def rejected(site, page, request, by):
    """The form that waited is sent, once it is pressed."""
    await expect(page.locator("#reject-message")).to_have_value(TEXT)
    assert (await site.now(request)).status == "pending"
    await page.get_by_role("button", name="Reject").click()
    await expect(page.locator("#decision")).to_contain_text(f"Rejected by {by}")
    await site.ended(request)


@pytest.mark.exhaustive
async def test_without_a_script_an_ended_session_keeps_what_was_typed(site, open_page):
    """The answer has it, and shows the form with it again after a log-in in another tab; nothing is decided by that."""
    page, request, _sent = await typed_when_the_session_ends(site, open_page, "eve", **NO_SCRIPT)
    await expect(page.locator("h1")).to_contain_text("Your session ended")
    await expect(page.locator("main a[href='/login']")).to_have_attribute("target", "_blank")
    secret = await site.session("eve")
    await page.context.add_cookies([{"name": SESSION_COOKIE, "value": secret, "url": site.url, "httpOnly": True}])
    await page.get_by_role("button", name="Show the form again").click()
    await expect(page.locator("#attempt")).to_contain_text("nothing was sent")
    await rejected(site, page, request, "eve")


@pytest.mark.parametrize("by", ["ivy", "jon"])
async def test_a_log_in_in_place_keeps_what_was_typed(site, open_page, by):
    """The person who typed it sends it with the next press, once. To another person the form is shown again first.

    A log-in that is refused, for its password or for too many tries, says so in the dialog.
    """
    password_hash = await hash_password(PASSWORD)
    async with site.stack.database.write() as conn:
        if await users.user_called(conn, by) is None:
            await users.add(conn, users.User(name=by, role="operator", password_hash=password_hash), by="root")
    page, request, sent = await typed_when_the_session_ends(site, open_page, "ivy")
    dialog = page.get_by_role("dialog", name="Log in")
    await expect(page.locator("#decision [data-unsent-note]")).to_contain_text("Nothing was sent: your session ended.")
    await dialog.get_by_role("button", name="Not now").click()
    await expect(dialog).to_be_hidden()
    await page.get_by_role("link", name="Log in here").click()
    limits, site.state.limits = site.state.limits, RateLimits(RateLimitSettings(logins_per_address=1))
    refusals = ("The name or the password is wrong", "too many log-ins failed from your address: try again in 60 s")
    for words in (*refusals, None):
        if words is None:
            site.state.limits = limits
        await dialog.get_by_label("Name").fill(by)
        await dialog.get_by_label("Password").fill(PASSWORD if words is None else "wrong password")
        await dialog.get_by_role("button", name="Log in").click()
        if words is not None:
            await expect(dialog.get_by_role("alert")).to_contain_text(words)
    await expect(dialog).to_be_hidden()
    words = "You are logged in again." if by == "ivy" else "Nothing was sent: now jon is logged in."
    await expect(page.locator("#decision [data-unsent-note]")).to_contain_text(words)
    await expect(page.locator(".who .name")).to_have_text(by)
    assert sent == []
    if by == "jon":
        await page.get_by_role("button", name="Reject").click()
        await expect(page.locator("#attempt")).to_contain_text("nothing was sent")
    await rejected(site, page, request, by)
    assert len(sent) == (1 if by == "ivy" else 2)


@pytest.mark.exhaustive
async def test_a_log_in_at_a_provider_is_a_window_that_closes_itself(site, provider_site, open_page):
    """The page stays, with what was typed, and continues under the new session."""
    page, request, sent = await typed_when_the_session_ends(site, open_page, "Ida", at=provider_site)
    dialog = page.get_by_role("dialog", name="Log in")
    async with page.context.expect_page() as opened:
        await dialog.get_by_role("link", name="Log in with 127.0.0.1").click()
    window = await opened.value
    for name, text in (("login", "ida"), ("password", PROVIDERS_PASSWORD)):
        await window.locator(f"[name={name}]").fill(text)
        await window.locator(f"[name={name}]").press("Enter")
    async with window.expect_event("close"):
        await window.locator("[name=answer][value=accept]").click()
    await expect(dialog).to_be_hidden()
    await expect(page.locator("#decision [data-unsent-note]")).to_contain_text("You are logged in again.")
    assert sent == []
    await rejected(site, page, request, "Ida")
    assert len(sent) == 1
    await page.close()


@pytest.mark.parametrize(
    ("answer", "words"),
    [(None, "already is not done twice"), pytest.param(500, "Not done: it broke", marks=pytest.mark.exhaustive)],
)
async def test_a_server_that_breaks_after_the_look_takes_no_text_away(site, open_page, answer, words):
    """The page stays with what was typed, in the form that was sent and in others; the same button sends it later."""
    request = await site.gated("refund", '{"order": "lost", "cents": 1}')
    page = await open_page(f"/requests/{request.id}")
    address = f"**/requests/{request.id}/comments"
    broken = "<main id='main' data-page='error'><pre>it broke</pre></main>"
    await page.route(
        address, lambda route: route.abort() if answer is None else route.fulfill(status=answer, body=broken)
    )
    await page.locator("#reject-message").fill("half a reason")
    await page.locator("#comment").fill("Whose order\nis this?")
    await page.get_by_role("button", name="Comment", exact=True).click()
    await expect(page.locator("#comments [data-unsent-note]")).to_contain_text(words)
    await expect(page.locator("#comment")).to_have_value("Whose order\nis this?")
    await expect(page.locator("#reject-message")).to_have_value("half a reason")
    await page.unroute(address)
    await page.get_by_role("button", name="Comment", exact=True).click()
    await expect(page.locator(".comment")).to_contain_text("Whose order")
    await page.locator("#reject-message").fill("no")
    await page.get_by_role("button", name="Reject").click()
    await expect(page.locator("#decision")).to_contain_text("Rejected by ada")
    await site.ended(request)


async def test_temporal_away_a_decision_is_taken(site, cut_off, open_plain):
    """The page shows the decision as final while Temporal is away; the run gets its signal again and continues."""
    request = await site.gated("refund", '{"order": "away", "cents": 1}')
    page = await open_plain(f"/requests/{request.id}", at=cut_off)
    await page.press("Reject", {"reject-message": "not now"})
    assert "Rejected by ada" in page.section("decision")
    assert "not now" in page.text
    assert await redeliver(site.stack.services, request.id)
    await site.ended(request)


async def test_a_request_that_ended_shows_how(site, open_page):
    """A cancelled request says so, has every button off, and links to the next one."""
    request = await site.gated("refund", '{"order": "ended", "cents": 1}')
    await site.stack.interrupt(await site.run(request))
    await site.ended(request)
    other = await site.gated("refund", '{"order": "next", "cents": 1}')
    page = await open_page(f"/requests/{request.id}")
    await expect(page.locator("#decision")).to_contain_text("Cancelled")
    for button in await page.locator("#decision button").all():
        await expect(button).to_be_disabled()
    await page.keyboard.press("n")
    await page.wait_for_url(re.compile(r"/requests/rq_"))
    await expect(page.locator("#decision")).to_contain_text("Your decision")
    assert other.status == "pending"


async def test_an_error_is_a_page(open_plain):
    """It says what happened as people do, and has a way back: for requests, runs and any other address."""
    page = await open_plain("/")
    for path in ("/requests/rq_none", "/runs/run_none", "/nowhere"):
        assert (await page.open(path)).status == 404
        assert "To the inbox" in page.text
    assert (await page.open("/?status=soon")).status == 422
    for words in ("This can't be accepted", "the inbox can't be filtered like this"):
        assert words in page.text
