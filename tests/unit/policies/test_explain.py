"""Explanations: the engine's own answer, with a reason for every rule and grant."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, BeforeValidator, Field

from turngate import Policy, Rule
from turngate.cli.commands.policy.trials import explained
from turngate.domain.policy.grants import Grant, GrantPattern
from turngate.domain.policy.policy import evaluate
from turngate.domain.tools.declare import interaction_tool
from turngate.domain.tools.known_tools import KnownConfinement, KnownTool, known
from turngate.domain.tools.tool import ProcessConfinement
from turngate.policies.explain import AskedCall, examine, explain, in_order, in_words, rule_views, why_not
from turngate.policies.facts import call_facts
from turngate.toolkits.coding import coding_toolkit
from turngate.toolkits.shell import BashParams
from turngate.wire.orders import PolicyQuestion

RUN = KnownTool(name="run_command", effect="once", own_ask="always")


def rule(name: str, verdict: Any, **options: Any) -> Rule:
    return Rule(**{"name": name, "verdict": verdict, "tools": ["*"], **options})


def explanation(
    *rules: Rule, args: str = '{"command": "git status"}', tool: KnownTool = RUN, grants: Any = (), **options: Any
):
    call = AskedCall(tool=tool.stand_in(), raw_input=args, agent=options.pop("agent", "ops"), **options)
    return explain(in_order(("file", Policy(rule=list(rules)))), call, grants=grants)


def grant(**options: Any) -> Grant:
    pattern = GrantPattern(tool="run_command", fixed={"command": "git status"})
    defaults = {"id": "grant_1", "pattern": pattern, "scope": "everyone", "run_id": None, "agent": None, "max_uses": 1}
    rest = {"uses": 0, "created_by": "ann", "expires_at": datetime(2999, 1, 1, tzinfo=UTC)}
    return Grant(**{**defaults, **rest, **options})


def test_rules_are_listed_in_their_order_with_a_reason_each() -> None:
    """Deny, ask, allow, stored before the file's; the deciding rule is marked, and every other says why it did not."""
    stored = Policy(rule=[rule("look", "allow", command=["git log *"])])
    file = Policy(
        rule=[
            rule("reads", "allow", command=["git status"]),
            rule("money", "ask", tools=["refund"]),
            rule("no-rm", "deny", command=["rm"]),
            rule("interns", "ask", agents=["intern*"]),
        ]
    )
    placed = in_order(("stored", stored), ("file", file))
    assert [(each.place, each.name, each.source) for each in rule_views(placed)] == [
        (1, "no-rm", "file"),
        (2, "money", "file"),
        (3, "interns", "file"),
        (4, "look", "stored"),
        (5, "reads", "file"),
    ]
    call = AskedCall(tool=RUN.stand_in(), raw_input='{"command": "git status"}', agent="ops")
    answer = explain(placed, call)
    assert (answer.answer, answer.rule) == ("allow", "reads")
    assert [each.name for each in answer.rules if each.decides] == ["reads"]
    assert {each.name: (each.match, each.why) for each in answer.rules} == {
        "no-rm": ("no", "no command of the line fits a pattern"),
        "money": ("no", "it is about the tools refund"),
        "interns": ("no", "it is about the agents intern*"),
        "look": ("no", "'git status' fits no pattern"),
        "reads": ("yes", "every command of the line fits a pattern"),
    }


@pytest.mark.parametrize(
    ("own_ask", "answer", "rule_name"),
    [
        ("always", "ask", "tool:ask"),
        ("never", "allow", "tool:ask"),
        ("unset", "ask", "default"),
        ("computed", "depends", "tool:ask"),
        ("unknown", "depends", "tool:ask"),
    ],
)
def test_without_a_rule_the_tools_own_ask_decides_or_is_unknown(own_ask: Any, answer: str, rule_name: str) -> None:
    """What only the app knows is called unknown, not guessed; a rule that decides does not need it."""
    tool = KnownTool(name="run_command", own_ask=own_ask)
    result = explanation(rule("no-rm", "deny", command=["rm"]), tool=tool)
    assert (result.answer, result.rule) == (answer, rule_name)
    assert (result.terms is not None) == (answer == "ask")
    assert explanation(rule("all", "allow"), tool=tool).answer == "allow"


def test_an_unclear_rule_is_marked_as_deciding() -> None:
    """An unclear deny rule is marked as the one that decided, and its reason says why."""
    result = explanation(rule("no-rm", "deny", command=["rm"]), rule("all", "allow"), args='{"command": "$X y"}')
    assert (result.answer, result.rule) == ("ask", "no-rm")
    assert [(each.name, each.match) for each in result.rules if each.decides] == [("no-rm", "unclear")]


