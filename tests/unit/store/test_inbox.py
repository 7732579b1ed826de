"""The filtered inbox: one value gives the list, its count and its order."""

from __future__ import annotations

import itertools
from datetime import timedelta

import pytest
from support.stored_requests import request_row

from turngate.domain.errors import InvalidInputError
from turngate.domain.runs.inbox import InboxFilter
from turngate.store.clock import as_text, now
from turngate.store.database import Connection, Database
from turngate.store.requests import requests
from turngate.store.runs import runs

AT = now()
SOON, BEFORE = as_text(AT + timedelta(hours=1)), as_text(AT - timedelta(hours=1))


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
        request_row(other, "g", created_at=later(6), claimed_by="bob", claimed_until=SOON),
    ]
    statuses = {"w": "cancelled", "x": "rejected", "y": "expired", "z": "approved"}
    ended = [request_row(run, name, created_at=later(at - 9)) for at, name in enumerate(statuses)]
    await requests.insert_all(conn, [*waiting, *ended])
    # The last to be opened is the first to be decided.
    for seconds, name in enumerate(reversed(statuses), start=20):
        await requests.settle(conn, name, requests.Ending(status=statuses[name], at=AT + timedelta(seconds=seconds)))  # type: ignore[arg-type]


MATCHES = {
    "": "abcdefg",
    "status=decided": "wxyz",
    "status=rejected": "x",
    "status=superseded": "",
    "status=all": "gfedcbazyxw",
    "kind=question": "c",
    "agent=other": "d",
    "tool=pay": "abceg",
    "tool=PAY": "f",
    "risk=high": "c",
    "rule=four-eyes": "e",
    "run_id=run_2": "fg",
    "claimed=me": "a",
    "claimed=bob": "g",
    "claimed=nobody": "bcdef",
    "parked=true": "e",
    "parked=false": "abcdfg",
    "tool=pay&risk=low&claimed=nobody&parked=false": "b",
    "status=decided&tool=nothing": "",
}


async def test_each_filter_lists_and_counts_the_same_in_its_order(database: Database, new_run) -> None:
    """Pending oldest first, ended by end time and newest first, all newest first; for any page size."""
    run, other = await new_run(), await new_run()
    async with database.write() as conn:
        await fill(conn, run, other)
    async with database.read() as conn:
        for (query, expected), limit in itertools.product(MATCHES.items(), (2, 50)):
            wanted = InboxFilter.from_query(query).of("ann")
            seen, after = "", None
            while page := await requests.page(conn, wanted, limit=limit, after=after):
                seen += "".join(request.id for request in page)
                after = requests.key_of(wanted, page[-1])
            assert seen == expected, query
            assert await requests.count(conn, wanted) == len(expected), query


def test_a_filter_survives_a_url() -> None:
    """It round-trips; defaults are left out, and an empty control is no condition."""
    wanted = InboxFilter(status="decided", tool="a&b=c", claimed="me", parked=False)
    assert wanted.query == "status=decided&tool=a%26b%3Dc&claimed=me&parked=false"
    assert InboxFilter.from_query(wanted.query) == wanted
    assert InboxFilter.from_query("?status=pending&agent=&tool=") == InboxFilter()
    assert InboxFilter().query == ""


@pytest.mark.parametrize(
    "query",
    [
        "status=open",
        "colour=red",
        "risk=huge",
        "parked=perhaps",
        "tool=a&tool=b",
        "tool",
        "agent=%00",
        "tool=" + "a" * 300,
    ],
)
def test_an_invalid_query_is_refused(query: str) -> None:
    """Unknown names and values, repeats and unstorable text are refused with the list of conditions."""
    with pytest.raises(InvalidInputError, match="status, kind, agent") as refused:
        InboxFilter.from_query(query)
    assert refused.value.error_code == "bad_filter"
