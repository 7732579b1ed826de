import difflib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngate.domain.text.diff import read_diff
from turngate.domain.text.folds import SCREEN_CHARS, SCREEN_LINES, cut_line, fold_diff, fold_text, size_in_lines

FILE = [f"line {number}" for number in range(3_000)]
CHANGED = [*FILE[:500], "another", *FILE[501:2_000], *FILE[2_001:]]


def diff_of(before: list[str], after: list[str], context: int = 3) -> str:
    return "\n".join(difflib.unified_diff(before, after, "a/x", "b/x", lineterm="", n=context))


@given(st.text(alphabet="ab\n", max_size=200), st.integers(1, 60))
def test_the_parts_of_a_text_are_the_text(text, times):
    """Nothing is lost or moved between what is shown and what is folded, and what is shown fits on a screen."""
    folded = fold_text(text * times)
    if folded.rest is None:
        assert folded.head == text * times
    else:
        between = "" if folded.head + folded.rest == text * times else "\n"
        assert folded.head + between + folded.rest == text * times
        assert folded.more
    assert folded.head.count("\n") < SCREEN_LINES
    assert len(folded.head) <= SCREEN_CHARS


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x" * 1_000_000, "998,000 more characters"),
        ("\n" * 1_000_000, "999,980 more lines"),
        ("short\n" * 100, "80 more lines"),
        ("y" * 5_000 + "\nend", "2 more lines (3,004 characters)"),
    ],
)
def test_a_fold_says_how_much_is_in_it(text, words):
    """By lines, or by characters where there is one line; what is short is not folded."""
    assert fold_text(text).more == words
    assert fold_text(text[:30]).rest is None


def test_long_lines_are_counted_in_characters_too():
    """Two lines of a megabyte are more than two lines."""
    assert size_in_lines("x" * 1_000 + "\n" + "y" * 1_000) == "2 lines (2,001 characters)"


@given(st.text(max_size=300), st.integers(48, 200), st.integers(0, 5_000))
def test_a_line_that_is_cut_says_how_much_is_missing(line, limit, more):
    """It is as long as it may be at most; cut again, what was missing before is counted in."""
    cut = cut_line(line, limit, more=more)
    assert len(cut) <= limit
    head, _, words = cut.rpartition("… ")
    assert cut == line or f"{len(line) - len(head) + more:,} more character" in words
    again = cut_line("x" * 300, 200)
    assert cut_line(again, 60) == cut_line("x" * 300, 60)


def test_unchanged_lines_far_from_a_change_are_folded():
    """Of a diff with all of its file, a change keeps three lines around it, and the size says how many changes there are."""
    diff = fold_diff(read_diff(diff_of(FILE, CHANGED, context=3_000)))
    assert diff.size == "3,004 lines, 2 changes"
    assert [len(part.lines) for part in diff.head if part.folded] == [497, 1_493, 996]
    assert sum(len(part.lines) for part in diff.head if not part.folded) == 3 + 8 + 7
    assert diff.rest == ()


def test_a_diff_longer_than_a_screen_is_folded_after_its_beginning():
    """What follows the first lines is folded, with the number of its lines and changes."""
    diff = fold_diff(read_diff(diff_of(FILE[:300], [f"new {line}" for line in FILE[:300]])))
    assert sum(len(part.lines) for part in diff.head) == 20
    assert diff.more == "583 more lines, 583 of them changed"


@given(st.lists(st.sampled_from("abc"), max_size=60), st.lists(st.sampled_from("abc"), max_size=60), st.integers(0, 60))
def test_the_parts_of_a_diff_are_the_diff(before, after, context):
    """Every line is in one part, in order, and lines that change are never among those that may stay folded."""
    view = read_diff(diff_of(before, after, context))
    diff = fold_diff(view)
    parts = [*diff.head, *diff.rest]
    assert tuple(line for part in parts for line in part.lines) == view.lines
    assert {line.kind for part in parts if part.folded for line in part.lines} <= {"context"}


def test_a_diff_knows_the_text_it_leads_to():
    """The new file's text is known by its line numbers; any other text, also one with a further change, is not."""
    diff = fold_diff(read_diff(diff_of(FILE, CHANGED)))
    assert diff.leads_to("\n".join(CHANGED))
    assert diff.leads_to("\n".join(CHANGED) + "\n")
    assert not diff.leads_to("\n".join(FILE))
    assert not diff.leads_to("\n".join(["one more", *CHANGED]))
    assert not diff.leads_to("\n".join(CHANGED[:700]))
    assert not fold_diff(read_diff("no diff")).leads_to("no diff")
    assert not fold_diff(read_diff(diff_of(FILE, CHANGED) + "\n\\ … 9 more lines")).leads_to("\n".join(CHANGED))
    two_files = diff_of(FILE, CHANGED) + "\n" + diff_of(FILE[:5], CHANGED[:4])
    assert not fold_diff(read_diff(two_files)).leads_to("\n".join(CHANGED))


def test_a_diff_shows_only_what_must_be_read_of_it():
    """A text within the changed lines is shown, before or after the change; one in folded, unchanged lines is not."""
    diff = fold_diff(read_diff(diff_of(FILE, CHANGED, context=3_000)))
    assert diff.shows("line 499\nanother\nline 501")
    assert diff.shows("line 499\nline 500\n")
    assert not diff.shows("line 700\nline 701")
    assert not diff.shows("nowhere")
