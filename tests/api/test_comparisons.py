"""Comparisons of real runs: a fork with another decision, a retry with another model; by API, terminal and page."""

from __future__ import annotations

from typing import Any

import pytest
from api.test_fork import approved, finished, forked, request_of
from sqlalchemy import select
from support.api.api_server import Api
from support.engine.sub_agent_app import step, task
from support.stores.changed_rows import changed

from turngate.store.tables import calls, runs

HIDDEN = "\x1b[31m<b>\u202e"


async def compared(api: Api, run: dict[str, Any], other: dict[str, Any], *, code: int = 200) -> dict[str, Any]:
    answer = await api.operator.get(f"/api/v1/runs/{run['id']}/comparison/{other['id']}")
    assert answer.status_code == code, answer.text
    return answer.json()


def outline(comparison: dict[str, Any]) -> list[tuple[int | None, int | None, list[Any]]]:
    """The numbers of each pair's steps, and what its calls differ in; ``run`` or ``other`` for a call that one side lacks."""

    def number(side: dict[str, Any] | None) -> int | None:
        return None if side is None else side["step"]

    def difference(pair: dict[str, Any]) -> Any:
        alone = [side for side in ("run", "other") if pair[side] is None]
        return {"run": "other", "other": "run"}[alone[0]] if alone else pair["differs"]

    return [
        (number(pair["run"]), number(pair["other"]), [difference(each) for each in pair["calls"]])
        for pair in comparison["steps"]
    ]


async def forked_and_rejected(api: Api) -> tuple[dict[str, Any], dict[str, Any]]:
    """A run that paid twice, and its fork after the first payment with another model, whose second payment was rejected."""
    started = await api.start(task(step(("pay", {"cents": 1})), step(("pay", {"cents": 2}), words="Now two.")))
    await approved(api, started["id"])
    await approved(api, started["id"])
    run = await finished(api, started["id"])
    fork = (await forked(api, run["id"], text=f"Once more. {HIDDEN}", step=1, model="scripted:other")).json()
    refused = await api.decide(await request_of(api, fork["id"]), "reject", message=f"no {HIDDEN}")
    assert refused.status_code == 200, refused.text
    return run, await finished(api, fork["id"])


@pytest.mark.exhaustive
async def test_a_run_and_its_fork_are_compared_after_the_shared_past(office: Api) -> None:
    """Step 2 is beside the fork's step 1: same words and arguments, another decision; API, terminal and page say so."""
    run, fork = await forked_and_rejected(office)
    comparison = await compared(office, run, fork)
    assert (comparison["run"]["id"], comparison["other"]["id"]) == (run["id"], fork["id"])
    assert comparison["differs"] == ["task", "model"]
    assert comparison["shared"] == {"run_id": run["id"], "through_step": 1}
    assert outline(comparison) == [(2, 1, [["decision", "execution", "result"]]), (3, 2, [])]
    assert ([pair["same"] for pair in comparison["steps"]], comparison["parts_at"]) == ([False, True], 1)
    back = await compared(office, fork, run)
    assert outline(back) == [(1, 2, [["decision", "execution", "result"]]), (2, 3, [])]
    assert back["shared"] == comparison["shared"]

    output = await office.printed("compare", run["id"], fork["id"])
    lines = [" ".join(line.split()) for line in output.splitlines()]
    assert f"A {run['id']} completed agent agent" in lines
    assert "model scripted:test ≠ scripted:other" in lines
    assert "both continue from step 1 of A" in lines
    assert "A step 2, B step 1 differs, here they part" in lines
    assert "pay differs in decision, execution, result" in lines
    assert "decision approval approved ≠ approval rejected" in lines
    assert next(line for line in lines if line.startswith('result {"paid":2} ≠ rejected: An operator rejected'))
    assert "A step 3, B step 2 same" in lines
    assert "no ⟨U+001B⟩[31m<b>⟨U+202E⟩" in output
    assert not {"\x1b", "\u202e"} & set(output)
    assert '"parts_at":1' in await office.printed("compare", run["id"], fork["id"], "--json")

    link = f"/runs/{run['id']}/compare/{fork['id']}"
    for each in (run, fork):
        assert f'href="{link}"' in await office.page(f"/runs/{each['id']}")
    page = await office.page(link)
    for text in (
        "differs in decision, execution, result",
        "step 2 of A",
        "step 1 of B",
        f'href="/runs/{run["id"]}#step-1"',
    ):
        assert text in page
    assert not {"\x1b", "\u202e"} & set(page)
    assert "<b>" not in page


