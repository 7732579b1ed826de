"""The terms of asking: which are valid, which verbs they allow, whom they bar, and how a ladder changes them."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from turngate.domain.policy.terms import MAX_QUORUM, MAX_RUNGS, PLAIN_TERMS, YEAR_SECONDS, AskTerms, Rung
from turngate.domain.requests import ALLOWED_VERBS


def remind(after: int) -> Rung:
    return Rung(after_seconds=after, do="remind")


def escalate(after: int, *people: str, roles: Any = ()) -> Rung:
    return Rung(after_seconds=after, do="escalate", people=list(people), roles=list(roles))


def delegate(after: int, *people: str, roles: Any = ()) -> Rung:
    return Rung(after_seconds=after, do="delegate", people=list(people), roles=list(roles))


@pytest.mark.parametrize(
    ("terms", "says"),
    [
        pytest.param({"quorum": 0}, "greater than or equal to 1", id="no approval"),
        pytest.param({"quorum": MAX_QUORUM + 1}, f"less than or equal to {MAX_QUORUM}", id="a crowd approves"),
        pytest.param({"quorum": True}, "valid integer", id="true is not 1"),
        pytest.param({"expires_after_seconds": 0}, "greater than or equal to 1", id="expires at once"),
        pytest.param({"expires_after_seconds": YEAR_SECONDS + 1}, "less than or equal to", id="expires in two years"),
        pytest.param({"expires_after_seconds": 1.0}, "valid integer", id="a fraction of a second"),
        pytest.param({"fresh_for_seconds": 0}, "greater than or equal to 1", id="an approval that never counts"),
        pytest.param({"fresh_for_seconds": "4h"}, "valid integer", id="a duration in words"),
        pytest.param({"grace_seconds": -1}, "greater than or equal to 0", id="a start before its approval"),
        pytest.param({"grace_seconds": 3601}, "less than or equal to 3600", id="a grace longer than an hour"),
        pytest.param(
            {"grace_seconds": 60, "fresh_for_seconds": 60}, "too old before its call may start", id="never fresh enough"
        ),
        pytest.param({"on_expiry": "approve"}, "'reject' or 'park'", id="expiry cannot approve"),
        pytest.param({"decisions": []}, "at least 1 item", id="no decision is possible"),
        pytest.param({"decisions": ["allow"]}, "'approve', 'edit', 'reject' or 'respond'", id="not a verb"),
        pytest.param({"roles": ["viewer"]}, "'operator' or 'admin'", id="viewers decide nothing"),
        pytest.param({"role": ["admin"]}, "not permitted", id="a misspelled key"),
        pytest.param({"quorum": 2, "decisions": ["approve", "edit"]}, "approve and reject, not edit", id="edit by two"),
        pytest.param({"quorum": 2, "people": ["ann"]}, "at least as many people", id="two of one person"),
        pytest.param({"quorum": 2, "people": ["ann", "ann"]}, "at least as many people", id="the same person twice"),
        pytest.param(
            {"quorum": 2, "ladder": [delegate(5, "ann")]}, "on each rung", id="two of one, once it is delegated"
        ),
        pytest.param({"quorum": 2, "grantable": True}, "leave grantable out", id="one person's grant for two"),
        pytest.param({"ladder": [remind(5), remind(5)]}, "in order", id="two rungs at one time"),
        pytest.param({"ladder": [remind(9), remind(5)]}, "in order", id="rungs out of order"),
        pytest.param(
            {"ladder": [remind(60)], "expires_after_seconds": 60}, "after the expiry", id="a rung that is never reached"
        ),
        pytest.param(
            {"ladder": [remind(n + 1) for n in range(MAX_RUNGS + 1)]}, f"at most {MAX_RUNGS}", id="too many rungs"
        ),
        pytest.param(
            {"ladder": [{"after_seconds": 5, "do": "escalate"}]}, "says to whom", id="escalates without a target"
        ),
        pytest.param(
            {"ladder": [{"after_seconds": 5, "do": "delegate"}]}, "says to whom", id="delegates without a target"
        ),
        pytest.param(
            {"ladder": [{"after_seconds": 5, "do": "remind", "people": ["ann"]}]},
            'use do = "escalate"',
            id="reminds others than may decide",
        ),
        pytest.param({"ladder": [{"after_seconds": 5, "do": "approve"}]}, "'remind', 'escalate'", id="a rung approves"),
        pytest.param({"ladder": [{"after_seconds": 0, "do": "remind"}]}, "greater than or equal", id="a rung at once"),
    ],
)
def test_impossible_terms_are_refused_with_the_fix(terms: dict[str, Any], says: str) -> None:
    """Terms that no answer could meet, or that would not do what they seem to say, are refused when declared."""
    with pytest.raises(ValidationError, match=says):
        AskTerms(**terms)


@pytest.mark.parametrize(
    "terms",
    [
        {"quorum": 2, "decisions": ["approve", "reject"]},
        {"quorum": 2, "people": ["ann"], "roles": ["admin"]},
        {"quorum": 2, "people": ["ann", "bob"]},
        {"quorum": 2, "ladder": [delegate(5, "ann", roles=["admin"])]},
        {"ladder": [remind(59)], "expires_after_seconds": 60},
        {"decisions": ["edit"], "grantable": True},
    ],
)
def test_terms_at_their_bounds_are_valid(terms: dict[str, Any]) -> None:
    """Terms that can be met are accepted, and their JSON round-trips."""
    written = AskTerms(**terms)
    assert AskTerms.model_validate_json(written.model_dump_json(exclude_defaults=True)) == written


@pytest.mark.parametrize(
    ("terms", "verbs"),
    [
        ({}, ("approve", "edit", "reject", "respond")),
        ({"decisions": ["respond", "approve"]}, ("approve", "respond")),
        ({"quorum": 2}, ("approve", "reject")),
        ({"quorum": 2, "decisions": ["approve"]}, ("approve",)),
    ],
)
def test_a_rule_limits_the_verbs_of_approvals_only(terms: dict[str, Any], verbs: tuple[str, ...]) -> None:
    """Questions and outcomes can always be answered: a rule's decisions are about calls."""
    assert AskTerms(**terms).verbs("approval") == verbs
    assert AskTerms(**terms).verbs("question") == ALLOWED_VERBS["question"]
    assert AskTerms(**terms).verbs("outcome") == ALLOWED_VERBS["outcome"]


