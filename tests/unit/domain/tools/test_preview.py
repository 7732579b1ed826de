"""The line of a preview that lists show."""

import json

import pytest

from turngate.domain.tools.preview import HEAD_CHARS, LINE_CHARS, Preview, PreviewSize, first_line

LONG = "same" * 600


@pytest.mark.parametrize(
    ("preview", "line", "more"),
    [
        (Preview(kind="text", text="\n\nUPDATE 1 of 3 rows\n\nUPDATE orders"), "UPDATE 1 of 3 rows", "4 more lines"),
        (
            Preview(kind="diff", text="--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n same\n-was\n+is\n"),
            "-was",
            "5 more lines, 1 of them changed",
        ),
        (
            Preview(kind="diff", text=f"--- x\n+++ x\n@@ -1,2 +1,2 @@\n {LONG}\n--- a\n+++ b\n"),
            "",
            "6 more lines, 2 of them changed",
        ),
        (Preview.command("git", "commit", "-m", 'say "é"'), "git commit -m 'say \"é\"'", ""),
        (Preview(kind="command", text="no array"), "'no array'", ""),
        (Preview(kind="text", text=" \n"), "", ""),
    ],
)
def test_the_first_line_says_what_changes(preview: Preview, line: str, more: str) -> None:
    """The first line with words, a diff's first changed line, a command as a shell takes it; and how much is not shown."""
    assert first_line(preview.kind, preview.text[:HEAD_CHARS], PreviewSize.of(preview.text)) == (line, more)


@pytest.mark.parametrize("text", ["x" * 100_000, json.dumps(["a" * 100_000, "b"]), "[" * 10_000, '["\\u12", "\\', "["])
@pytest.mark.parametrize("kind", ["text", "command", "diff"])
def test_i14_a_line_of_anything_is_short(kind: str, text: str) -> None:
    """However long the preview is, and wherever its beginning is cut."""
    line, _more = first_line(kind, text, PreviewSize.of(text))
    assert len(line) <= LINE_CHARS