@pytest.mark.exhaustive
async def test_forks_of_one_run_share_the_steps_before_them(office: Api) -> None:
    """A fork after step 2 has the run's own step 2, which is beside what the fork after step 1 did instead."""
    run, early = await forked_and_rejected(office)
    late = await finished(office, (await forked(office, run["id"], text="And now?", step=2)).json()["id"])
    comparison = await compared(office, early, late)
    assert comparison["shared"] == {"run_id": run["id"], "through_step": 1}
    assert outline(comparison) == [(1, 2, [["decision", "execution", "result"]]), (2, 1, [])]
    assert [pair["other"]["run_id"] for pair in comparison["steps"]] == [run["id"], late["id"]]


@pytest.mark.exhaustive
async def test_a_retry_continues_where_the_run_ended(office: Api) -> None:
    """All that the interrupted run did is shared; the calls after it are the retry's alone."""
    started = await office.start(task(*(step(("pay", {"cents": cents})) for cents in (1, 2, 2))))
    await approved(office, started["id"])
    await request_of(office, started["id"])
    stopped = await office.agent.post(f"/api/v1/runs/{started['id']}/interrupt", json={"reason": "enough"})
    assert stopped.is_success, stopped.text
    run = await finished(office, started["id"])
    retry = (await office.agent.post(f"/api/v1/runs/{run['id']}/retry", json={"model": "scripted:other"})).json()
    await approved(office, retry["id"])
    retry = await finished(office, retry["id"])
    comparison = await compared(office, run, retry)
    assert comparison["shared"] == {"run_id": run["id"], "through_step": 2}
    assert comparison["differs"] == ["model", "status", "answer"]
    assert outline(comparison) == [(None, 1, ["other"]), (None, 2, [])]
    output = await office.printed("compare", run["id"], retry["id"])
    assert "both continue from steps 1 to 2 of A" in output
    assert "B step 1  only in B, here they part" in output
    page = await office.page(f"/runs/{run['id']}/compare/{retry['id']}")
    assert "A made no such call." in page
    # As if the run had ended while step 3 waited for its response.
    await office.stack.change(runs, {"id": retry["id"]}, forked_from_step=3)
    assert (await compared(office, run, retry))["shared"] == comparison["shared"]


@pytest.mark.exhaustive
async def test_unrelated_runs_are_compared_step_by_step(office: Api) -> None:
    """Nothing is shared: step 1 is beside step 1. Large results are compared whole, not by the part that is displayed."""
    first = await office.start(task(step(("read_log", {"chars": 5_000}), ("list_rows", {"chars": 400}))))
    second = await office.start(task(step(("list_rows", {"chars": 400}), ("read_log", {"chars": 5_500}))))
    run, other = await finished(office, first["id"]), await finished(office, second["id"])
    comparison = await compared(office, run, other)
    assert (comparison["shared"], comparison["differs"], comparison["parts_at"]) == (None, ["task"], 1)
    assert outline(comparison) == [(1, 1, [["arguments", "result"], []]), (2, 2, [])]
    assert all(pair["run"]["in_part"] for pair in comparison["steps"][0]["calls"])
    logs = select(calls.c.whole_result).where(calls.c.run_id == other["id"], calls.c.tool_name == "read_log")
    rows = {"run_id": other["id"], "tool_name": "list_rows"}
    async with changed(office.stack.database, calls, rows, whole_result=logs.scalar_subquery()):  # with the same part
        assert outline(await compared(office, run, other))[0] == (1, 1, [["arguments", "result"], ["result"]])
    same = await office.start(first["task"])
    assert (await compared(office, run, await finished(office, same["id"])))["parts_at"] is None
    assert "no step differs" in await office.printed("compare", run["id"], same["id"])


async def test_what_cannot_be_compared_is_refused(api: Api) -> None:
    """A run with itself is 422, with a missing one 404."""
    run = await finished(api, (await api.start("hello"))["id"])
    assert (await compared(api, run, run, code=422))["code"] == "same_run"
    for one, two in ((run, {"id": "run_none"}), ({"id": "run_none"}, run)):
        await compared(api, one, two, code=404)
