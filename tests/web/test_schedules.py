"""A schedule on its pages: what it will do and did; paused, fired, resumed and deleted by form."""

from __future__ import annotations

import json
import re
from contextlib import suppress

from playwright.async_api import TimeoutError as PressedInVain
from playwright.async_api import expect
from support.engine.stack import person, until

from turngate.approvals_api.schedules import service as schedule_service
from turngate.domain.agents.schedules import Timetable
from turngate.wire.orders import ScheduleOrder

NO_SCRIPT = {"java_script_enabled": False}
ADA = person("ada")
"""Who is logged in on the pages: a schedule is deleted by its maker."""


async def created(site, name, timetable, task, **changes):
    wanted = ScheduleOrder(name=name, agent="agent", input=task, timetable=timetable, **changes)
    return await schedule_service.create(site.stack.services, ADA, wanted)


async def test_a_schedule_is_controlled_by_forms(site, open_plain):
    """Listed, paused with a reason, fired all the same, resumed, deleted; its run names it."""
    seldom = Timetable(cron="0 8 1 1 *")
    schedule = await created(site, "yearly", seldom, json.dumps(["ok", "look", '{"name": "x"}']), notes="<b>n</b>")
    page = await open_plain("/schedules")
    await page.follow("yearly")
    assert "at 0 8 1 1 * (UTC)" in page.text
    assert "<b>n</b>" in page.text
    await page.press("Pause", {"reason": "holidays"})
    assert "ada paused this schedule" in page.text
    assert "holidays" in page.text
    assert 'class="fires' not in page.html
    await page.press("Run now")
    assert "/runs/run_" in page.url
    await page.follow("schedule yearly")
    assert "ada started it by hand" in page.text
    await page.press("Resume")
    assert 'class="fires' in page.html
    await page.press("Delete")
    assert "deleted" in page.text
    assert f'href="/schedules/{schedule.id}"' not in (await page.open("/schedules")).html


async def test_times_are_the_readers_in_each_frame(site, open_page):
    """No frame, from the first on, shows a time in UTC: the small script does it, however late the large one is."""
    schedule = await created(site, "january", Timetable(cron="0 8 1 1 *"), json.dumps(["ok"]))
    page = await open_page(f"/schedules/{schedule.id}", timezone_id="Asia/Tokyo")
    ready = "document.documentElement.dataset.ready = ''"
    await page.route("**/static/turngate.js*", lambda route: route.fulfill(content_type="text/javascript", body=ready))
    await page.add_init_script("""
        globalThis.frames_ = [];
        requestAnimationFrame(function look() {
            const times = [...document.querySelectorAll(".fires time")].map((time) => time.textContent);
            if (times.length > 0) frames_.push(times.join());
            requestAnimationFrame(look);
        });
    """)
    await page.reload()
    await page.wait_for_function("() => frames_.length > 2")
    frames = await page.evaluate("frames_")
    assert [each for each in frames if "UTC" in each] == []
    assert "-01-01 17:00:00 GMT+9" in frames[0]
    # The parser can add a text in parts.
    await page.locator(".fires time").first.evaluate("time => time.firstChild.appendData(' 08:00 UTC')")
    await expect(page.locator(".fires time").first).to_have_text(re.compile(r"-01-01 17:00:00 GMT\+9$"))
    await page.close()


async def test_a_fire_appears_by_itself(site, open_page):
    """The page is open when the clock fires: the run appears without a reload; another fire is refused and names the live run."""
    schedule = await created(
        site, "often", Timetable(every_seconds=3), json.dumps(["ok", "refund", '{"order": "s", "cents": 1}'])
    )
    page = await open_page(f"/schedules/{schedule.id}")
    await expect(page.locator("tbody a").last).to_contain_text("run_")
    run_id = await page.locator("tbody a").last.inner_text()

    async def refused() -> bool:
        """Press the button; for a moment after an update of the page it takes no press."""
        with suppress(PressedInVain):
            # The script looks whether the session lives before it sends the form.
            async with page.expect_navigation(timeout=5_000):
                await page.get_by_role("button", name="Run now").click()
        return await page.locator("p.warn").count() > 0

    await until(refused, "answer to the press")
    await expect(page.locator("p.warn")).to_contain_text(f"{run_id} is still live")
    await page.goto(f"/schedules/{schedule.id}")  # the answer's message stays until the page is loaded again
    await expect(page.locator("tbody")).to_contain_text(f"run {run_id} was still live")
    await schedule_service.delete(site.stack.services, ADA, schedule.id)
    await expect(page.locator(".title .chip")).to_have_text("deleted")
