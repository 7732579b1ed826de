"""Cases on the real engine: one server, one report, a case for each fact."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from turngate import Agent, App, Limits, Price, Toolkit, interaction_tool, sub_agent, tool
from turngate.domain.agents.app import Handler
from turngate.domain.errors import ConfigurationError
from turngate.domain.policy.policy import parse_policy
from turngate.evals import Approver, Attempt, Case, CaseRun, EvalOptions, Expect, Report, parse_cases, run_cases
from turngate.evals.planning import plan
from turngate.models.registry import Models, ModelSettings
from turngate.models.scripted import ScriptedModel

POLICY = """
[[rule]]
name = "two-people"
verdict = "ask"
tools = ["wire"]
quorum = 2

[[rule]]
name = "ada-alone"
verdict = "ask"
tools = ["seal"]
people = ["ada"]

[[rule]]
name = "a-minute"
verdict = "ask"
tools = ["hurry"]
expires_after_seconds = 60
"""


class Amount(BaseModel):
    amount: int


class Done(BaseModel):
    done: int


class Answer(BaseModel):
    answer: str


@tool(effect="read", ask=False)
async def look(params: Amount) -> Done:
    """Look."""
    raise AssertionError("every case swaps this")


@tool(effect="once", ask=True)
async def pay(params: Amount) -> Done:
    """Pay."""
    return Done(done=params.amount)


@tool(effect="once", ask=True)
async def wire(params: Amount) -> Done:
    """Wire."""
    return Done(done=params.amount)


@tool(effect="once", ask=True)
async def seal(params: Amount) -> Done:
    """Seal."""
    return Done(done=params.amount)


@tool(effect="once", ask=True)
async def hurry(params: Amount) -> Done:
    """Hurry."""
    return Done(done=params.amount)


asks_back = interaction_tool(name="asks_back", description="Ask.", params=Amount, answer=Answer)
helper = Agent(name="helper", instructions="Help.", toolkit=Toolkit.of(pay), model="scripted:helper.yaml")
clerk = Agent(
    name="clerk",
    instructions="Work.",
    toolkit=Toolkit.of(look, pay, wire, seal, hurry, asks_back, sub_agent(helper)),
    model="scripted:says.yaml",
    limits=Limits(steps=8),
)
app = App(
    agents=[clerk],
    policy=parse_policy(POLICY, source="the test's"),
    prices={f"scripted:{name}.yaml": Price(input=Decimal(1), output=Decimal(2)) for name in ("pays", "helper")},
)


def calls(*tools: str, amount: int = 7, end: str = "{{last_result}}", **more: Any) -> dict[str, Any]:
    """A script: each tool is called in a step of its own, then the model answers."""
    usage = {"usage": {"input_tokens": 10, "output_tokens": 5}}
    steps = [{"calls": [{"tool": each, "input": {"amount": amount}}], **usage, **more} for each in tools]
    return {"responses": [*steps, {"text": end, **usage}]}


HELP = {"responses": [{"calls": [{"tool": "helper", "input": {"task": "pay"}}]}, {"text": "helped"}]}
SCRIPTS = {
    "says": calls(end="hello"),
    "looks": calls("look"),
    "pays": calls("pay"),
    "pays_twice": {
        "responses": [
            {"calls": [{"tool": "pay", "input": {"amount": 20}}, {"tool": "pay", "input": {"amount": 21}}]},
            {"text": "{{last_result}}"},
        ]
    },
    "wires": calls("wire"),
    "seals": calls("seal"),
    "hurries": calls("hurry"),
    "asks": calls("asks_back"),
    "helps": HELP,
    "helper": calls("pay", amount=3),
    "slow": {"responses": [{"text": "late", "delay_seconds": 60}]},
    "json": calls(end='{"a": [1, 2.0], "b": "x"}'),
    "breaks": {"responses": [{"text": "", "error": {"class": "authentication", "message": "no key", "times": 99}}]},
    "talks": {"runs": [{"responses": [{"text": "first"}]}, {"responses": [{"text": "second"}]}]},
}


@dataclass
class Seen:
    """What the checks and handlers of the cases received."""

    checked: list[CaseRun] = field(default_factory=list)
    worlds: int = 0
    workspace: Path | None = None
    special: Path | None = None
    broken: bool = False

    def look_at_workspace(self, run: CaseRun) -> bool:
        here = Path(run.runs[0].workspace or "")
        return here != self.workspace and (here / "a.txt").read_text() == "of the case"

    def once(self) -> dict[str, Handler]:
        if self.broken:
            raise OSError("no more worlds")
        self.broken = True
        return {}

    def fresh_world(self) -> dict[str, Handler]:
        self.worlds += 1
        looked = 0

        async def look_here(params: Amount) -> Done:
            nonlocal looked
            looked += 1
            return Done(done=looked)

        return {"look": look_here}


def _case(name: str, script: str | None = None, **more: Any) -> Case:
    model = {} if script is None else {"model": f"scripted:{script}.yaml"}
    return Case.model_validate({"name": name, "message": "go", **model, **more})


async def _looked(params: Amount) -> Done:
    return Done(done=params.amount + 1)


def _raises(run: CaseRun) -> None:
    assert run.steps == 99, f"{run.steps} steps"


def cases(seen: Seen) -> list[Case]:
    yes = {"do": "approve"}
    slow = ScriptedModel.from_text(json.dumps(SCRIPTS["says"]), "an-object")
    return [
        _case("plain", check=seen.checked.append),
        _case("object", None, model=slow, expect={"text": "hello"}),
        _case("returns", "looks", handlers={"look": {"returns": {"done": 41}}}, expect={"text": '{"done":41}'}),
        _case("function", "looks", handlers={"look": _looked}, expect={"text": '{"done":8}', "asks": 0}),
        _case("fresh", "looks", handlers=seen.fresh_world, expect={"text": '{"done":1}'}),
        _case("approved", "pays", approvers=[yes], check=seen.checked.append, expect={"max_cost": "0.001", "asks": 1}),
        _case("edited", "pays", approvers=[{"do": "edit", "args": {"amount": 2}}], expect={"text": '{"done":2}'}),
        _case("rejected", "pays", approvers=[{"do": "reject", "reason": "no money"}], expect={"text": "no money"}),
        _case(
            "by arguments",
            "pays_twice",
            approvers=[{"tool": "p*", "when": {"amount": {"$at_most": 20}}, "do": "approve"}, {"do": "reject"}],
            expect={
                "calls": [
                    {"tool": "pay", "args": {"amount": 20}, "result": "ok", "count": 1},
                    {"tool": "pay", "args": {"amount": 21}, "result": "rejected", "count": 1},
                ],
                "in_order": True,
                "asks": {"max": 2},
            },
        ),
        _case("no approver", "pays"),
        _case("rejects by itself", "pays", unanswered="reject", expect={"text": "rejected"}),
        _case("used up", "pays_twice", approvers=[yes | {"times": 1}]),
        _case("answered", "asks", approvers=[yes, {"do": "respond", "args": {"answer": "42"}}], expect={"text": "42"}),
        _case("quorum", "wires", approvers=[yes], expect={"asks": 1}),
        _case("one of two", "wires", approvers=[yes | {"by": "ada"}]),
        _case("not eligible", "seals", approvers=[yes]),
        _case("eligible", "seals", approvers=[yes | {"by": "ada"}]),
        _case("expires", "hurries", approvers=[{"do": "expire"}], expect={"text": "expired"}),
        _case("never expires", "pays", approvers=[{"do": "expire"}]),
        _case("below", "helps", approvers=[yes], check=seen.checked.append, expect={"calls": ["helper", "pay"]}),
        _case(
            "below, by another model",
            "helps",
            models={"helper": "scripted:pays.yaml"},
            approvers=[{"agent": "clerk", "do": "reject"}, {"agent": "help*", "do": "edit", "args": {"amount": 8}}],
            expect={"calls": [{"tool": "pay", "args": {"amount": 7}, "result": "ok"}]},
        ),
        _case("slow", "slow", timeout_seconds=0.6),
        _case("json", "json", expect={"text": {"json": {"b": "x", "a": [1, 2]}}}),
        _case("fails", "breaks", expect={"outcome": "provider_error"}),
        _case("two messages", "talks", message=None, messages=("one", "two"), expect={"text": "second"}),
        _case(
            "all wrong",
            "pays",
            approvers=[yes],
            check=_raises,
            expect={
                "outcome": "interrupted",
                "text": {"contains": "gold", "lacks": "done", "matches": "^x", "json": {"done": True}},
                "calls": [{"tool": "look"}, {"tool": "pay", "args": {"amount": 8}}, {"tool": "pay", "count": 2}],
                "not_called": ["p*"],
                "asks": {"min": 2},
                "max_steps": 1,
                "max_tokens": 29,
                "max_cost": "0.00003",
            },
        ),
        _case(
            "order",
            "pays_twice",
            unanswered="reject",
            expect={"calls": [{"tool": "pay", "args": {"amount": each}} for each in (21, 20)], "in_order": True},
        ),
        _case("workspace", workspace=seen.workspace, check=seen.look_at_workspace),
        _case("broken world", handlers=seen.once),
        _case("broken workspace", workspace=seen.special),
        _case("check says", check=lambda run: f"{run.final_text} is not enough"),
        _case("check says no", check=lambda run: run.steps == 99),
    ]


@dataclass
class Evaluated:
    report: Report
    seen: Seen
    attempts: list[Attempt]

    def one(self, case: str) -> Attempt:
        (attempt,) = self.report.of(case=case)
        return attempt


@pytest.fixture(scope="module")
async def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Evaluated:
    base = tmp_path_factory.mktemp("evals")
    for name, script in SCRIPTS.items():
        (base / f"{name}.yaml").write_text(json.dumps(script))
    workspace = base / "files"
    workspace.mkdir()
    (workspace / "a.txt").write_text("of the case")
    special = base / "special"
    special.mkdir()
    os.mkfifo(special / "pipe")
    seen, attempts = Seen(workspace=workspace, special=special), []
    report = await run_cases(app, cases(seen), EvalOptions(parallel=6, base=base), on_attempt=attempts.append)
    return Evaluated(report, seen, attempts)


@pytest.mark.parametrize(
    "name",
    [
        *("plain", "object", "returns", "function", "fresh", "approved", "edited", "rejected", "by arguments"),
        *("rejects by itself", "answered", "quorum", "eligible", "expires", "below", "json", "fails", "two messages"),
        *("workspace", "below, by another model"),
    ],
)
def test_a_case_that_goes_as_expected_passes(evaluated: Evaluated, name: str) -> None:
    """Handlers are replaced, requests are answered, time is skipped and answers are compared as the case says."""
    attempt = evaluated.one(name)
    assert (attempt.status, attempt.reasons) == ("passed", ())


@pytest.mark.parametrize(
    ("name", "outcome", "reason"),
    [
        ("no approver", "interrupted", 'no approver answers: approval for pay {"amount": 7} (rule tool:ask)'),
        ("used up", "interrupted", 'no approver answers: approval for pay {"amount": 21}'),
        ("one of two", "interrupted", "wire needs 2 approvals, and `by` names 1"),
        ("not eligible", "interrupted", "eval's approve of seal was refused: its rule lets others decide: ada"),
        ("never expires", "interrupted", "the request for pay never expires"),
        ("slow", "interrupted", "it took longer than 0.6 s"),
        ("check says", "completed", "check: hello is not enough"),
        ("check says no", "completed", "check returned False"),
        ("broken world", None, "raised OSError: no more worlds"),
        ("broken workspace", None, "it could not be run: Error: "),
        ("order", "completed", "pay with {'amount': 20} was not called in its place: pay, pay"),
    ],
)
def test_a_case_that_goes_otherwise_says_why(evaluated: Evaluated, name: str, outcome: str | None, reason: str) -> None:
    """Nothing is approved by itself: a request that no approver answers, or may answer, interrupts the run with that reason."""
    attempt = evaluated.one(name)
    assert (attempt.status, attempt.outcome, len(attempt.reasons)) == ("failed", outcome, 1)
    assert reason in attempt.reasons[0]


def test_every_expectation_that_does_not_hold_is_named(evaluated: Evaluated) -> None:
    """In a case where every expectation fails, each has a reason of its own."""
    beginnings = [
        "the outcome is completed, not interrupted",
        "the answer does not contain 'gold'",
        "the answer contains 'done'",
        "the answer does not match '^x'",
        'the answer is not {"done": true}',
        "look was called 0 time(s)",
        "pay with {'amount': 8} was called 0 time(s)",
        "pay was called 1 time(s), not 2",
        "p* was called 1 time(s), not 0: pay",
        "people were asked 1 time(s), not at least 2: pay",
        "it took 2 steps, and 1 is the most",
        "it took 30 tokens, and 29 is the most",
        "it cost 0.00004, and 0.00003 is the most",
        "check: 2 steps",
    ]
    reasons = evaluated.one("all wrong").reasons
    assert [reason[: len(begins)] for reason, begins in zip(reasons, beginnings, strict=True)] == beginnings


def test_the_report_says_who_decided(evaluated: Evaluated) -> None:
    """Approvers have names; where several must agree, they are different people."""
    decisions = {
        name: [(each.verb, each.by) for each in evaluated.one(name).decisions] for name in ("quorum", "eligible")
    }
    assert decisions == {"quorum": [("approve", "eval"), ("approve", "eval-2")], "eligible": [("approve", "ada")]}


def test_what_a_case_used_counts_its_sub_agents(evaluated: Evaluated) -> None:
    """Steps, asks, tokens and calls count the sub-agents' too; the cost is known if every model has a price."""
    below, approved = evaluated.one("below"), evaluated.one("approved")
    assert (below.steps, below.asks, below.tokens, below.cost) == (4, 1, 30, Decimal("0.00004"))
    assert (approved.steps, approved.tokens, approved.cost) == (2, 30, Decimal("0.00004"))
    run = next(run for run in evaluated.seen.checked if run.case == "below")
    assert [call.tool_name for call in run.calls] == ["helper", "pay"]
    assert [each.agent for each in run.family] == ["clerk", "helper"]
    # This one's model has no price.
    assert evaluated.one("rejected").cost is not None
    assert evaluated.one("json").cost == 0, "a script costs nothing unless it has a price"


