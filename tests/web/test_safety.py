"""What an agent or a tool wrote stays text; the pages fit a small screen; every control has a name."""

import json

import pytest
from playwright.async_api import expect
from sqlalchemy import update

from approvals_api.pages.visible import is_hidden
from turngate.domain.presentation import PRESENTATION, CommandBlock, DiffBlock, JsonBlock, TableBlock, TextBlock
from turngate.store import tables

HOSTILE = (
    '</pre></textarea></script><script>document.title="owned"</script><img src=x onerror="document.title=1">'
    "<b>bold</b> [link](https://evil.example) https://evil.example "
    "\u202edesrever\u202c "
    "\u200bzero\u200d \u2066iso\u2069 \u061c \ufeff \U000e0041tag \x1b[31mred\x1b[0m \x07 \r\nAPPROVED BY admin"
)
LONG = "x" * 3000
BLOCKS = (
    TextBlock(text=HOSTILE + LONG),
    DiffBlock(diff=f"--- a/{HOSTILE}\n+++ b/x\n@@ -1,1 +1,1 @@\n-{LONG}\n+{HOSTILE}\n"),
    CommandBlock(argv=("echo", HOSTILE, LONG, "")),
    TableBlock(columns=(HOSTILE, LONG, "n"), rows=((HOSTILE, LONG, 1), (None, True, LONG)), more=5),
    JsonBlock(value={HOSTILE: [HOSTILE, LONG]}),
)
LOOK = """() => {
    document.querySelectorAll('main details').forEach(each => { each.open = true });
    return {
    elements: document.querySelectorAll('main script, main img, main b, main iframe, main style, main svg').length,
    links: [...document.querySelectorAll('main a')].map(link => link.href).filter(href => href.includes('evil')).length,
    title: document.title,
    text: document.querySelector('main').textContent
        + [...document.querySelectorAll('main textarea, main input:not([type=hidden])')].map(each => each.value).join(''),
    wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    unnamed: [...document.querySelectorAll('main input:not([type=hidden]), main textarea, main select')]
        .filter(each => !each.labels.length && !each.getAttribute('aria-label')).map(each => each.outerHTML),
    doubled: [...document.querySelectorAll('[id]')].map(each => each.id).filter((id, at, all) => all.indexOf(id) !== at),
    };
}"""


@pytest.fixture(scope="session")
async def hostile_paths(site):
    """Pages full of hostile text: argument, argument's name, words, preview, result, reason, question, choice, task."""
    paths = ["/", "/?status=all", "/runs", "/runs/new"]
    order = json.dumps(
        {"order": HOSTILE, "cents": 1, "note": HOSTILE, HOSTILE: HOSTILE, "tags": [HOSTILE], "extra": {HOSTILE: LONG}}
    )
    waiting = [
        await site.gated("refund", order, HOSTILE),
        await site.gated("edit_file", json.dumps({"path": HOSTILE, "old": HOSTILE, "new": LONG}), HOSTILE),
        await site.gated("shell", json.dumps({"argv": ["echo", HOSTILE, LONG, ""]}), LONG),
        await site.gated("ask_person", json.dumps({"question": HOSTILE, "choices": [HOSTILE, LONG]}), HOSTILE),
        await site.lost("refund", order),
    ]
    ended = await site.gated("shell", json.dumps({"argv": [HOSTILE]}), HOSTILE)
    await site.stack.decide(ended, "edit", args=json.dumps({"argv": [HOSTILE, LONG]}))
    await site.ended(ended)
    rejected = await site.gated("refund", order, LONG)
    await site.stack.decide(rejected, "reject", message=HOSTILE.replace("\x00", ""))
    await site.ended(rejected)
    shown = await site.gated("refund", order)
    await site.stack.decide(shown, "approve")
    await site.ended(shown)
    async with site.stack.database.write() as conn:
        await conn.execute(
            update(tables.calls)
            .where(tables.calls.c.run_id == shown.run_id)
            .values(presentation=PRESENTATION.dump_json(BLOCKS).decode())
        )
    unknown = await site.start(f"no{HOSTILE}", HOSTILE, HOSTILE)
    await site.stack.ended(unknown)
    for request in (*waiting, ended, rejected, shown):
        paths += [f"/requests/{request.id}", f"/runs/{request.run_id}"]
    return [*paths, f"/runs/{unknown.id}"]


async def test_hostile_text_is_inert_and_every_page_fits_320_pixels(hostile_paths, open_page):
    """On every page hostile text makes no element, no link and no script, and each hidden character is spelled out.

    On the smallest phone nothing scrolls sideways, long words and all; every control has a name, every id is its own.
    """
    page = await open_page("/", viewport={"width": 320, "height": 640})
    for path in [*hostile_paths, "/login", "/login?link=x", "/requests/none"]:
        await page.goto(path)
        seen = await page.evaluate(LOOK)
        assert (seen["elements"], seen["links"]) == (0, 0), path
        assert "owned" not in seen["title"], path
        assert [hex(ord(char)) for char in set(seen["text"]) if is_hidden(char)] == [], path
        assert (seen["unnamed"], seen["doubled"]) == ([], []), path
        assert seen["wide"] <= 0, path


async def test_a_wide_table_scrolls_in_its_own_box(hostile_paths, open_page):
    """On a small phone a result's table is wider than the page, and its box, which takes the focus, scrolls."""
    page = await open_page(hostile_paths[-2], viewport={"width": 320, "height": 640})
    await page.locator("details", has_text="Arguments and result").first.evaluate("each => { each.open = true }")
    table = page.get_by_role("region", name="Table")
    await expect(table).to_be_visible()
    assert await table.evaluate("each => each.scrollWidth > each.clientWidth")
    await table.focus()
    await expect(table).to_be_focused()
    await expect(page.get_by_role("region", name="What changed").locator(".added .code")).to_contain_text("bold")


async def test_the_call_comes_first(site, open_page):
    """Call, why, effect, the agent's words, the decision, the conversation: in this order, for eyes and screen readers."""
    request = await site.gated("refund", '{"order": "order", "cents": 1}')
    page = await open_page(f"/requests/{request.id}")
    order = await page.evaluate("[...document.querySelectorAll('.request > section')].map(each => each.classList[0])")
    assert order == ["call", "why", "effect", "words-of-agent", "decision", "conversation"]
    await expect(page.locator(".digest")).to_contain_text(request.digest)
    await expect(page.locator(".effect")).to_contain_text("scripted model")


async def test_a_diff_and_a_command_are_shown_as_such(site, open_page):
    """A diff has its added and removed lines marked; a command shows each word by itself."""
    edit = await site.gated("edit_file", '{"path": "n.txt", "old": "was", "new": "is"}')
    page = await open_page(f"/requests/{edit.id}")
    await expect(page.locator(".diff .added .code")).to_have_text("+is")
    await expect(page.locator(".diff .removed .code")).to_have_text("-was")
    command = await site.gated("shell", '{"argv": ["rm", "-rf", "my dir"]}')
    await page.goto(f"/requests/{command.id}")
    await expect(page.locator(".command")).to_have_text("rm -rf 'my dir'")
    await expect(page.locator(".words li")).to_have_text(["rm", "-rf", "my dir"])
