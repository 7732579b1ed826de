"""Dry runs over HTTP, in the terminal and on the pages: started, summarised, and marked as different from real runs."""

from __future__ import annotations

import json
import secrets
from typing import Any

import pytest
from api.test_comparisons import compared, outline
from api.test_fork import approved, fetch, finished
from api.test_fork_previews import browsing
from support.api.api_server import Api, token_for
from support.engine.sub_agent_app import World, step, task
from support.pages.html_forms import PostedPage

RULES = '[[rule]]\nname = "open \\u202e<b>"\nverdict = "allow"\ntools = ["pay"]\n'


async def paid_twice(office: Api) -> dict[str, Any]:
    run = await office.start(task(step(("pay", {"cents": 1}), words="One."), step(("pay", {"cents": 2}))))
    await approved(office, run["id"])
    await approved(office, run["id"])
    return await finished(office, run["id"])


@pytest.mark.exhaustive
async def test_a_dry_run_is_started_summarised_and_marked(office: Api, world: World) -> None:
    """All as recorded. Another policy judges differently, which is reported; no tool ran and no one was asked."""
    run = await paid_twice(office)
    path = f"/api/v1/runs/{run['id']}/replay"
    before = await fetch(office, f"/runs/{run['id']}/replay?tools=pay")
    assert (before["dry"], before["step"], before["messages"], before["reused_total"]) == (True, None, 1, 2)
    assert [each["name"] for each in before["differences"]] == ["tools"]

    key = {"Idempotency-Key": secrets.token_hex(8)}
    answer = await office.agent.post(path, json={"dry": True, "policy": RULES}, headers=key)
    assert answer.status_code == 201, answer.text
    started = answer.json()
    assert answer.headers["location"] == f"/api/v1/runs/{started['id']}"
    assert (await office.agent.post(path, json={"dry": True, "policy": RULES}, headers=key)).json()["id"] == started[
        "id"
    ]
    assert (await office.agent.post(path, json={"dry": True}, headers=key)).json()["code"] == "idempotency_key_reused"
    replay = await finished(office, started["id"])
    assert (replay["replay_of_run_id"], replay["forked_from_run_id"], replay["final_text"]) == (
        run["id"], None, "All done.",
    )  # fmt: skip
    comparison = await compared(office, run, replay)
    assert comparison["differs"] == ["policy"]
    assert outline(comparison) == [(1, 1, [["verdict"]]), (2, 2, [["verdict"]]), (3, 3, [])]
    report = comparison["replay"]
    assert (report["same"], report["matched"], report["diverged_total"], report["not_made_total"]) == (True, 2, 0, 0)
    assert [(each["was"], each["now"]) for each in report["verdicts"]] == [("ask", "allow")] * 2
    assert (await compared(office, replay, run))["replay"] == report
    assert world.paid == [1, 2]
    assert (await fetch(office, f"/requests?run_id={replay['id']}&status=all"))["items"] == []


@pytest.mark.exhaustive
async def test_terminal_and_pages_summarise_a_dry_run(office: Api, world: World, tmp_path: Any) -> None:
    """`turngate replay --dry` ends with 0 if all is as recorded; list, run page and comparison say that nothing ran."""
    run = await paid_twice(office)
    rules = tmp_path / "rules.toml"
    rules.write_text(RULES)
    output = await office.printed("replay", run["id"], "--dry", "--policy", str(rules))
    lines = [" ".join(line.split()) for line in output.splitlines()]
    replay_id = lines[0].split()[1]
    summary = "dry run: 2 matched, 0 diverged, 0 recorded but not made, 2 judged differently; the end is the same"
    for line in (
        f"⇒ dry run of run {run['id']}: no tool runs, no one is asked",
        "judged step 1 pay ask tool:ask → allow open ⟨U+202E⟩<b>",
        summary,
    ):
        assert line in lines
    assert "pay (recorded)" in output
    assert not {"\x1b", "\u202e"} & set(output)
    beside = [" ".join(line.split()) for line in (await office.printed("compare", run["id"], replay_id)).splitlines()]
    assert summary in beside
    assert any(line.startswith("policy the app's ≠ [[rule]]") for line in beside)
    assert f"dry run of run {run['id']}: " in await office.printed("runs")
    assert "it has happened" not in await office.printed("replay", run["id"], "--preview")
    await office.printed("replay", run["id"], code=2)  # without --dry
    await office.printed("export", replay_id, code=1)
    assert world.paid == [1, 2]

    async with browsing(office) as browser:
        page = (await browser.get(f"/runs/{replay_id}")).text
        assert f'href="/runs/{run["id"]}/compare/{replay_id}"' in page
        assert page.count('<span class="chip recorded">') == 2
        assert not {"message", "retry"} & {form.sent.get("action") for form in PostedPage(page).forms}
        assert "dry run" in (await browser.get("/runs")).text
        compared_page = (await browser.get(f"/runs/{run['id']}/compare/{replay_id}")).text
    for text in ("B is a dry run of A", "judged differently", "the app&#39;s and the stored rules, and grants"):
        assert text in compared_page
    assert "\u202e" not in compared_page
    assert "<b>" not in compared_page


