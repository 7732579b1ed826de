"""The form of a schedule: what is typed is checked, shown with its next fires, and stored only after that."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import httpx
import pytest
from support.pages.html_forms import PostedPage
from support.planted.pages import Pages, pages_of
from support.planted.text import Filling

from turngate.approvals_api.pages.schedules.schedule_form import controls_of, schedule_change
from turngate.approvals_api.schedules.views import schedule_view
from turngate.domain.agents.schedules import Timetable
from turngate.store.schedules import schedules
from turngate.store.schedules.schedules import Schedule
from turngate.wire.schedules import ScheduleDetail

GOOD = {"name": "report", "input": "Send the report.", "agent": "second", "timetable/cron": "0 8 * * 1-5"}


@pytest.fixture
async def pages(sqlite_template: Path, tmp_path: Path) -> AsyncIterator[Pages]:
    async with pages_of(Filling("pay"), sqlite_template, tmp_path / "pages") as served:
        yield served


@pytest.fixture
async def empty(pages: Pages) -> str:
    """The form before anything is typed."""
    return (await pages.client.get("/schedules/new")).text


async def stored(pages: Pages, name: str) -> Schedule | None:
    async with pages.database.read() as conn:
        return await schedules.find(conn, name)


async def send(pages: Pages, page: str, changes: Mapping[str, str], path: str = "/schedules/new") -> httpx.Response:
    """Fill the form of a page that was served, and send it."""
    return await pages.client.post(path, data={**PostedPage(page).form("schedule").sent, **changes})


async def test_a_schedule_is_stored_after_its_next_fires_were_shown(pages: Pages, empty: str) -> None:
    """The first press shows five fires and stores nothing; the second stores it. A changed timetable is shown again first."""
    first = await send(pages, empty, GOOD)
    assert first.status_code == 200
    assert first.text.count("<li><time") == 5
    assert await stored(pages, "report") is None
    other = await send(pages, first.text, {"timetable/cron": "0 9 * * 1-5"})
    assert "09:00:00 UTC" in other.text
    assert await stored(pages, "report") is None
    done = await send(pages, other.text, {})
    schedule = await stored(pages, "report")
    assert schedule is not None
    assert done.headers["location"] == f"/schedules/{schedule.id}"
    assert (schedule.times.cron, schedule.agent, schedule.input) == ("0 9 * * 1-5", "second", "Send the report.")
    assert (schedule.unattended_asks, schedule.overlap, schedule.paused_at) == ("park", "skip", None)


async def test_the_next_fires_name_the_clock_changes(pages: Pages, empty: str) -> None:
    """What a clock change skips or repeats is on the page before the schedule is stored."""
    night = {"timetable/cron": "30 2 * * *", "timetable/time_zone": "Europe/Berlin"}
    page = await send(pages, empty, {**GOOD, **night})
    assert "02:30 does not exist, so it is skipped" in page.text
    assert "02:30 comes twice, so it fires twice" in page.text
    assert await stored(pages, "report") is None


async def test_a_schedule_can_begin_paused(pages: Pages, empty: str) -> None:
    """It is paused from its first moment, so nothing fires before someone resumes it."""
    first = await send(pages, empty, {**GOOD, "paused": "yes"})
    await send(pages, first.text, {})
    schedule = await stored(pages, "report")
    assert schedule is not None
    assert schedule.paused_at is not None
    assert (schedule.paused_by, schedule.revision) == ("ada", 1)


WRONG: list[tuple[dict[str, str], str]] = [
    ({"name": "a b"}, "name"),
    ({"input": " "}, "input"),
    ({"agent": "gone"}, "agent"),
    ({"timetable/cron": "61 * * * *"}, "timetable/cron"),
    ({"timetable/cron": ""}, "timetable/cron"),
    ({"timetable/time_zone": "Mars/Base"}, "timetable/time_zone"),
    ({"timetable/time_zone": "../etc"}, "timetable/time_zone"),
    ({"timetable/ends_at": "2001-01-01T00:00"}, "timetable/ends_at"),
    ({"timetable/starts_at": "soon"}, "timetable/starts_at"),
    ({"timetable/jitter_seconds": "-1"}, "timetable/jitter_seconds"),
    ({"timetable/jitter_seconds": "999999999"}, "timetable/jitter_seconds"),
    ({"kind": "every"}, "timetable/every_seconds"),
    ({"kind": "every", "timetable/every_seconds": "1e3"}, "timetable/every_seconds"),
    ({"kind": "every", "timetable/every_seconds": "0"}, "timetable/every_seconds"),
    ({"catch_up_seconds": "1"}, "catch_up_seconds"),
    ({"conversation": "continue", "overlap": "allow"}, "overlap"),
    ({"workspace": "/no/such/folder"}, "workspace"),
    ({"model": "no such"}, "model"),
    ({"notes": "n" * 3_000}, "notes"),
]
"""What is typed, and the control that it doesn't fit."""


