"""Case files: what they may contain, and where the errors point."""

from __future__ import annotations

from pathlib import Path

import pytest

from turngate.domain.errors import ConfigurationError
from turngate.evals import load_cases, parse_cases
from turngate.evals.patterns import fits

FILE = """
defaults:
  agent: clerk
  timeout_seconds: 5
  handlers: {look: {returns: 1}, pay: {returns: 2}}
  approvers: [{tool: pay, do: approve}]
cases:
  - name: one
    message: go
    handlers: {pay: my_handlers:pay}
    approvers: [{tool: look, do: reject}]
  - name: two
    messages: [a, b]
    agent: other
    expect: {calls: [look, {tool: pay, args: {due: 2026-01-31}}]}
"""


def test_defaults_hold_where_a_case_says_nothing_else() -> None:
    """A key of the case overrides the default; handlers are merged, and the case's approvers come before the defaults'."""
    one, two = parse_cases(FILE, "f.yaml")
    assert (one.agent, two.agent, one.timeout_seconds) == ("clerk", "other", 5)
    assert [approver.tool for approver in one.approvers] == ["look", "pay"]
    assert (one.handlers["pay"], set(one.handlers), set(two.handlers)) == (
        "my_handlers:pay",
        {"look", "pay"},
        {"look", "pay"},
    )
    assert (one.prompts, two.prompts) == (("go",), ("a", "b"))
    assert two.expect.calls[1].args == {"due": "2026-01-31"}  # JSON has no dates


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cases: [", "f.yaml is not YAML: "),
        ("cases:\n- name: a\n  message: b\n  message: c", "f.yaml, line 4: the same key is in line 3; delete one"),
        ("cases: []", "f.yaml has no cases: write `cases:`"),
        ("- name: one", "f.yaml has no cases"),
        ("case: []\ncases:\n- {name: a, message: b}", "f.yaml, line 1: case: there is no such key"),
        (
            "cases:\n- name: a\n  message: b\n  expct: {}",
            "f.yaml, line 4: cases[0].expct: there is no such key. Did you mean 'expect'?",
        ),
        (
            "cases:\n- name: a\n  message: b\n  expect:\n    aks: 1",
            "f.yaml, line 5: cases[0].expect.aks: there is no such key. Did you mean 'asks'?",
        ),
        ("cases:\n- name: a", "f.yaml, line 2: cases[0]: give `message` or `messages`"),
        ("cases:\n- name: a\n  message: b\n- name: a\n  message: b", "f.yaml, line 4: cases[1].name: there is another"),
        (
            "defaults:\n  timeout: 3\ncases:\n- {name: a, message: b}",
            "f.yaml, line 2: defaults.timeout: there is no such key. Did you mean 'timeout_seconds'?",
        ),
        (
            "defaults:\n  approvers:\n  - do: edit\ncases:\n- name: a\n  message: b\n  approvers: [{do: approve}]",
            "f.yaml, line 3: defaults.approvers[0]: `do: edit` needs `args`",
        ),
        (
            "cases:\n- name: a\n  message: b\n  approvers:\n  - do: approve\n    args: {a: 1}",
            "f.yaml, line 5: cases[0].approvers[0]: `do: approve` takes no `args`",
        ),
        (
            "cases:\n- name: a\n  message: b\n  approvers:\n  - do: approve\n    when: {a: {$below: 1}}",
            "f.yaml, line 6: cases[0].approvers[0].when: there is no operator '$below'",
        ),
        (
            "cases:\n- name: a\n  message: b\n  expect:\n    text: {matches: '('}",
            "f.yaml, line 5: cases[0].expect.text.matches: '(' is not a regular expression",
        ),
        (
            "cases:\n- name: a\n  message: b\n  expect:\n    asks: {min: 2, max: 1}",
            "f.yaml, line 5: cases[0].expect.asks: no number is at least 2 and at most 1",
        ),
        ("cases:\n- name: a\n  message: b\n  handlers: {look: 3}", "f.yaml, line 4: cases[0].handlers: a handler is"),
    ],
)
def test_an_error_names_its_line_and_place(text: str, message: str) -> None:
    """Every error names the file, the line and the key, before anything is looked up."""
    with pytest.raises(ConfigurationError) as refused:
        parse_cases(text, "f.yaml")
    assert refused.value.message.startswith(message)


def test_each_mistake_of_a_file_is_reported_once() -> None:
    """A wrong default is one mistake, however many cases use it."""
    with pytest.raises(ConfigurationError) as refused:
        parse_cases("defaults: {nope: 1}\ncases:\n- {name: a, message: b}\n- {name: c, message: d, no: 1}", "f.yaml")
    assert len(refused.value.details["problems"]) == 2


def test_a_workspace_is_beside_the_file(tmp_path: Path) -> None:
    """A relative path in a file starts at the file's directory, not at the current one; a missing file is an error."""
    file = tmp_path / "f.yaml"
    file.write_text("cases: [{name: a, message: b, workspace: repo}]")
    assert load_cases(file)[0].workspace == tmp_path / "repo"
    with pytest.raises(ConfigurationError, match="No such file"):
        load_cases(tmp_path / "g.yaml")


@pytest.mark.parametrize(
    ("pattern", "value", "is_it"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, True),
        ({"a": 1}, {"b": 2}, False),
        ({"a": {"b": [1, {"c": 2}]}}, {"a": {"b": [1, {"c": 2, "d": 3}]}}, True),
        ([1], [1, 2], False),
        (1, 1.0, True),
        (1, True, False),
        ({"$matches": "^a.c"}, "abcd", True),
        ({"$matches": "^a.c"}, ["abc"], False),
        ({"$at_most": 50}, "50.00", True),
        ({"$at_most": 50}, 50.01, False),
        ({"$at_least": "1.5"}, 2, True),
        ({"$at_least": 1}, True, False),
        ({"$at_most": 1}, "NaN", False),
        ({"$at_most": 1}, None, False),
        (None, None, True),
    ],
)
def test_a_pattern_fits_what_holds_all_of_it(pattern: object, value: object, is_it: bool) -> None:
    """A mapping matches in part, a list item by item, a number by value, and an operator by what it says."""
    assert fits(pattern, value) is is_it
