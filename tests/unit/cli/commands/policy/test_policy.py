"""`turngate policy` without a server: check, explain and backtest."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from turngate.cli.main import app
from turngate.cli.options import instant_of, seconds_of
from turngate.domain.conversation.messages import user_message
from turngate.domain.errors import ConfigurationError
from turngate.domain.policy.grants import GrantPattern, WantedGrant
from turngate.domain.policy.policy import Verdict
from turngate.store.database import Database
from turngate.store.policy import grants
from turngate.store.runs import calls, messages, new_run

RULES = """
# [[rule]] in a comment is none
[[rule]]
name = "large"
verdict = "ask"
tools = ["pay"]
reason = \"\"\"
[[rule]]
\"\"\"
args = [{ at = "/cents", op = "gt", value = 100 }]

[[rule]]
name = "look"
verdict = "allow"
tools = ["look*"]

[[rule]]
name = "never"
verdict = "deny"
tools = ["pay"]
args = [{ at = "/cents", op = "gt", value = 1000 }]
"""
APP = """
from pydantic import BaseModel
from turngate import Agent, App, Toolkit, tool

class Amount(BaseModel):
    cents: int

@tool(effect="once", ask=lambda params: params.cents > 5)
async def pay(params: Amount) -> None:
    "Pay."

app = App(agents=[Agent(name="agent", instructions="x", toolkit=Toolkit.of(pay), model="scripted:x")])
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("rules.toml").write_text(RULES, encoding="utf-8")
    Path("paying_app.py").write_text(APP, encoding="utf-8")
    return tmp_path


def ran(*arguments: str, code: int = 0) -> Any:
    answer = CliRunner().invoke(app, ["policy", *arguments])
    assert answer.exit_code == code, answer.output
    return answer


def test_check_lists_rules_as_they_count_and_warns(here: Path) -> None:
    """Deny, ask, allow; a rule that can never apply, and with the app one about a tool there is not."""
    plain = ran("check", "rules.toml")
    lines = [line.split() for line in plain.stdout.splitlines() if line.strip()[:1].isdigit()]
    assert [(line[1], line[2]) for line in lines] == [("deny", "never"), ("ask", "large"), ("allow", "look")]
    assert "3 rule(s), 0 warning(s)" in plain.stderr
    fitted = ran("check", "rules.toml", "--app", "paying_app:app")
    assert "no agent of the app has a tool that fits 'look*'" in fitted.stderr
    (here / "covered.toml").write_text(RULES + '[[rule]]\nname = "last"\nverdict = "allow"\ntools = ["look"]\n')
    assert "covered.toml: last: it can never apply: 'look' comes before it" in ran("check", "covered.toml").stderr


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (('verdict = "deny"', "verdict = deny"), "rules.toml:19:11: "),
        (('verdict = "deny"', 'verdict = "dany"'), "rules.toml:19: rule.2.verdict"),
        (('"/cents", op = "gt", value = 1000', '"cents", op = "gt", value = 1000'), "rules.toml:21: rule.2.args"),
        (('name = "never"', 'name = "look"'), "rules.toml: "),
    ],
)
def test_check_says_where_a_file_is_wrong(here: Path, change: tuple[str, str], place: str) -> None:
    """File, line and column where TOML gives one; else the line of the key or its rule; exit code 1."""
    assert change[0] in RULES
    (here / "rules.toml").write_text(RULES.replace(*change), encoding="utf-8")
    assert f"error: {place}" in ran("check", "rules.toml", code=1).stderr
    assert "cannot be read" in ran("check", "nowhere.toml", code=1).stderr


def test_explain_works_on_a_file_alone_and_with_the_apps_own_tools(here: Path) -> None:
    """A file alone does not know the tool's own ask; the app does. Bad arguments never reach policy."""
    command = ("explain", "--tool", "pay", "--file", "rules.toml", "--json")
    (here / "args.json").write_text('{"cents": 50}', encoding="utf-8")
    assert json.loads(ran(*command, "--args", "@args.json").stdout)["answer"] == "depends"
    assert json.loads(ran(*command, "--args", '{"cents": 500}').stdout)["rule"] == "large"
    assert json.loads(ran(*command, "--args", '{"cents": 5000}').stdout)["rule"] == "never"
    with_app = (*command, "--app", "paying_app:app", "--args")
    assert json.loads(ran(*with_app, '{"cents": 50}').stdout)["answer"] == "ask"
    small = json.loads(ran(*with_app, '{"cents": 5}').stdout)
    assert (small["answer"], small["rule"], small["agent"]) == ("allow", "tool:ask", "agent")
    assert "policy would never judge the call" in ran(*with_app, '{"cents": "much"}', code=1).stderr
    assert "the tools are: pay" in ran("explain", "--tool", "refund", "--app", "paying_app:app", code=2).stderr
    answer = ran("explain", "--tool", "pay", "--args", '{"cents": 500}', "--file", "rules.toml")
    assert "▶ ask   large (file): argument /cents gt 100" in answer.stdout
    assert "· deny  never (file): argument /cents gt 1000" in answer.stdout


