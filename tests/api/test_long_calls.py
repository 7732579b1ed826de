"""Long calls on the pages: they stay small, say what they leave out, and let no one approve what is not there."""

from __future__ import annotations

import json

import pytest
from support.api.store_app import desk_on
from support.pages.html_forms import PostedPage
from support.pages.html_text import ShownText

MOST_BYTES = 100_000
LONG = 250_000
LINES = "".join(f"line {number}\n" for number in range(22_500))
ARGUMENTS = {
    "one line": json.dumps({"text": "x" * LONG}),
    "markup": json.dumps({"text": "<&>" * (LONG // 3)}),
    "hidden characters": json.dumps({"text": "\u202e" * (LONG // 6)}),
    "many lines": json.dumps({"text": LINES}),
    "empty lines": json.dumps({"text": "\n" * LONG}),
    "deep": '{"a": ' + "[" * (LONG // 2) + "]" * (LONG // 2) + "}",
    "a list": json.dumps({"a": list(range(40_000))}),
    "keys": json.dumps({f"key {number}": number for number in range(25_000)}),
    "long keys": json.dumps({f"{number}" * 1_000: number for number in range(100, 150)}),
    "the same key": "{" + ", ".join(f'"{n}": 1, "{n}": 2' for n in range(12_500)) + "}",
    "no JSON": "x" * LONG,
}
PREVIEWS = {
    "text": ("text", LINES),
    "one line": ("text", "x" * LONG),
    "diff": ("diff", "--- a\n+++ b\n@@ -1,12000 +1,12000 @@\n" + "-old\n+new\n" * 12_000),
    "diff of two lines": ("diff", "--- a\n+++ b\n@@ -1 +1 @@\n-" + "x" * LONG + "\n+y"),
    "no diff": ("diff", "\n" * LONG),
    "command": ("command", json.dumps(["run", *["<word>"] * 25_000])),
}
CHANGE = (
    "--- a\n+++ b\n@@ -1,22501 +1,22501 @@\n" + "".join(f" {line}\n" for line in LINES.splitlines()) + "-old\n+new\n"
)


def actions(html: str) -> set[str]:
    approves = {"approve"} if 'name="as" value="shown"' in html else set()
    return approves | {form.sent["action"] for form in PostedPage(html).forms if "action" in form.sent}


@pytest.mark.parametrize("name", [*ARGUMENTS, *(f"preview: {each}" for each in PREVIEWS)])
async def test_what_is_not_on_the_page_can_not_be_approved_there(sqlite, name):
    """The page has at most 100 KB, no form that lets the call run, and a link to the whole call, which has them."""
    raw = ARGUMENTS.get(name, '{"a": 1}')
    kind, preview = (
        PREVIEWS.get(name.removeprefix("preview: "), (None, None)) if name not in ARGUMENTS else (None, None)
    )
    async with desk_on(sqlite) as desk:
        await desk.put(await desk.run(), input=raw, preview_kind=kind, preview=preview)
        page = await (await desk.person("ann")).get("/requests/rq")
    assert len(page.content) <= MOST_BYTES
    assert actions(page.text) == {"reject", "respond"}
    assert 'href="/requests/rq?whole=1"' in page.text
    assert "not on this page" in page.text


async def test_the_whole_call_can_be_approved(sqlite):
    """Its page has the form, without JavaScript, too; afterwards the page of the decided call is small again."""
    async with desk_on(sqlite) as desk:
        await desk.put(await desk.run(), input=ARGUMENTS["one line"])
        ann = await desk.person("ann")
        whole = await ann.get("/requests/rq?whole=1")
        assert "not on this page" not in whole.text
        approved = await ann.post("/requests/rq", data=PostedPage(whole.text).form("approve").sent)
        assert approved.headers["location"] == "/requests/rq"
        decided = await ann.get("/requests/rq")
    assert len(decided.content) <= MOST_BYTES


async def test_the_whole_call_is_on_its_page(sqlite):
    """Nothing of the arguments or the preview is missing there, and what must be read is open without JavaScript."""
    async with desk_on(sqlite) as desk:
        await desk.put(await desk.run(), input=ARGUMENTS["many lines"], preview_kind="text", preview=LINES + "the end")
        ann = await desk.person("ann")
        html = (await ann.get("/requests/rq?whole=1")).text
        text = ShownText(html).text
    assert text.count("\nline 22499\n") == 2
    assert "the end" in text
    assert html.count(" data-must-open open>") == 2


async def test_lines_that_stay_are_left_out_before_changes(sqlite):
    """A diff with thousands of unchanged lines and one change can be approved on its page: only those lines are left out."""
    async with desk_on(sqlite) as desk:
        await desk.put(await desk.run(), input='{"a": 1}', preview_kind="diff", preview=CHANGE)
        ann = await desk.person("ann")
        page = await ann.get("/requests/rq")
    assert len(page.content) <= MOST_BYTES
    text = ShownText(page.text).text
    assert "22,505 lines, 1 change" in text
    assert "22,497 unchanged lines: not on this page" in text
    assert "approve" in actions(page.text)


async def test_a_failed_decision_keeps_the_whole_call(sqlite):
    """An edit of a long call that doesn't fit comes back with all that was typed, on the page of the whole call."""
    async with desk_on(sqlite) as desk:
        await desk.put(await desk.run(), input=ARGUMENTS["many lines"])
        ann = await desk.person("ann")
        form = PostedPage((await ann.get("/requests/rq?whole=1")).text).form("edit-json")
        answer = await ann.post("/requests/rq", data={**form.sent, "edit-json": "no JSON"})
        assert answer.status_code == 422
        assert PostedPage(answer.text).form("edit-json").sent["edit-json"] == "no JSON"


async def test_several_calls_leave_out_what_is_too_long(sqlite):
    """Of several calls a long one is not approved with the others, is said to be too long, and is rejected with them."""
    async with desk_on(sqlite) as desk:
        run = await desk.run()
        await desk.put(run, "rq_1", tool_call_id="1")
        await desk.put(run, "rq_2", tool_call_id="2", input=ARGUMENTS["one line"])
        await desk.put(run, "rq_3", tool_call_id="3", preview_kind="text", preview=LINES)
        ann = await desk.person("ann")
        page = await ann.get("/requests/bulk?run_id=run_1")
        assert len(page.content) <= MOST_BYTES
        assert page.text.count("it is too long for this page") == 2
        (form,) = [
            each for each in PostedPage(page.text).forms if each.attributes.get("action") == "/requests/bulk/decide"
        ]
        approve = {**form.sent, "action": "approve"}
        again = await ann.post("/requests/bulk/decide", data={**form.sent, "action": "neither"})
        assert again.text.count("it is too long for this page") == 2
        done = await ann.post("/requests/bulk/decide", data=approve)
        assert "1 of 1 decided" in ShownText(done.text).text
        (form,) = [
            each
            for each in PostedPage((await ann.get("/requests/bulk?run_id=run_1")).text).forms
            if each.attributes.get("action") == "/requests/bulk/decide"
        ]
        done = await ann.post("/requests/bulk/decide", data={**form.sent, "action": "reject", "message": "too long"})
        assert "2 of 2 decided" in ShownText(done.text).text
