"""A call on a terminal: its tool's preview, then its arguments, folded past a screen."""

import difflib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngate.domain.text.hidden_text import is_hidden
from turngate.text.folded_call import fold_call
from turngate.text.presentation import exact_arguments
from turngate.wire.requests import RequestDetail

BEFORE = [f"line {number}" for number in range(900)]
AFTER = [*BEFORE[:400], "another", *BEFORE[401:]]


def diff_of(before, after, context=3):
    return "\n".join(difflib.unified_diff(before, after, "a/x", "b/x", lineterm="", n=context))


def call(arguments, preview=None, kind=None, risk="low"):
    raw = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return RequestDetail.model_construct(input=raw, preview=preview, preview_kind=kind, risk=risk)


def texts(lines):
    return [piece if isinstance(piece, str) else piece[0] for piece in lines.pieces]


@pytest.mark.parametrize(
    ("preview", "kind", "lines"),
    [
        (None, None, []),
        ("-old", "text", ["-old"]),
        ("Look!\n\n-old", "warned", [("Look!", "bold red"), "-old"]),
        ('["ls", "a b"]', "command", ["ls 'a b'"]),
        ("-old\n+new\n same\n", "diff", [("-old", "red"), ("+new", "green"), (" same", "")]),
    ],
)
def test_what_fits_on_a_screen_is_not_folded(preview, kind, lines):
    """All of it is there, the lines of a diff in their colours, and nothing has to be unfolded."""
    short = fold_call(call({"a": 1, "b": [2]}, preview, kind))
    assert short.preview.pieces == lines
    assert texts(short.arguments) == ["{", '  "a": 1,', '  "b": [', "    2", "  ]", "}"]
    assert not short.is_folded
    assert not short.must_unfold


def test_a_long_value_hides_no_other():
    """Of a long value only the beginning is there, with how much follows; what comes after it is seen."""
    long = fold_call(call({"content": "x" * 5_000, "path": "/etc/passwd"}))
    lines = texts(long.arguments)
    assert lines[0] == "{"
    assert lines[1].startswith('  "content": "xxx')
    assert lines[2] == "… 3,015 more characters"
    assert lines[3:] == ['  "path": "/etc/passwd"', "}"]
    assert long.must_unfold


def test_many_values_are_folded_after_a_screen():
    """So are the lines after the first screen, with their number."""
    many = fold_call(call({f"name {number}": number for number in range(100)}))
    lines = texts(many.arguments)
    assert (len(lines), lines[-2:]) == (22, ["… 81 more lines", "}"])
    assert many.must_unfold


@pytest.mark.parametrize("raw", ["not JSON " * 600, json.dumps(["x" * 30] * 200), "9" * 5_000])
def test_arguments_that_are_no_object_are_folded(raw):
    """Whatever an agent sent, its beginning is there and the rest is counted."""
    long = fold_call(call(raw))
    assert long.must_unfold
    assert texts(long.arguments)[-1].startswith("… ")


def test_a_key_given_twice_is_never_folded_away():
    """The warning and the exact text are there, however long the call is."""
    raw = '{"path": "a", "content": "' + "x" * 5_000 + '", "path": "b"}'
    twice = fold_call(call(raw))
    assert texts(twice.arguments)[-1] == f"the exact text: {raw}"
    assert not twice.is_folded


def test_a_value_may_stay_folded_where_the_diff_shows_what_it_changes():
    """Not for a high risk, not without the diff, not one with a further change, and not after a name that is folded itself."""
    diff, content = diff_of(BEFORE, AFTER), "\n".join(AFTER)
    arguments = {"path": "x", "content": content}
    seen = fold_call(call(arguments, diff, "diff"))
    assert seen.is_folded
    assert not seen.must_unfold
    assert texts(seen.arguments)[-2].endswith(": the changes are above, the other lines stay as they are")
    assert fold_call(call(arguments, diff, "diff", risk="high")).must_unfold
    assert fold_call(call(arguments)).must_unfold
    assert fold_call(call(arguments, diff, "text")).must_unfold
    assert fold_call(call({"path": "x", "content": content.replace("another", "a trap")}, diff, "diff")).must_unfold
    assert fold_call(call({"n" * 5_000: "line 399"}, diff, "diff")).must_unfold


def test_a_diff_says_how_long_it_is():
    """Unchanged lines may stay folded; what follows the first screen of changes may not."""
    unchanged = fold_call(call({}, diff_of(BEFORE, AFTER, context=900), "diff"))
    assert texts(unchanged.preview)[0] == "904 lines, 1 change"
    assert "… 397 unchanged lines" in texts(unchanged.preview)
    assert "+another" in texts(unchanged.preview)
    assert (unchanged.is_folded, unchanged.must_unfold) == (True, False)
    long = fold_call(call({}, diff_of(BEFORE[:300], [f"new {line}" for line in BEFORE[:300]]), "diff"))
    assert texts(long.preview)[-1] == "… 583 more lines, 583 of them changed"
    assert long.must_unfold


@pytest.mark.parametrize("kind", ["text", "command"])
def test_a_long_preview_has_to_be_unfolded(kind):
    """Its beginning is there; the rest is counted."""
    preview = json.dumps(["echo", "x" * 5_000]) if kind == "command" else "a line\n" * 100
    long = fold_call(call({}, preview, kind))
    assert long.must_unfold
    assert texts(long.preview)[-1] == ("… 3,005 more characters" if kind == "command" else "… 80 more lines")


@given(
    st.dictionaries(
        st.text(max_size=8), st.text("ab\n\u202e\x1b", max_size=9).map(lambda text: text * 600), max_size=4
    ),
    st.sampled_from(["text", "command", "diff", None]),
    st.text("ab+-@ \n\u202e\x1b", max_size=60).map(lambda text: text * 100),
)
def test_nothing_folded_is_lost_or_speaks_to_the_terminal(arguments, kind, preview):
    """The whole call is all of it; a folded one says so, has fewer lines or shorter ones, and hides no character."""
    request = call(arguments, preview, kind)
    whole, folded = fold_call(request, whole=True), fold_call(request)
    assert whole.arguments.pieces == list(exact_arguments(request.input))
    assert not whole.is_folded
    for each, all_of_it in ((folded.preview, whole.preview), (folded.arguments, whole.arguments)):
        assert each.is_folded or texts(each) == texts(all_of_it)
        assert all(not is_hidden(char) and char != "\n" for line in texts(each) for char in line)