def test_the_report_keeps_the_order_and_reads_back(evaluated: Evaluated) -> None:
    """Attempts are in the order of the cases, whichever ended first; the JSON reads back as the same report."""
    names = [case.name for case in cases(Seen())]
    assert [attempt.case for attempt in evaluated.report.attempts] == names
    assert sorted(attempt.case for attempt in evaluated.attempts) == sorted(names)
    assert Report.model_validate_json(evaluated.report.as_json()) == evaluated.report
    assert evaluated.seen.worlds == 2  # once when the cases were checked, and once for the attempt
    with pytest.raises(AssertionError, match="no approver answers"):
        evaluated.report.check()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("agent: missing", "agent: there is no agent 'missing'; the agents are: clerk, helper"),
        (
            "approvers: [{tool: pays, do: approve}]",
            "approvers[0].tool: no agent has a tool 'pays'; the tools are: asks",
        ),
        ("expect: {not_called: [lok]}", "expect.not_called[0].tool: no agent has a tool 'lok'"),
        ("handlers: {loook: {returns: 1}}", "handlers.loook: no agent has a tool 'loook'"),
        ("handlers: {look: {returns: {done: x}}}", "handlers.look.returns: that is not a result of the tool: done"),
        ("handlers: {look: {fails: {kind: gone}}}", "handlers.look.fails.kind: 'gone' is not a failure that the tool"),
        ("handlers: {helper: {returns: {}}}", "tool 'helper' is of kind agent, which has no handler"),
        ("handlers: 'builtins:len'", "handlers: <built-in function len> raised TypeError"),
        ("handlers: 'builtins:list'", "returned no mapping of tools to handlers: []"),
        ("handlers: 'json:away'", "handlers: module 'json' has no function 'away'"),
        ("handlers: {look: 'json:dumps'}", "its handler dumps must be an async function"),
        ("check: no_such_module:f", "check: no_such_module cannot be imported: ModuleNotFoundError"),
        ("check: json", "check: 'json' is not of the form module:function"),
        ("model: nothing", "there is no model profile 'nothing'"),
        (
            "models: {missing: 'scripted:says.yaml'}",
            "models: there is no agent 'missing'; the agents are: clerk, helper",
        ),
        ("models: {helper: 'scripted:away.yaml'}", "the model of 'helper': the script"),
        ("approvers: [{agent: missing, do: approve}]", "approvers[0].agent: there is no agent 'missing'"),
        ("model: 'scripted:away.yaml'", "model: the script"),
        ("workspace: /no/such/place", "workspace: /no/such/place is not a directory"),
    ],
)
async def test_what_does_not_fit_the_app_is_refused_before_anything_runs(
    wrong: str, message: str, tmp_path: Path
) -> None:
    """An unknown name is reported with its place; no server starts and no directory is created."""
    (tmp_path / "says.yaml").write_text(json.dumps(SCRIPTS["says"]))
    parsed = parse_cases(f"cases:\n- name: one\n  message: go\n  {wrong}\n", "cases.yaml")
    store = tmp_path / "kept"
    with pytest.raises(ConfigurationError) as refused:
        await run_cases(app, parsed, EvalOptions(base=tmp_path, keep=store))
    assert refused.value.message.startswith("cases.yaml, line 2: cases[0] ('one'), ")
    assert message in refused.value.message
    assert not store.exists()