async def recorded(database: Database) -> None:
    """Six judged calls of one run: by a rule, by the tool, by default, by a grant; and one that never reached policy."""
    stored = [
        ("pay", '{"cents": 5}', "allow", "old", None),
        ("pay", '{"cents": 7}', "allow", "old", None),
        ("pay", '{"cents": 500}', "allow", "old", None),
        ("pay", '{"cents": 5000}', "ask", "default", None),
        ("look", "{}", "ask", "tool:ask", None),
        ("other", '{"x": 1}', "allow", "grant:g", "granted"),
    ]
    async with database.write() as conn:
        pattern = GrantPattern(tool="other", open=["x"])
        grant = await grants.create(
            conn,
            WantedGrant(pattern=pattern, scope="everyone"),
            grants.Origin(created_by="ann", run_id=None, agent=None),
            key="g",
        )
        await messages.create_conversation(conn, "conv")
        await messages.append(
            conn,
            messages.NewMessage(
                id="m", parent_id=None, conversation_id="conv", run_id="run_1", step=None, message=user_message("go")
            ),
        )
        await new_run.insert_run(conn, new_run.NewRun(
            id="run_1", conversation_id="conv", agent="agent", agent_version="v", model="m", task="go",
            input_message_id="m", started_by="ann",
        ))  # fmt: skip
        rows = [
            calls.Call(
                run_id="run_1", tool_call_id=f"c{place}", step=1, position=place, tool_name=tool, input=raw,
                repeat_key="", disposition="run", digest="", policy_version="", effect="once",
                verdict=Verdict(
                    answer=answer, rule=rule, reason="", risk="low", grant_id=None if granted is None else grant.id
                ).model_dump_json(exclude_defaults=True),
            )
            for place, (tool, raw, answer, rule, granted) in enumerate(stored)
        ]  # fmt: skip
        await calls.insert_planned(conn, [*rows, vars_without_verdict(rows[0])])


def vars_without_verdict(call: calls.Call) -> calls.Call:
    return calls.Call(**{**vars(call), "tool_call_id": "closed", "position": 9, "verdict": ""})


async def test_backtest_says_what_changes_and_what_it_cannot_know(here: Path, sqlite: Database) -> None:
    """By tool and rule, with the calls' ids; without the app some cannot be judged, with it all can."""
    await recorded(sqlite)
    command = ("backtest", "rules.toml", "--data-dir", str(here), "--json")
    alone = json.loads((await asyncio.to_thread(ran, *command)).stdout)
    assert alone["looked_at"] == 6
    total = '[[rule]]\nname = "some"\nverdict = "allow"\ntools = ["pay"]\ntotal = { at = "/cents", most = 5, per = "day" }\n'
    (here / "total.toml").write_text(total)
    words = (await asyncio.to_thread(ran, "backtest", "total.toml", "--data-dir", str(here))).stderr
    assert "as if nothing of its rule's total were used" in " ".join(words.split())
    assert alone["answers"] == {"allow": 2, "ask": 1, "deny": 1}
    changes = {(each["tool"], each["was"], each["now"]): each for each in alone["changes"]}
    assert changes["pay", "allow", "ask"]["now_rule"] == "large"
    assert changes["pay", "allow", "ask"]["examples"] == [{"run_id": "run_1", "tool_call_id": "c2"}]
    assert changes["pay", "ask", "deny"]["was_rule"] == "default"
    assert changes["look", "ask", "allow"]["calls"] == 1
    assert len(changes) == 3
    assert list(alone["unjudged"].values()) == [2]
    with_app = json.loads((await asyncio.to_thread(ran, *command, "--app", "paying_app:app")).stdout)
    assert with_app["unjudged"] == {}
    by_tool = [each for each in with_app["changes"] if each["now_rule"] == "tool:ask"]
    assert [(each["now"], each["examples"]) for each in by_tool] == [
        ("ask", [{"run_id": "run_1", "tool_call_id": "c1"}])
    ]
    text = (await asyncio.to_thread(ran, *command[:-1], "--limit", "3")).stdout
    assert text.startswith("3 calls: 2 allowed, 0 asked, 1 denied")
    assert "run_1 c3" in text
    later = (await asyncio.to_thread(ran, *command[:-1], "--since", "2999-01-01")).stdout
    assert later.startswith("0 calls")


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("15m", 900), ("1h", 3_600), ("7d", 604_800)])
def test_spans_are_read_as_people_write_them(text: str, seconds: int) -> None:
    """A number and a unit, nothing else."""
    assert seconds_of(text, "--for") == seconds
    for wrong in ("", "h", "1", "1 h", "-1h", "1w", "1h30m"):
        with pytest.raises(ConfigurationError, match="--for"):
            seconds_of(wrong, "--for")
    assert instant_of("2026-05-01", "--since").isoformat() == "2026-05-01T00:00:00+00:00"
    with pytest.raises(ConfigurationError, match="--since"):
        instant_of("yesterday", "--since")
