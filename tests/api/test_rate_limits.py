"""How often a principal may ask: the buckets by a clock of our own, then the API and the log-in page."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.api_server import token_for
from support.login_app import PASSWORD, door_on, log_in
from support.users import audit_events

from approvals_api.http.rate_limits import Buckets, RateLimits
from approvals_api.settings import RateLimitSettings
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


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 3)), max_size=60))
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


def test_a_right_log_in_does_not_count() -> None:
    """An office of two hundred with one address logs in at nine; the twenty-first wrong guess waits."""
    limits = RateLimits(RateLimitSettings(), clock=Clock())
    for number in range(200):
        limits.count_login("10.0.0.1", f"user {number}")
        limits.forgive_login("10.0.0.1", f"user {number}")
    for number in range(20):
        limits.count_login("10.0.0.1", f"guess {number}")
    with pytest.raises(TooManyRequestsError, match="from your address"):
        limits.count_login("10.0.0.1", "ann")
    for _ in range(5):
        limits.count_login("10.0.0.2", "Ann")
        limits.forgive_login("10.0.0.2")
    with pytest.raises(TooManyRequestsError, match="under this name"):
        limits.count_login("10.0.0.3", "ANN")


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


async def test_guessing_a_password_is_slowed_and_audited(sqlite: Database) -> None:
    """After five wrong ones for a name even the right one waits; each try that was checked is in the log."""
    async with door_on(sqlite) as door, door.browser() as browser:
        await door.add("ann")
        assert [(await log_in(browser, "ann", "wrong")).status_code for _ in range(5)] == [403] * 5
        refused = await log_in(browser, "ANN", PASSWORD)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) <= 12
        assert "try again in" in refused.text
        other = await log_in(browser, "bob", "wrong")
        assert other.status_code == 403
    assert len(await audit_events(sqlite, "login.failed")) == 6
    assert (await audit_events(sqlite, "login.failed"))[0][1]["address"] == "127.0.0.1"
