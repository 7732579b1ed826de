"""Argument, path and workspace matchers, and their combinations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from turngate.domain.errors import ConfigurationError
from turngate.domain.policy.arguments import ArgumentMatcher
from turngate.domain.policy.command_line import Unparsable
from turngate.domain.policy.facts import CallFacts, Match
from turngate.domain.policy.matchers import Matchers
from turngate.domain.policy.policy import Policy, parse_policy
from turngate.domain.text.json_pointers import decode_arguments
from turngate.policies.facts import call_facts

OPERATORS: list[tuple[str, Any, str, Match]] = [
    # op, the rule's value (... for none), the argument as JSON ("" for none), the answer
    ("eq", 1, "1", "yes"),
    ("eq", 1, "1.0", "yes"),
    ("eq", 1, "2", "no"),
    ("eq", 1, "true", "unclear"),
    ("eq", True, "1", "unclear"),
    ("eq", "1", "1", "unclear"),
    ("eq", 1, '"1"', "unclear"),
    ("eq", 0.1, "0.1", "yes"),
    ("eq", 0.1, "0.10000000000000001", "no"),
    ("eq", 9007199254740993, "9007199254740993", "yes"),
    ("eq", 9007199254740993, "9007199254740992.0", "no"),
    ("eq", "a", '"a"', "yes"),
    ("eq", "a", '"A"', "unclear"),
    ("eq", "a", '"b"', "no"),
    ("eq", "a", "", "no"),
    ("eq", "a", "null", "no"),
    ("eq", None, "null", "yes"),
    ("eq", [1, "x"], '[1, "x"]', "yes"),
    ("eq", [1], "[1, 2]", "no"),
    ("eq", {"a": 1}, '{"a": 1}', "yes"),
    ("eq", {"a": 1}, '{"a": 1, "a": 1}', "unclear"),
    ("ne", "a", '"b"', "yes"),
    ("ne", "a", '"a"', "no"),
    ("ne", "a", '"a "', "unclear"),
    ("ne", "a", "", "unclear"),
    ("ne", "a", "1", "unclear"),
    ("lt", 5, "4.999", "yes"),
    ("lt", 5, "5", "no"),
    ("le", 5, "5", "yes"),
    ("gt", 5, "1e1", "yes"),
    ("ge", 5, "4", "no"),
    ("gt", 5, "1e99999", "yes"),
    ("gt", 5, "-1e99999", "no"),
    ("gt", 5, "", "unclear"),
    ("gt", 5, '"6"', "yes"),
    ("between", [1, 500], "1", "yes"),
    ("between", [1, 500], "500.00", "yes"),
    ("between", [1, 500], "0.99999999999999999999999999", "no"),
    ("between", [1, 500], "500.00000000000000000000000001", "no"),
    ("between", [1, 500], "1e99999", "no"),
    ("between", [0.1, 0.3], '"0.3"', "yes"),
    ("between", [0.1, 0.3], '"0.30000000000000000000000001"', "no"),
    ("between", [-5, 5], '"-5"', "yes"),
    ("between", [1, 500], "", "unclear"),
    ("between", [1, 500], "null", "unclear"),
    ("between", [1, 500], "true", "unclear"),
    ("between", [1, 500], '"2026-12-31"', "unclear"),
    ("between", ["2026-01-01", "2026-12-31"], '"2026-12-31"', "yes"),
    ("between", ["2026-01-01", "2026-12-31"], '"2027-01-01"', "no"),
    ("between", ["2026-01-01", "2026-12-31"], '"2026-06-01T00:00:00Z"', "unclear"),
    ("between", ["2026-01-01", "2026-12-31"], "20260601", "unclear"),
    ("le", "2026-12-31", '"2026-02-29"', "unclear"),
    ("le", "2026-12-31", '"31.12.2026"', "unclear"),
    ("le", "2026-12-31", '"20261231"', "unclear"),
    ("le", "2026-12-31", '"2026-W01-1"', "unclear"),
    ("le", "2026-12-31", '"2026-12-31 "', "unclear"),
    ("lt", "2026-12-31T12:00:00Z", '"2026-12-31T12:59:59.999999+01:00"', "yes"),
    ("lt", "2026-12-31T12:00:00Z", '"2026-12-31T13:00+01:00"', "no"),
    ("lt", "2026-12-31T12:00:00Z", '"2026-12-31T11:00:00"', "unclear"),
    ("lt", "2026-12-31T12:00:00Z", '"2026-12-31T11:00:00-00:00"', "unclear"),
    ("lt", "2026-12-31T12:00:00Z", '"2026-12-31T11:00:60Z"', "unclear"),
    ("lt", "2026-12-31T12:00:00Z", '"2026-12-31T24:00:00Z"', "unclear"),
    ("lt", "2026-12-31T12:00:00Z", '"2026-12-31 11:00:00Z"', "unclear"),
    ("lt", "2026-12-31T12:00:00Z", '"2026-12-31"', "unclear"),
    ("lt", "2026-12-31T12:00:00Z", "1767182400", "unclear"),
    ("ge", "0001-01-01T00:00:00Z", '"0001-01-01T00:00:00+23:59"', "no"),
    ("in", ["a", "b"], '"b"', "yes"),
    ("in", ["a", "b"], '"c"', "no"),
    ("in", ["a", 1], "true", "unclear"),
    ("in", ["a"], "", "no"),
    ("not_in", ["a", "b"], '"c"', "yes"),
    ("not_in", ["a", "b"], '"a"', "no"),
    ("not_in", ["a"], "", "unclear"),
    ("contains", "b", '"abc"', "yes"),
    ("contains", "b", '"ABC"', "unclear"),
    ("contains", "b", '["a", "b"]', "yes"),
    ("contains", "b", '["a"]', "no"),
    ("contains", 1, "[1]", "yes"),
    ("contains", "b", "1", "unclear"),
    ("starts_with", "ab", '"abc"', "yes"),
    ("starts_with", "ab", '["abc"]', "unclear"),
    ("ends_with", "@acme.example", '"x@acme.example"', "yes"),
    ("ends_with", "@acme.example", '"x@acme.example.evil"', "no"),
    ("glob", "acme-*", '"acme-1"', "yes"),
    ("glob", "acme-*", '"ACME-1"', "unclear"),
    ("glob", "acme-*", '"x-acme-1"', "no"),
    ("exists", ..., "0", "yes"),
    ("exists", ..., "", "no"),
    ("exists", ..., "null", "unclear"),
    ("exists", ..., '1, "x": 1', "unclear"),
    ("contains", "b", '"b", "x": "b"', "unclear"),
    ("absent", ..., "", "yes"),
    ("absent", ..., "0", "no"),
    ("absent", ..., "null", "unclear"),
]


def operator_answer(op: str, value: Any, argument: str) -> Match:
    options = {} if value is ... else {"value": value}
    matcher = ArgumentMatcher.model_validate({"at": "/x", "op": op, **options})
    return matcher.match(decode_arguments(f'{{"x": {argument}}}' if argument else "{}"))


def test_operators() -> None:
    """Each operator compares values of one type, exactly, and is unclear about others."""
    assert [row for row in OPERATORS if operator_answer(*row[:3]) != row[3]] == []


NO_NUMBERS = [
    "1e3", "1E3", "1_000", "1,000", "1.000,00", "007", "00", "+5", "-0", "-0.00", ".5", "5.", " 5", "5 ", "5\n", "", "-", "--5",
    "NaN", "Infinity", "-inf", "0x10", "0b1", "\uff15", "\u0665", "5\u20ac", "$5", "5%", "\u00bd", "5\u200b",
    "\u22125", "1 000", "1'000", "9" * 32, "0." + "1" * 31, "9" * 1_000_000, "5" + "0" * 100_000, "1e99999",
    "1e99999999999999999999",
]  # fmt: skip


def test_i2_what_readers_may_take_for_different_numbers_is_unclear() -> None:
    """I2: only plain decimals are numbers in a text; any other text never helps a call, whichever way it is compared."""
    for op, value in (("le", 10**40), ("ge", -(10**40)), ("between", [-(10**40), 10**40]), ("gt", 10**40)):
        matcher = ArgumentMatcher.model_validate({"at": "/x", "op": op, "value": value})
        answers = {text: matcher.match(decode_arguments(json.dumps({"x": text}))) for text in NO_NUMBERS}
        assert [text[:40] for text, match in answers.items() if match != "unclear"] == []


def test_a_rule_may_write_dates_as_toml_does() -> None:
    """A date or time of TOML is the same as its text; one without a zone is refused, as in a call it would be unclear."""
    text = '[[rule]]\nname = "due"\nverdict = "allow"\ntools = ["*"]\nargs = [{{ at = "/due", op = "{}", value = {} }}]'
    for op, value in (("between", "[2026-01-01, 2026-12-31]"), ("lt", "2026-12-31T12:00:00Z")):
        rules = parse_policy(text.format(op, value), source="a test")
        assert Policy.model_validate_json(rules.model_dump_json()) == rules
    with pytest.raises(ConfigurationError, match="compares numbers, dates or instants"):
        parse_policy(text.format("lt", "2026-12-31T12:00:00"), source="a test")


@pytest.mark.parametrize(
    ("pointer", "exists"),
    [
        ("/a/0/b", "yes"),
        ("/a/00/b", "no"),
        ("/a/-/b", "no"),
        ("/a/1/b", "no"),
        ("/c~1d", "yes"),
        ("/e~0f", "yes"),
        ("/", "yes"),
        ("/a/0/b/c", "no"),
        ("", "yes"),
    ],
)
def test_pointers(pointer: str, exists: Match) -> None:
    """Pointers are RFC 6901: indexes without leading zeros, ``~1`` for a slash, ``~0`` for a tilde."""
    arguments = decode_arguments('{"a": [{"b": 1}], "c/d": 1, "e~f": 1, "": 1}')
    assert ArgumentMatcher(at=pointer, op="exists").match(arguments) == exists


@pytest.mark.parametrize(
    ("matchers", "fix"),
    [
        ({"args": [{"at": "x", "op": "eq", "value": 1}]}, "JSON pointer"),
        ({"args": [{"at": "/x~2", "op": "eq", "value": 1}]}, "JSON pointer"),
        ({"args": [{"at": "/x", "op": "eq"}]}, "needs a value"),
        ({"args": [{"at": "/x", "op": "gt", "value": "5"}]}, "compares numbers"),
        ({"args": [{"at": "/x", "op": "gt", "value": True}]}, "compares numbers"),
        ({"args": [{"at": "/x", "op": "gt", "value": float("nan")}]}, "finite"),
        ({"args": [{"at": "/x", "op": "le", "value": "tomorrow"}]}, "compares numbers, dates"),
        ({"args": [{"at": "/x", "op": "le", "value": "2026-12-31T12:00:00"}]}, "compares numbers, dates"),
        ({"args": [{"at": "/x", "op": "between", "value": 5}]}, "lowest and the highest"),
        ({"args": [{"at": "/x", "op": "between", "value": [1, 2, 3]}]}, "lowest and the highest"),
        ({"args": [{"at": "/x", "op": "between", "value": [2, 1]}]}, "can never hold"),
        ({"args": [{"at": "/x", "op": "between", "value": [1, "2026-12-31"]}]}, "can never hold"),
        ({"args": [{"at": "/x", "op": "between", "value": ["1", "2"]}]}, "compares numbers"),
        ({"args": [{"at": "/x", "op": "in", "value": "a"}]}, "list"),
        ({"args": [{"at": "/x", "op": "in", "value": []}]}, "list"),
        ({"args": [{"at": "/x", "op": "glob", "value": 1}]}, "string"),
        ({"args": [{"at": "/x", "op": "starts_with", "value": ""}]}, "everything"),
        ({"args": [{"at": "/x", "op": "exists", "value": 1}]}, "leave it out"),
        ({"args": [{"at": "/x", "op": "like", "value": 1}]}, "Input should be"),
        ({"command_at": "command"}, "JSON pointer"),
        ({"paths_at": []}, "at least 1"),
        ({"paths": [""]}, "empty"),
        ({"paths": ["src/"]}, "src/\\*\\*"),
        ({"paths": ["../x"]}, "where it leads"),
        ({"paths": ["~/x"]}, "ordinary name"),
        ({"paths": ["a**"]}, "be alone"),
        ({"paths": ["[z-a]"]}, "set of characters"),
        ({"workspaces": ["src/**"]}, "absolute"),
        ({"workspaces": []}, "at least 1"),
        ({"unknown": 1}, "Extra inputs"),
    ],
)
def test_meaningless_matchers_are_refused(matchers: dict[str, Any], fix: str) -> None:
    """A wrong matcher is refused when the rule is read, with what to write instead."""
    with pytest.raises(ValidationError, match=fix):
        Matchers.model_validate(matchers)


def facts(arguments: Any, workspace: str | None = "/w") -> CallFacts:
    return call_facts(json.dumps(arguments), workspace)


MANY = Matchers(paths=["/safe/**"], paths_at=["/from", "/to"])


@pytest.mark.parametrize(
    ("arguments", "allow", "deny"),
    [
        ({"from": "/safe/a", "to": "/safe/b"}, "yes", "yes"),
        ({"from": "/safe/a", "to": "/x"}, "no", "yes"),
        ({"from": "/safe/a"}, "no", "yes"),
        ({"from": ["/safe/a", "/safe/b"], "to": "/safe"}, "yes", "yes"),
        ({"from": ["/safe/a", "/x"], "to": "/safe"}, "no", "yes"),
        ({"from": [], "to": "/safe"}, "unclear", "yes"),
        ({"from": 1, "to": "/safe"}, "unclear", "yes"),
        ({"from": 1, "to": "/x"}, "no", "unclear"),
        ({"from": "/x", "to": "/y"}, "no", "no"),
        ({}, "no", "no"),
    ],
)
def test_an_allow_rule_needs_every_path_and_a_deny_rule_one(arguments: Any, allow: Match, deny: Match) -> None:
    """With several pointers, or a list of paths, allow rules need them all and deny rules any."""
    assert MANY.match(facts(arguments), verdict="allow") == allow
    assert MANY.match(facts(arguments), verdict="deny") == deny


@pytest.mark.parametrize(
    ("patterns", "path", "fits"),
    [
        (["**"], "/any/where", True),
        (["/"], "/", True),
        (["/a/*"], "/a/b", True),
        (["/a/*"], "/a/b/c", False),
        (["/a/**"], "/a", True),
        (["/a/**/z"], "/a/z", True),
        (["/a/**/z"], "/a/b/c/z", True),
        (["/a/**/z"], "/a/bz", False),
        (["**/*.pem"], "/x/y.pem", True),
        (["**/.git/**"], "/x/.git/config", True),
        (["/a/[bc]?"], "/a/b1", True),
        (["/a/[!b]"], "/a/c", True),
        (["/a/[!b]"], "/a//", False),
        (["/a[[]b"], "/a[b", True),
        (["/A"], "/a", False),
        (["src"], "/w/src", True),
        (["src/*.py"], "src/x.py", True),
        (["src/**"], "/w2/src/x", False),
    ],
)
def test_path_globs(patterns: list[str], path: str, fits: bool) -> None:
    """``*`` stays inside a part, ``**`` is any number of parts, relative patterns begin at the workspace."""
    answers = {Matchers(paths=patterns).match(facts({"path": path}), verdict=verdict) for verdict in ("allow", "deny")}
    assert answers == {"yes" if fits else "no"}


def test_a_relative_rule_without_a_workspace_is_unclear() -> None:
    """Without a workspace, a relative path or pattern has no meaning."""
    rule = Matchers(paths=["src/**"])
    assert rule.match(facts({"path": "/src/x"}, None), verdict="deny") == "unclear"
    assert rule.match(facts({"path": "src/x"}, None), verdict="deny") == "unclear"
    assert rule.match(facts({"path": "src/x"}, None), verdict="allow") != "yes"


@pytest.mark.parametrize("op", ["eq", "ne"])
def test_i2_a_key_given_twice_is_certainly_nothing(op: str) -> None:
    """I2: a rule about such an argument is unclear, also inside an object, and also one that looks for null."""
    for raw, wanted in [('{"x": 1, "x": null}', None), ('{"x": {"y": 1, "y": null}}', {"y": None})]:
        rule = Matchers.model_validate({"args": [{"at": "/x", "op": op, "value": wanted}]})
        assert rule.match(call_facts(raw, None), verdict="deny") == "unclear"


def test_a_deny_pattern_goes_where_its_link_leads(tmp_path: Path) -> None:
    """It covers the real place, also of a link to the root directory; an allow pattern doesn't."""
    (tmp_path / "root").symlink_to("/")
    (tmp_path / "here").symlink_to(tmp_path)
    for pattern, path in [("root/etc/**", "/etc/x"), ("root/**", "/etc/x"), ("here/x", str(tmp_path / "x"))]:
        rule = Matchers(paths=[pattern])
        assert rule.match(facts({"path": path}, str(tmp_path)), verdict="deny") == "yes", pattern
        assert rule.match(facts({"path": path}, str(tmp_path)), verdict="allow") == "no", pattern


