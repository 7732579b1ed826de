"""The form of one rule: its controls, the rule that they say, and what is wrong with each control. Pure.

A rule fits the form if the form, filled in with it, says exactly this rule again. Any other rule is changed as TOML.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, get_args

from pydantic import JsonValue, ValidationError

from turngate.domain.errors import ConfigurationError
from turngate.domain.policy.arguments import Operator
from turngate.domain.policy.policy import RISKS, Rule
from turngate.domain.text.hidden_text import escape_hidden, has_hidden
from turngate.policies.rule_text import one_rule, rule_text
from turngate.policies.rule_words import operator_words

OPERATORS: Final = tuple((op, operator_words(op)) for op in get_args(Operator))
FEWEST_ROWS: Final = 2
MOST_ROWS: Final = 50
_WITHOUT_VALUE: Final = frozenset({"exists", "absent"})
_LISTS: Final = frozenset({"in", "not_in", "between"})
_TEXTS: Final = frozenset({"starts_with", "ends_with", "glob"})
_CONTROLS: Final[Mapping[str, str]] = {
    "name": "rule-name",
    "verdict": "rule-verdict",
    "tools": "rule-tools",
    "agents": "rule-agents",
    "reason": "rule-reason",
    "risk": "rule-risk",
    "quorum": "rule-quorum",
    "expires_after_seconds": "rule-expires",
    "starter_may_decide": "rule-starter",
}
"""Member of a rule → its control. Conditions have three controls each, with the number of their row."""


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A rule that someone writes: what they typed, and the rule that this says, None if ``errors`` say why it says none.

    ``view``: they write it in the ``form`` or as ``toml``. ``errors``: control → what is wrong; ``rule``: with all of it.
    """

    view: str
    typed: Mapping[str, str]
    rule: Rule | None = None
    errors: Mapping[str, str] = field(default_factory=dict)

    @property
    def rows(self) -> range:
        """The rows of conditions to draw: those with something typed, and one to fill in."""
        return range(min(MOST_ROWS, max(FEWEST_ROWS, _rows(self.typed))))


def draft_of(rule: Rule) -> Draft:
    """Return the form filled in with a rule; a rule that doesn't fit is shown as TOML."""
    plain = rule.model_copy(update={"shadow": False})
    typed = _typed(plain)
    reading = read_form(typed)
    if reading.rule == plain and not any(has_hidden(text) for text in typed.values()):
        return reading
    return Draft(view="toml", typed={"rule-toml": rule_text(plain)}, rule=plain)


def read_draft(typed: Mapping[str, str]) -> Draft:
    """Return what was typed, with the rule that it says. ``typed["view"]``: ``toml``, or else the form."""
    return read_toml(typed) if typed.get("view") == "toml" else read_form(typed)


def switched(draft: Draft) -> Draft:
    """Return the same rule in the other view; where there is none, the same draft with an error."""
    if draft.rule is None:
        return draft
    if draft.view == "form":
        return Draft(view="toml", typed={"rule-toml": rule_text(draft.rule)}, rule=draft.rule)
    other = draft_of(draft.rule)
    if other.view == "form":
        return other
    members = draft.rule.model_dump(exclude_defaults=True, by_alias=True)
    beyond = [name for name in members if name not in _CONTROLS and name != "args"]
    what = f"The form has no fields for {', '.join(beyond)}" if beyond else "The form can't show one of its values"
    return Draft(view="toml", typed=draft.typed, rule=draft.rule, errors={"rule-toml": f"{what}: change it as TOML."})


def read_toml(typed: Mapping[str, str]) -> Draft:
    """Return the rule of the TOML that was typed. Which mode it is stored in is said by a button, not by ``shadow``."""
    text = typed.get("rule-toml", "").replace("\r\n", "\n")
    try:
        rule = one_rule(text).model_copy(update={"shadow": False})
    except ConfigurationError as error:
        return Draft(view="toml", typed=typed, errors={"rule-toml": error.message})
    return Draft(view="toml", typed=typed, rule=rule)


def read_form(typed: Mapping[str, str]) -> Draft:
    """Return the rule that the form's controls say, or what is wrong with each of them."""
    errors: dict[str, str] = {}
    places: list[int] = []
    members = _members(typed, errors)
    members["args"] = _conditions(typed, places, errors)
    if not errors:
        try:
            rule = Rule.model_validate(members)
            rule_text(rule)  # what TOML can't say can't be stored
            return Draft(view="form", typed=typed, rule=rule)
        except ValidationError as error:
            for issue in error.errors(include_url=False, include_context=False, include_input=False):
                errors.setdefault(_control(issue["loc"], places), issue["msg"].removeprefix("Value error, "))
        except ConfigurationError as error:
            errors["rule"] = error.message
    return Draft(view="form", typed=typed, errors=errors)


