import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.pages.html_text import ShownText

from turngate.approvals_api.pages.templating import visible, visible_line
from turngate.domain.text.hidden_text import escape_hidden, has_hidden, is_hidden


@pytest.mark.parametrize(
    "code",
    [
        0,
        7,
        13,
        27,
        127,
        155,
        160,
        173,
        1564,
        6158,
        8203,
        8204,
        8205,
        8206,
        8207,
        8232,
        8233,
        *range(8234, 8239),
        *range(8288, 8304),
        12288,
        12644,
        65279,
        65039,
        65529,
        917505,
        917569,
        917760,
        55296,
        57344,
        65534,
        0x2D7F,  # joiners, blanks and fillers of scripts that Unicode counts as letters, symbols or marks
        0x1107F,
        0x13441,
        0x16FE4,
        0x1D159,
    ],
)
def test_hidden_characters_are_named(code):
    """Control, bidi, zero-width, tag, filler and odd-space characters are shown by their code point and never as themselves."""
    rendered = visible(f"a{chr(code)}b")
    assert f"⟨U+{code:04X}⟩" in rendered
    assert chr(code) not in rendered


def test_ansi_escape_is_visible():
    """A terminal's colour sequence is visible text."""
    assert ShownText(visible("\x1b[31mred")).text == "⟨U+001B⟩[31mred"


def test_plain_text_is_left_alone():
    """Letters of any script, emoji, newline and tab pass unchanged."""
    text = "Grüße, 世界 مرحبا 🎉\n\tindented"
    assert ShownText(visible(text)).text == text


def test_markup_is_escaped():
    """Nothing in a value becomes an element, an attribute or a link."""
    rendered = visible("<script>alert(1)</script><a href='https://evil.example'>x</a>\"'&amp;")
    assert rendered.startswith("<bdi lang translate=no>")  # a browser that translates the page leaves it as it is
    parsed = ShownText(rendered)
    assert parsed.tags == {"bdi"}
    assert parsed.text == "<script>alert(1)</script><a href='https://evil.example'>x</a>\"'&amp;"


def test_combining_marks_cannot_pile_up():
    """A few accents on a letter are writing; a pile of them, or one without a letter, is marked."""
    assert not has_hidden("e\u0301 n\u0303")
    assert has_hidden("a" + "\u0301" * 20)
    assert has_hidden("\u0301a")


def test_a_line_stays_one_line():
    """In a one-line place a newline cannot start another line."""
    assert "\n" not in visible_line("ok\nApproved by admin")
    assert ShownText(visible_line("ok\nApproved by admin")).text == "ok⏎Approved by admin"


@given(st.text())
def test_shown_text_has_nothing_hidden(text):
    """For any value, the screen gets no hidden character, and no element but the page's."""
    parsed = ShownText(visible(text))
    assert not [char for char in parsed.text if is_hidden(char)]
    assert parsed.tags <= {"bdi", "span"}


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_escaped_json_means_the_same(text):
    """Escaping hidden characters of a JSON text changes its spelling, never its value."""
    import json  # noqa: PLC0415

    quoted = json.dumps(text, ensure_ascii=False)
    escaped = escape_hidden(quoted)
    assert json.loads(escaped) == text
    assert not has_hidden(escaped) or all(unicodedata.category(char) not in {"Cc", "Cf"} for char in escaped)
