"""The form of a rule: it says exactly the rule that it is filled in with, and what is wrong beside the control."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngate import Rule
from turngate.approvals_api.pages.frames import number_of
from turngate.approvals_api.pages.policy.rule_form import draft_of, read_draft, read_form, switched
from turngate.policies.rule_text import one_rule, rule_text

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
scalars = st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
values = scalars | st.lists(scalars, max_size=3) | st.dictionaries(texts, scalars, max_size=3)
spelled = texts | st.sampled_from(["5", "null", "true", ' "x"', '"x"', " x ", "[1]", "NaN", "\x7f", "a\nb", "1e999"])
conditions = st.one_of(
    st.fixed_dictionaries(
        {"at": st.just("/x"), "op": st.sampled_from(["eq", "ne", "contains"]), "value": values | spelled}
    ),
    st.fixed_dictionaries({"at": st.just(""), "op": st.sampled_from(["exists", "absent"])}),
    st.fixed_dictionaries(
        {"at": st.just("/x"), "op": st.sampled_from(["lt", "ge"]), "value": st.integers() | st.floats(0, 9)}
    ),
    st.just({"at": "/x", "op": "between", "value": ["2026-01-01", "2026-12-31"]}),
    st.fixed_dictionaries(
        {"at": st.just("/x"), "op": st.just("in"), "value": st.lists(values | spelled, min_size=1, max_size=3)}
    ),
    st.fixed_dictionaries(
        {"at": st.just("/x"), "op": st.sampled_from(["starts_with", "glob"]), "value": spelled.filter(bool)}
    ),
).filter(lambda each: each["op"] != "contains" or each["value"] != "")
members = st.fixed_dictionaries(
    {
        "name": texts.filter(bool),
        "verdict": st.sampled_from(["allow", "deny"]),
        "tools": st.lists(st.sampled_from(["pay", "b*", "a b", "x,y"]), min_size=1, max_size=2),
        "agents": st.sampled_from([["*"], ["support"], ["a", "b"]]),
        "args": st.lists(conditions, max_size=3),
        "reason": texts,
        "risk": st.sampled_from([None, "low", "high"]),
    }
)


def as_sent(typed: dict[str, str]) -> dict[str, str]:
    """What a browser sends: a text area's line ends become CRLF, and an input has none."""
    sent = {}
    for name, text in typed.items():
        lines = text.replace("\r\n", "\n").replace("\r", "\n")
        sent[name] = (
            lines.replace("\n", "\r\n") if name.startswith(("rule-value", "rule-toml")) else lines.replace("\n", "")
        )
    return sent


@given(members)
def test_the_form_and_the_toml_say_the_same_rule(written: dict) -> None:
    """Filled in with a rule and sent as it is, each says that rule; what doesn't fit the form is shown as TOML."""
    rule = Rule.model_validate(written)
    draft = draft_of(rule)
    sent = as_sent({**draft.typed, "view": draft.view})
    if draft.view == "toml":
        assert read_draft(sent).rule == one_rule(rule_text(rule))
    else:
        assert read_draft(sent).rule == rule


ASKS = Rule(
    name="big", verdict="ask", tools=["pay", "refund"], quorum=2, starter_may_decide=False, expires_after_seconds=60, risk="high"
)  # fmt: skip


def test_terms_of_an_ask_rule_are_in_the_form() -> None:
    """Quorum, expiry, the starter and the risk go there and back."""
    draft = draft_of(ASKS)
    assert (draft.view, draft.rule) == ("form", ASKS)
    assert read_form(draft.typed).rule == ASKS


def test_what_the_form_has_no_fields_for_stays_toml() -> None:
    """It says which fields these are, and loses none of them."""
    rule = Rule(name="shell", verdict="deny", tools=["bash"], command=["rm -r"])
    draft = draft_of(rule)
    assert (draft.view, draft.rule) == ("toml", rule)
    same = switched(draft)
    assert (same.view, same.rule) == ("toml", rule)
    assert "no fields for command" in same.errors["rule-toml"]
    assert switched(draft_of(ASKS)).typed == {"rule-toml": rule_text(ASKS)}
    assert switched(switched(draft_of(ASKS))) == draft_of(ASKS)


GOOD = {"rule-name": "x", "rule-verdict": "allow", "rule-tools": "pay"}
WRONG = {
    "no name": ({"rule-name": " "}, "rule-name", "name"),
    "no tool": ({"rule-tools": " , "}, "rule-tools", "at least one"),
    "no verdict": ({"rule-verdict": "maybe"}, "rule-verdict", "'allow'"),
    "a long name": ({"rule-name": "x" * 101}, "rule-name", "100"),
    "a value without its argument": ({"rule-value-1": "5"}, "rule-at-1", "which argument"),
    "no pointer": ({"rule-at-1": "order", "rule-op-1": "eq", "rule-value-1": "5"}, "rule-at-1", "JSON pointer"),
    "no operator": ({"rule-at-0": "/x", "rule-op-0": "like", "rule-value-0": "5"}, "rule-op-0", "'eq'"),
    "no number": ({"rule-at-4": "/x", "rule-op-4": "lt", "rule-value-4": "five"}, "rule-value-4", "compares numbers"),
    "no value": ({"rule-at-0": "/x", "rule-op-0": "eq"}, "rule-value-0", "Enter a value"),
    "null": ({"rule-at-0": "/x", "rule-op-0": "eq", "rule-value-0": "null"}, "rule-value-0", "null"),
    "a value that does not belong": (
        {"rule-at-0": "/x", "rule-op-0": "exists", "rule-value-0": "5"},
        "rule-value-0",
        "no value",
    ),
    "terms of another verdict": ({"rule-quorum": "2"}, "rule", "quorum belongs to"),
    "no whole number": ({"rule-verdict": "ask", "rule-quorum": "two"}, "rule-quorum", "whole number"),
    "too many people": ({"rule-verdict": "ask", "rule-quorum": "99"}, "rule-quorum", "less than"),
    "half a surrogate pair": (
        {"rule-at-0": "/x", "rule-op-0": "eq", "rule-value-0": '"\\ud800"'},
        "rule",
        "Unicode",
    ),
    "null inside": ({"rule-at-0": "/x", "rule-op-0": "eq", "rule-value-0": "[null]"}, "rule", "null"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG)
def test_each_error_is_beside_its_control(case: tuple[dict[str, str], str, str]) -> None:
    """One typed error, at the control, and no rule."""
    typed, control, words = case
    draft = read_form({**GOOD, **typed})
    assert draft.rule is None
    assert list(draft.errors) == [control]
    assert words in draft.errors[control]


def test_a_row_of_a_hostile_number_is_bounded() -> None:
    """A control called rule-at-999999999 draws no billion of rows."""
    draft = read_form({**GOOD, "rule-at-999999999": "/x", "rule-at-x": "/y", "rule-value--1": "z"})
    assert len(draft.rows) == 50


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("7", 7),
        ("0", 0),
        ("", None),
        ("-1", None),
        ("7 ", None),
        ("٣", None),
        ("9" * 9, 999_999_999),
        ("9" * 5_000, None),
    ],
)
def test_a_records_number_in_a_form_is_one_that_the_store_can_have(text: str, number: int | None) -> None:
    """A version or revision that no record has is none, however long: it can't fail in the store or in Python's own reader."""
    assert number_of({"if_version": text}, "if_version") == number
    assert number_of({}, "if_version") is None
