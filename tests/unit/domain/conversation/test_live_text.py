"""A text that arrives in pieces never shows a secret, wherever the pieces end, and shows all else."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.planted.credentials import harmless, planted

from turngate.domain.conversation.live_text import MAX_WAITING, LiveText
from turngate.domain.tools.secrets import credentials_of, mask_text

PASSPHRASE = "correct horse battery staple"


def live(text: str, size: int, values: tuple[str, ...] = ()) -> str:
    part = LiveText(values)
    return "".join(part.add(text[at : at + size]) for at in range(0, len(text), size))


WORDS = [*(each.text for each in planted(60)), *(each for each in harmless() if len(each) < 1_000)]
WORDS += [
    "OK",
    "A-117",
    "at 9:15",
    "the token is",
    "password:",
    PASSPHRASE,
    PASSPHRASE[:12],
    "sk-proj-aB3",
    "-----BEGIN ",
]


@given(
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=4),
    st.sampled_from([" ", "\n", ", "]),
    st.lists(st.integers(1, 40), min_size=1),
)
def test_all_pieces_are_the_masked_text(words: list[str], between: str, sizes: list[int]) -> None:
    """Wherever the pieces end: nothing of an answer's end is lost, and what is stored says the same."""
    text, part, at = between.join(words), LiveText({PASSPHRASE}), 0
    visible = ""
    for size in itertools.cycle(sizes):
        if at >= len(text):
            break
        visible += part.add(text[at : at + size])
        at += size
    assert visible + part.end() == mask_text(
        text, {PASSPHRASE, *(each for each in credentials_of(text) if len(each) > 3)}
    )


@pytest.mark.parametrize(
    ("text", "visible"),
    [
        ("It leaves at 9:15", "It leaves at 9:15"),
        ("OK", "OK"),
        ("use sk-proj-aB3", "use ⟦secret⟧"),
        ("the password is hun", "the password⟦secret⟧"),
        ("what is your password:", "what is your password:"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMII", "⟦secret⟧"),
        ("say correct horse", "say ⟦secret⟧"),
    ],
)
def test_what_broke_off_shows_no_part_of_a_credential(text: str, visible: str) -> None:
    """More of it would have come. What only might have become one is shown."""
    part = LiveText({PASSPHRASE})
    assert part.add(text) + part.end(is_cut=True) == visible


@pytest.mark.parametrize("size", [1, 3, 11, 400])
def test_no_piece_of_a_credential_is_shown(size: int):
    """All shapes, each after and before other words, in pieces of any size."""
    for each in planted(60):
        live_text = live(f"First {each.text} and then the end. ", size)
        assert each.secret[4:] not in live_text, each.shape
        assert live_text.startswith("First "), each.shape
        assert live_text.endswith("the end. "), (each.shape, live_text)
        assert "⟦secret⟧" in live_text, each.shape


@pytest.mark.parametrize("size", [1, 2, 7])
def test_no_beginning_of_a_known_value_is_shown(size: int):
    """A value with spaces waits from its first character on; what only begins like it comes as soon as it differs."""
    values = (PASSPHRASE, 'quo"ted\n83')
    live_text = live(f"I use {PASSPHRASE} and correct horses. ", size, values)
    assert live_text == "I use ⟦secret⟧ and correct horses. "
    assert live('as "quo\\"ted\\n83" in JSON. ', size, values) == 'as "⟦secret⟧" in JSON. '
    part = LiveText(values)
    assert [part.add("is cor"), part.add("rect horse bat"), part.add("s. ")] == ["is ", "", "correct horse bats. "]


@pytest.mark.parametrize("text", [each for each in harmless() if len(each) < 1_000])
def test_other_texts_are_shown_as_they_are(text: str):
    """Word by word; the whole of it once a space follows."""
    assert live(f"{text} \n", 2) == f"{text} \n"


def test_a_word_without_an_end_ends_what_is_live():
    """An encoded picture waits, up to a bound; then a mark is all that comes."""
    part = LiveText(())
    live_text = [part.add("a+/B9" * 100) for _each in range(100)]
    assert "".join(live_text) == "⟦secret⟧"
    assert live_text.index("⟦secret⟧") == MAX_WAITING // 500
    assert part.add(" more words ") == ""
