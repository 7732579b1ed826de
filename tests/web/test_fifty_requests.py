"""Fifty mixed requests by keyboard, as an operator works through them: what each kind takes, in keys and in seconds.

With ``-s`` it prints the table of docs/performance.md.
"""

from __future__ import annotations

import json
import re
import statistics
import time
from collections import defaultdict

import pytest
from support.pages.keyboard import Keyboard

from turngate.approvals_api.pages.frames import OPENS_NEXT
from turngate.store.requests import requests

MOST_KEYS = {"approve": 2, "high risk": 9, "answer": 2, "reject": 9, "edit": 16, "a step of 8": 3, "find one order": 10}
"""Typed text included; of a step without the keys that scroll, because that is reading."""


def refund(order: str, cents: int = 7) -> tuple[str, str]:
    return "refund", json.dumps({"order": order, "cents": cents})


def fifty() -> dict[str, list[tuple[str, str]]]:
    """Kind of task → the calls that ask for it, besides the step of eight."""
    return {
        "approve": [
            *(refund(f"A-{number}") for number in range(18)),
            *(("shell", json.dumps({"argv": ["ls", f"/srv/{number}"]})) for number in range(6)),
        ],
        "high risk": [("deploy", json.dumps({"target": f"web-{number}"})) for number in range(4)],
        "answer": [
            ("ask_person", json.dumps({"question": f"Red or {n}?", "choices": ["red", "blue"]})) for n in range(4)
        ],
        "reject": [refund(f"wrong-{number}") for number in range(6)],
        "edit": [refund(f"change-{number}") for number in range(3)],
        "find one order": [refund("A-7731")],
    }


class Operator:
    """Decides by keyboard, and notes the keys and seconds of each task by its kind."""

    def __init__(self, page):
        self.page = page
        self.keys = Keyboard(page)
        self.spent = defaultdict(list)

    async def next_page(self):
        """Wait for a page that wasn't there before."""
        await self.page.wait_for_selector("html[data-ready]:not([data-before])")
        await self.page.evaluate("document.documentElement.dataset.before = 'yes'")

    async def do(self, kind):
        before, began = self.keys.pressed, time.perf_counter()
        reading = await getattr(self, f"do_{kind.replace(' ', '_')}")() or 0
        await self.next_page()
        self.spent[kind].append((self.keys.pressed - before - reading, time.perf_counter() - began))

    async def do_approve(self):
        await self.keys.approve()

    async def do_high_risk(self):
        await self.keys.press("a")
        await self.keys.type("deploy")
        await self.keys.press("Tab")
        await self.keys.press("Enter")

    async def do_answer(self):
        await self.keys.press("a")
        await self.keys.press("Enter")

    async def do_reject(self):
        await self.keys.press("r")
        await self.keys.type("paid")
        await self.keys.tab_to("button.reject")
        await self.keys.press("Enter")

    async def do_edit(self):
        await self.keys.press("e")
        await self.keys.press("End")
        await self.keys.type("9")
        await self.keys.tab_to("#edit button[value=edited]")
        await self.keys.press("Enter")

    async def do_a_step_of_8(self):
        await self.keys.press("b")
        await self.next_page()
        before = self.keys.pressed
        await self.keys.read_to_the_end()
        reading = self.keys.pressed - before
        await self.keys.approve()
        return reading

    async def do_find_one_order(self):
        await self.keys.press("/")
        await self.keys.type("A-7731")
        await self.keys.press("Enter")
        await self.next_page()
        await self.open_first()

    async def open_first(self):
        await self.keys.press("j")
        await self.keys.press("Enter")

    async def open_next(self):
        """Open what comes after several that were decided together."""
        await self.keys.press("n")
        await self.next_page()


@pytest.mark.exhaustive
async def test_fifty_requests_by_keyboard(idle_site, open_page):
    """Each of 50 requests is decided without the mouse, by no more keys than its kind was measured to take."""
    site, kinds = idle_site, {}
    async with site.stack.worker():
        for kind, calls in fifty().items():
            kinds |= {(await site.gated(*each)).id: kind for each in calls}
        step = await site.gated_step(*(refund(f"step-{number}") for number in range(8)))
        kinds |= {each.id: "a step of 8" for each in step}
        assert len(kinds) == 50
        page = await open_page("/", at=site, viewport={"width": 1280, "height": 720})
        await page.context.add_cookies([{"name": OPENS_NEXT, "value": "yes", "url": site.url}])
        operator = Operator(page)
        await operator.next_page()
        await operator.do("find one order")
        await operator.do("approve")
        await page.goto("/")
        await operator.next_page()
        await operator.open_first()
        await operator.next_page()
        for _act in range(50 - 1 - len(step) + 1):
            await operator.do(kinds[re.search(r"rq_\w+", page.url)[0]])
            if "/requests/bulk" in page.url and await page.locator("[data-next]").count():
                await operator.open_next()
        async with site.stack.database.read() as conn:
            assert await requests.count(conn) == 0
    for kind, spent in operator.spent.items():
        keys, seconds = zip(*spent, strict=True)
        print(f"| {kind} | {len(spent)} | {statistics.median(keys):.0f} | {statistics.median(seconds):.2f} |")
        assert max(keys) <= MOST_KEYS[kind], kind
