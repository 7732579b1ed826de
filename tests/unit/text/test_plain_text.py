from turngate.text.plain_text import indented, plain, plain_line


def test_an_escape_sequence_becomes_visible_and_inert():
    """What an agent writes cannot reach the terminal as a command."""
    text = plain("rm\x1b[2K\x1b]0;title\x07 \x9b1A")
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "\x9b" not in text
    assert "⟨U+001B⟩[2K" in text


def test_invisible_characters_are_marked():
    """Bidi overrides, zero-width characters and no-break spaces cannot disguise a command."""
    assert plain("a\u202eb\u200bc\u00a0d") == "a⟨U+202E⟩b⟨U+200B⟩c⟨U+00A0⟩d"


def test_a_carriage_return_cannot_overwrite_a_line():
    """Only a line's own end stays; a lone carriage return is shown."""
    assert plain("safe\r\nrm -rf /\rls") == "safe\nrm -rf /⟨U+000D⟩ls"


def test_one_line_stays_one_line():
    """A value printed inside one line cannot start another."""
    assert plain_line("first\nsecond\tthird") == "first ⏎ second third"


def test_a_long_line_is_cut_to_the_limit():
    """The limit counts the ellipsis too."""
    assert plain_line("x" * 50, 10) == "x" * 9 + "…"


def test_every_line_of_an_agent_carries_the_margin():
    """No line of an agent's text can pass for one of Turngate's."""
    assert indented("done\n  ✓ approved by ole", "│ ") == "│ done\n│   ✓ approved by ole"
