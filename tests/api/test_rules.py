"""One rule: previewed on past calls, stored as a shadow, enforced; over HTTP and on its page, without JavaScript."""

from __future__ import annotations

import asyncio
import html
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import update
from support.api.api_server import pay, serving, token_for
from support.api.store_app import desk_on
from support.pages.html_forms import Form, PostedPage
from support.stores.stored_requests import live_run, open_requests, request_row
from temporalio.client import Client
from typer.testing import CliRunner

from turngate.approvals_api.app import create_app
from turngate.approvals_api.gateway.client import Gateway
from turngate.approvals_api.http.authentication import SESSION_COOKIE
from turngate.approvals_api.policy import preview as rule_preview
from turngate.approvals_api.settings import ApiSettings
from turngate.cli.main import app as cli
from turngate.domain.policy.policy import Verdict
from turngate.domain.requests import STATUS_OF_VERB, Verb
from turngate.domain.tools.tool import ProcessConfinement
from turngate.runtime.temporal_client import data_converter
from turngate.store import tables
from turngate.store.access import sessions
from turngate.store.clock import as_text, now
from turngate.store.database import Database
from turngate.store.requests import precedents, requests
from turngate.store.runs import calls

RULE = (
    '[[rule]]\nname = "small"\nverdict = "allow"\ntools = ["pay"]\nargs = [{ at = "/cents", op = "le", value = 500 }]\n'
)
OTHER = '# Kept as it is.\n[[rule]]\nname = "other"\nverdict = "deny"\ntools = ["drop"]  # never\n'


@pytest.fixture
async def admin(database: Database) -> AsyncIterator[httpx.AsyncClient]:
    async with desk_on(database) as desk:
        yield await desk.person("root", "admin")


async def plant(database: Database, *decided: tuple[int, Verb | None], tool: str = "pay", note: str = "") -> None:
    """Calls of ``tool``, each (cents, what a person decided), oldest first; None: it waits."""
    verdict = Verdict(answer="ask", rule="default", reason="", risk="low").model_dump_json(exclude_defaults=True)
    async with database.write() as conn:
        run = await live_run(conn, f"run_{tool}")
        inputs = [f'{{"cents": {cents}, "note": "{note}"}}' for cents, _verb in decided]
        await calls.insert_planned(
            conn,
            [
                calls.Call(
                    run_id=run.id, tool_call_id=f"{tool}_{place}", step=1, position=place, tool_name=tool, input=text,
                    repeat_key="", disposition="ask", verdict=verdict, digest="d", policy_version="", effect="once",
                )
                for place, text in enumerate(inputs)
            ],
        )  # fmt: skip
        for place, (_cents, verb) in enumerate(decided):
            ended: dict[str, Any] = {}
            if verb is not None:
                ended = {
                    "status": STATUS_OF_VERB[verb],
                    "verb": verb,
                    "decided_by": "ann",
                    "decided_at": as_text(now()),
                }
            row = request_row(
                run, f"rq_{tool}_{place}", tool_call_id=f"{tool}_{place}", tool_name=tool, input=inputs[place],
                manifest=pay.manifest.model_dump_json(), **ended,
            )  # fmt: skip
            await open_requests(conn, [row])


