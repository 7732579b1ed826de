"""A person at the keyboard of a page: what is pressed is counted, and what is to be read is scrolled through."""

from __future__ import annotations

from playwright.async_api import Page
from support.engine.stack import until

CALLS = "document.querySelector('[data-must-see]').getBoundingClientRect()"
MOST_TABS = 40


class Keyboard:
    """The keys of a page, counted."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.pressed = 0

    async def tab_to(self, selector: str) -> None:
        """Press Tab until the focus is on what a selector means."""
        for _press in range(MOST_TABS):
            if await self.page.evaluate("wanted => document.activeElement.matches(wanted)", selector):
                return
            await self.press("Tab")
        raise AssertionError(f"no Tab leads to {selector}")

    async def type(self, text: str) -> None:
        """Write text into what has the focus; each character is a key."""
        self.pressed += len(text)
        await self.page.keyboard.type(text)

    async def press(self, key: str) -> None:
        self.pressed += 1
        await self.page.keyboard.press(key)

    async def read_to_the_end(self) -> None:
        """Scroll through the calls by the space bar, page by page, as a person who reads them; each scroll comes to rest."""
        whole = await self.page.evaluate(f"Math.round({CALLS}.height)")
        seen_to = await until(lambda: self.rests(beyond=0), "the first calls, at rest")
        while seen_to < whole - 2:  # as the page counts
            await self.press("Space")
            seen_to = await until(lambda seen_to=seen_to: self.rests(beyond=seen_to), "the next calls, at rest")

    async def rests(self, *, beyond: int) -> int | None:
        """How far down the calls were seen, once that is what is on the screen; None: not yet."""
        bottom, seen_to = await self.page.evaluate(
            f"[Math.min({CALLS}.height, innerHeight - {CALLS}.top), document.querySelector('[data-must-see]').dataset.seenTo]"
        )
        at_rest = seen_to is not None and abs(int(seen_to) - bottom) <= 1 and bottom > beyond + 1
        return round(bottom) if at_rest else None

    async def approve(self) -> None:
        await self.press("a")
        await self.page.wait_for_selector("[data-approve][data-ready]")
        await self.press("a")
