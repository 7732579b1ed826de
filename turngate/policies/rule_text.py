"""One rule as TOML text, and put into the text of many without touching the others. Pure.

What is written is read again and compared before anyone gets it: a text that would mean something else is never returned.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from turngate.domain.errors import ConfigurationError
from turngate.domain.policy.policy import Rule, parse_policy
from turngate.domain.text.hidden_text import pieces

_HEADER: Final = re.compile(r"^[ \t]*+\[\[[ \t]*+rule[ \t]*+\]\]", re.MULTILINE)
_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
_FIRST: Final = ("name", "verdict", "shadow", "tools", "agents", "args")


def rule_text(rule: Rule) -> str:
    """Return a rule as one ``[[rule]]`` table, without what has its default.

    Raises:
        ConfigurationError: it holds something that TOML has no word for, such as null, or half a surrogate pair.
    """
    members: dict[str, Any] = rule.model_dump(mode="json", exclude_defaults=True, by_alias=True)
    names = sorted(members, key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST))
    text = "\n".join(["[[rule]]", *(f"{name} = {_member(members[name])}" for name in names)]) + "\n"
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigurationError("one of the rule's texts is not valid Unicode") from None
    if parse_policy(text, source="rule").rule != [rule]:
        raise ConfigurationError("the rule can't be written as TOML")
    return text


def one_rule(text: str) -> Rule:
    """Return the rule of a text that has exactly one.

    Raises:
        ConfigurationError: it can't be read, or has none or several.
    """
    rules = parse_policy(text, source="text").rule
    if len(rules) != 1:
        raise ConfigurationError(f"write one rule: a [[rule]] table. This text has {len(rules)}")
    return rules[0]


_PEOPLE: Final = re.compile(r"\bpeople([ \t]*+=[ \t]*+)\[([^\[\]]*+)\]")
_TEXT: Final = re.compile(r"\"(?:[^\"\\\n]|\\.)*+\"?|'[^'\n]*+'?")


def with_people(source: str, ids: Mapping[str, str]) -> str:
    """Return the text of rules with other names of people: name → what to write in its place. All else stays as it is.

    Raises ConfigurationError when the people are written so that they can't be replaced.
    """
    before = parse_policy(source, source="text")

    def rename(text: re.Match[str]) -> str:
        if len(text[0]) == 1 or text[0][0] != text[0][-1]:
            return text[0]  # in a comment
        name = tomllib.loads(f"name = {text[0]}")["name"]
        return json.dumps(ids[name], ensure_ascii=False) if name in ids else text[0]

    text = _PEOPLE.sub(lambda people: f"people{people[1]}[{_TEXT.sub(rename, people[2])}]", source)
    if parse_policy(text, source="text") != before.with_people(ids):
        raise ConfigurationError('write the people of each rule as people = ["name", …], without comments in between')
    return text


def with_rule(source: str, rule: Rule, *, replacing: str | None = None) -> str:
    """Return the text of many rules with this one in it; every other line stays as it is, comments too.

    Args:
        source: valid rules.
        rule: takes the place of the rule called ``replacing``, else it comes last.
        replacing: None: the rule of the same name, if there is one.

    Raises:
        ConfigurationError: no rule is called ``replacing``, another one has the new name, or the text is written so that one
            rule can't be separated from the next (an array ``rule = [...]``).
    """
    rules = parse_policy(source, source="text").rule
    names = [each.name for each in rules]
    old = replacing or rule.name
    if replacing is not None and replacing not in names:
        raise ConfigurationError(f"there is no stored rule called {replacing!r}")
    if rule.name != old and rule.name in names:
        raise ConfigurationError(f"another stored rule is called {rule.name!r}: choose another name")
    if old in names:
        place = names.index(old)
        text, expected = _replaced(source, len(rules), place, rule), [*rules[:place], rule, *rules[place + 1 :]]
    else:
        text, expected = f"{source.rstrip()}\n\n{rule_text(rule)}".lstrip("\n"), [*rules, rule]
    try:
        fits = parse_policy(text, source="text").rule == expected
    except ConfigurationError:
        fits = False
    if not fits:
        raise ConfigurationError("the stored rules aren't written as plain [[rule]] tables: change them as TOML")
    return text


def _replaced(source: str, number: int, place: int, rule: Rule) -> str:
    starts = [header.start() for header in _HEADER.finditer(source)]
    if len(starts) != number:  # one is in a text, or they are written in another way
        raise ConfigurationError("the stored rules aren't written as plain [[rule]] tables: change them as TOML")
    end = starts[place + 1] if place + 1 < number else len(source)
    lines = source[starts[place] : end].splitlines(keepends=True)
    # Comments and blank lines before the next rule belong to that one.
    while lines and (not lines[-1].strip() or lines[-1].lstrip().startswith("#")):
        lines.pop()
    rest = source[starts[place] + len("".join(lines)) :]
    return f"{source[: starts[place]]}{rule_text(rule)}{rest}"


def _member(value: object) -> str:
    if isinstance(value, list) and len(value) > 1 and any(isinstance(each, dict) for each in value):
        return "[\n" + "".join(f"    {_value(each)},\n" for each in value) + "]"
    return _value(value)


def _value(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            return _text(value)
        case list():
            return f"[{_joined([_value(each) for each in value])}]"
        case dict():
            return f"{{ {_joined([f'{_key(name)} = {_value(each)}' for name, each in value.items()])} }}"
        case _:
            raise ConfigurationError("TOML has no null: leave the value out")


def _joined(parts: Sequence[str]) -> str:
    return ", ".join(parts)


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _text(name)


def _text(text: str) -> str:
    # JSON's escapes are TOML's, but for this one character, which TOML wants escaped. What no one can see is escaped, too.
    written = json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
    return "".join(_escape(piece) if hidden else piece for piece, hidden in pieces(written))


def _escape(char: str) -> str:
    code = ord(char)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"  # noqa: PLR2004 - the end of the basic plane
