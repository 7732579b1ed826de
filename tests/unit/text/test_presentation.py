"""Presentations on the terminal: nothing in them moves the cursor, and every line keeps its margin."""

import pytest

from turngate.domain.text.hidden_text import is_hidden
from turngate.domain.tools.presentation import CommandBlock, DiffBlock, JsonBlock, TableBlock, TextBlock
from turngate.text.presentation import first_lines, on_one_line, presentation_lines

HOSTILE = "a\x1b[2Jb\r\nc\u202ed\x07"
BLOCKS = {
    "text": TextBlock(text=HOSTILE),
    "diff": DiffBlock(diff=f"--- a/{HOSTILE}\n+++ b/x\n@@ -1,1 +1,1 @@\n-{HOSTILE}\n+{HOSTILE}"),
    "command": CommandBlock(argv=("echo", HOSTILE)),
    "table": TableBlock(columns=(HOSTILE, "n"), rows=((HOSTILE, 1), ({HOSTILE: HOSTILE}, None))),
    "json": JsonBlock(value={HOSTILE: HOSTILE}),
}


def texts(pieces):
    return [piece if isinstance(piece, str) else piece[0] for piece in pieces]


@pytest.mark.parametrize("block", BLOCKS.values(), ids=list(BLOCKS))
def test_no_block_can_speak_to_the_terminal(block):
    """Every control character is spelled out, and no line holds a line feed that would escape its margin."""
    lines = texts(presentation_lines((block,)))
    assert all(not is_hidden(char) and char != "\n" for line in lines for char in line)
    assert "[2J" in "".join(lines)


def test_a_table_is_aligned_by_what_the_eye_sees():
    """Wide characters count twice, long cells are cut, null is a dash, and missing rows are counted."""
    table = TableBlock(columns=("path", "n"), rows=(("漢字", 1), ("b", None), ("x" * 99, 2)), more=3)
    wide = "x" * 59 + "…"
    assert texts(presentation_lines((table,))) == [
        "path" + " " * 58 + "n",
        "漢字" + " " * 58 + "1",
        "b" + " " * 61 + "-",
        f"{wide}  2",
        "… 3 more rows",
    ]


def test_a_diff_keeps_its_colours():
    """Added green, removed red."""
    assert list(presentation_lines((DiffBlock(diff="-old\n+new\n same\n"),))) == [
        ("-old", "red"),
        ("+new", "green"),
        (" same", ""),
    ]


def test_what_fits_one_line_takes_one_line():
    """A short text, or JSON; everything else gets lines of its own."""
    assert on_one_line((TextBlock(text="done\n"),)) == "done"
    assert on_one_line((JsonBlock(value={"a": 1}),)) == '{"a": 1}'
    assert on_one_line((TextBlock(text="a\nb"),)) is None
    assert on_one_line((TextBlock(text="a"), TextBlock(text="b"))) is None
    assert on_one_line(()) is None


def test_a_long_result_says_how_many_lines_are_missing():
    """Exactly as many as fit are shown without a note."""
    ten = (TextBlock(text="\n".join("abcdefghij")),)
    assert texts(first_lines(ten, 10)) == list("abcdefghij")
    assert texts(first_lines(ten, 8)) == [*"abcdefgh", "… 2 more lines"]
    assert texts(first_lines(ten, 9))[-1] == "… 1 more line"


def test_a_warning_is_yellow_in_every_line():
    """A block that warns, such as an exit code of 1, is painted as a warning."""
    block = TextBlock(text="exit code 1\nafter 2 s", tone="warning")
    assert list(presentation_lines((block,))) == [("exit code 1", "yellow"), ("after 2 s", "yellow")]