ANN = {"name": "ann", "role": "operator"}


@pytest.mark.parametrize(
    ("terms", "who", "may"),
    [
        pytest.param({}, {"role": "operator"}, True, id="plain: an operator"),
        pytest.param({}, {"role": "admin"}, True, id="plain: an admin, who may do what an operator may"),
        pytest.param({}, {"role": "viewer"}, False, id="plain: a viewer"),
        pytest.param({}, {"role": "operator", "machine": True}, True, id="plain: a machine"),
        pytest.param({"roles": ["operator"]}, {"role": "admin"}, True, id="operators: an admin"),
        pytest.param({"roles": ["admin"]}, {"role": "operator"}, False, id="admins: an operator"),
        pytest.param({"roles": ["admin"]}, {"role": "admin"}, True, id="admins: an admin"),
        pytest.param({"people": ["ann"]}, ANN, True, id="people: the one who is named"),
        pytest.param({"people": ["ann"]}, {"name": "ANN", "role": "operator"}, False, id="people: another spelling"),
        pytest.param({"people": ["ann"]}, {"role": "operator"}, False, id="people: another operator"),
        pytest.param({"people": ["ann"]}, {"role": "admin"}, False, id="people: an admin who is not named"),
        pytest.param({"people": ["ann"], "roles": ["admin"]}, {"role": "admin"}, True, id="people or role: by role"),
        pytest.param({"people": ["ann"], "roles": ["admin"]}, ANN, True, id="people or role: by name"),
        pytest.param(
            {"people": ["ann"], "roles": ["admin"]}, {"role": "operator"}, False, id="people or role: neither"
        ),
        pytest.param({"quorum": 2}, {"role": "operator", "machine": True}, False, id="quorum: a machine"),
        pytest.param({"quorum": 2}, {"role": "admin", "machine": True}, False, id="quorum: a machine with every scope"),
        pytest.param({"quorum": 2}, {"role": "operator"}, True, id="quorum: a person"),
    ],
)
def test_i10_who_may_decide(terms: dict[str, Any], who: dict[str, Any], may: bool) -> None:
    """I10: eligible by role or by name; a machine is not a person and never counts towards a quorum."""
    barred = AskTerms(**terms).barred(**{"name": "bob", "machine": False, **who})
    assert (barred is None) is may
    assert barred is None or len(barred) > 20


def may_decide(terms: AskTerms) -> set[str]:
    """Return who may decide: ann by name, an operator, an admin."""
    people = {"ann": "viewer", "eve": "operator", "zoe": "admin"}
    return {name for name, role in people.items() if terms.barred(name=name, role=role, machine=False) is None}


