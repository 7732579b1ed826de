"""The stylesheet: every colour, size of type and space is a token of its first blocks, and every token is used."""

from __future__ import annotations

import re
from dataclasses import dataclass

from turngate.approvals_api.pages import STATIC_DIR

SPACE_AND_TYPE = ("margin", "padding", "gap", "row-gap", "column-gap", "font", "border-radius", "box-shadow")
"""Properties, alone or with a suffix, in which a length is a token."""
COLOURED = ("color", "background", "border", "outline", "box-shadow", "text-decoration", "fill", "stroke", "filter")
"""Properties, alone or with a suffix, that can have a colour."""
NO_COLOUR = {
    *("none", "transparent", "currentcolor", "inherit"),
    *("round", "solid", "dashed", "inset", "underline", "line-through", "collapse", "brightness"),
}
"""The words that those properties have here."""
LENGTH = re.compile(r"\d(?:px|rem|em|ex|ch|vh|vw|pt|pc|cm|mm|in)\b")
WORD = re.compile(r"(?<![\w.])[#a-z][#\w-]*+")
TOKEN = re.compile(r"--[\w-]++")


@dataclass(frozen=True)
class Declaration:
    """``within``: the selector, after the at-rules around it."""

    within: str
    property: str
    value: str

    def is_of(self, properties: tuple[str, ...]) -> bool:
        return any(self.property == each or self.property.startswith(f"{each}-") for each in properties)


def declarations(css: str) -> list[Declaration]:
    """Return the declarations of a stylesheet whose texts have no braces or semicolons of their own."""
    around: list[str] = []
    listed: list[Declaration] = []
    text = ""
    for char in _without_comments(css):
        if char == "{":
            around.append(text.strip())
        elif char in ";}":
            name, colon, value = text.partition(":")
            if colon:
                listed.append(Declaration(" ".join(around), name.strip(), value.strip()))
            if char == "}":
                around.pop()
        else:
            text += char
            continue
        text = ""
    assert around == [], "every brace is closed"
    return listed


def _without_comments(css: str) -> str:
    return "".join(part.rpartition("*/")[2] for part in css.split("/*"))


ALL = declarations((STATIC_DIR / "turngate.css").read_text(encoding="utf-8"))
RULES = [each for each in ALL if ":root" not in each.within]
TOKENS = [each for each in ALL if each.property.startswith("--")]


def lengths(each: Declaration) -> list[str]:
    return LENGTH.findall(each.value) if each.is_of(SPACE_AND_TYPE) else []


def colours(each: Declaration) -> list[str]:
    if not each.is_of(COLOURED):
        return []
    rest = TOKEN.sub("", each.value.lower()).replace("var()", "").replace("!important", "")
    return [word for word in WORD.findall(rest) if word not in NO_COLOUR]


def test_only_tokens_are_colours_sizes_of_type_and_spaces():
    """No rule names a colour, and none has a length of its own for space or type."""
    assert [each for each in RULES if lengths(each) or colours(each)] == []
    assert [each for each in TOKENS if ":root" not in each.within] == []


def test_every_token_is_defined_and_used():
    """No rule uses a token that is not there, and none is left over."""
    used = {name for each in ALL for name in TOKEN.findall(each.value)}
    assert used == {each.property for each in TOKENS}


def test_every_colour_has_a_dark_one():
    """Every token with a colour in it has another value in the dark."""
    light = {each.property for each in TOKENS if each.within == ":root" and "#" in each.value}
    dark = {each.property for each in TOKENS if "prefers-color-scheme: dark" in each.within}
    assert light == dark


def test_the_check_finds_what_it_looks_for():
    """Colours by name, number and function are found, and so are lengths; tokens and layout are not."""
    coloured = declarations(
        "a { color: red; /* b: c; */ background: var(--soft); border: 1px solid #fff }"
        "@media x { b { outline: 2px solid rgb(0 0 0) } }"
    )
    assert [(each.within, colours(each)) for each in coloured] == [
        ("a", ["red"]),
        ("a", []),
        ("a", ["#fff"]),
        ("@media x b", ["rgb"]),
    ]
    spaced = declarations("a { margin: 0 auto 3px; padding-left: var(--s1); width: 3px; font: 600 .9rem/1.4 x }")
    assert [bool(lengths(each)) for each in spaced] == [True, False, False, True]
