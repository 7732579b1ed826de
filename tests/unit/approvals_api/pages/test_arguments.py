from turngate.approvals_api.pages import arguments
from turngate.domain.text import json_text


def test_numbers_keep_their_digits():
    """A number is shown with the digits that were sent, however many there are."""
    raw = '{"amount": 1.10, "account": 12345678901234567890123, "rate": 1E5}'
    assert [row.text for row in arguments.view(raw).rows] == ["1.10", "12345678901234567890123", "1E5"]


def test_rows_tell_text_from_number():
    """The string "5" and the number 5 look different, and so do null, "null" and nothing."""
    rows = arguments.view('{"a": "5", "b": 5, "c": null, "d": "null", "e": true}').rows
    assert [row.kind for row in rows] == ["text", "number", "null", "text", "boolean"]


def test_doubled_keys_are_noticed():
    """A key that occurs twice, at any depth, is named: readers differ on which one counts."""
    assert arguments.view('{"a": {"path": 1, "path": 2}}').doubled == ("path",)
    assert arguments.view('{"a": 1, "b": {"a": 1}}').doubled == ()


def test_text_that_is_not_json_is_shown_as_it_is():
    """Broken arguments have no rows, and no part of them is dropped."""
    for raw in ('{"a": ', '{"a": NaN}', "[" * 100_000):
        view = arguments.view(raw)
        assert view.rows is None
        assert view.pretty == raw


def test_text_that_means_no_arguments_is_shown_as_none():
    """What runs is an empty object, so that is shown, and not an unreadable text."""
    for raw in ("", " ", "null", "{}"):
        assert (arguments.view(raw).rows, arguments.view(raw).pretty) == ((), "{}"), raw


def test_one_line_is_short():
    """The inbox's summary is one clipped line of names and values."""
    assert arguments.one_line('{"path": "notes.txt", "lines": 3}') == "path=notes.txt, lines=3"
    assert (
        len(arguments.one_line('{{"text": "{}", "more": "{}"}}'.format("x" * 500, "y" * 500)))
        <= arguments.ONE_LINE_CHARS
    )


def test_lone_surrogates_are_escaped():
    """Half a surrogate pair cannot be sent as UTF-8, so it stays an escape."""
    parsed = json_text.parse('{"a": "\\ud800"}')
    assert json_text.dump(parsed.tree) == '{"a": "\\ud800"}'
