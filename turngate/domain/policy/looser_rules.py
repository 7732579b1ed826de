"""Whether new stored rules may let a call run unasked that the rules before would not. Pure.

What is not certain to tighten loosens. Shadow rules don't count on either side.
"""

from __future__ import annotations

from collections.abc import Sequence

from turngate.domain.policy.matchers import Matchers
from turngate.domain.policy.policy import Policy, Risk, Rule
from turngate.domain.policy.terms import PLAIN_TERMS, AskTerms


def loosening(before: Policy, after: Policy, *, files: Sequence[Policy] = ()) -> str | None:
    """Return why the new stored rules may loosen the earlier ones, in words for people; None: they certainly don't.

    Certain are only: deny and ask rules that are new, removing an allow rule without conditions and total, and other
    reasons. A new ask rule must not replace the terms of another one, as a quorum.

    Args:
        before: the stored rules in force.
        after: those that replace them.
        files: the rules of each app's file, which come after the stored ones.
    """
    old, new = _counting(before), _counting(after)
    unchanged = [name for name in new if name in old and new[name] == old[name]]
    for name, rule in old.items():
        if name in new and new[name] != rule:
            return f"rule {name!r} is changed"
        if name not in new and (problem := _removal_problem(rule)) is not None:
            return problem
    if unchanged != [name for name in old if name in new]:
        return "the order of the rules is changed"
    return _additions_problem(new, frozenset(unchanged), files)


def _counting(policy: Policy) -> dict[str, Rule]:
    """Return name → rule of those that count, without reasons, in their order."""
    return {rule.name: rule.model_copy(update={"reason": ""}) for rule in policy.rule if not rule.shadow}


def _removal_problem(rule: Rule) -> str | None:
    if rule.verdict != "allow":
        return f"rule {rule.name!r} ({rule.verdict}) is removed"
    if rule.total is not None:
        return f"rule {rule.name!r} is removed: calls beyond its total would no longer ask because of it"
    if _is_conditional(rule):
        # Where it can't be evaluated no judge is asked, and its pointers say where protected places are looked for.
        return f"rule {rule.name!r} is removed: calls for which it can't be evaluated could be left to a judge"
    return None


def _additions_problem(new: dict[str, Rule], unchanged: frozenset[str], files: Sequence[Policy]) -> str | None:
    """Return why the rules that are new may loosen. From the last rule on, to know which terms come later."""
    of_files = [rule for file in files for rule in _counting(file).values()]
    later = _terms_of(of_files)
    # A rule that certainly asks comes before each that can't be evaluated, wherever that is in the order.
    existing = [*of_files, *(new[name] for name in unchanged)]
    doubtful = _terms_of([rule for rule in existing if _is_conditional(rule)])
    for name, rule in reversed(new.items()):
        if name in unchanged:
            later |= _terms_of([rule])
            continue
        problem = _addition_problem(rule, later, doubtful)
        if problem is not None:
            return problem
    return None


def _addition_problem(rule: Rule, later: set[str], doubtful: set[str]) -> str | None:
    if rule.verdict == "allow":
        return f"rule {rule.name!r} allows calls"
    if rule.judge is not None:
        return f"rule {rule.name!r} lets a judge answer"
    if rule.grantable:
        return f"rule {rule.name!r} lets grants answer"
    if rule.verdict == "ask":
        replaces = not later | doubtful <= {_key(rule.terms, rule.risk)}
    else:  # a deny rule that can't be evaluated asks, on plain terms
        replaces = _is_conditional(rule) and not doubtful <= {_key(PLAIN_TERMS, rule.risk)}
    return f"rule {rule.name!r} could replace the terms of another rule that asks" if replaces else None


def _is_conditional(rule: Rule) -> bool:
    """Tell whether the rule may be unclear about a call, or says where arguments are looked for."""
    return any(getattr(rule, name) != field.default for name, field in Matchers.model_fields.items())


def _terms_of(rules: Sequence[Rule]) -> set[str]:
    """Return the terms, with the risk, of those that ask."""
    return {_key(rule.terms, rule.risk) for rule in rules if rule.verdict == "ask"}


def _key(terms: AskTerms, risk: Risk | None) -> str:
    return f"{risk} {terms.model_dump_json()}"
