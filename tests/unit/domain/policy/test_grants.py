"""What a grant never overrides, and which patterns are refused."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, JsonValue, ValidationError

from turngate import Policy, Rule, tool
from turngate.domain.errors import InvalidInputError
from turngate.domain.policy.grants import Grant, GrantPattern, exact_pattern
from turngate.domain.policy.limits import ValueLimit
from turngate.domain.policy.policy import evaluate, led_elsewhere
from turngate.domain.text.json_pointers import decode_arguments
from turngate.policies.facts import call_facts


class Amount(BaseModel):
    cents: int


class Page(BaseModel):
    path: str


@tool(effect="once", ask=True)
async def pay(params: Amount) -> None:
    """Pay."""


@pytest.mark.parametrize(
    "pattern",
    [
        {"fixed": {"a": 1}, "open": ["a"]},
        {"open": ["a", "a"]},
        {"fixed": {"a": [float("inf")]}},
        {"fixed": {"a": {"b": float("inf")}}},
        {"fixed": {"a": float("nan")}},
    ],
)
def test_a_pattern_that_contradicts_itself_or_is_no_json_is_refused(pattern: Any) -> None:
    """It would be stored differently from what people saw."""
    with pytest.raises(ValidationError):
        GrantPattern(tool="pay", **pattern)


def test_an_inexact_argument_can_be_left_open() -> None:
    """A duplicate key or a number with too many digits prevents a grant only if that argument would be fixed."""
    for raw in ('{"a": 1, "a": 2}', '{"a": 0.10000000000000000001}', '{"a": 1e999}'):
        arguments = decode_arguments(raw)
        with pytest.raises(InvalidInputError, match="leave it open"):
            exact_pattern("pay", arguments)
        assert exact_pattern("pay", arguments, open_arguments=["a"]).fits("pay", arguments)


def grant(**options: Any) -> Grant:
    defaults = {"id": "g", "pattern": GrantPattern(tool="pay", open=["cents"]), "scope": "everyone", "run_id": None}
    rest = {
        "agent": None,
        "max_uses": 1,
        "uses": 0,
        "created_by": "ann",
        "expires_at": datetime(2999, 1, 1, tzinfo=UTC),
    }
    return Grant(**{**defaults, **rest, **options})


def ask(name: str = "each", **options: Any) -> Rule:
    return Rule(name=name, verdict="ask", tools=["*"], **options)


ADMIN = {"created_by_role": "admin"}


@pytest.mark.parametrize(
    ("rules", "fields", "lets_through"),
    [
        ([Rule(name="no", verdict="deny", tools=["pay"], args=[{"at": "/x", "op": "ne", "value": 1}])], {}, False),
        ([ask(shadow=True)], {}, True),
        ([ask(grantable=True, risk="high")], {}, False),
        ([ask(grantable=True, roles=["admin"])], {}, False),
        ([ask(grantable=True, roles=["admin"])], ADMIN, True),
        ([ask(grantable=True, people=["bea"])], ADMIN, False),
        ([ask(grantable=True, people=["ann"])], {}, True),
        ([ask(grantable=True, starter_may_decide=False)], {}, True),
        ([ask(grantable=True, starter_may_decide=False)], {"created_by": "starter"}, False),
    ],
)
def test_i10_a_grant_overrides_neither_a_rule_nor_who_may_decide(
    rules: list[Rule], fields: Any, lets_through: bool
) -> None:
    """Deny, unclear and ask rules still apply, unless each is grantable and the grant's author could decide it."""
    verdict = evaluate(
        Policy(rule=rules),
        pay,
        Amount(cents=5),
        agent="support",
        facts=lambda: call_facts('{"cents": 5}', None),
        run_id="run_1",
        grants=[grant(**fields)],
        starters=("starter", "sender"),
    )
    assert (verdict.grant_id == "g") is lets_through
    assert (verdict.answer == "allow") is lets_through


@tool(effect="once", ask=True)
async def write(params: Page) -> None:
    """Write."""


@pytest.mark.parametrize(
    ("path", "lets_through"),
    [
        ("src/page", True),
        ("src/new/page", True),
        ("src/in/page", False),
        ("src/up/page", False),
        ("src/up/src/page", False),
        ("src/file", False),
        ("src" + "/a" * 300, False),
    ],
)
@pytest.mark.parametrize("exact", [False, True])
def test_i2_a_grant_covers_no_path_that_a_link_leads_elsewhere(
    tmp_path: Path, path: str, lets_through: bool, exact: bool
) -> None:
    """I2: what lies in the workspace is the agent's to replace, so a link there asks. Links on the way to it don't count."""
    (tmp_path / "real" / "src").mkdir(parents=True)
    (tmp_path / "ws").symlink_to("real")
    for name, target in (("up", ".."), ("in", "."), ("file", "/etc/passwd")):
        (tmp_path / "real" / "src" / name).symlink_to(target)
    if exact:
        pattern = GrantPattern(tool="write", fixed={"path": path})
    else:
        pattern = GrantPattern(tool="write", within={"path": ValueLimit(op="starts_with", value="src/")})
    raw = json.dumps({"path": path})
    verdict = evaluate(
        Policy(),
        write,
        Page(path=path),
        agent="a",
        facts=lambda: call_facts(raw, str(tmp_path / "ws")),
        grants=[grant(pattern=pattern)],
    )
    assert (verdict.grant_id == "g") is lets_through


@pytest.mark.parametrize(
    ("value", "is_led"),
    [
        (["src/page", "link"], True),
        ({"from": [{"to": ["link"]}]}, True),
        ({"link": "new text"}, True),
        (["src/page", {"src/x": 5}], False),
        (["src/page"] * 256, False),
        (["src/page"] * 257, True),
    ],
)
def test_i2_a_grant_covers_no_path_at_any_depth_that_a_link_leads_elsewhere(
    tmp_path: Path, value: JsonValue, is_led: bool
) -> None:
    """I2: also in lists and objects, as a value or a name; of more texts than are looked at, it isn't known."""
    (tmp_path / "link").symlink_to("/etc/passwd")
    pattern = GrantPattern(tool="write", fixed={"paths": value})
    facts = call_facts(json.dumps({"paths": value}), str(tmp_path))
    assert led_elsewhere(pattern, write, facts) == ("paths" if is_led else None)


def test_i2_a_beginning_of_what_is_no_path_covers_it_in_any_workspace(tmp_path: Path) -> None:
    """Only the tool knows what is a path: an address or a name leads where it says."""
    for workspace in (None, str(tmp_path)):
        for value, beginning in (("https://example.com/a?b=//c", "https://example.com/"), ("A-17", "A-")):
            within = {"path": ValueLimit(op="starts_with", value=beginning)}
            pattern = GrantPattern(tool="write", within=within)
            assert led_elsewhere(pattern, write, call_facts(json.dumps({"path": value}), workspace)) is None
