import difflib

from hypothesis import given
from hypothesis import strategies as st

from turngate.domain.text.diff import read_diff
from turngate.frontends.acp.diffs import hunks

DIFF = """--- a/notes.txt
+++ b/notes.txt
@@ -1,3 +1,3 @@
 first
--- old/path
+++ new/path
 last
\\ No newline at end of file
@@ -10 +10,2 @@
-x
+y
+z
"""


def test_lines_are_read_by_the_hunk_counts():
    """A removed line that looks like a file header is a removed line, because the hunk's counts say so."""
    view = read_diff(DIFF)
    kinds = [line.kind for line in view.lines]
    assert kinds == [
        "file",
        "file",
        "hunk",
        "context",
        "removed",
        "added",
        "context",
        "note",
        "hunk",
        "removed",
        "added",
        "added",
    ]
    assert (view.added, view.removed) == (3, 2)
    assert [(line.old, line.new) for line in view.lines[3:7]] == [(1, 1), (2, None), (None, 2), (3, 3)]
    assert view.lines[9].old == 10


def test_text_outside_hunks_is_not_coloured():
    """A plus sign where no hunk is open adds nothing: text cannot pose as a change."""
    assert [line.kind for line in read_diff("+not a change").lines] == ["file"]


_LINE = st.text(alphabet=st.sampled_from("abc-+ @\\"), max_size=8)


@given(st.lists(_LINE, max_size=12), st.lists(_LINE, max_size=12))
def test_no_line_is_lost_and_sums_agree(before, after):
    """Every line of a real diff comes back in order, and the sums are those of the edit."""
    lines = list(difflib.unified_diff(before, after, "old", "new", lineterm=""))
    view = read_diff("\n".join(lines))
    assert [line.text for line in view.lines] == (lines or [""])
    body = lines[2:]
    assert view.added - view.removed == len(after) - len(before)
    assert view.added + view.removed + sum(line.kind in {"context", "hunk"} for line in view.lines) == len(body)


def test_i14_a_header_with_a_number_that_nothing_can_hold_is_a_line() -> None:
    """Python refuses integers of more than 4,300 digits; a page must not fail over a preview's text."""
    many = "9" * 5_000
    for header in (f"@@ -{many} +1 @@", f"@@ -1 +1,{many} @@"):
        assert [line.text for line in read_diff(f"{header}\n+x").lines] == [header, "+x"]
        assert hunks(f"--- a/x\n+++ b/x\n{header}\n+x\n") is None
