"""Texts cut to a number of bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngate.domain.text.bounds import ELLIPSIS, ends, head, size, tail

ANY_TEXT = st.text(alphabet=st.characters(exclude_categories=()), max_size=400)


@given(ANY_TEXT, st.integers(3, 500))
def test_a_cut_text_fits_and_is_a_part_of_the_whole(text: str, most: int) -> None:
    """Bytes count, not characters; a text that fits is unchanged; no character is torn."""
    for cut in (head, tail):
        short = cut(text, most)
        assert size(short) <= most
        if size(text) <= most:
            assert short == text
    whole = text.encode("utf-8", "ignore").decode()
    if size(text) > most:
        assert whole.startswith(head(text, most).removesuffix(ELLIPSIS).encode("utf-8", "ignore").decode())
        assert head(text, most).endswith(ELLIPSIS)
        assert tail(text, most).startswith(ELLIPSIS)


@pytest.mark.parametrize("letter", ["a", "é", "汉", "🔥"])
def test_both_ends_of_a_long_text_remain(letter: str) -> None:
    """The line between says how many characters the whole has."""
    text = f"begin{letter * 5_000}end"
    short = ends(text, 1_000)
    assert size(short) <= 1_000
    assert short.startswith(f"begin{letter}")
    assert short.endswith(f"{letter}end")
    assert "the middle of 5,008 characters is left out" in short
    assert ends("short", 1_000) == "short"