@pytest.mark.parametrize(
    ("terms", "rung", "before", "after"),
    [
        pytest.param({}, remind(5), {"eve", "zoe"}, {"eve", "zoe"}, id="a reminder changes no one's right"),
        pytest.param({}, escalate(5, "ann"), {"eve", "zoe"}, {"ann", "eve", "zoe"}, id="escalating adds to operators"),
        pytest.param(
            {"people": ["eve"]}, escalate(5, roles=["admin"]), {"eve"}, {"eve", "zoe"}, id="escalating adds to people"
        ),
        pytest.param(
            {"people": ["ann"]}, escalate(5, "eve"), {"ann"}, {"ann", "eve"}, id="escalating to people adds no role"
        ),
        pytest.param({}, delegate(5, "ann"), {"eve", "zoe"}, {"ann"}, id="delegating takes it from operators"),
        pytest.param(
            {"people": ["ann"]}, delegate(5, roles=["admin"]), {"ann"}, {"zoe"}, id="delegating takes it from people"
        ),
    ],
)
def test_a_rung_changes_who_may_decide(terms: dict[str, Any], rung: Rung, before: set[str], after: set[str]) -> None:
    """Reminding changes nothing, escalating widens, delegating replaces; the other terms stay."""
    written = AskTerms(**terms, ladder=[rung], expires_after_seconds=60)
    climbed = written.climbed(rung)
    assert (may_decide(written), may_decide(climbed)) == (before, after)
    untouched = {"roles", "people"}
    assert climbed.model_dump(exclude=untouched) == written.model_dump(exclude=untouched)


def test_rungs_accumulate() -> None:
    """Escalating twice to one person counts once; a delegation can be escalated."""
    terms = AskTerms()
    for rung in (escalate(1, "ann"), escalate(2, "ann", roles=["operator"]), delegate(3, "eve"), escalate(4, "ann")):
        terms = terms.climbed(rung)
    assert (terms.people, terms.roles) == (["eve", "ann"], [])


@pytest.mark.parametrize(("expiry", "reached"), [(None, 3), (100, 3), (30, 2), (29, 2), (10, 0), (5, 0)])
def test_a_rung_after_the_agents_own_limit_is_never_climbed(expiry: int | None, reached: int) -> None:
    """A rule without an expiry takes the agent's; rungs at that time or later are dropped."""
    terms = AskTerms(ladder=[remind(10), escalate(20, "ann"), remind(30)])
    assert list(terms.rungs_before(expiry)) == list(range(reached))


def test_terms_of_a_rule_equal_terms_written_alone() -> None:
    """A rule without terms gives the default terms, which take no space on the wire."""
    assert AskTerms.model_construct(**AskTerms().model_dump()) == PLAIN_TERMS


@pytest.mark.parametrize(
    ("terms", "why"),
    [
        ({}, None),
        ({"quorum": 2}, "2 people must approve it"),
        ({"starter_may_decide": False}, "the person who started the run"),
        ({"roles": ["admin"]}, "other people"),
        ({"people": ["ann"]}, "other people"),
        ({"roles": ["operator"], "people": ["ann"]}, None),
        ({"decisions": ["approve", "reject"]}, "it takes only approve, reject"),
        ({"fresh_for_seconds": 60}, "counts for 60 s"),
        ({"expires_after_seconds": 60}, "expires after 60 s"),
        ({"grace_seconds": 60}, "starts 60 s after its approval"),
        ({"grace_seconds": 0}, None),
        ({"ladder": [remind(5)]}, None),
    ],
)
def test_i6_terms_are_stricter_in_any_way(terms: dict[str, Any], why: str | None) -> None:
    """I6: fewer who may decide, fewer verbs, more people or less time: each is found, and in words."""
    stricter = AskTerms(**terms).stricter_than(PLAIN_TERMS)
    assert stricter is None if why is None else why in (stricter or "")
    assert AskTerms(**terms).stricter_than(AskTerms(**terms)) is None


def test_i6_terms_are_compared_in_one_direction() -> None:
    """I6: what asks for less is not stricter: more people who may decide, longer times, a smaller quorum."""
    narrow = AskTerms(
        quorum=3, roles=["admin"], starter_may_decide=False, fresh_for_seconds=60, expires_after_seconds=60
    )
    assert PLAIN_TERMS.stricter_than(narrow) is None
    assert AskTerms(roles=["admin"], fresh_for_seconds=61).stricter_than(narrow) is None
    assert AskTerms(roles=["admin"], fresh_for_seconds=59).stricter_than(narrow) is not None
