"""The filtered inbox: one value gives the list, its count and its order."""

from __future__ import annotations

import itertools
from datetime import timedelta
from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.stores.stored_requests import live_run, request_row

from turngate.domain.errors import InvalidInputError
from turngate.domain.policy.policy import Risk
from turngate.domain.runs.inbox import PATIENCE, SHARE, InboxFilter, urgent_at
from turngate.store.clock import as_text, now
from turngate.store.database import Connection, Database
from turngate.store.requests import requests
from turngate.store.runs import runs

AT = now()
SOON, BEFORE = as_text(AT + timedelta(hours=1)), as_text(AT - timedelta(hours=1))


def _filter_of(query: str) -> InboxFilter:
    return InboxFilter.from_words(dict(parse_qsl(query, keep_blank_values=True)))


def later(seconds: int) -> str:
    return as_text(AT + timedelta(seconds=seconds))


async def fill(conn: Connection, run: runs.Run, other: runs.Run) -> None:
    """Seven pending requests, oldest first by letter, and four ended ones, first z."""
    waiting = [
        request_row(run, "a", created_at=later(1), claimed_by="ann", claimed_until=SOON),
        request_row(run, "b", created_at=later(2), claimed_by="ann", claimed_until=BEFORE),
        request_row(run, "c", created_at=later(3), kind="question", risk="high"),
        request_row(run, "d", created_at=later(4), agent="other", tool_name="refund"),
        request_row(run, "e", created_at=later(5), rule="four-eyes", parked_at=later(9)),
        request_row(other, "f", created_at=later(6), tool_name="PAY"),
        request_row(
            other, "g", created_at=later(6), claimed_by="bob", claimed_until=SOON, input='{"to": "Z\\u00fcrich"}'
        ),
    ]
    statuses = {"w": "cancelled", "x": "rejected", "y": "expired", "z": "approved"}
    ended = [request_row(run, name, created_at=later(at - 9)) for at, name in enumerate(statuses)]
    await requests.insert_all(conn, [*waiting, *ended])
    # The last to be opened is the first to be decided.
    for seconds, name in enumerate(reversed(statuses), start=20):
        await requests.settle(conn, name, requests.Ending(status=statuses[name], at=AT + timedelta(seconds=seconds)))  # type: ignore[arg-type]


MATCHES = {
    "": "cabdefg",
    "order=age": "abcdefg",
    "status=decided": "wxyz",
    "status=rejected": "x",
    "status=superseded": "",
    "status=all": "gfedcbazyxw",
    "kind=question": "c",
    "agent=other": "d",
    "tool=pay": "cabeg",
    "tool=PAY": "f",
    "risk=high": "c",
    "rule=four-eyes": "e",
    "run_id=run_2": "fg",
    "search=refund": "d",
    "search=PAY": "cabefg",
    "search=order+a-113": "cabde",
    "search=b-7+refund": "",
    "search=100%25": "",
    "search=z%C3%BCrich": "g",
    "search=p_y": "",
    "search=bob&tool=pay": "g",
    "search=four-eyes": "",
    "status=decided&search=a-113": "wxyz",
    "status=all&search=boris": "gf",
    "claimed=me": "a",
    "claimed=bob": "g",
    "claimed=nobody": "cbdef",
    "parked=true": "e",
    "parked=false": "cabdfg",
    "tool=pay&risk=low&claimed=nobody&parked=false": "b",
    "status=decided&tool=nothing": "",
}


@pytest.mark.unencrypted
async def test_each_filter_lists_and_counts_the_same_in_its_order(database: Database) -> None:
    """Pending by urgency or age, ended by end time and newest first, all newest first; for any page size."""
    async with database.write() as conn:
        run = await live_run(conn, "run_1", task="Return order A-113, 100 percent.")
        other = await live_run(conn, "run_2", task="Pay B-7.", started_by="boris")
        await fill(conn, run, other)
    async with database.read() as conn:
        for (query, expected), limit in itertools.product(MATCHES.items(), (2, 50)):
            wanted = _filter_of(query).of("ann")
            seen, after = "", None
            while page := await requests.page(conn, wanted, limit=limit, after=after):
                seen += "".join(request.id for request in page)
                after = requests.key_of(wanted, page[-1])
            assert seen == expected, query
            assert await requests.count(conn, wanted) == len(expected), query


