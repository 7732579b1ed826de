"""Tables in a narrow window, and what is printed for programs."""

from __future__ import annotations

import json
import sys

import pytest

from turngate.cli import terminal
from turngate.cli.terminal import column_widths
from turngate.domain.runs.fixtures import Fixture, parse_fixture
from turngate.domain.text.hidden_text import has_hidden

RUNS = [28, 9, 7, 4, 19, 60]
"""Natural widths of `turngate runs`: id, status, agent, step, when, task."""


@pytest.mark.parametrize(
    ("natural", "room", "widths"),
    [
        (RUNS, 200, RUNS),
        (RUNS, 120, [28, 9, 7, 4, 19, 43]),
        (RUNS, 80, [28, 9, 7, 4, 12, 10]),
        (RUNS, 40, [28, 9, 7, 4, 10, 10]),
        ([28, 90], 40, [28, 10]),
        ([28], 10, [28]),
    ],
)
def test_an_id_is_never_cut_and_the_text_gives_way_first(natural: list[int], room: int, widths: list[int]) -> None:
    """An id can be copied from a table however narrow the window is."""
    assert column_widths(natural, room) == widths


HOSTILE = "a\x1b[2Jb\x9b31mc\u202ed\u200be\U000e0041"


def test_documents_for_programs_hide_no_character(capsys: pytest.CaptureFixture[str]) -> None:
    """JSON has escapes in their place, which mean the same, also in a pipe or file that someone looks at later."""
    terminal.document(json.dumps({HOSTILE: [HOSTILE]}, ensure_ascii=False))
    printed = capsys.readouterr().out
    assert not has_hidden(printed)
    assert json.loads(printed) == {HOSTILE: [HOSTILE]}


def test_an_exported_run_hides_no_character() -> None:
    """`turngate export` writes escapes for what a terminal would obey, and a test reads the same run from them."""
    fixture = Fixture.model_validate({"agent": "a", "model": "m", "input": HOSTILE, "ended": {"status": "completed"}})
    text = fixture.as_text()
    assert not has_hidden(text)
    assert parse_fixture(text, "it").input == HOSTILE


def test_a_text_is_exact_for_a_pipe_and_plain_for_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer or result goes to a program byte for byte; a terminal gets markers."""
    terminal.raw(HOSTILE)
    assert capsys.readouterr().out == f"{HOSTILE}\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    terminal.raw(HOSTILE)
    assert not has_hidden(capsys.readouterr().out)
