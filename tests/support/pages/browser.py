"""The planted pages in a real browser, from memory. Any other request of a page is noted and never answered."""

from __future__ import annotations

import mimetypes
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from playwright.async_api import Browser, Dialog, Page, Route
from support.planted.pages import ADDRESS, STATES, Pages

from turngate.approvals_api.http.security_headers import SECURITY_HEADERS
from turngate.approvals_api.pages import STATIC_DIR


@dataclass
class PageBrowser:
    """A browser page that opens one state after another. ``noted``: requests, dialogs and errors that should not occur."""

    page: Page
    html: dict[str, str]
    served: Pages | None
    noted: list[str] = field(default_factory=list)

    async def go(self, name: str) -> Page:
        """Show a state, with everything that can be opened open, once the page's own script has run."""
        if name not in self.html and self.served is not None:
            self.html[name] = await self.served.html(STATES[name])
        await self.page.goto(f"{ADDRESS}/shown/{list(self.html).index(name)}", wait_until="load")
        await self.page.wait_for_selector("html[data-ready]")
        await self.page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
        return self.page


@asynccontextmanager
async def browse(
    browser: Browser, html: dict[str, str], served: Pages | None = None, **options: Any
) -> AsyncIterator[PageBrowser]:
    """Serve pages by name to a browser context of their own: these, and those of ``STATES`` once they are looked at."""
    context = await browser.new_context(base_url=ADDRESS, reduced_motion="reduce", **options)
    context.set_default_timeout(30_000)
    opened = PageBrowser(await context.new_page(), html, served)

    async def answer(route: Route) -> None:
        url = urlsplit(route.request.url)
        if url.netloc != urlsplit(ADDRESS).netloc:
            opened.noted.append(f"request: {route.request.url}")
            await route.abort()
        elif url.path.startswith("/shown/"):
            headers = {**SECURITY_HEADERS, "Content-Type": "text/html; charset=utf-8"}
            await route.fulfill(body=list(html.values())[int(url.path.rpartition("/")[2])], headers=headers)
        elif url.path.startswith("/static/"):
            file = STATIC_DIR / url.path.rpartition("/")[2]
            await route.fulfill(body=file.read_bytes(), content_type=mimetypes.guess_type(file.name)[0])
        elif url.path == "/api/v1/events" or url.path.endswith("/presence"):
            await route.fulfill(status=204)  # an event source that gets this does not reconnect
        else:
            opened.noted.append(f"request: {route.request.url}")
            await route.abort()

    async def refuse(dialog: Dialog) -> None:
        opened.noted.append(f"dialog: {dialog.message}")
        await dialog.dismiss()

    await context.route("**/*", answer)
    opened.page.on("dialog", refuse)
    opened.page.on("pageerror", lambda error: opened.noted.append(f"error: {error}"))
    opened.page.on(
        "console", lambda line: opened.noted.append(f"console: {line.text}") if line.type == "error" else None
    )
    yield opened
    await context.close()
