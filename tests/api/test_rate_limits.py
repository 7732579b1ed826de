"""How often a principal may ask: the buckets by a clock of our own, then the API and the log-in page."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.api.api_server import token_for
from support.api.login_app import door_on, log_in
from support.stores.users import audit_events

from turngate.approvals_api.http.rate_limits import Buckets, RateLimits
from turngate.approvals_api.settings import RateLimitSettings
from turngate.domain.errors import TooManyRequestsError
from turngate.store.database import Database


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def test_a_bucket_gives_its_burst_and_then_its_rate() -> None:
    """Ten at once, then two a second; one key's requests do not count for another's."""
    clock = Clock()
    buckets = Buckets(per_second=2, burst=10, clock=clock)
    assert [buckets.take("ann") for _ in range(10)] == [0.0] * 10
    assert buckets.take("ann") == pytest.approx(0.5)
    assert buckets.take("bob") == 0
    clock.now += 0.5
    assert (buckets.take("ann"), buckets.take("ann")) == (0, pytest.approx(0.5))
    clock.now += 3_600
    assert [buckets.take("ann") for _ in range(11)] == [*[0.0] * 10, pytest.approx(0.5)]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 3)), max_size=20))
def test_no_key_ever_gets_more_than_burst_and_rate(attempts: list[tuple[str, float]]) -> None:
    """Over any sequence, at most the burst and what the time since the start has added is let through."""
    clock = Clock()
    buckets = Buckets(per_second=2, burst=3, clock=clock)
    passed = dict.fromkeys("ab", 0)
    for key, pause in attempts:
        clock.now += pause
        passed[key] += buckets.take(key) == 0
        assert passed[key] <= 3 + 2 * (clock.now - 1_000.0) + 1e-6


def test_names_without_end_do_not_fill_the_memory() -> None:
    """Only so many keys are stored; the latest ones stay limited."""
    buckets = Buckets(per_second=0.001, burst=1, clock=Clock(), max_keys=100)
    for number in range(5_000):
        buckets.take(f"name {number}")
    assert len(buckets._buckets) == 100
    assert buckets.take("name 4999") > 0


def limits_by(clock: Clock, settings: RateLimitSettings | None = None) -> RateLimits:
    """Limits whose waits pass on this clock."""

    async def sleep(seconds: float) -> None:
        clock.now += seconds

    return RateLimits(settings or RateLimitSettings(), clock=clock, sleep=sleep)


async def test_a_right_log_in_does_not_count() -> None:
    """An office of two hundred with one address logs in at nine; the twenty-first wrong guess is refused."""
    limits = limits_by(Clock())
    for number in range(200):
        await limits.count_login("10.0.0.1", f"user {number}")
        limits.forgive_login("10.0.0.1", f"user {number}")
    for number in range(20):
        await limits.count_login("10.0.0.1", f"guess {number}")
    with pytest.raises(TooManyRequestsError, match="from your address"):
        await limits.count_login("10.0.0.1", "ann")


async def test_a_stranger_locks_no_name() -> None:
    """Whatever guesses come from one address, or one network of IPv6, the name waits nowhere else; there, it waits its turn."""
    clock = Clock()
    limits = limits_by(clock)
    for number in range(6):
        await limits.count_login(f"2001:db8::{number}", ["ann", "ANN"][number % 2])
    assert clock.now == 1_012
    await limits.count_login("2001:db8:0:1::1", "ann")
    await limits.count_login("10.0.0.3", "ann")
    assert clock.now == 1_012
    started = clock.now
    waits = RateLimits(RateLimitSettings(logins_per_address=None), clock=clock, sleep=lambda _: asyncio.sleep(0))
    for _ in range(8):
        await waits.count_login("10.0.0.4", "ann")
    with pytest.raises(TooManyRequestsError, match="wait under this name"):
        await waits.count_login("10.0.0.4", "ann")
    assert clock.now == started


@pytest.mark.exhaustive
async def test_a_principal_that_asks_too_often_learns_when_to_retry(sqlite: Database) -> None:
    """429 as a problem with Retry-After, for that principal only; without a limit, for no one."""
    headers = [await token_for(sqlite, name, "requests:read") for name in ("busy", "calm")]
    async with (
        door_on(sqlite, rate_limits=RateLimitSettings(per_second=0.01, burst=3)) as door,
        door.browser() as client,
    ):
        answers = [await client.get("/api/v1/requests", headers=headers[0]) for _ in range(4)]
        assert [each.status_code for each in answers] == [200, 200, 200, 429]
        refused = answers[3]
        assert refused.json()["code"] == "rate_limited"
        assert refused.headers["content-type"] == "application/problem+json"
        assert 1 <= int(refused.headers["retry-after"]) == refused.json()["retry_after_seconds"] <= 100
        assert (await client.get("/api/v1/requests", headers=headers[1])).status_code == 200
    async with door_on(sqlite) as door, door.browser() as client:
        statuses = {(await client.get("/api/v1/me", headers=headers[0])).status_code for _ in range(250)}
    assert statuses == {200}


async def test_guessing_a_password_locks_no_one_out(sqlite: Database) -> None:
    """After many wrong ones the right one works from elsewhere at once, and here a little later; each try is in the log."""
    async with (
        door_on(sqlite) as door,
        door.browser() as browser,
        door.browser(headers={"X-Forwarded-For": "10.0.0.9"}) as elsewhere,
    ):
        door.state.limits = limits_by(Clock(), RateLimitSettings(logins_per_name=30, logins_per_address=None))
        await door.add("ann")
        assert [(await log_in(browser, "ann", "wrong")).status_code for _ in range(31)] == [403] * 31
        assert (await log_in(elsewhere, "ann")).status_code == 303
        assert (await log_in(browser, "ANN")).status_code == 303
    failed = await audit_events(sqlite, "login.failed")
    assert (len(failed), failed[0][1]["address"]) == (31, "127.0.0.1")
