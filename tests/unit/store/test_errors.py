"""Errors of runs in the store, and ids that people read out."""

from __future__ import annotations

import pytest

from turngate.store.clock import as_text, now
from turngate.store.database import Database
from turngate.store.runs import errors
from turngate.store.runs.errors import StoredError, error_id, read_id


def error(run_id: str, message: str) -> StoredError:
    facts = {
        "step": 1,
        "tool_call_id": "c\ud800",
        "attempt": 1,
        "says": "tool crashed",
        "about": "pay",
        "traceback": "",
    }
    here = {"worker": "1@here", "build": "b1", "created_at": as_text(now())}
    return StoredError(id=error_id(run_id, message), run_id=run_id, message=message, **facts, **here)


async def test_an_error_is_stored_once_and_found_by_id_and_run(database: Database) -> None:
    """The same error again changes nothing; what no database stores is replaced; the newest come first."""
    async with database.write() as conn:
        for each in (error("run_1", "a\x00b"), error("run_1", "a\x00b"), error("run_2", "c"), error("run_1", "d")):
            await errors.keep(conn, each)
    async with database.read() as conn:
        first = await errors.get(conn, error_id("run_1", "a\x00b"))
        assert first is not None
        assert (first.message, first.tool_call_id) == ("a\ufffdb", "c\ufffd")
        assert await errors.get(conn, "err-00000-00000") is None
        assert [each.message for each in await errors.newest(conn, run_id="run_1", limit=9)] == ["d", "a\ufffdb"]
        assert [each.message for each in await errors.newest(conn, limit=2)] == ["d", "c"]


def test_an_id_has_no_letters_that_people_misread() -> None:
    """Ten letters and digits in two groups, the same for the same error."""
    ids = {error_id("run", str(n)) for n in range(300)}
    assert len(ids) == 300
    assert not set("ilou") & set("".join(ids).replace("err", ""))
    assert error_id("run", "1") == error_id("run", "1") != error_id("run1", "")


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("err-4k7mp-2xq0t", "err-4k7mp-2xq0t"),
        ("ERR 4K7MP 2XQOT", "err-4k7mp-2xq0t"),
        (" 4k7mp2xq0t ", "err-4k7mp-2xq0t"),
        ("err-4k7mp-2xqlt", "err-4k7mp-2xq1t"),
        ("err-4k7mp", None),
        ("err-4k7mp-2xqut", None),
        ("", None),
    ],
)
def test_an_id_is_read_as_people_type_it(typed: str, read: str | None) -> None:
    """Capitals, spaces, and O, I and L in place of digits are no mistake."""
    assert read_id(typed) == read
