"""Push in a real browser: the installable page, the service worker, and what it shows of a message.

Headless Chromium has no push service and shows no notifications. So the subscription itself is one that the test made, and
the events that a push service would cause are made in the service worker; the page, its form and the server are real.
"""

from __future__ import annotations

import json
from urllib.parse import urljoin

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.async_api import expect
from support.push_browsers import FakeBrowser

GRANTED = {"permissions": ["notifications"]}
SUBSCRIBES = """
PushManager.prototype.subscribe = async (options) => {
    const key = btoa(String.fromCharCode(...new Uint8Array(options.applicationServerKey)));
    const plain = key.replaceAll('+', '-').replaceAll('/', '_').replaceAll('=', '');
    sessionStorage.setItem('asked', JSON.stringify({ key: plain, visible: options.userVisibleOnly }));
    return { toJSON: () => (SUBSCRIPTION) };
};
"""

NOTES = """() => {
    self.noted = [];
    self.registration.showNotification = async (title, options) => { noted.push(['show', title, options]); };
    self.navigator.setAppBadge = async (count) => { noted.push(['badge', count]); };
    self.clients.openWindow = async (url) => { noted.push(['open', url]); };
    WindowClient.prototype.focus = async function focus() { noted.push(['focus', this.url]); };
}"""


@pytest.fixture
async def account(pushing_site, open_page):
    """The account page in a browser that may notify, with its site and the push service."""
    site, receiver = pushing_site
    return await open_page("/account", at=site, operator="pia", **GRANTED), receiver


async def test_the_page_can_be_installed(account):
    """Manifest and icons are there, of the sizes that they say, and the CSP lets the browser load them."""
    page, _receiver = account
    cdp = await page.context.new_cdp_session(page)
    manifest = await cdp.send("Page.getAppManifest")
    assert manifest["errors"] == []
    content, root = json.loads(manifest["data"]), page.url.removesuffix("account")
    starts_at = {urljoin(manifest["url"], content[each]) for each in ("start_url", "scope")}
    assert (starts_at, content["display"]) == ({root}, "standalone")
    for icon in content["icons"]:
        size = await page.evaluate(
            """async (src) => { const icon = new Image(); icon.src = src; await icon.decode(); return icon.naturalWidth; }""",
            urljoin(manifest["url"], icon["src"]),
        )
        assert icon["sizes"] in {"any", f"{size}x{size}"}


async def test_a_browser_without_a_push_service_says_so(account):
    """The service worker is installed for the whole site, keeps no copy of anything, and the page says what is missing."""
    page, receiver = account
    await expect(page.locator("form[data-push]")).to_be_visible()
    await page.get_by_role("button", name="Notify me in this browser").click()
    await expect(page.locator("[data-push-words]")).to_contain_text("This browser can't be notified:")
    scope = await page.evaluate("navigator.serviceWorker.ready.then((registration) => registration.scope)")
    assert scope == page.url.removesuffix("account")
    await page.goto("/")
    assert await page.evaluate("caches.keys()") == []
    assert receiver.received == []


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 320)])
async def test_the_form_is_accessible(account, scheme, width):
    """Axe finds nothing serious in the form and its list of browsers, and nothing scrolls sideways."""
    page, _receiver = account
    await page.set_viewport_size({"width": width, "height": 640})
    await page.emulate_media(color_scheme=scheme)
    await expect(page.locator("form[data-push]")).to_be_visible()
    await page.evaluate(AXE_SCRIPT)
    result = await page.evaluate("axe.run()")
    assert [each["id"] for each in result["violations"] if each["impact"] in {"serious", "critical"}] == []
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")


async def test_a_browser_subscribes_changes_what_it_wants_and_turns_it_off(account):
    """The form sends what the browser's push service gave it; the first message arrives, and only this browser reads it."""
    page, receiver = account
    browser = FakeBrowser()
    await page.add_init_script(SUBSCRIBES.replace("SUBSCRIPTION", json.dumps(browser.subscription)))
    await page.reload()
    await page.wait_for_selector("html[data-ready]")
    key = await page.locator("form[data-push]").get_attribute("data-push")
    await page.get_by_role("button", name="Notify me in this browser").click()
    row = page.locator("#browsers ~ ul").first
    await expect(row).to_contain_text("this browser")
    await expect(row).to_contain_text("every request")
    options = json.loads(await page.evaluate("sessionStorage.getItem('asked')"))
    assert options == {"key": key, "visible": True}
    (got,) = await receiver.got(1)
    assert browser.read(got)["title"] == "Notifications are on"
    await page.get_by_label("Only these tools").fill("refund")
    await page.get_by_label("Of this risk or more").select_option("high")
    await page.get_by_role("button", name="Change what this browser announces").click()
    await expect(row).to_contain_text("tools refund; high risk")
    await expect(page.get_by_label("Only these tools")).to_have_value("refund")
    await page.get_by_role("button", name="Turn off").click()
    await expect(page.get_by_role("button", name="Notify me in this browser")).to_be_visible()


@pytest.fixture
async def worker(account):
    """The page's service worker, which notes what it would show and open: headless Chromium does neither."""
    page, _receiver = account
    await page.evaluate("navigator.serviceWorker.register('/service-worker.js')")
    await page.evaluate("navigator.serviceWorker.ready.then(() => true)")
    (worker,) = page.context.service_workers
    await worker.evaluate(NOTES)
    return worker


async def test_the_service_worker_shows_a_message(worker):
    """Title, text, address, and the tag by which a later message about a request replaces an earlier one; and the count."""
    icon = worker.url.replace("/service-worker.js", "/static/icon-192.png")
    message = {
        "title": "Approval needed: pay",
        "body": "support",
        "tag": "rq_1",
        "path": "/requests/rq_1",
        "waiting": 2,
    }
    await worker.evaluate(
        """async (text) => {
            let shown = null;
            const event = new PushEvent('push', { data: text });
            event.waitUntil = (promise) => { shown = promise; };
            self.dispatchEvent(event);
            await shown;
        }""",
        json.dumps(message),
    )
    options = {"body": "support", "tag": "rq_1", "renotify": True, "data": {"path": "/requests/rq_1"}}
    assert await worker.evaluate("noted") == [
        ["show", "Approval needed: pay", {**options, "icon": icon}],
        ["badge", 2],
    ]


@pytest.mark.parametrize(
    ("path", "opened"),
    [
        ("/requests/rq_1", ["open", "/requests/rq_1"]),
        ("/account", ["focus", "/account"]),
        ("//evil.example/", ["open", "//evil.example/"]),
    ],
)
async def test_a_click_opens_the_request(worker, path, opened):
    """A page that shows it already gets the focus; no other site is ever opened."""
    home = worker.url.removesuffix("/service-worker.js")
    await worker.evaluate(
        """async (path) => {
            let done = null;
            const notification = { close: () => noted.push(['close']), data: { path } };
            const event = Object.assign(new ExtendableEvent('notificationclick'), { notification });
            event.waitUntil = (promise) => { done = promise; };
            self.dispatchEvent(event);
            await done;
        }""",
        path,
    )
    assert await worker.evaluate("noted") == [["close"], [opened[0], f"{home}{opened[1]}"]]