async def test_models_to_compare_are_looked_at_first(tmp_path: Path) -> None:
    """A model that can't be called is reported once, however many cases there are."""
    parsed = parse_cases("cases: [{name: a, message: b}, {name: c, message: d}]", "cases.yaml")
    with pytest.raises(ConfigurationError) as refused:
        await run_cases(app, parsed, EvalOptions(models=["scripted:away.yaml"], base=tmp_path))
    assert refused.value.message.startswith("the models to compare: the script")


def test_models_are_chosen_by_agent(tmp_path: Path) -> None:
    """A bare model replaces the case's agent's; a named one, or `*`, a sub-agent's too; the report repeats the option's words."""
    for name in ("says", "pays", "helper"):
        (tmp_path / f"{name}.yaml").write_text(json.dumps(SCRIPTS[name]))
    says, pays = "scripted:says.yaml", "scripted:pays.yaml"
    words = [says, f"helper={pays}", f"clerk={says},helper={pays}", f"*={pays},clerk={says}"]
    models = Models(ModelSettings(script_base=tmp_path))
    one = _case("one", models={"helper": says})
    planned = [(each.name, each.spec, dict(each.models)) for each in plan(app, [one], models, specs=words)]
    both = {"clerk": says, "helper": pays}
    assert planned == [
        (words[0], says, {"helper": says}),
        (words[1], None, {"helper": pays}),
        (words[2], says, both),
        (words[3], says, both),
    ]
    plain = plan(app, [_case("one")], models, specs=[says])
    assert (plain[0].spec, plain[0].models) == (says, {})
    for wrong, message in ((f"missing={says}", "there is no agent 'missing'"), ("clerk=", "write AGENT=MODEL")):
        with pytest.raises(ConfigurationError, match=message):
            plan(app, [one], models, specs=[wrong])


async def test_a_directory_with_something_in_it_is_not_written_to(tmp_path: Path) -> None:
    """Runs are only stored in an empty directory."""
    (tmp_path / "says.yaml").write_text(json.dumps(SCRIPTS["says"]))
    with pytest.raises(ConfigurationError, match="is not an empty directory"):
        await run_cases(app, [_case("one")], EvalOptions(base=tmp_path, keep=tmp_path))
    assert os.listdir(tmp_path) == ["says.yaml"]  # noqa: PTH208 - pathlib's own would block, says ruff


def test_python_and_yaml_make_the_same_case() -> None:
    """A case in YAML has the same fields as the classes."""
    written = parse_cases(
        "cases: [{name: a, message: go, approvers: [{do: approve}], expect: {asks: 2, text: hi}}]", "cases.yaml"
    )
    built = Case(
        name="a",
        message="go",
        approvers=(Approver(do="approve"),),
        expect=Expect.model_validate({"asks": {"min": 2, "max": 2}, "text": {"contains": ["hi"]}}),
    )
    assert written[0].model_dump() == built.model_dump()
