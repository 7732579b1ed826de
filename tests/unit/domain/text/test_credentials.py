"""What looks like a credential in free text, and what only resembles one."""

from __future__ import annotations

import time

import pytest
from support.planted.credentials import SHAPES, harmless, planted

from turngate.domain.text.credentials import Span, credentials_in, unfinished_at


def visible(text: str) -> str:
    """The text without its credentials."""
    spans = credentials_in(text)
    return "".join(char for at, char in enumerate(text) if not any(each.start <= at < each.end for each in spans))


@pytest.mark.parametrize("shape", SHAPES)
def test_each_shape_is_found_wherever_it_is(shape: str):
    """In the middle of a sentence, in quotes, in JSON, at the end of a line: all of the secret, and little besides."""
    for each in planted(30 * 17):
        if each.shape != shape:
            continue
        for text in (
            each.text,
            f"Use {each.text} now.",
            f'say "{each.text}".',
            f"first\n{each.text}\nlast",
            f"({each.text})",
        ):
            left = visible(text)
            assert each.secret[4:] not in left, (text, left)
            assert len(left) >= len(text) - len(each.secret) - 30, (text, left)


@pytest.mark.parametrize("text", harmless())
def test_what_only_resembles_one_stays(text: str):
    """Commits, ids, encoded pictures, paths, order numbers, placeholders, code and prose about passwords."""
    assert [text[each.start : each.end] for each in credentials_in(text)] == []


def test_the_name_of_a_member_says_what_its_text_is():
    """The same text is a credential under one name and a word under another."""
    assert credentials_in("a1b2c3d4e5f6", name="api_key") == [Span(0, 12)]
    assert credentials_in("a1b2c3d4e5f6", name="X-Api-Key") == [Span(0, 12)]
    assert credentials_in("a1b2c3d4e5f6", name="order") == []
    assert credentials_in("a1b2c3d4e5f6", name="token_count") == []
    assert credentials_in("see order 12345678", name="password") == []


def test_a_key_without_an_end_takes_the_rest():
    """A private key that was cut shows nothing of itself; a second one is found after the first one."""
    key = next(each.text for each in planted(30) if each.shape == "pem")
    assert visible(f"a {key[:200]}") == "a "
    assert visible(f"a {key} b {key} c") == "a  b  c"


@pytest.mark.parametrize(
    "piece",
    ["-----BEGIN ", "-----BEGIN RSA PRIVATE KEY-----", "eyJ", "eyJaaaaaaaaa.", "://", "://a:", "password", "password=", "token ",
     "--token", "sk-", "sk-a1", "bearer ", "Basic ", "a", " ", "=", "İ", "password: \"'\\", "SG.", "key-", "\\", "token is "],
)  # fmt: skip
def test_i14_time_is_linear_in_the_text(piece: str):
    """Ten times the text, of any beginning repeated, takes about ten times as long."""
    used = []
    for size in (10_000, 100_000):
        text = (piece * (size // len(piece) + 1))[:size]
        began = time.process_time()
        credentials_in(text)
        unfinished_at(text)
        used.append(time.process_time() - began)
    assert used[1] < 40 * used[0] + 0.5


def test_the_end_of_a_text_waits_if_it_may_become_one():
    """Each beginning of each shape waits, before or at its secret; plain words don't."""
    for each in planted(30):
        text = f"Use {each.text}"
        secret = text.index(each.secret)
        for end in range(secret + 4, secret + len(each.secret)):
            assert unfinished_at(text[:end]) <= secret, (each.shape, text[:end])
    for text in ("Half a sen", "A whole sentence.", "Where?", "One two ", "a word that is nowhere else 9c1e"):
        assert unfinished_at(text) == len(text)
