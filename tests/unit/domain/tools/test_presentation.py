"""What people see of a result: the default, the bounds, and presenters that fail."""

from __future__ import annotations

import json
import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from turngate import tool
from turngate.domain.tools import results
from turngate.domain.tools.presentation import (
    MAX_BLOCKS,
    MAX_BYTES,
    MAX_COLUMNS,
    MAX_ROWS,
    MAX_TEXT_CHARS,
    PRESENTATION,
    CommandBlock,
    DiffBlock,
    JsonBlock,
    TableBlock,
    TextBlock,
    bounded,
    default_presentation,
)
from turngate.domain.tools.results import Failure, Ok


class Params(BaseModel):
    who: str = "ada"


def shows(present):
    """Return a tool with this presenter."""

    @tool(present=present)
    async def greet(params: Params) -> str:
        """Say hello."""
        return params.who

    return greet


@pytest.mark.parametrize(
    ("value", "blocks"),
    [
        ({"value": "two\nlines"}, (TextBlock(text="two\nlines"),)),
        ({"value": ""}, (TextBlock(text=""),)),
        ({"value": 3}, (JsonBlock(value={"value": 3}),)),
        ({"answer": "yes"}, (JsonBlock(value={"answer": "yes"}),)),
        ({}, (JsonBlock(value={}),)),
        (
            {"value": [{"a": 1, "b": "x"}, {"b": None, "c": True}]},
            (TableBlock(columns=("a", "b", "c"), rows=((1, "x", None), (None, None, True))),),
        ),
        (
            {"rows": [{"a": 1}], "total": 1},
            (TableBlock(columns=("a",), rows=((1,),)), JsonBlock(value={"total": 1})),
        ),
        ({"value": []}, (JsonBlock(value={"value": []}),)),
        ({"value": [{}]}, (JsonBlock(value={"value": [{}]}),)),
        ({"value": [1, {"a": 1}]}, (JsonBlock(value={"value": [1, {"a": 1}]}),)),
        ({"value": [{"a": {"b": 1}}]}, (JsonBlock(value={"value": [{"a": {"b": 1}}]}),)),
        (
            {"one": [{"a": 1}], "two": [{"a": 1}]},
            (JsonBlock(value={"one": [{"a": 1}], "two": [{"a": 1}]}),),
        ),
    ],
)
def test_the_default_shows_a_text_a_table_or_json(value, blocks):
    """One text is text, one list of flat objects a table (with the other fields around it), all else JSON."""
    assert default_presentation(Ok(value=value)) == blocks


def test_too_many_columns_give_json():
    """A row too wide to read is better read as JSON."""
    wide = [{f"c{number}": 1 for number in range(MAX_COLUMNS + 1)}]
    assert default_presentation(Ok(value={"value": wide}))[0].type == "json"


def test_a_failure_shows_its_reason_and_fields():
    """The reason appears once, though declared failures carry it twice; partial output keeps its lines."""
    failure = Failure(kind="stopped", reason="why", fields={"reason": "why", "code": 7, "partial_output": "a\nb\n"})
    assert default_presentation(failure) == (
        TextBlock(text="why"),
        JsonBlock(value={"code": 7}),
        TextBlock(text="partial_output:\na\nb\n"),
    )
    assert default_presentation(Failure(kind="odd")) == (TextBlock(text="odd"),)
    interrupted = default_presentation(results.interrupted("ole", "", started=True, partial="so far\nhalf"))
    assert interrupted[-1] == TextBlock(text="partial_output:\nso far\nhalf")


def test_a_presenter_gets_parameters_and_result():
    """People see what it returns."""
    greet = shows(lambda params, result: (TextBlock(text=f"{params.who}: {result.value['value']}"),))
    assert greet.presentation_of(Params(), Ok(value={"value": "hi"})) == (TextBlock(text="ada: hi"),)


def _raises(_params, _result):
    raise KeyError("secret")


@pytest.mark.parametrize(
    "present",
    [
        _raises,
        lambda _params, _result: "just a string",
        lambda _params, _result: ({"type": "video", "text": "x"},),
        lambda _params, _result: (1, 2),
        lambda params, _result: params,
    ],
    ids=["raises", "a string", "an unknown block", "numbers", "the parameters"],
)
def test_a_presenter_that_fails_gives_way_to_the_default(present, caplog):
    """People still see the result, and the author finds the reason in the worker's log."""
    with caplog.at_level(logging.ERROR, logger="turngate.tool"):
        assert shows(present).presentation_of(Params(), Ok(value={"value": "hi"})) == (TextBlock(text="hi"),)
    assert "presenter failed tool='greet'" in caplog.text