async def preview(admin: httpx.AsyncClient, rule: str = RULE, **body: Any) -> dict[str, Any]:
    answer = await admin.post("/api/v1/policy/preview", json={"rule": rule, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_preview_says_what_would_run_unasked_and_what_people_rejected_comes_first(
    database: Database, admin: httpx.AsyncClient
) -> None:
    """Counter-examples before the others, how often people decided so, and the upper bound; calls of other tools don't count."""
    await plant(
        database, (100, "approve"), (200, "reject"), (300, None), (400, "edit"), (900, "reject"), (500, "approve")
    )
    await plant(database, (1, "reject"), tool="drop")
    report = await preview(admin)
    assert (report["tool"], report["looked_at"], report["whole"], report["unjudged"]) == ("pay", 6, True, 0)
    assert report["says"] == "Calls of pay whose /cents is at most 500 run without asking."
    (change,) = report["changes"]
    counted = {name: change[name] for name in ("was", "now", "calls", "approved", "edited", "rejected", "against")}
    assert counted == {
        "was": "ask", "now": "allow", "calls": 5, "approved": 2, "edited": 1, "rejected": 1, "against": 2,
    }  # fmt: skip
    assert change["against_at_most"] == pytest.approx(0.902, abs=0.001)
    assert [each["decision"] for each in change["examples"]] == ["reject", "edit", "approve", None, "approve"]
    assert change["examples"][0]["request_id"] == "rq_pay_1"
    assert [each["verdict"] for each in (await admin.get("/api/v1/policy")).json()["stored"] or []] == []


async def test_a_preview_judges_by_the_rules_in_force(database: Database, admin: httpx.AsyncClient) -> None:
    """A deny rule that comes first leaves nothing to allow; the rule that is replaced doesn't count any more."""
    await plant(database, (100, "approve"), (900, "reject"))
    deny = '[[rule]]\nname = "none"\nverdict = "deny"\ntools = ["pay"]\n'
    (change,) = (await preview(admin, deny))["changes"]
    assert (change["now"], change["calls"], change["against"]) == ("deny", 2, 1)
    assert [each["decision"] for each in change["examples"]] == ["approve", "reject"]
    stored = await admin.put("/api/v1/policy", json={"source": deny, "if_version": 0})
    assert stored.status_code == 200
    assert (await preview(admin))["changes"] == []
    assert "can never apply" in (await preview(admin))["warnings"][0]
    changes = (await preview(admin, replacing="none"))["changes"]
    assert [(each["was"], each["now"], each["calls"]) for each in changes] == [("deny", "allow", 1), ("deny", "ask", 1)]


async def test_of_many_calls_the_page_stays_small(
    database: Database, admin: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many calls are judged at most, 20 of them are listed with the beginning of their arguments; long ones are left out."""
    monkeypatch.setattr(rule_preview, "MAX_CALLS", 100)
    await plant(database, *[(place % 70, "approve") for place in range(120)], note="x" * 2_000)
    await plant(database, (1, "approve"), tool="long", note="x" * 60_000)
    report = await preview(admin)
    assert (report["looked_at"], report["whole"], len(report["changes"][0]["examples"])) == (100, True, 20)
    assert (await preview(admin, RULE.replace('"pay"', '"long"')))["looked_at"] == 0
    page = await (FormPage(admin)).press("Preview on past calls", **SMALL)
    assert "Of the last 100 calls" in page.text
    assert len(page.text) < 60_000


SMALL = {
    "rule-name": "small",
    "rule-tools": "pay",
    "rule-at-0": "/cents",
    "rule-op-0": "le",
    "rule-value-0": "500",
}


class FormPage:
    """The form, as a browser without JavaScript has it."""

    def __init__(self, http: httpx.AsyncClient, path: str = "/policy/rule") -> None:
        self.http, self.path = http, path
        self.answer: httpx.Response | None = None

    async def form(self) -> Form:
        if self.answer is None:
            self.answer = await self.http.get(self.path)
        assert self.answer.status_code in {200, 409, 422}, self.answer.text[:500]
        return next(each for each in PostedPage(self.answer.text).forms if "if_version" in each.sent)

    async def press(self, label: str, **changes: str) -> httpx.Response:
        form = await self.form()
        button = next(each for each in form.buttons if each.label == label)
        sent = {**form.sent, **changes, button.name: button.value}
        self.answer = await self.http.post("/policy/rule", data=sent)
        return self.answer


async def test_check_preview_shadow_enforce(database: Database, admin: httpx.AsyncClient) -> None:
    """Each step is a button; the first two store nothing; the rule that is stored is the one that the TOML beside it says."""
    await plant(database, (100, "approve"), (200, "approve"), (900, "reject"))
    await admin.put("/api/v1/policy", json={"source": OTHER, "if_version": 0})
    page = FormPage(admin)
    meaning = await page.press("See what it means", **SMALL)
    assert "Calls of pay whose /cents is at most 500 run without asking." in meaning.text
    assert "args = [{ at = &#34;/cents&#34;, op = &#34;le&#34;, value = 500 }]" in meaning.text
    tried = await page.press("Preview on past calls")
    assert "Of the last 3 calls of" in tried.text
    assert "With 95 % confidence, people would stop or change at most 77.6 % of such calls" in tried.text
    assert (await admin.get("/api/v1/policy")).json()["version"] == 1
    stored = await page.press("Store as shadow: only record", comment="seen often")
    assert (stored.status_code, stored.headers["location"]) == (303, "/policy?stored=small#stored-title")
    policy = (await admin.get("/api/v1/policy")).json()
    assert (policy["version"], policy["stored"]["comment"]) == (2, "seen often")
    assert policy["stored"]["source"].startswith(OTHER)
    assert [(each["name"], each["shadow"]) for each in policy["stored"]["rules"]] == [("other", False), ("small", True)]
    again = FormPage(admin, "/policy/rule?name=small")
    await again.press("Preview on past calls")
    assert (await again.press("Enforce now")).status_code == 303
    stored = (await admin.get("/api/v1/policy")).json()["stored"]
    assert [(each["name"], each["shadow"]) for each in stored["rules"]] == [("other", False), ("small", False)]
    assert stored["source"].startswith(OTHER)
    assert "Preview and enforce" not in (await admin.get("/policy")).text


async def test_the_page_asks_what_a_rule_means_and_stores_nothing(admin: httpx.AsyncClient) -> None:
    """From fields in the address, for the page while someone types: the sentence, or that there is none yet; for admins only."""
    fields = {"view": "form", "rule-name": "<b>small", "rule-verdict": "allow", "rule-tools": "pay"}
    page = await admin.get("/policy/rule/means", params=fields)
    assert '<p id="says" class="does"><bdi lang translate=no>Calls of pay run without asking.</bdi></p>' in page.text
    assert ("<b>small" in page.text, "&lt;b&gt;small" in page.text) == (False, True)
    unclear = await admin.get("/policy/rule/means", params={**fields, "rule-quorum": "many"})
    assert (unclear.status_code, "The fields say no rule yet." in unclear.text) == (200, True)
    toml = await admin.get("/policy/rule/means", params={"view": "toml", "rule-toml": "[[rule]"})
    assert "The fields say no rule yet." in toml.text
    assert (await admin.get("/api/v1/policy")).json()["stored"] is None


async def test_the_form_says_what_is_wrong_and_keeps_what_was_typed(admin: httpx.AsyncClient) -> None:
    """422 with the error at its control; TOML that can't be read, too; another row on demand."""
    page = FormPage(admin)
    refused = await page.press("Preview on past calls", **{**SMALL, "rule-name": "", "rule-value-0": "many"})
    assert refused.status_code == 422
    assert 'id="rule-name-complaint"' in refused.text
    assert 'id="rule-value-0-complaint"' not in refused.text  # the name comes first: a rule without one is none
    wrong = await page.press(
        "Enforce now" if "Enforce now" in refused.text else "See what it means", **{"rule-name": "x"}
    )
    assert (wrong.status_code, 'id="rule-value-0-complaint"' in wrong.text) == (422, True)
    form = await page.form()
    assert form.sent["rule-value-0"] == "many"
    assert "rule-at-2" not in form.sent
    await page.press("One more condition", **{"rule-at-1": "/x"})
    assert "rule-at-2" in (await page.form()).sent
    await page.press("See what it means", **{"rule-value-0": "5", "rule-value-1": "6"})
    await page.press("Write it as TOML")
    assert (await page.form()).sent["rule-toml"].startswith('[[rule]]\r\nname = "x"')
    refused = await page.press("See what it means", **{"rule-toml": "[[rule]]\nname = 5"})
    assert (refused.status_code, 'id="rule-toml-complaint"' in refused.text) == (422, True)
    assert (await admin.get("/api/v1/policy")).json()["version"] == 0


async def test_someone_elses_change_is_not_overwritten(admin: httpx.AsyncClient) -> None:
    """409 on the page, and what was typed is still there."""
    page = FormPage(admin)
    await page.press("See what it means", **SMALL)
    await page.press("Preview on past calls")
    await admin.put("/api/v1/policy", json={"source": OTHER, "if_version": 0})
    late = await page.press("Store as shadow: only record")
    assert late.status_code == 409
    assert "root saved version 1" in late.text
    assert (await page.form()).sent["rule-name"] == "small"
    assert (await admin.get("/api/v1/policy")).json()["version"] == 1


async def test_i10_only_an_admin_sees_and_changes_rules(database: Database, admin: httpx.AsyncClient) -> None:
    """I10: the form, the preview (of everyone's calls), storing and enforcing are an admin's, on the page and over HTTP."""
    headers = await token_for(database, "op", "requests:decide", "requests:read")
    bodies = {"preview": {"rule": RULE}, "rules": {"rule": RULE, "mode": "shadow"}, "enforce": {"name": "small"}}
    async with database.write() as conn:
        cookies = {SESSION_COOKIE: await sessions.begin(conn, "ann", role="operator")}
    admin.cookies.clear()
    for name, body in bodies.items():
        refused = await admin.post(f"/api/v1/policy/{name}", json=body, headers=headers)
        assert (refused.status_code, refused.json()["code"]) == (403, "missing_scope")
    admin.cookies.update(cookies)
    assert (await admin.get("/policy/rule")).status_code == 403
    assert (await admin.post("/policy/rule", data=SMALL)).status_code == 403
    assert "/policy/rule" not in (await admin.get("/policy")).text


async def test_a_rule_is_stored_and_enforced_over_http(admin: httpx.AsyncClient) -> None:
    """One rule among the others; a rule that can't be read, a name that isn't there and a later version are refused."""
    await admin.put("/api/v1/policy", json={"source": OTHER, "if_version": 0})
    answer = await admin.post("/api/v1/policy/rules", json={"rule": RULE, "mode": "shadow", "if_version": 1})
    assert (answer.json()["version"], answer.json()["comment"]) == (2, "Record only: small")
    enforced = await admin.post("/api/v1/policy/enforce", json={"name": "small"})
    assert (enforced.json()["version"], enforced.json()["source"]) == (3, f"{OTHER}\n{RULE}")
    renamed = RULE.replace("small", "tiny")
    answer = await admin.post("/api/v1/policy/rules", json={"rule": renamed, "mode": "enforce", "replacing": "small"})
    assert [each["name"] for each in answer.json()["rules"]] == ["other", "tiny"]
    late = await admin.post("/api/v1/policy/rules", json={"rule": RULE, "mode": "shadow", "if_version": 1})
    assert (late.status_code, late.json()["code"], late.json()["version"]) == (409, "policy_changed", 4)
    for rule in ("x", RULE + renamed, RULE.replace("le", "like"), RULE.replace("small", "\ud800")):
        content, headers = (
            json.dumps({"rule": rule}),
            {"Content-Type": "application/json"},
        )  # half a surrogate pair, escaped
        refused = await admin.post("/api/v1/policy/preview", content=content, headers=headers)
        assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/rule"), refused.text
    assert (await admin.post("/api/v1/policy/enforce", json={"name": "none"})).status_code == 404


async def test_i14_what_a_call_says_is_shown_as_text(database: Database, admin: httpx.AsyncClient) -> None:
    """Arguments in a preview are escaped, on one line, with nothing hidden; a call that no rule can read is not judged."""
    await plant(database, (1, "reject"), note="<script>owned()</script>\\n\u202e")
    await plant(database, (1, "reject"), tool="no tool's name")
    page = await (FormPage(admin)).press("Preview on past calls", **SMALL)
    assert "&lt;script&gt;owned()" in page.text
    assert "<script>owned" not in page.text
    assert "\u202e" not in page.text
    report = await preview(admin, RULE.replace('"pay"', '"*"'))
    assert (report["looked_at"], report["unjudged"]) == (2, 1)


async def offer(admin: httpx.AsyncClient, request_id: str) -> httpx.Response:
    return await admin.get(f"/api/v1/policy/offers/{request_id}")


async def add_precedents(database: Database, tool: str, decided: dict[int, Verb]) -> None:
    """Decisions become precedents soon after they are made; here, now. ``decided``: place among the planted → verb."""
    rows = [
        precedents.Decided(seq=place + 1, request_id=f"rq_{tool}_{place}", tool_name=tool, input="{}", verb=verb)
        for place, verb in decided.items()
    ]
    async with database.write() as conn:
        await precedents.add(conn, [(each, [each.seq]) for each in rows])


async def test_after_ten_alike_approvals_an_admin_is_offered_a_rule(
    database: Database, admin: httpx.AsyncClient
) -> None:
    """On the request's page and over HTTP; the link leads to the form, filled in; one rejection more, and nothing is offered."""
    await plant(database, *[(5, "approve")] * 10, (5, None), (5, "reject"))
    waiting = "rq_pay_10"
    assert (await offer(admin, waiting)).json()["code"] == "no_offer"
    await add_precedents(database, "pay", dict.fromkeys(range(10), "approve"))
    offered = (await offer(admin, waiting)).json()
    assert offered["approved"] == 10
    assert offered["says"] == 'Calls of pay by agent agent whose /cents is 5 and /note is "" run without asking.'
    assert (
        f'<a href="/policy/rule?request={waiting}">Offer a rule</a>' in (await admin.get(f"/requests/{waiting}")).text
    )
    form = await FormPage(admin, f"/policy/rule?request={waiting}").form()
    filled = [form.sent[name] for name in ("rule-name", "rule-tools", "rule-at-0", "rule-value-0", "rule-agents")]
    assert filled == ["pay as approved", "pay", "/cents", "5", "agent"]
    await admin.post("/api/v1/policy/rules", json={"rule": offered["toml"], "mode": "shadow"})
    assert 'name = "pay as approved 2"' in (await offer(admin, waiting)).json()["toml"]
    link = f'People approved 10 calls like these. <a href="/policy/rule?request={waiting}">'
    assert (link in (await admin.get("/?group=alike")).text, link in (await admin.get("/")).text) == (True, False)
    async with database.write() as conn:
        admin.cookies.update({SESSION_COOKIE: await sessions.begin(conn, "ann", role="operator")})
    assert "calls like these" not in (await admin.get("/?group=alike")).text
    page = (await admin.get(f"/requests/{waiting}")).text
    assert "An admin can make a rule of it" in page
    assert "/policy/rule" not in page
    assert (await offer(admin, waiting)).status_code == 403
    await add_precedents(database, "pay", {11: "reject"})
    assert "An admin can make a rule of it" not in (await admin.get(f"/requests/{waiting}")).text


UNCONFINED = ProcessConfinement(text="It runs unconfined.", confined=False).model_dump_json()
NEVER = {
    "unconfined": {"confinement": UNCONFINED},
    "of high risk": {"risk": "high"},
    "by a rule": {"rule": "watched"},
    "at a protected place": {"rule": "protected"},
    "of several approvals": {"quorum": 2},
    "with a secret": {"masked_input": '{"cents": 5, "note": "•"}'},
    "a question": {"kind": "question"},
}


@pytest.mark.parametrize("case", NEVER.values(), ids=NEVER)
async def test_a_rule_is_never_offered_for_such_a_request(
    database: Database, admin: httpx.AsyncClient, case: dict[str, Any]
) -> None:
    """High risk, an ask rule's, a protected place, a quorum, a secret: each such call needs a person."""
    await plant(database, *[(5, "approve")] * 10, (5, None))
    await add_precedents(database, "pay", dict.fromkeys(range(10), "approve"))
    assert (await offer(admin, "rq_pay_10")).status_code == 200
    assert "calls like these" in (await admin.get("/?group=alike")).text
    async with database.write() as conn:
        await conn.execute(update(tables.requests).where(tables.requests.c.id == "rq_pay_10").values(**case))
    assert (await offer(admin, "rq_pay_10")).json()["code"] == "no_offer"
    assert "calls like these" not in (await admin.get("/?group=alike")).text


async def test_a_new_rule_does_not_take_the_place_of_another(admin: httpx.AsyncClient) -> None:
    """A name that a stored rule has is an error at the name's control."""
    await admin.post("/api/v1/policy/rules", json={"rule": RULE, "mode": "enforce"})
    page = FormPage(admin)
    refused = await page.press("Preview on past calls", **SMALL)
    assert (refused.status_code, 'id="rule-name-complaint"' in refused.text) == (422, True)
    assert "Store as shadow" not in refused.text


async def enforced(admin: httpx.AsyncClient, rule: str = RULE) -> None:
    answer = await admin.post("/api/v1/policy/rules", json={"rule": rule, "mode": "enforce"})
    assert answer.status_code == 200, answer.text


async def test_what_waits_for_an_enforced_rule_is_answered_each_by_its_own_decision(
    database: Database, admin: httpx.AsyncClient
) -> None:
    """From the policy page: only what the rule covers, in the person's name, with the rule as the reason; results one by one."""
    await plant(database, (100, None), (200, None), (900, None), (300, "approve"), (400, None))
    async with database.write() as conn:
        of_fourth = tables.requests.c.id == "rq_pay_4"
        await conn.execute(update(tables.requests).where(of_fourth).values(risk="high"))
    page = FormPage(admin)
    await page.press("Preview on past calls", **SMALL)
    stored = await page.press("Enforce now")
    noticed = (await admin.get(stored.headers["location"])).text
    assert "3 requests wait that" in noticed
    review = (await admin.get("/requests/waiting?rule=small")).text
    form = next(each for each in PostedPage(review).forms if each.attributes.get("action") == "/requests/bulk/decide")
    assert {name for name in form.sent if name.startswith("pick-")} == {f"pick-rq_pay_{n}" for n in (0, 1, 4)}
    done = await admin.post("/requests/bulk/decide", data={**form.sent, "action": "approve"})
    assert "2 of 3 decided" in done.text
    async with database.read() as conn:
        rows = {each.id: each for each in (await requests.get_all(conn, [f"rq_pay_{n}" for n in range(5)])).values()}
        decisions = [await requests.decision(conn, rows[f"rq_pay_{n}"].decision_id or "") for n in (0, 1)]
    assert [rows[f"rq_pay_{n}"].status for n in range(5)] == ["approved", "approved", "pending", "approved", "pending"]
    reasons = {(each.decided_by, each.message) for each in decisions if each is not None}
    assert reasons == {("root", "Rule 'small' of policy version 1 lets such calls run.")}
    assert len({each.id for each in decisions if each is not None}) == 2


async def test_nothing_is_answered_for_a_rule_that_no_longer_covers_it(
    database: Database, admin: httpx.AsyncClient
) -> None:
    """The rule was changed after the page was drawn: 422, nothing is decided, and the calls still wait."""
    await plant(database, (100, None))
    await enforced(admin)
    review = (await admin.get("/requests/waiting?rule=small")).text
    form = next(each for each in PostedPage(review).forms if each.attributes.get("action") == "/requests/bulk/decide")
    await enforced(admin, RULE.replace("500", "50"))
    refused = await admin.post("/requests/bulk/decide", data={**form.sent, "action": "approve"})
    assert (refused.status_code, "doesn&#39;t cover all of these any more" in refused.text) == (422, True)
    async with database.read() as conn:
        request = await requests.get(conn, "rq_pay_0")
    assert request is not None
    assert request.status == "pending"


NO_ANSWER = {
    "a shadow": (RULE, "shadow"),
    "an ask rule": ('[[rule]]\nname = "small"\nverdict = "ask"\ntools = ["pay"]\n', "enforce"),
    "a total": (RULE + 'total = { at = "/cents", most = 5, per = "day" }\n', "enforce"),
}


@pytest.mark.parametrize("case", NO_ANSWER.values(), ids=NO_ANSWER)
async def test_only_an_enforced_allow_rule_without_a_total_answers_what_waits(
    database: Database, admin: httpx.AsyncClient, case: tuple[str, str]
) -> None:
    """422 over HTTP, and no link on the page; an unknown rule is 404."""
    await plant(database, (100, None))
    rule, mode = case
    await admin.post("/api/v1/policy/rules", json={"rule": rule, "mode": mode})
    refused = await admin.get("/api/v1/policy/waiting?rule=small")
    assert (refused.status_code, refused.json()["code"]) == (422, "not_enforced")
    assert "/requests/waiting" not in (await admin.get("/policy?stored=small")).text
    assert (await admin.get("/api/v1/policy/waiting?rule=none")).status_code == 404


async def test_a_deny_rule_that_comes_first_leaves_nothing_to_answer(
    database: Database, admin: httpx.AsyncClient
) -> None:
    """The whole policy is asked, not only the rule; nor is a call of a run with its own rules answered."""
    await plant(database, (100, None))
    await enforced(admin)
    assert len((await admin.get("/api/v1/policy/waiting?rule=small")).json()["requests"]) == 1
    await enforced(admin, '[[rule]]\nname = "no"\nverdict = "deny"\ntools = ["p*"]\n')
    assert (await admin.get("/api/v1/policy/waiting?rule=small")).json()["requests"] == []


async def test_a_rule_is_changed_in_a_terminal(
    database: Database, admin: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`policy preview`, `put`, `enforce --answer-waiting` and `offer`: what the page does, with the rule in a file."""
    await plant(database, (100, "reject"), (200, None), (900, None))
    nowhere = await Client.connect("127.0.0.1:1", lazy=True, data_converter=data_converter())
    token = await token_for(database, "root", "admin")
    monkeypatch.setenv("TURNGATE_TOKEN", token["Authorization"].removeprefix("Bearer "))
    file = tmp_path / "rule.toml"
    file.write_text(RULE)
    async with serving(
        create_app(database=database, gateway=Gateway(nowhere), settings=ApiSettings(offer_rule_after=1))
    ) as url:

        async def run(*arguments: str, code: int = 0) -> str:
            answer = await asyncio.to_thread(CliRunner().invoke, cli, ["policy", *arguments, "--url", url])
            assert answer.exit_code == code, answer.output
            return answer.output

        report = await run("preview", str(file))
        assert "of the last 3 calls of pay, 2 change: ask → allow" in report
        assert "at most 100.0% of such calls would be decided otherwise" in report
        assert "version 1 is in force: 1 rule(s)" in await run("put", str(file))
        assert "shadow" in await run("show")
        output = await run("enforce", "small", "--answer-waiting")
        assert "small counts now" in output
        assert "rq_pay_1  approved" in output
        assert "rq_pay_2" not in output
        await add_precedents(database, "pay", {1: "approve"})
        assert 'verdict = "allow"' in await run("offer", "rq_pay_1")
        assert "there is no stored rule 'none'" in await run("enforce", "none", code=1)


async def test_a_preview_masks_secrets(database: Database, admin: httpx.AsyncClient) -> None:
    """What its tool declares secret is in neither the page nor the API; the digits that it doesn't declare are."""
    await plant(database, (123, "approve"), note="hunter2")
    manifest = pay.manifest.model_copy(update={"parameters": {"properties": {"note": {"writeOnly": True}}}})
    async with database.write() as conn:
        await conn.execute(update(tables.calls).values(manifest=manifest.model_dump_json()))
    report = await preview(admin)
    page = await FormPage(admin).press("Preview on past calls", **SMALL)
    assert "123" in report["changes"][0]["examples"][0]["input"]
    assert "hunter2" not in json.dumps(report)
    assert "hunter2" not in page.text


async def test_hidden_characters_in_the_explain_form_are_marked(admin: httpx.AsyncClient) -> None:
    """A link may fill the form in: what one can't see in it is marked, as everywhere, in each of its fields."""
    hidden = {"tool": "pay\u202edeny", "args": '{"a": "\u200b"}', "agent": "a\u2066b", "workspace": "/w\u00adx"}
    page = html.unescape((await admin.get("/policy", params=hidden)).text)
    assert not set("\u202e\u200b\u2066\u00ad") & set(page)
    for mark in ("pay⟨U+202E⟩deny", '{"a": "⟨U+200B⟩"}', "a⟨U+2066⟩b", "/w⟨U+00AD⟩x"):
        assert f'value="{mark}"' in page