async def test_a_request_that_parks_gives_up_its_place(database: Database) -> None:
    """Its deadline has gone, so it waits among those that have none, by its age and risk."""
    async with database.write() as conn:
        run = await live_run(conn, "run_1")
        late = request_row(run, "late", created_at=later(5), expires_at=later(6))
        await requests.insert_all(conn, [late, request_row(run, "other", created_at=later(1))])
        assert [each.id for each in await requests.page(conn, limit=9)] == ["late", "other"]
        assert await requests.park(conn, late, at=AT + timedelta(seconds=6))
        assert [each.id for each in await requests.page(conn, limit=9)] == ["other", "late"]


async def test_a_search_reads_a_bounded_number_of_requests(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks through the first in its order, however many there are, so that no one can keep the server busy with one."""
    monkeypatch.setattr(requests, "MOST_SEARCHED", 3)
    async with database.write() as conn:
        run = await live_run(conn, "run_1")
        rows = [
            request_row(run, f"rq_{at}", created_at=later(at), tool_name=("even", "odd")[at % 2]) for at in range(9)
        ]
        await requests.insert_all(conn, rows)
        wanted = InboxFilter(search="even")
        assert [each.id for each in await requests.page(conn, wanted, limit=9)] == ["rq_0", "rq_2"]
        assert await requests.count(conn, wanted) == 2


def test_near_deadlines_high_risks_and_long_waits_come_first() -> None:
    """Eight high-risk requests that expire in 15 minutes come before 200 older ones of low risk without a deadline."""
    day, soon = timedelta(days=1), AT + timedelta(minutes=15)
    assert urgent_at(AT, soon, "high") < urgent_at(AT, soon, "medium") < urgent_at(AT, soon, "low") == soon
    assert urgent_at(AT, soon, "high") < min(urgent_at(AT - 2 * day, None, risk) for risk in SHARE)
    assert urgent_at(AT - 2 * day, None, "low") < urgent_at(AT, None, "low")
    assert urgent_at(AT, None, "high") < urgent_at(AT - 20 * day, None, "low") < urgent_at(AT, AT + 11 * day, "low")


@given(
    seconds=st.integers(0, 400 * 86_400),
    deadline=st.none() | st.integers(0, 400 * 86_400),
    risk=st.sampled_from([*SHARE]),
)
def test_urgency_lies_between_opening_and_deadline(seconds: int, deadline: int | None, risk: Risk) -> None:
    """A request that could still be answered never counts as later than its deadline, nor as earlier than its opening."""
    opened = AT + timedelta(seconds=seconds)
    ends = None if deadline is None else opened + timedelta(seconds=deadline)
    assert opened <= urgent_at(opened, ends, risk) <= (ends or opened + PATIENCE)


def test_a_filter_survives_a_url() -> None:
    """It round-trips; defaults are left out, and an empty control is no condition."""
    wanted = InboxFilter(status="decided", tool="a&b=c", claimed="me", parked=False)
    assert wanted.query == "status=decided&tool=a%26b%3Dc&claimed=me&parked=false"
    assert _filter_of(wanted.query) == wanted
    assert _filter_of("status=pending&agent=&tool=") == InboxFilter()
    assert InboxFilter().query == ""


@pytest.mark.parametrize(
    "query",
    [
        "status=open",
        "colour=red",
        "risk=huge",
        "parked=perhaps",
        "agent=%00",
        "tool=" + "a" * 300,
    ],
)
def test_an_invalid_query_is_refused(query: str) -> None:
    """Unknown names and values and unstorable text are refused with the list of conditions."""
    with pytest.raises(InvalidInputError, match="status, search, kind, agent") as refused:
        _filter_of(query)
    assert refused.value.error_code == "bad_filter"