TOTAL = {"at": "/cents", "most": 100, "per": "day"}


@pytest.mark.parametrize(
    ("cents", "used", "answer", "why"),
    [
        ("5", None, "allow", "it allows a total of 100 at /cents per day (UTC)"),
        ("5", {}, "allow", "of which 0 is used"),
        ("5", {"rule:small day /cents": 95_000_000}, "allow", "of which 95 is used"),
        ("5.5", {"rule:small day /cents": 95_000_000}, "ask", "of which 95 is used"),
        ('"-5"', {}, "ask", "of which 0 is used"),
    ],
)
def test_a_total_is_explained_with_what_is_used_of_it(cents: str, used: Any, answer: str, why: str) -> None:
    """As the door would answer now: the rule decides both ways, and says how much of its total is used."""
    placed = in_order(("file", Policy(rule=[rule("small", "allow", total=TOTAL)])))
    call = AskedCall(tool=RUN.stand_in(), raw_input=f'{{"cents": {cents}}}', agent="ops")
    result = explain(placed, call, used=used)
    assert (result.answer, result.rule) == (answer, "small")
    assert [(each.decides, each.match) for each in result.rules] == [(True, "yes")]
    assert result.rules[0].why.endswith(why)
    assert (rule_views(placed, used)[0].total_used is None) is (used is None)


def test_shadow_rules_are_listed_separately() -> None:
    """A shadow rule decides nothing; what it would have changed is next to the answer."""
    result = explanation(rule("soon", "deny", shadow=True), rule("all", "allow"))
    assert (result.answer, [each.name for each in result.rules if each.decides]) == ("allow", ["all"])
    assert result.shadow is not None
    assert (result.shadow.answer, result.shadow.rule) == ("deny", "soon")


def test_an_unattended_run_is_explained_with_its_answer() -> None:
    """Asking becomes a refusal that names what would allow it."""
    result = explanation(rule("careful", "ask"), unattended="deny")
    assert (result.answer, result.rule) == ("deny", "unattended")
    assert "careful" in result.reason


@pytest.mark.parametrize(
    ("rules", "options", "covers", "why"),
    [
        ([], {}, True, "the call fits its pattern"),
        ([rule("no", "deny")], {}, False, "the rule 'no' denies the call"),
        ([rule("each", "ask")], {}, False, "it does not answer the rule 'each', which asks"),
        ([rule("each", "ask", grantable=True)], {}, True, "the call fits its pattern"),
        ([rule("later", "ask", shadow=True)], {}, True, "the call fits its pattern"),
        (
            [rule("rm", "deny", args=[{"at": "/force", "op": "ne", "value": True}])],
            {},
            False,
            "the rule 'rm' cannot tell whether it covers the call, so a person is asked",
        ),
        ([], {"scope": "run", "run_id": "run_9"}, False, "it is for the run run_9"),
        ([], {"scope": "agent", "agent": "dev"}, False, "it is for the agent dev"),
        ([], {"scope": "agent", "agent": "ops"}, True, "the call fits its pattern"),
        (
            [],
            {"pattern": GrantPattern(tool="run_command", fixed={"command": "ls"})},
            False,
            'it wants command to be exactly "ls"',
        ),
    ],
)
def test_grants_are_listed_with_the_rules_before_them(rules: list[Rule], options: Any, covers: bool, why: str) -> None:
    """A grant says whether it covers the call, and it does exactly when the answer is its own."""
    result = explanation(*rules, grants=[grant(**options)])
    assert [(each.covers, each.why) for each in result.grants] == [(covers, why)]
    assert (result.grant_id == "grant_1") == covers


FIXED = st.dictionaries(st.sampled_from("abc"), st.sampled_from([1, True, 1.0, "1", None, [1], {"x": 1}]), max_size=3)


@given(fixed=FIXED, arguments=FIXED, free=st.sets(st.sampled_from("abc")))
def test_a_pattern_says_why_exactly_when_a_call_does_not_fit(fixed: Any, arguments: Any, free: set[str]) -> None:
    """The reason and the matcher never disagree; the reason names every argument."""
    pattern = GrantPattern(tool="pay", fixed=fixed, open=sorted(free - set(fixed)))
    assert (why_not(pattern, "pay", arguments) is None) == pattern.fits("pay", arguments)
    words = in_words(pattern)
    assert all(f"{name} exactly" in words for name in pattern.fixed)
    assert all(f"any {name}" in words for name in pattern.open)