async def test_what_does_not_fit_is_marked_and_nothing_is_lost(pages: Pages, empty: str) -> None:
    """The complaint is at its control, everything that was typed is there, and nothing is stored."""

    async def marked(page: str, typed: dict[str, str], control: str) -> None:
        answer = await send(pages, page, typed)
        assert answer.status_code in {409, 422}, typed
        assert f'id="{control}-complaint"' in answer.text, typed
        sent = PostedPage(answer.text).form("schedule").sent
        assert {name: sent.get(name) for name in typed} == typed

    for changes, control in WRONG:
        await marked(empty, {**GOOD, "notes": "for the team", **changes}, control)
    forged = await send(pages, empty, {**GOOD, "overlap": "never"})
    assert (forged.status_code, 'id="overlap-complaint"' in forged.text) == (422, True), (
        "the form offers no such option"
    )
    taken = {**GOOD, "name": "1pay"}  # that another schedule has a name is known when it is stored
    await marked((await send(pages, empty, taken)).text, taken, "name")
    async with pages.database.read() as conn:
        assert {each.name for each in await schedules.page(conn, limit=10)} <= {"1pay", "2pay"}


async def test_a_form_without_its_token_changes_nothing(pages: Pages, empty: str) -> None:
    """A form that another site sends is refused."""
    form = PostedPage(empty).form("schedule")
    first = await pages.client.post("/schedules/new", data={**form.sent, **GOOD})
    again = {**PostedPage(first.text).form("schedule").sent, "csrf_token": "forged"}
    answer = await pages.client.post("/schedules/new", data=again)
    assert answer.status_code == 403
    assert await stored(pages, "report") is None


async def test_a_schedule_is_changed_on_its_page(pages: Pages, empty: str) -> None:
    """Other fields are saved at once; a new timetable is shown first; someone else's newer change is not overwritten."""
    await send(pages, (await send(pages, empty, GOOD)).text, {})
    schedule = await stored(pages, "report")
    assert schedule is not None
    path = f"/schedules/{schedule.id}/edit"
    old = await pages.client.get(path)
    saved = await send(pages, old.text, {"notes": "hello"}, path)
    assert saved.headers["location"] == f"/schedules/{schedule.id}"
    late = await send(pages, old.text, {"notes": "too late"}, path)
    assert late.status_code == 409
    assert "too late" in late.text
    every = {"kind": "every", "timetable/every_seconds": "2", "every_unit": "h"}
    first = await send(pages, (await pages.client.get(path)).text, every, path)
    assert first.text.count("<li><time") == 5
    await send(pages, first.text, {}, path)
    changed = await stored(pages, "report")
    assert changed is not None
    assert (changed.times.every_seconds, changed.notes, changed.revision) == (7_200, "hello", 3)


async def test_only_who_may_start_runs_sees_the_form(pages: Pages) -> None:
    """The form needs a login that may start runs."""
    answer = await pages.client.get("/schedules/new", headers={"Cookie": ""}, follow_redirects=False)
    assert answer.status_code in {303, 401}


@pytest.mark.parametrize(
    "timetable",
    [
        Timetable(cron="0 8 * * 1-5", time_zone="Europe/Berlin", jitter_seconds=90),
        Timetable(every_seconds=5_400),
        Timetable.model_validate({"every_seconds": 172_800, "ends_at": "2100-01-01T08:30:00Z"}),
        Timetable.model_validate({"every_seconds": 61, "starts_at": "2100-01-01T08:30:15+02:00"}),
    ],
)
def test_an_untouched_form_changes_nothing(timetable: Timetable) -> None:
    """What the form of a schedule shows means the very schedule, whatever its timetable."""
    schedule = Schedule(
        id="sched_1", name="n", agent="a", input="x\ny", workspace=None, model="m", conversation_id=None,
        unattended_asks="rules", timetable=timetable.model_dump_json(), overlap="buffer_one", catch_up_seconds=60,
        notes="", created_by="ann", created_at="2026-01-01T00:00:00.000000+00:00",
    )  # fmt: skip
    rest = {"next_fires": [], "clock_changes": [], "fires": [], "opened": 0, "skipped": 0, "missed": 0}
    detail = ScheduleDetail.model_validate({**schedule_view(schedule, None).model_dump(), **rest})
    change = schedule_change(controls_of(detail))
    assert change.timetable == timetable
    assert (change.name, change.agent, change.input, change.model) == ("n", "a", "x\ny", "m")
    assert (change.unattended, change.overlap, change.catch_up_seconds) == ("rules", "buffer_one", 60)


async def test_a_form_says_that_a_text_hides_something(pages: Pages, empty: str) -> None:
    """A task with characters that no one can see in a form is announced above it."""
    typed = {**GOOD, "input": "pay\u202e", "timetable/cron": "x"}
    answer = await send(pages, empty, typed)
    assert "The task has characters that can't be seen" in answer.text
    assert "can't be seen" not in (await send(pages, answer.text, {"input": "pay\nnow"})).text