@pytest.mark.parametrize("present", [None, lambda _params, _result: (), lambda _params, _result: None])
def test_a_presenter_that_shows_nothing_gives_way_too(present):
    """No presenter, no blocks and None all give the default."""
    assert shows(present).presentation_of(None, Ok(value={"value": "hi"})) == (TextBlock(text="hi"),)


def test_cuts_say_how_much_is_missing():
    """Characters of a text, rows of a table, blocks; a diff is cut at a line, with a note that is not part of it."""
    [text] = bounded((TextBlock(text="x" * (MAX_TEXT_CHARS + 5)),))
    assert text.text == "x" * MAX_TEXT_CHARS + "\n… 5 more characters are not shown"
    [diff] = bounded((DiffBlock(diff="--- a\n+++ b\n" + "+line\n" * MAX_TEXT_CHARS),))
    *lines, note = diff.diff.splitlines()
    assert set(lines[2:]) == {"+line"}
    assert note.startswith("\\ … ")
    [table] = bounded((TableBlock(columns=("n",), rows=tuple((n,) for n in range(MAX_ROWS + 3)), more=4),))
    assert (len(table.rows), table.more) == (MAX_ROWS, 7)
    cut = bounded((TextBlock(text="x"),) * (MAX_BLOCKS + 2))
    assert (len(cut), cut[-1].text) == (MAX_BLOCKS + 1, "… 2 more blocks are not shown")
    [command] = bounded((CommandBlock(argv=("x",) * 500),))
    assert command.argv[-1] == "… 400 more words are not shown"
    [json_text] = bounded((JsonBlock(value=["y" * MAX_TEXT_CHARS]),))
    assert json_text.text.endswith(" more characters are not shown")


def test_a_presentation_that_fits_is_unchanged():
    """Within the bounds nothing changes; cut blocks survive storage."""
    blocks = (
        TextBlock(text="a\u202eb"),
        DiffBlock(diff="--- a\n+++ b\n"),
        CommandBlock(argv=("rm", "-rf", "my dir", "")),
        TableBlock(columns=("a", "b"), rows=((1, None), ("x", True))),
        JsonBlock(value={"a": [1.5, {"b": None}]}),
    )
    assert bounded(blocks) == blocks
    long = bounded((TextBlock(text="x" * 50_000), TableBlock(columns=("n",), rows=((1,),) * 300)))
    assert PRESENTATION.validate_json(PRESENTATION.dump_json(long)) == long


def test_rows_get_the_headers_length():
    """A cell without a column is shown, and a column without a cell is empty."""
    [table] = bounded((TableBlock(columns=("a", "b"), rows=((1,), (1, 2, {"c": 3}))),))
    assert table.columns == ("a", "b", "")
    assert table.rows == ((1, None, None), (1, 2, '{"c": 3}'))
    [wide] = bounded((TableBlock(columns=("a",) * 20, rows=()),))
    assert wide.columns == ("a",) * 11 + ("a …",)


def test_values_that_python_cannot_write_get_a_note():
    """Digits or levels beyond the interpreter's limits break neither the worker nor the page."""
    [note] = default_presentation(Ok(value={"n": 10**5_000}))
    assert note.text == "This result cannot be shown here."
    deep = nested = []
    for _ in range(2_000):
        nested.append([])
        nested = nested[0]
    assert bounded((JsonBlock.model_construct(value=deep),)) == (note,)


_TEXT = st.builds(
    lambda text, times: text * times,
    st.text(alphabet='ab\x00\x1b\ud800\udfff\u202e\n"\\é😀', max_size=8),
    st.sampled_from([1, 1, 1, 5_000]),
)
_CELL = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), _TEXT, st.lists(st.integers(), max_size=3))
_BLOCK = st.one_of(
    st.builds(TextBlock, text=_TEXT),
    st.builds(DiffBlock, diff=_TEXT),
    st.builds(CommandBlock, argv=st.lists(_TEXT, max_size=5).map(tuple)),
    st.builds(
        TableBlock,
        columns=st.lists(_TEXT, max_size=15).map(tuple),
        rows=st.lists(st.lists(_CELL, max_size=15).map(tuple), max_size=5).map(lambda rows: tuple(rows * 40)),
    ),
    st.builds(JsonBlock, value=st.recursive(_CELL, lambda inner: st.dictionaries(_TEXT, inner, max_size=3))),
)


@pytest.mark.exhaustive
@settings(deadline=None, max_examples=40)
@given(st.lists(_BLOCK, max_size=4).map(lambda blocks: tuple(blocks * 8)))
def test_every_presentation_fits_and_can_be_stored(blocks):
    """It is at most 64 KiB of valid UTF-8 JSON that reads back, however long or odd the texts are."""
    stored = PRESENTATION.dump_json(bounded(blocks))
    assert len(stored) <= MAX_BYTES
    stored.decode()
    json.loads(stored)
    PRESENTATION.validate_json(stored)