@pytest.mark.exhaustive
async def test_a_dry_run_that_diverges_says_where(office: Api, world: World) -> None:
    """Without a tool, its call diverges and the recorded one is missing; exit code 4, and the run may continue."""
    run = await paid_twice(office)
    output = await office.printed("replay", run["id"], "--dry", "--step", "1", "--tools", "read_log", code=4)
    lines = [" ".join(line.split()) for line in output.splitlines()]
    assert "dry run: 0 matched, 1 diverged, 1 recorded but not made, 0 judged differently; the end is the same" in lines
    assert 'diverged step 1 pay {"cents": 2}' in lines
    assert 'not made step 2 pay {"cents": 2}' in lines
    report = json.loads(await office.printed("replay", run["id"], "--dry", "--tools", "", "--json", code=4))
    assert (report["same"], report["diverged_total"]) == (False, 2)
    replay = await fetch(office, f"/runs/{report['replay_run_id']}")
    for answer in (
        await office.operator.post(f"/api/v1/runs/{replay['id']}/messages", json={"input": "more"}),
        await office.operator.post(f"/api/v1/runs/{replay['id']}/replay", json={"dry": True}),
    ):
        assert (answer.status_code, answer.json()["code"]) == (409, "dry_replay"), answer.text
    assert world.paid == [1, 2]


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/dry"),
        ({"dry": False}, "/dry"),
        ({"dry": "true"}, "/dry"),
        ({"dry": True, "step": 9}, "/step"),
        ({"dry": True, "tools": ["nope"]}, "/tools"),
        ({"dry": True, "policy": "[[rule]]"}, "/policy"),
        ({"dry": True, "text": "x"}, "/text"),
    ],
)
async def test_a_dry_run_that_does_not_fit_is_422(api: Api, body: dict[str, Any], pointer: str) -> None:
    """The body must say that it is dry; the rest is as for a fork."""
    run = await finished(api, (await api.start("hello"))["id"])
    answer = await api.agent.post(f"/api/v1/runs/{run['id']}/replay", json=body)
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer), answer.text


@pytest.mark.exhaustive
async def test_who_may_start_a_dry_run_and_the_form_for_it(api: Api) -> None:
    """Anyone who may start runs, also with a policy; without a script the page shows a preview first and then starts it."""
    run = await finished(api, (await api.start("hello"))["id"])
    reader = await token_for(api.stack.database, "reader", "requests:read")
    path = f"/api/v1/runs/{run['id']}/replay"
    assert (await api.stranger.post(path, json={"dry": True}, headers=reader)).status_code == 403
    assert (await api.stranger.get(path, headers=reader)).status_code == 200
    async with browsing(api) as browser:
        page = f"/runs/{run['id']}/replay"
        assert f'href="{page}"' in (await browser.get(f"/runs/{run['id']}")).text
        form = PostedPage((await browser.get(page)).text).form("replay")
        wrong = await browser.post(page, data={**form.sent, "policy": "no toml"})
        assert (wrong.status_code, 'id="policy-complaint"' in wrong.text) == (422, True)
        again = await browser.post(page, data={**form.sent, "policy": RULES, "look": "yes"})
        assert (again.status_code, "→ <bdi lang translate=no>its own, " in again.text) == (200, True)
        started = await browser.post(page, data={**form.sent, "policy": RULES})
        assert started.status_code == 303, started.text
        replay = await finished(api, started.headers["location"].rpartition("/")[2])
        assert (replay["replay_of_run_id"], replay["status"], replay["started_by"]) == (run["id"], "completed", "eve")
