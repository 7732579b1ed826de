"""Tables in a narrow window: what is cut, and what never is."""

from __future__ import annotations

import pytest

from turngate.cli.terminal import column_widths

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
