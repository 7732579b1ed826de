"""`turngate policy backtest` compares the judge with what people decided: its recorded answers, or a model's answers now."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from support.engine.tools import Amount
from support.stores.stored_requests import live_run, request_row
from typer.testing import CliRunner

from turngate import Agent, App, ConfigurationError, Judge, Toolkit, tool
from turngate.cli.builders_app import require_model_names
from turngate.cli.commands.policy import trials
from turngate.cli.main import app
from turngate.domain.policy.judge import Judgement
from turngate.domain.policy.policy import Verdict
from turngate.domain.policy.terms import AskTerms
from turngate.runtime.app_loader import check_app
from turngate.runtime.settings import load_settings
from turngate.store.database import Database
from turngate.store.policy import judgements
from turngate.store.requests import requests
from turngate.store.runs import calls

CALLS: dict[str, tuple[str, str | None, str | None, dict[str, Any]]] = {
    "r0": ("allow", "rejected", "reject", {}),
    "r1": ("allow", "approved", "approve", {}),
    "r2": ("allow", "approved", "edit", {}),
    "r3": ("ask", "approved", "approve", {}),
    "r4": ("ask", "rejected", "reject", {}),
    "r5": ("allow", "expired", None, {}),
    "by_rule": ("ask", "rejected", "reject", {"rule": "large"}),
    "left_to_it": (
        "ask",
        "approved",
        "approve",
        {"rule": "may", "terms": AskTerms(judge="may_allow").model_dump_json()},
    ),
    "high": ("ask", "rejected", "reject", {"rule": "default", "risk": "high"}),
    "ran": ("allow", None, None, {}),
}
"""Call → verdict of the judge, then status, verb and other columns of its request; the last one has no request."""


@tool(effect="once")
async def pay(params: Amount) -> None:
    """Pay."""


def judgement_of(verdict: str, problem: str | None = None) -> Judgement:
    return Judgement.model_validate(
        {"verdict": verdict, "reason": "r", "model": "m", "ms": 1, "mode": "shadow", "digest": "d", "judge": "j",
         "asked_by": "default", "problem": problem}
    )  # fmt: skip


async def planted(database: Database) -> None:
    async with database.write() as conn:
        run = await live_run(conn, "run_1")
        for place, (name, (verdict, status, verb, more)) in enumerate(CALLS.items()):
            columns = {"status": status, "verb": verb, "manifest": pay.manifest.model_dump_json(), **more}
            if status is not None:
                at = f"2026-01-01T00:00:{place:02}.000000Z"
                await requests.insert_all(
                    conn, [request_row(run, name, tool_call_id=f"c_{name}", created_at=at, **columns)]
                )
            row = calls.Call(
                run_id=run.id, tool_call_id=f"c_{name}", step=1, position=place, tool_name="pay", input="{}",
                repeat_key="", disposition="ask", digest="", policy_version="", effect="once",
                verdict=Verdict(answer="ask", rule="default", reason="", risk="low").model_dump_json(),
            )  # fmt: skip
            await calls.insert_planned(conn, [row])
            judged = judgement_of(verdict, "timeout" if name == "r4" else None)
            assert await judgements.record(conn, run.id, {f"c_{name}": judged}) != {}
            assert await judgements.record(conn, run.id, {f"c_{name}": judgement_of("allow")}) == {}
        # r0 was asked about again after its approval had grown old: the first answer is the one that counts.
        later = request_row(run, "again", tool_call_id="c_r0", created_at="2026-02-01T00:00:00.000000Z", status="approved",
                      verb="approve", manifest=pay.manifest.model_dump_json())  # fmt: skip
        await requests.insert_all(conn, [later])


async def backtest(here: Path, *arguments: str, code: int = 0) -> Any:
    command = ["policy", "backtest", *arguments, "--data-dir", str(here)]
    answer = await asyncio.to_thread(CliRunner().invoke, app, command)
    assert answer.exit_code == code, answer.output
    return answer


@pytest.mark.parametrize("page", [200, 3])
async def test_recorded_answers_are_compared_with_peoples_decisions(
    tmp_path: Path, sqlite: Database, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    """Calls that it would have let run and people refused come first, with their requests' ids."""
    monkeypatch.setattr(judgements, "PAGE", page)
    await planted(sqlite)
    report = json.loads((await backtest(tmp_path, "--json")).stdout)["judge"]
    assert (report["judged"], report["allow"], report["ask"], report["no_answer"]) == (10, 5, 5, {"timeout": 1})
    assert report["differences"] == [
        {"judge": "allow", "person": "rejected", "calls": 1, "of": 3, "rate": pytest.approx(1 / 3),
         "examples": [{"run_id": "run_1", "id": "r0"}]},
        {"judge": "allow", "person": "edited", "calls": 1, "of": 3, "rate": pytest.approx(1 / 3),
         "examples": [{"run_id": "run_1", "id": "r2"}]},
        {"judge": "ask", "person": "approved", "calls": 2, "of": 5, "rate": 0.4,
         "examples": [{"run_id": "run_1", "id": "left_to_it"}, {"run_id": "run_1", "id": "r3"}]},
    ]  # fmt: skip
    text = (await backtest(tmp_path)).stdout
    assert "judge allow, person rejected: 1 (33.3% of 3 that people decided)" in text
    assert text.index("person rejected") < text.index("r0") < text.index("person edited")
    few = json.loads((await backtest(tmp_path, "--json", "--limit", "4")).stdout)["judge"]
    assert few["judged"] == 4
    assert json.loads((await backtest(tmp_path, "--json", "--since", "2999-01-01")).stdout)["judge"]["judged"] == 0


