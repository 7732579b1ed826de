"""Presentations on the page: each kind of block is drawn, and nothing in one is more than text."""

from types import SimpleNamespace

import pytest
from markupsafe import Markup
from support.pages.html_text import ShownText

from turngate.approvals_api.pages.call_view import Room, show_call
from turngate.approvals_api.pages.templating import _environment
from turngate.approvals_api.runs.step_views import presentation_of
from turngate.domain.text.hidden_text import is_hidden
from turngate.domain.tools.presentation import (
    PRESENTATION,
    CommandBlock,
    DiffBlock,
    JsonBlock,
    TableBlock,
    TextBlock,
    default_presentation,
    warning_in,
)
from turngate.domain.tools.results import Failure, Ok
from turngate.store.runs.calls import Call

HOSTILE = (
    "</pre></td></table></script><script>x</script><img src=x onerror=y>\" '>\u202edesrever\u200b\x1b[31m\x07\r\n⟨"
)
BLOCKS = {
    "text": TextBlock(text=HOSTILE),
    "diff": DiffBlock(diff=f"--- a/{HOSTILE}\n+++ b/x\n@@ -1,1 +1,1 @@\n-{HOSTILE}\n+{HOSTILE}"),
    "command": CommandBlock(argv=("echo", HOSTILE, "", "my dir")),
    "table": TableBlock(columns=(HOSTILE, "n"), rows=((HOSTILE, 1.5), (None, True), ({HOSTILE: HOSTILE}, "")), more=2),
    "json": JsonBlock(value={HOSTILE: [HOSTILE, 1, None]}),
}
OURS = {"pre", "bdi", "span", "div", "p", "ol", "li", "code", "table", "thead", "tbody", "tr", "th", "td"}


def blocks(*stored):
    return _environment().get_template("blocks.html").module.blocks(stored)


@pytest.mark.parametrize("block", BLOCKS.values(), ids=list(BLOCKS))
def test_hostile_text_is_inert_in_every_block(block):
    """No element of its own, no attribute, and every hidden character is spelled out; each value is isolated."""
    html = blocks(block)
    assert isinstance(html, Markup)
    page = ShownText(html)
    assert page.tags <= OURS
    assert [char for char in page.text if is_hidden(char)] == []
    assert "⟨U+202E⟩desrever⟨U+200B⟩⟨U+001B⟩[31m⟨U+0007⟩" in page.text or r"\u001b" in page.text
    assert "<script>x</script>" in page.text
    assert "<bdi lang translate=no>" in html


def test_a_warning_takes_the_place_of_succeeded():
    """An exit code other than 0 isn't green: the chip says it, as a warning, and so does its block of the result."""
    ended = TextBlock(text="exit code 1 after 0.2 s", tone="warning")
    assert 'class="value warn"' in blocks(ended)
    call = SimpleNamespace(execution="succeeded", warning=warning_in(Ok(value={}), (ended,)))
    chip = _environment().get_template("parts.html").module.execution(call)
    assert 'class="chip warning"' in chip
    assert "exit code 1 after 0.2 s" in chip
    assert "succeeded" not in chip
    call.warning = warning_in(Failure(kind="unknown"), (ended,))
    assert "chip succeeded" in _environment().get_template("parts.html").module.execution(call)


def test_a_table_is_a_table_that_scrolls_in_its_own_box():
    """Header cells, a box that can be focused and scrolled, a sign for null, and a count of missing rows."""
    html = blocks(TableBlock(columns=("name", "n"), rows=(("a\nb", 1), (None, 2)), more=1_000))
    assert 'class="table" role="region" aria-label="Table" tabindex="0"' in html
    assert html.count('<th scope="col">') == 2
    assert '<td class="number"><bdi lang translate=no>1</bdi></td>' in html
    assert "<td><bdi lang translate=no>a\nb</bdi></td>" in html
    assert '<td><span class="dim">-</span></td>' in html
    assert "1,000 more rows are not shown." in html


def test_a_diff_and_a_command_are_drawn_as_in_a_preview():
    """Lines by kind with their sums; the words of a command one by one, quoted where it must be."""
    diff = blocks(DiffBlock(diff="--- a/n\n+++ b/n\n@@ -1,1 +1,2 @@\n-was\n+is\n+more\n"))
    assert '<span class="added">+2</span> <span class="removed">\u22121</span>' in diff
    assert diff.count('<div class="added">') == 2
    command = blocks(CommandBlock(argv=("rm", "my dir", "")))
    assert "rm &#39;my dir&#39; &#39;&#39;" in command
    assert command.count("<li>") == 3


def test_the_warning_of_a_preview_is_drawn_as_one():
    """The first line is a warning in red, and the rest is text."""
    macro = _environment().get_template("blocks.html").module.preview
    html = macro(show_call("{}", ("warned", f"Look! {HOSTILE}\n\nsh x.sh"), None, risk="high", room=Room()).preview)
    assert '<p class="warn" role="note"><strong class="unconfined">' in html
    assert html.index("Look!") < html.index("</strong>") < html.index("sh x.sh")
    assert ShownText(html).tags <= OURS | {"strong"}


@pytest.mark.parametrize(
    "result", [Ok(value={"secret": HOSTILE}), Failure(kind=HOSTILE, reason=HOSTILE, fields={"a": HOSTILE})]
)
def test_the_exact_result_stays_at_hand(result):
    """A presentation may leave things out; the whole result is one click away, and just as harmless."""
    macro = _environment().get_template("parts.html").module.presented
    html = macro(result, (TextBlock(text="in short"),))
    assert html.index("in short") < html.index("Exact result")
    page = ShownText(html)
    assert page.tags <= OURS | {"details", "summary"}
    assert "desrever" in page.text


def call_with(presentation):
    return Call(
        run_id="r", tool_call_id="c", step=1, position=0, tool_name="t", input="{}", repeat_key="k", disposition="run",
        verdict="", digest="d", policy_version="p", effect="read", presentation=presentation,
    )  # fmt: skip


def test_a_tools_presentation_precedes_the_default():
    """The stored blocks; the default if there are none that this release can read; nothing while the call is open."""
    result = Ok(value={"value": "plain"})
    stored = PRESENTATION.dump_json(tuple(BLOCKS.values())).decode()
    assert presentation_of(call_with(stored), result) == PRESENTATION.validate_json(stored)
    for unreadable in (None, "", "[", '[{"type": "hologram"}]'):
        assert presentation_of(call_with(unreadable), result) == default_presentation(result)
    assert presentation_of(call_with(stored), None) is None