def test_reasons_never_disagree_with_the_engine() -> None:
    """For rules and calls of every kind, the explanation has the rule's own match."""
    rules = [
        rule("tool", "deny", tools=["pay"]),
        rule("agent", "ask", agents=["dev"]),
        rule("arg", "allow", args=[{"at": "/n", "op": "gt", "value": 5}]),
        rule("cmd", "deny", command=["rm *"]),
        rule("path", "ask", paths=["**/.env"]),
        rule("where", "allow", workspaces=["/srv/**"]),
    ]
    calls = ['{"n": 7}', '{"n": "7"}', '{"command": "rm -rf x"}', '{"command": "$(x"}', '{"path": ".env"}', "{}", "NaN"]
    for each, raw, agent, tool in itertools.product(rules, calls, ["dev", "ops"], ["pay", "run_command"]):
        facts = call_facts(raw, "/srv/work")
        finding = examine(each, tool=tool, agent=agent, facts=facts)
        assert finding.match == each.matches(tool=tool, agent=agent, facts=lambda facts=facts: facts)
        assert finding.reason
        answer = explain(
            in_order(("file", Policy(rule=rules))), AskedCall(tool=RUN.stand_in(), raw_input=raw, agent=agent)
        )
        engine = evaluate(
            Policy(rule=rules), RUN.stand_in(), None, agent=agent, facts=lambda raw=raw: call_facts(raw, None)
        )
        assert (answer.answer, answer.rule) == (engine.answer, engine.rule)


def test_what_always_asks_is_explained_as_the_engine_answers() -> None:
    """Neither a rule nor a grant allows a call that asks for the network, or one that runs unconfined, even by name only."""
    bash = known(coding_toolkit().find("bash"))
    network = '{"command": "git status", "network": true}'
    everything = rule("all", "allow")
    assert explanation(everything, tool=bash).answer == "allow"
    verdict = explanation(
        everything,
        tool=bash,
        args=network,
        grants=[grant(pattern=GrantPattern(tool="bash", fixed={}, open=["command", "network"]))],
    )
    assert (verdict.answer, verdict.rule, verdict.risk) == ("ask", "network", "high")
    assert not any(each.decides for each in verdict.rules)
    assert [(each.covers, each.why) for each in verdict.grants] == [
        (False, "a call that runs unconfined, or asks for the network, needs a person each time")
    ]
    assert explanation(everything, tool=bash, args='{"command": "x", "network": "maybe"}').answer == "ask"
    assert explanation(everything, tool=bash, args='{"command": "x", "network": false}').answer == "allow"
    assert explanation(rule("no", "deny"), tool=bash, args=network).rule == "no"
    nowhere = ProcessConfinement(confined=False, text="Runs unconfined.")
    open_bash = bash.model_copy(update={"confinement": KnownConfinement(plain=nowhere, network=nowhere)})
    assert (explanation(everything, tool=open_bash).rule, explanation(everything, tool=open_bash).reason) == (
        "unconfined",
        "Runs unconfined.",
    )
    assert KnownTool.model_validate_json(bash.model_dump_json()) == bash
    call = AskedCall(
        tool=coding_toolkit().find("bash"),
        raw_input=network,
        agent="ops",
        params=BashParams(command="ls", network=True),
    )
    assert explain(in_order(("file", Policy(rule=[everything]))), call).rule == "network"


def trimmed(value: Any) -> Any:
    return value.strip() if isinstance(value, str) else value


class Plain(BaseModel):
    path: str
    keep: list[str] = []


class Trimmed(BaseModel):
    path: Annotated[str, BeforeValidator(trimmed)]


class Stamped(BaseModel):
    path: str = Field(default_factory=lambda: "/srv")


@pytest.mark.parametrize(("params", "has_note"), [(Plain, False), (Trimmed, True), (Stamped, True)])
def test_an_explanation_names_validators_that_it_did_not_apply(params: type[BaseModel], has_note: bool) -> None:
    """Where the tool's own code reads the arguments, and wherever that isn't known."""
    delete = interaction_tool(name="delete", description="", params=params, answer=Plain)
    notes = known(delete).unread('{"path": " /srv "}')
    assert any("validators of delete were not applied" in each for each in notes) == has_note
    question = PolicyQuestion(tool="delete", args="{}")
    assert any("validators of delete" in each for each in explained(question, rules=Policy(), app_name=None).notes)


def test_a_grant_by_anyone_who_led_to_the_call_answers_no_rule_for_other_eyes() -> None:
    """The edit's check compares grants with everyone who counts as the starter, as the door does."""
    wants_others = rule("others", "ask", starter_may_decide=False, grantable=True)
    granted = grant(created_by="bob")
    for starters, answer in ((("ann",), "allow"), (("ann", "bob"), "ask")):
        assert explanation(wants_others, grants=[granted], starters=starters).answer == answer
