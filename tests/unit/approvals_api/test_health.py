"""What health says of what was found: the cause, how bad it is, and the command that fixes it."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import text

from turngate.approvals_api import health
from turngate.approvals_api.events.feed import EventFeed
from turngate.approvals_api.gateway.task_queues import Poller, QueueLook
from turngate.approvals_api.services import Services
from turngate.approvals_api.settings import ApiSettings
from turngate.domain.errors import UnavailableError
from turngate.store.clock import as_text
from turngate.store.database import Database
from turngate.store.events.deliveries import Backlog
from turngate.wire.explanation import WaitKind
from turngate.wire.health import HealthCheck, WaitCount

NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)


def queue(*builds: str | None, current: str | None = None, waiting: int = 0, seconds_ago: int = 5) -> QueueLook:
    polled_at = NOW - timedelta(seconds=seconds_ago)
    pollers = tuple(Poller(identity=f"w{at}", build=build, polled_at=polled_at) for at, build in enumerate(builds))
    return QueueLook(pollers=pollers, current_build=current, waiting=timedelta(seconds=waiting))


def brief(checks: Iterable[HealthCheck]) -> list[tuple[str, str, str | None]]:
    return [(each.name, each.state, each.command) for each in checks]


@pytest.mark.parametrize(
    ("look", "expected"),
    [
        (queue(None), []),
        (queue("1", current="1"), []),
        (queue(), [("workers", "wrong", "turngate worker APP")]),
        (queue(None, seconds_ago=80), [("workers", "wrong", "turngate worker APP")]),
        (queue(None, waiting=30), [("workers", "warning", "turngate worker APP")]),
        (queue(None, current="2"), [("builds", "wrong", "turngate worker APP --build-id 2")]),
        (queue("1"), [("builds", "wrong", "turngate builds --set-current 1")]),
        (queue("1", "2"), [("builds", "wrong", "turngate builds --set-current BUILD")]),
        (queue(None, current="$(id)"), [("builds", "wrong", "turngate worker APP --build-id '$(id)'")]),
    ],
)
def test_a_queue_says_which_worker_is_missing(look: QueueLook, expected: list[tuple[str, str, str | None]]) -> None:
    """No worker, none of the build that gets new runs, or too few; a name from elsewhere is quoted for the shell."""
    assert brief(health.of_queue("q", ["a"], look, NOW)) == expected


def test_a_worker_that_stops_is_no_worker_of_its_queue() -> None:
    """It still counts as a poller in Temporal; one that polled again after that was started again under its name."""
    look = queue(None, None)
    assert len(look.present(NOW)) == 2
    stopping = replace(look, stopping={"w0": NOW, "w1": NOW - timedelta(seconds=30)})
    assert [each.identity for each in stopping.present(NOW)] == ["w1"]
    assert list(health.of_queue("q", ["a"], stopping, NOW)) == []
    [check] = health.of_queue("q", ["a"], replace(look, stopping={"w0": NOW, "w1": NOW}), NOW)
    assert (check.state, check.command) == ("wrong", "turngate worker APP")
    assert check.says.endswith("Its last one is stopping.")


def test_stopping_workers_are_named_with_what_to_do() -> None:
    """A few of them, with the limit after which one should have ended."""
    assert list(health.of_stopping([])) == []
    [check] = health.of_stopping([f"{each}@pod" for each in range(7)])
    assert (check.name, check.state) == ("workers", "warning")
    assert "7 workers are stopping" in check.says
    assert "4@pod and 2 more" in check.says
    assert "TURNGATE_STOP_GRACE_SECONDS" in check.fix


def test_a_build_without_workers_can_be_unset() -> None:
    """The way back to workers without a build is named."""
    [check] = health.of_queue("q", ["a"], queue(None, current="2"), NOW)
    assert "build 2 is current there, and none of its workers polls" in check.says
    assert "`turngate builds --unset-current`" in check.fix


def backlog(channel: str = "ops", *, retried: int = 0, failed: int = 0, due_minutes_ago: int | None = None) -> Backlog:
    due = None if due_minutes_ago is None else as_text(NOW - timedelta(minutes=due_minutes_ago))
    return Backlog(channel=channel, retried=retried, failed=failed, oldest_at=due, due_since=due)


@pytest.mark.parametrize(
    ("undelivered", "expected"),
    [
        (backlog(due_minutes_ago=0), []),
        (backlog(failed=2), [("notifications", "warning", "turngate notify log --status failed")]),
        (
            backlog(retried=1, due_minutes_ago=-5),
            [("notifications", "warning", "turngate notify log --status waiting")],
        ),
        (backlog(due_minutes_ago=5), [("notifications", "wrong", "turngate notify check")]),
    ],
)
def test_messages_that_do_not_arrive_are_found(
    undelivered: Backlog, expected: list[tuple[str, str, str | None]]
) -> None:
    """Failed, retried, or due with no one who sends; what waits its turn is in order."""
    assert brief(health.of_backlog(undelivered, NOW)) == expected


@pytest.mark.parametrize(
    ("seconds", "says"),
    [
        (0, None),
        (1, None),
        (90, "The database's clock is 1 min fast, compared with this machine's."),
        (-9, "The database's clock is 8 s slow, compared with this machine's."),
    ],
)
def test_clocks_that_differ_are_found(seconds: int, says: str | None) -> None:
    """In either direction; how long the question took is no difference."""
    theirs = NOW + timedelta(seconds=seconds)
    checks = list(health.apart("database", theirs, NOW - timedelta(seconds=1), NOW))
    assert [each.says for each in checks] == ([] if says is None else [says])


@pytest.mark.parametrize(
    ("kind", "state", "command"),
    [
        ("no_worker", "warning", "turngate explain run_1"),
        ("workflow_gone", "wrong", "turngate recover run_1"),
        ("workflow_fails", "wrong", "turngate explain run_1"),
        ("model_retrying", "warning", "turngate explain run_1"),
    ],
)
def test_runs_that_need_help_say_how(kind: WaitKind, state: str, command: str) -> None:
    """People, tools and timers end by themselves; these don't."""
    waits = WaitCount(kind=kind, says="x", runs=1, run_id="run_1")
    assert brief(health.of_wait(waits)) == [("runs", state, command)]


