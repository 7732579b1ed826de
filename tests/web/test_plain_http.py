"""People who reach Turngate by http and a name in their own network, where browsers send no Sec-Fetch-Site."""

from __future__ import annotations

from urllib.parse import urlsplit

from playwright.async_api import Browser, expect
from support.api.login_app import PASSWORD, door_on

from turngate.store.database import Database


async def test_a_person_logs_in_by_a_name_on_plain_http(browser: Browser, sqlite: Database) -> None:
    """The form is ours by its Origin, which the browser sends because our referrer policy lets it."""
    async with door_on(sqlite, host="0.0.0.0") as door:  # noqa: S104 - what a deployment listens on; here it is loopback
        await door.add("ann")
        context = await browser.new_context()
        page = await context.new_page()
        await page.goto(f"http://acme.turngate.test:{urlsplit(door.url).port}/login")
        await page.get_by_label("Name").fill("ann")
        await page.get_by_label("Password").fill(PASSWORD)
        async with page.expect_request(lambda request: request.method == "POST") as posted:
            await page.get_by_role("button", name="Log in").click()
        headers = await (await posted.value).all_headers()
        assert "sec-fetch-site" not in headers
        await expect(page.get_by_text("No pending requests.")).to_be_visible()
        await context.close()
