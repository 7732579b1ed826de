"""One rule as text, in a sentence, and among others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngate import Rule
from turngate.domain.errors import ConfigurationError
from turngate.domain.policy.policy import parse_policy
from turngate.domain.policy.terms import Rung
from turngate.policies.rule_text import one_rule, rule_text, with_rule
from turngate.policies.rule_words import IN_WORDS, in_a_sentence

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
values = st.recursive(
    st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
conditions = st.fixed_dictionaries({"at": st.just("/x"), "op": st.sampled_from(["eq", "ne"]), "value": values}) | (
    st.fixed_dictionaries({"at": st.just("/a~1b"), "op": st.sampled_from(["exists", "absent"])})
)
rules = st.builds(
    lambda name, verdict, tools, args, reason, risk, shadow: Rule.model_validate(
        {
            "name": name,
            "verdict": verdict,
            "tools": tools,
            "args": args,
            "reason": reason,
            "risk": risk,
            "shadow": shadow,
        }
    ),
    texts.filter(bool),
    st.sampled_from(["allow", "ask", "deny"]),
    st.lists(texts, min_size=1, max_size=3),
    st.lists(conditions, max_size=3),
    texts,
    st.sampled_from([None, "low", "high"]),
    st.booleans(),
)


@given(rules)
def test_a_rule_reads_from_its_text_as_it_was(rule: Rule) -> None:
    """Whatever its names, texts, numbers and nested values hold."""
    assert one_rule(rule_text(rule)) == rule


FIRST = """[[rule]]
name = "one"          # the first
verdict = "deny"
tools = ["pay"]
"""
SOURCE = f"""# Ours.
{FIRST}
# About the second.
[[rule]]
name = "two"
verdict = "ask"
tools = ["refund"]
[[rule.ladder]]
after_seconds = 60
do = "remind"