def test_workspaces(tmp_path: Path) -> None:
    """A workspace pattern resolves symlinks; a run without a workspace matches only ``*``."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "link").symlink_to("shop")
    rule = Matchers(workspaces=["**/shop"])
    assert rule.match(facts({}, str(tmp_path / "shop")), verdict="allow") == "yes"
    assert rule.match(facts({}, str(tmp_path / "link")), verdict="deny") == "yes"
    assert rule.match(facts({}, str(tmp_path / "link")), verdict="allow") == "no"
    assert rule.match(facts({}, None), verdict="deny") == "no"
    assert Matchers().match(facts({}, None), verdict="allow") == "yes"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [({"x": 1, "path": "/a"}, "yes"), ({"x": 2, "path": "/b"}, "no"), ({"x": "1", "path": "/a"}, "unclear")],
)
def test_all_matchers_must_hold(arguments: Any, expected: Match) -> None:
    """One no is no; otherwise one unclear is unclear."""
    rule = Matchers.model_validate({"args": [{"at": "/x", "op": "eq", "value": 1}], "paths": ["/a"]})
    assert rule.match(facts(arguments), verdict="deny") == expected
    assert (
        Matchers.model_validate({"args": [{"at": "/y", "op": "gt", "value": 1}], "paths": ["/a"]}).match(
            facts({"path": "/b"}), verdict="deny"
        )
        == "no"
    )


def test_i2_a_matcher_that_breaks_is_unclear() -> None:
    """Whatever a reader or resolver raises, the matcher answers, and never in the call's favour."""

    def broken(*_: object) -> Unparsable:
        raise RuntimeError("out of order")

    call_facts = CallFacts(
        arguments={"command": "ls", "path": "/x"}, workspace="/w", read_command=broken, resolve_path=broken
    )  # type: ignore[arg-type]
    for rule in (Matchers(command=["ls"]), Matchers(paths=["/x"]), Matchers(workspaces=["/w"])):
        assert rule.examine(call_facts, verdict="allow").match == "unclear"
        assert "RuntimeError" in rule.examine(call_facts, verdict="deny").reason


def test_reasons_name_the_command_and_the_pattern() -> None:
    """The person who asks why reads which command and which pattern."""
    rule = Matchers(command=["rm -r"])
    assert "'rm -rf x' fits 'rm -r'" in rule.examine(facts({"command": "ls; rm -rf x"}), verdict="deny").reason
    assert "'sh' reads what it runs" in rule.examine(facts({"command": "x | sh"}), verdict="deny").reason
    assert "fits no pattern" in rule.examine(facts({"command": "ls"}), verdict="allow").reason
    assert "the command at /command is not a text" in rule.examine(facts({"command": 1}), verdict="deny").reason