def _members(typed: Mapping[str, str], errors: dict[str, str]) -> dict[str, Any]:
    members: dict[str, Any] = {
        "name": typed.get("rule-name", "").strip(),
        "verdict": typed.get("rule-verdict", ""),
        "tools": _names(typed.get("rule-tools", "")),
    }
    if not members["name"]:
        errors["rule-name"] = "Give the rule a name: each verdict says which rule it is from."
    if not members["tools"]:
        errors["rule-tools"] = "Name at least one tool; * is any tool."
    if agents := _names(typed.get("rule-agents", "")):
        members["agents"] = agents
    if reason := typed.get("rule-reason", "").strip():
        members["reason"] = reason
    if risk := typed.get("rule-risk", ""):
        members["risk"] = risk
    if typed.get("rule-starter") == "no":
        members["starter_may_decide"] = False
    for name in ("quorum", "expires_after_seconds"):
        text = typed.get(_CONTROLS[name], "").strip()
        if text and not (text.isascii() and text.isdecimal() and len(text) < 10):  # noqa: PLR2004 - beyond any of their bounds
            errors[_CONTROLS[name]] = "Write a whole number."
        elif text:
            members[name] = int(text)
    return members


def _conditions(typed: Mapping[str, str], places: list[int], errors: dict[str, str]) -> list[dict[str, Any]]:
    """Return the conditions of all rows with something in them. ``places`` gets the row of each."""
    conditions: list[dict[str, Any]] = []
    for row in range(min(MOST_ROWS, _rows(typed))):
        at, op = typed.get(f"rule-at-{row}", "").strip(), typed.get(f"rule-op-{row}", "")
        value = typed.get(f"rule-value-{row}", "").replace("\r\n", "\n")
        if not at and not value.strip():
            continue
        places.append(row)
        if not at:
            errors[f"rule-at-{row}"] = "Say which argument: /amount, or /items/0/name."
        condition: dict[str, Any] = {"at": at, "op": op}
        if op not in _WITHOUT_VALUE:
            condition["value"] = _read_value(op, value)
            if condition["value"] is None:
                errors[f"rule-value-{row}"] = "Nothing equals null: use “is there” or “is not there”."
            elif not value.strip():
                errors[f"rule-value-{row}"] = "Enter a value to compare with."
        elif value.strip():
            errors[f"rule-value-{row}"] = "This comparison takes no value: leave it empty."
        conditions.append(condition)
    return conditions


def _rows(typed: Mapping[str, str]) -> int:
    """Return the number of rows up to the last one with something in it, and one more."""
    used = [
        int(name.rpartition("-")[2])
        for name, text in typed.items()
        if name.startswith(("rule-at-", "rule-value-")) and text.strip() and name.rpartition("-")[2].isdecimal()
    ]
    return max(used, default=-1) + 2


def _control(where: Sequence[int | str], places: Sequence[int]) -> str:
    if len(where) > 1 and where[0] == "args" and isinstance(where[1], int):
        part = where[2] if len(where) > 2 and where[2] in {"at", "op"} else "value"  # noqa: PLR2004 - args, its place, its part
        return f"rule-{part}-{places[where[1]]}"
    return _CONTROLS.get(str(where[0]), "rule") if where else "rule"


def _names(text: str) -> list[str]:
    return text.replace(",", " ").split()


def _typed(rule: Rule) -> dict[str, str]:
    """Return the form's controls for a rule; what has no control is left out."""
    typed = {
        "rule-name": rule.name,
        "rule-verdict": rule.verdict,
        "rule-tools": ", ".join(rule.tools),
        "rule-agents": "" if rule.agents == ["*"] else ", ".join(rule.agents),
        "rule-reason": rule.reason,
        "rule-risk": rule.risk or "",
        "rule-quorum": "" if rule.quorum == 1 else str(rule.quorum),
        "rule-expires": "" if rule.expires_after_seconds is None else str(rule.expires_after_seconds),
        "rule-starter": "" if rule.starter_may_decide else "no",
    }
    for row, matcher in enumerate(rule.args):
        typed[f"rule-at-{row}"] = matcher.at
        typed[f"rule-op-{row}"] = matcher.op
        if "value" in matcher.model_fields_set:
            typed[f"rule-value-{row}"] = _shown_value(matcher.op, matcher.value)
    return typed


# Values: a text is written without quotes unless it would read as something else.


def _read_value(op: str, text: str) -> JsonValue:
    if op in _LISTS:
        return [_read_one(line) for line in text.split("\n") if line.strip()]
    if op in _TEXTS and not text.lstrip().startswith('"'):
        return text.strip()
    return _read_one(text)


def _read_one(text: str) -> JsonValue:
    try:
        value: JsonValue = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return text.strip()
    return value


def _refuse(name: str) -> None:
    raise ValueError(name)


def _shown_value(op: str, value: JsonValue) -> str:
    if op in _LISTS and isinstance(value, list):
        return "\n".join(_shown_one(each) for each in value)
    if op in _TEXTS and isinstance(value, str) and _is_plain(value) and _read_value(op, value) == value:
        return value
    return _shown_one(value)


def _shown_one(value: JsonValue) -> str:
    if isinstance(value, str) and value and _is_plain(value) and _read_one(value) == value:
        return value
    return escape_hidden(json.dumps(value, ensure_ascii=False))


def _is_plain(text: str) -> bool:
    """Tell whether a text area shows all of a text, and sends it as it is."""
    return text.isprintable() and not has_hidden(text)


RISK_CHOICES: Final = (("", "as the tool's effect says"), *((each, each) for each in RISKS))