# The end.
"""
ALLOW = Rule(name="new", verdict="allow", tools=["list"])


def test_a_rule_comes_in_the_place_of_another_and_the_others_keep_their_text() -> None:
    """Comments stay where they are; those above a rule belong to it."""
    text = with_rule(SOURCE, ALLOW, replacing="one")
    assert text == SOURCE.replace(FIRST, rule_text(ALLOW))
    assert with_rule(SOURCE, ALLOW, replacing="two").endswith(f"{rule_text(ALLOW)}\n# The end.\n")
    assert with_rule(SOURCE, ALLOW) == f"{SOURCE}\n{rule_text(ALLOW)}"
    assert with_rule("", ALLOW) == rule_text(ALLOW)


@given(st.lists(rules, max_size=4, unique_by=lambda rule: rule.name), rules, st.integers(0, 4))
def test_among_others_a_rule_means_what_it_meant_alone(others: list[Rule], rule: Rule, place: int) -> None:
    """And the others mean what they meant."""
    source = "\n".join(rule_text(each) for each in others)
    old = others[place].name if place < len(others) else None
    if any(each.name == rule.name != old for each in others) and old is not None:
        with pytest.raises(ConfigurationError):
            with_rule(source, rule, replacing=old)
        return
    expected = [*others, rule]
    same = next((number for number, each in enumerate(others) if each.name == (old or rule.name)), None)
    if same is not None:
        expected = [*others[:same], rule, *others[same + 1 :]]
    assert parse_policy(with_rule(source, rule, replacing=old), source="text").rule == expected


UNSPLITTABLE = {
    "an array": 'rule = [{ name = "one", verdict = "deny", tools = ["pay"] }]',
    "a header in a text": '[[rule]]\nname = "one"\nverdict = "deny"\ntools = ["pay"]\nreason = """\n[[rule]]\n"""\n',
}


@pytest.mark.parametrize("source", UNSPLITTABLE.values(), ids=UNSPLITTABLE)
def test_a_text_that_cannot_be_split_is_refused(source: str) -> None:
    """A rule that replaces another is never written into the middle of something else."""
    with pytest.raises(ConfigurationError, match="change them as TOML"):
        with_rule(source, ALLOW, replacing="one")


def test_a_name_is_not_taken_twice_nor_replaced_where_it_is_not() -> None:
    """The error says which name it is."""
    with pytest.raises(ConfigurationError, match="another stored rule is called 'two'"):
        with_rule(SOURCE, ALLOW.model_copy(update={"name": "two"}), replacing="one")
    with pytest.raises(ConfigurationError, match="no stored rule called 'three'"):
        with_rule(SOURCE, ALLOW, replacing="three")
    with pytest.raises(ConfigurationError, match="has 2"):
        one_rule(SOURCE)


def test_what_toml_cannot_say_is_refused() -> None:
    """Null, and half a surrogate pair."""
    with pytest.raises(ConfigurationError, match="null"):
        rule_text(Rule.model_validate({**dict(ALLOW), "args": [{"at": "/x", "op": "eq", "value": [None]}]}))
    with pytest.raises(ConfigurationError, match="Unicode"):
        rule_text(ALLOW.model_copy(update={"reason": "\ud800"}))


SENTENCES = {
    'name = "x"\nverdict = "allow"\ntools = ["refund"]\nagents = ["support"]\n'
    'args = [{ at = "/order", op = "starts_with", value = "A-" }]': (
        'Calls of refund by agent support whose /order begins with "A-" run without asking.'
    ),
    'name = "x"\nverdict = "deny"\ntools = ["*"]': "Calls of any tool are denied.",
    'name = "x"\nverdict = "deny"\ntools = ["a", "b*"]\nshadow = true\n'
    'args = [{ at = "", op = "exists" }, { at = "/n", op = "in", value = [1, "1"] }]': (
        'It is only recorded that calls of a or b* whose arguments is there and /n is one of 1, "1" are denied.'
    ),
    'name = "x"\nverdict = "ask"\ntools = ["pay"]\nquorum = 2\nrisk = "high"\nroles = ["admin"]\n'
    "starter_may_decide = false\nexpires_after_seconds = 5400": (
        "Calls of pay wait for 2 people (an admin), not the one who started the run, for at most 90 min, as high risk, "
        "and start 5 s after the approval."
    ),
    'name = "x"\nverdict = "ask"\ntools = ["bash"]\ncommand = ["rm -r"]\ngrantable = true': (
        'Calls of bash whose command line at /command has a command like "rm -r" wait for a person. '
        "A grant may answer in place of a person."
    ),
    'name = "x"\nverdict = "allow"\ntools = ["pay"]\ntotal = { at = "/cents", most = 500, per = "day" }': (
        "Calls of pay run without asking, up to a total of 500 at /cents per day (UTC)."
    ),
}


@pytest.mark.parametrize("text", SENTENCES)
def test_a_sentence_says_the_whole_rule(text: str) -> None:
    """Every condition and every term is in it; what has no words is said as it is written."""
    assert in_a_sentence(one_rule(f"[[rule]]\n{text}\n")) == SENTENCES[text]


def test_no_key_of_a_rule_lacks_words() -> None:
    """Every key that a rule may have is said in words: none falls through to how it is written."""
    assert set(Rule.model_fields) == IN_WORDS


def test_the_terms_of_a_rule_are_sentences() -> None:
    """Who decides when no one does, what may answer in place of a person, and how long an approval counts."""
    rule = Rule(
        name="r", verdict="ask", tools=["pay"], grantable=True, judge="may_allow", on_expiry="park", fresh_for_seconds=60,
        decisions=["approve", "reject"],
        ladder=[
            Rung(after_seconds=60, do="remind"),
            Rung(after_seconds=120, do="escalate", roles=["admin"]),
            Rung(after_seconds=180, do="delegate", people=["ann"]),
        ],
    )  # fmt: skip
    assert in_a_sentence(rule).split(". ")[1:] == [
        "The only answers are approve and reject",
        "When their time is over, they wait on without a clock",
        "After 1 min without a decision, those who may decide are reminded",
        "After 2 min without a decision, every admin may decide, too",
        "After 3 min without a decision, only ann may decide",
        "An approval counts for 1 min",
        "A grant may answer in place of a person",
        "The judge may let them run in place of a person.",
    ]
