import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngate.approvals_api.pages.result_text import PAGE_CHARS, depends_on, page_of, readable, what_changed
from turngate.domain.text.diff import read_diff


def test_a_bare_text_is_read_as_it_is():
    """The object around every result is not shown for a plain text."""
    assert readable(json.dumps({"value": "two\nlines"})) == "two\nlines"


@pytest.mark.parametrize("body", ['{"value": 1.10}', '{"value": "x", "more": null}', '{"n": 10000000000000000000001}'])
def test_anything_else_keeps_its_digits_one_member_a_line(body):
    """People see the digits unrounded."""
    text = readable(body)
    assert json.loads(text) == json.loads(body)
    assert text.count("\n") == body.count(":") + 1
    assert all(digits in text for digits in ("1.10", "10000000000000000000001") if digits in body)


def test_what_cannot_be_taken_apart_is_shown_as_stored():
    """Text that is not JSON, and JSON nested too deep to be written again."""
    assert readable('{"a": ') == '{"a": '
    deep = "[" * 400 + "]" * 400
    assert readable(deep).replace("\n", "").replace(" ", "") == deep
    deeper = "[" * 900 + "]" * 900
    assert json.loads(readable(deeper)) == json.loads(deeper)


@given(st.integers(min_value=0, max_value=3 * PAGE_CHARS))
def test_pages_follow_each_other_without_gap_or_overlap(total):
    """From the first page on, `next` leads through the whole text; `previous` leads back to the first page."""
    text = "".join(chr(97 + n % 26) for n in range(total))
    seen, page = "", page_of(text, 0)
    while True:
        assert (page.end - page.start, page.total) == (len(page.text), total)
        assert len(page.text) <= PAGE_CHARS
        seen += page.text
        if page.next is None:
            break
        page = page_of(text, page.next)
    assert seen == text
    while page.previous is not None:
        page = page_of(text, page.previous)
    assert page.start == 0


@given(st.integers(min_value=0), st.integers(min_value=1, max_value=3 * PAGE_CHARS))
def test_an_offset_after_the_end_is_the_last_page(offset, total):
    """An old link never shows an empty page of a text that is not empty."""
    assert page_of("x" * total, offset).text


def test_a_precondition_is_shown_in_words():
    """A text without its quotes, a value as JSON, and a precondition that failed as such."""
    assert depends_on('"etag-7"') == "etag-7"
    assert depends_on('{"release": "r1"}') == '{\n  "release": "r1"\n}'
    assert depends_on('{"release": "r1"}', indented=False) == '{"release": "r1"}'
    assert depends_on('{"precondition_failed": "OSError"}') == "could not be determined (OSError)"
    assert "OSError" in depends_on('{"precondition_failed": "OSError", "more": 1}')


CHANGES = {
    "one member": ('{"a": 1, "b": 2}', '{"a": 1, "b": 3}', ['-  "b": 2', '+  "b": 3']),
    "two texts": ('"etag-7"', '"etag-8"', ["-etag-7", "+etag-8"]),
    "a text and its number": ('"7"', "7", ['-"7"', "+7"]),
    "unknown at first": ('{"precondition_failed": "OSError"}', "7", ["-could not be determined (OSError)", "+7"]),
    "no diff inside a diff": ('"--- a\\n@@ -1 +1 @@"', '"x"', ["---- a", "-@@ -1 +1 @@", "+x"]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_changed_is_a_diff_of_what_people_read(name):
    """Old and new value, line by line; a value that looks like a diff is lines of one."""
    was, now, changed_lines = CHANGES[name]
    lines = read_diff(what_changed(was, now)).lines
    assert [line.text for line in lines if line.kind in {"added", "removed"}] == changed_lines


def test_equal_or_unknown_values_have_no_difference():
    """A tool without a precondition has nothing to compare."""
    assert [what_changed(None, "1"), what_changed("1", None), what_changed("1", "1")] == [None, None, None]


def test_a_change_at_the_end_of_much_is_shown():
    """However much a call depends on, what differs is found; only a difference that is itself very long is cut, and says so."""
    long = json.dumps(list(range(20_000)))
    lines = read_diff(what_changed(long, long.replace(" 10000,", " 7,").replace("19999]", "18888]"))).lines
    changed = [line.text.strip(" ,") for line in lines if line.kind in {"added", "removed"}]
    assert changed == ["-  10000", "+  7", "-  19999", "+  18888"]
    cut = what_changed(long, '"x"')
    assert len(cut) < 50_000
    assert "of them changed: not shown here" in cut