def test_runs_that_wait_for_people_are_in_order() -> None:
    """They are in the inbox."""
    assert list(health.of_wait(WaitCount(kind="person", says="a person", runs=3, run_id="run_1"))) == []


async def test_a_full_disk_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning first, then an error; a store on a server of its own has no disk here."""
    usage = shutil.disk_usage(tmp_path)
    for free, expected in ((health.LITTLE_ROOM, "ok"), (health.LITTLE_ROOM - 1, "warning"), (0, "wrong")):
        monkeypatch.setattr(health.shutil, "disk_usage", lambda _path, free=free: usage._replace(free=free))
        assert [each.state for each in await health.check_disk(tmp_path)] == [expected]
    monkeypatch.undo()
    assert await health.check_disk(None) == []
    assert [each.state for each in await health.check_disk(tmp_path / "gone")] == ["warning"]


def test_failing_runs_are_no_good_health() -> None:
    """All of them failed: wrong; many: a warning; one or two: what happens to single tasks."""
    failed, good = [(f"run_{each}", "failed") for each in range(6)], [("run_x", "completed")] * 6
    explained = "turngate explain run_0"
    assert brief(health.of_failed(failed)) == [("runs", "wrong", explained)]
    assert brief(health.of_failed([*failed, *good])) == [("runs", "warning", explained)]
    assert brief(health.of_failed([*failed[:2], *good])) == []
    assert brief(health.of_failed(failed[:2])) == []


@pytest.mark.parametrize(("minutes", "says"), [(10, "10 min fast"), (0, None), (-1, None), (-20, "17 min slow")])
def test_a_workers_clock_that_differs_is_found(minutes: int, says: str | None) -> None:
    """By its last heartbeat, which may be minutes old. Before the first one, no one knows."""
    beats = {"w@host": NOW + timedelta(minutes=minutes), "gone@host": NOW + timedelta(hours=1)}
    [check] = health.of_clocks([], {"w@host"}, beats, NOW)
    expected = (
        "The clocks agree." if says is None else f"The worker w@host's clock is {says}, compared with this machine's."
    )
    assert (check.state, check.says) == ("ok" if says is None else "warning", expected)
    [check] = health.of_clocks([], {"w@host", "new@host"}, {"w@host": NOW}, NOW)
    assert (check.state, check.says) == ("ok", "The clocks agree. Not known yet: that of 1 worker.")


async def test_a_store_that_takes_no_writes_is_found(sqlite: Database) -> None:
    """It answers every read, and nothing can be decided."""
    async with sqlite.write() as conn:
        await conn.execute(
            text("CREATE TRIGGER full BEFORE UPDATE ON alembic_version BEGIN SELECT RAISE(FAIL, 'disk is full'); END")
        )
    services = Services(database=sqlite, gateway=None, feed=EventFeed(sqlite), settings=ApiSettings())  # type: ignore[arg-type]
    findings = await health.examine(services, away=("temporal",))
    [store] = [each for each in findings.checks if each.name == "store"]
    assert (store.state, "takes no writes: disk is full" in store.says) == ("wrong", True)
    assert await health.store_problem(services) == "store cannot be reached, or takes no writes"  # as /readyz says


async def fill(database: Database) -> None:
    """Write more than the file may grow to."""
    async with database.write() as conn:
        await conn.execute(text("PRAGMA max_page_count = 1"))  # it means: as many as there are
        await conn.execute(text("CREATE TABLE filling AS SELECT hex(zeroblob(1000000)) AS x"))


async def test_a_full_disk_is_called_so(tmp_path: Path) -> None:
    """Not that the database is away or busy: what SQLite says when its file can't grow."""
    database = Database(f"sqlite:///{tmp_path / 'full.db'}")
    await database.migrate()
    with pytest.raises(UnavailableError, match="disk is full"):
        await fill(database)
    await database.close()