async def test_a_model_is_asked_now_about_what_people_decided(
    tmp_path: Path, sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sees calls that no rule kept from it, with the option's criteria. More than 50 need --yes; the error counts them."""
    monkeypatch.chdir(tmp_path)
    await planted(sqlite)
    answer = json.dumps({"verdict": "allow", "reason": "fine"})
    (tmp_path / "judge.yaml").write_text(json.dumps({"responses": [{"text": answer}]}), encoding="utf-8")
    (tmp_path / "criteria.txt").write_text("Allow everything.", encoding="utf-8")
    asking = ("--judge", "scripted:judge.yaml", "--criteria", "criteria.txt")
    answered = await backtest(tmp_path, *asking, "--json")
    assert "asking scripted:judge.yaml about 6 call(s)" in answered.stderr
    report = json.loads(answered.stdout)["judge"]
    assert (report["judged"], report["allow"], report["no_answer"]) == (6, 6, {})
    first = report["differences"][0]
    assert (first["calls"], first["of"], [each["id"] for each in first["examples"]]) == (2, 6, ["r4", "r0"])
    assert "criteria" in (await backtest(tmp_path, "--judge", "scripted:judge.yaml", code=2)).stderr
    assert "nosuch" in (await backtest(tmp_path, "--judge", "nosuch", *asking[2:], code=2)).stderr
    monkeypatch.setattr(trials, "ASKED_WITHOUT_YES", 5)
    refused = (await backtest(tmp_path, *asking, code=2)).stderr
    assert "6 calls" in refused
    assert "--yes" in refused
    assert "judge scripted:judge.yaml said allow of 6" in (await backtest(tmp_path, *asking, "--yes")).stdout


def test_a_start_refuses_a_judge_whose_model_is_unknown(tmp_path: Path) -> None:
    """A typo in its model would otherwise be an ask with a problem, at each call of each run."""
    agent = Agent(name="agent", instructions="x", toolkit=Toolkit.of(pay), model="scripted:x")
    for model, known in (("scripted:judge.yaml", True), ("fsat", False), ("nosuch:x", False)):
        loaded = check_app(App(agents=[agent], judge=Judge(model=model, criteria="x")), base=tmp_path)
        settings = load_settings(data_dir=tmp_path)
        if known:
            require_model_names(settings, loaded)
            continue
        with pytest.raises(ConfigurationError, match="judge"):
            require_model_names(settings, loaded)
