"""Saved views: each person's own."""

from __future__ import annotations

from turngate.store.database import Database
from turngate.store.requests import saved_views


async def test_a_view_is_its_owners(database: Database) -> None:
    """Saving again replaces it; another person's of the same name is another view; removing twice is fine."""
    async with database.write() as conn:
        await saved_views.put(conn, owner="ann", name="mine", query="claimed=me")
        await saved_views.put(conn, owner="bob", name="mine", query="tool=pay")
        changed = await saved_views.put(conn, owner="ann", name="mine", query="risk=high")
        await saved_views.put(conn, owner="ann", name="a", query="")
    assert changed is not None
    async with database.write() as conn:
        assert [(each.name, each.query) for each in await saved_views.of_person(conn, "ann")] == [
            ("a", ""),
            ("mine", "risk=high"),
        ]
        await saved_views.remove(conn, "ann", "mine")
        await saved_views.remove(conn, "ann", "mine")
        assert await saved_views.get(conn, "ann", "mine") is None
        view = await saved_views.get(conn, "bob", "mine")
    assert view is not None
    assert view.query == "tool=pay"


async def test_a_person_has_a_bounded_number_of_views(database: Database) -> None:
    """The 101st new view is refused; a saved one can still be changed."""
    async with database.write() as conn:
        for number in range(saved_views.MAX_PER_PERSON):
            assert await saved_views.put(conn, owner="ann", name=f"v{number}", query="") is not None
        assert await saved_views.put(conn, owner="ann", name="more", query="") is None
        assert await saved_views.put(conn, owner="ann", name="v0", query="risk=high") is not None
