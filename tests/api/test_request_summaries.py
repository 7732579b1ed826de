"""Lists of requests have the beginning of long arguments, with their size and digest; the request itself has all of them."""

from __future__ import annotations

import hashlib
import json

from support.api.store_app import desk_on

from turngate.domain.runs.groups import groups_of
from turngate.store.database import Database
from turngate.wire.requests import INPUT_CHARS, RequestItem

LONG = 200_000
MOST_BYTES = 250_000
"""Of a page of fifty."""


async def test_a_list_of_long_calls_stays_small(sqlite: Database) -> None:
    """Fifty calls of 200 KB are a page of some 100 KB. Each says how long it is, and is whole where it is read alone."""
    arguments = json.dumps({"text": "é" * (LONG // 6)})
    async with desk_on(sqlite) as desk:
        run = await desk.run()
        for number in range(50):
            await desk.put(run, f"rq_{number}", tool_call_id=f"{number}", input=arguments)
        person = await desk.person("ann")
        page = await person.get("/api/v1/requests?limit=50")
        assert len(page.content) < MOST_BYTES
        items = page.json()["items"]
        assert len(items) == 50
        for each in items:
            assert each["input"] == arguments[:INPUT_CHARS]
            assert each["input_chars"] == len(arguments)
            assert each["input_digest"] == hashlib.sha256(arguments.encode()).hexdigest()
        whole = (await person.get(f"/api/v1/requests/{items[0]['id']}")).json()
        assert (whole["input"], whole["input_chars"], whole["input_digest"]) == (arguments, len(arguments), None)
        assert whole["digest"] == items[0]["digest"]


async def test_a_list_shows_the_first_line_of_a_preview(database: Database) -> None:
    """Two calls that look alike, and of which one changes every row, differ at a glance, in an encrypted store, too.

    A preview that begins with a warning says that the line is one.
    """
    async with desk_on(database) as desk:
        run = await desk.run()
        for number, rows in enumerate(("1 of 3", "ALL 3")):
            preview = f"{rows} rows in orders change\n\n{'UPDATE ' * 1_000}"
            await desk.put(run, f"rq_{number}", tool_call_id=f"{number}", preview_kind="text", preview=preview)
        diff = "--- a\n+++ a\n" + "".join(f"@@ -{n} +{n} @@\n-old\n+{'new ' * 200}\n" for n in range(1, 9))
        await desk.put(run, "rq_2", tool_call_id="2", preview_kind="diff", preview=diff)
        await desk.put(run, "rq_3", tool_call_id="3", preview_kind="warned", preview="It may run others.\n\nsh x.sh")
        person = await desk.person("ann")
        items = (await person.get("/api/v1/requests?order=age")).json()["items"]
        lines = ["1 of 3 rows in orders change", "ALL 3 rows in orders change", "-old", "It may run others."]
        more = ["2 more lines"] * 2 + ["25 more lines, 15 of them changed", "2 more lines"]
        assert [each["preview_more"] for each in items] == more
        assert [each["preview_line"] for each in items] == lines
        assert [each["preview_warns"] for each in items] == [False, False, False, True]
        page = (await person.get("/")).text
        assert [each in page for each in lines] == [True, True, True, True]
        assert page.count('class="for preview warns"') == 1


async def test_a_short_call_is_whole_in_a_list(sqlite: Database) -> None:
    """Without a digest, ``input`` is all there is; the longest whole text has as many characters as a list may have."""
    longest = json.dumps("x" * (INPUT_CHARS - 2))
    async with desk_on(sqlite) as desk:
        run = await desk.run()
        for number, raw in enumerate(('{ "a" : 1.0 }', longest, f"{longest} ")):
            await desk.put(run, f"rq_{number}", tool_call_id=f"{number}", input=raw)
        listed = (await (await desk.person("ann")).get("/api/v1/requests?order=age")).json()["items"]
    clipped = {each["id"]: (each["input_chars"], each["input_digest"] is not None) for each in listed}
    assert clipped == {"rq_0": (13, False), "rq_1": (2_000, False), "rq_2": (2_001, True)}


async def test_i6_calls_that_differ_only_in_their_end_are_not_taken_for_alike(sqlite: Database) -> None:
    """What a client groups by the clipped texts differs where the whole texts do."""
    texts = [json.dumps({"text": "x" * LONG + end}) for end in ("a", "b", "b")]
    async with desk_on(sqlite) as desk:
        run = await desk.run()
        for number, raw in enumerate(texts):
            await desk.put(run, f"rq_{number}", tool_call_id=f"{number}", input=raw)
        listed = (await (await desk.person("ann")).get("/api/v1/requests")).json()["items"]
    items = [RequestItem.model_validate(each) for each in listed]
    assert len({each.input for each in items}) == 1
    assert len({each.input_digest for each in items}) == 2
    [group] = groups_of(items, "alike")
    assert group.words == "2 alike; 1 differs"


async def test_a_secret_is_masked_before_a_text_is_clipped(sqlite: Database) -> None:
    """The digest is of the text that people see, so that it says nothing of a secret in it."""
    raw = json.dumps({"text": "x" * LONG, "key": "hush-hush"})
    seen = raw.replace("hush-hush", "⟦secret 1⟧")
    async with desk_on(sqlite) as desk:
        await desk.put(await desk.run(), input=raw, masked_input=seen)
        [item] = (await (await desk.person("ann")).get("/api/v1/requests")).json()["items"]
    assert item["input_digest"] == hashlib.sha256(seen.encode()).hexdigest()
    assert item["input_chars"] == len(seen)
