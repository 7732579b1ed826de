"""Cuts: found on every path through their message and on no other; covered messages are not walked."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import insert

from turngate.domain.conversation.messages import user_message
from turngate.store.clock import as_text, now
from turngate.store.database import Connection, Database
from turngate.store.runs import messages, summaries
from turngate.store.runs.summaries import Cut
from turngate.store.tables import messages as messages_table


async def grow(conn: Connection, parent: str | None, *ids: str) -> None:
    """Append messages, each to the one before; a message's text is its id. The first one creates its conversation."""
    if parent is None:
        await messages.create_conversation(conn, "conv")
    rows = []
    for each in ids:
        row = {"id": each, "parent_id": parent, "conversation_id": "conv", "role": "user", "created_at": as_text(now())}
        parts = user_message(each).model_dump_json(include={"parts"})[len('{"parts":') : -1]
        rows.append({**row, "parts": parts, "provider_options": "{}"})
        parent = each
    await conn.execute(insert(messages_table), rows)


def cut(head: str, covers: str, **more: object) -> Cut:
    template = Cut(
        head_message_id=head,
        covers=covers,
        root_message_id="m0",
        run_id="run",
        step=1,
        kind="summary",
        text=f"up to {covers}\x00",
        tokens_before=9,
        tokens_after=3,
    )
    return replace(template, **more)  # type: ignore[arg-type]


async def after_cut(conn: Connection, head: str, newest: int | None = None) -> tuple[str | None, list[str]]:
    """Return what the cut covers, and the messages after it."""
    path, nearest = await summaries.path_after_cut(conn, head, newest=newest)
    assert [stored.message.text for stored in path] == [stored.id for stored in path]
    return None if nearest is None else nearest.covers, [stored.id for stored in path]


async def test_a_cut_is_seen_from_where_it_was_made(database: Database) -> None:
    """From its head on, on every branch; a branch that leaves earlier walks to the root; the newest of several counts."""
    async with database.write() as conn:
        await grow(conn, None, *(f"m{number}" for number in range(10)))
        await grow(conn, "m6", "fork_after")
        await grow(conn, "m5", "fork_before")
        assert await summaries.keep(conn, cut("m6", "m3"))
        assert await summaries.keep(conn, cut("m8", "m7"))
    async with database.read() as conn:
        assert await after_cut(conn, "m5") == (None, [f"m{number}" for number in range(6)])
        assert await after_cut(conn, "fork_before") == (None, [*(f"m{number}" for number in range(6)), "fork_before"])
        assert await after_cut(conn, "m6") == ("m3", ["m4", "m5", "m6"])
        assert await after_cut(conn, "m7") == ("m3", ["m4", "m5", "m6", "m7"])
        assert await after_cut(conn, "fork_after") == ("m3", ["m4", "m5", "m6", "fork_after"])
        assert await after_cut(conn, "m9") == ("m7", ["m8", "m9"])
        assert await after_cut(conn, "m7", newest=2) == ("m3", ["m6", "m7"])
        assert await after_cut(conn, "m7", newest=1) == (None, ["m7"])
        assert [stored.id for stored in await messages.path_to(conn, "m9")] == [f"m{number}" for number in range(10)]


async def test_the_first_cut_stays_unless_the_provider_refused_it(database: Database) -> None:
    """Two attempts at a step send the same; a forced cut replaces the earlier one, once and for all."""
    async with database.write() as conn:
        await grow(conn, None, "m0", "m1", "m2", "m3")
        assert await summaries.keep(conn, cut("m3", "m1"))
        assert not await summaries.keep(conn, cut("m3", "m2"))
        assert await after_cut(conn, "m3") == ("m1", ["m2", "m3"])
        assert await summaries.keep(conn, cut("m3", "m2", forced=True, clipped=True, model="m\x00"))
    async with database.read() as conn:
        forced = await summaries.get(conn, "m3")
    assert forced is not None
    assert (forced.covers, forced.forced, forced.clipped, forced.text) == ("m2", True, True, "up to m2\ufffd")
    assert forced.message == user_message("up to m2\ufffd")


async def test_i8_what_a_cut_covers_costs_nothing(database: Database) -> None:
    """I8: after three thousand messages a step loads the same three as after thirty."""
    async with database.write() as conn:
        await grow(conn, None, *(f"m{number}" for number in range(3_000)))
        await summaries.keep(conn, cut("m2998", "m2996"))
    async with database.read() as conn:
        assert await after_cut(conn, "m2999") == ("m2996", ["m2997", "m2998", "m2999"])


async def test_a_summary_is_wanted_until_it_is_there(database: Database) -> None:
    """One attempt writes it; the other learns that it came second."""
    async with database.write() as conn:
        await summaries.want(conn, "run")
        assert await summaries.wanted(conn, "run")
        assert await summaries.clear_wanted(conn, "run")
        assert not await summaries.clear_wanted(conn, "run")
        assert not await summaries.wanted(conn, "run")
