import json

import pytest
from support.pages.html_forms import PostedPage
from support.planted.pages import pages_of
from support.planted.text import Filling

from turngate.approvals_api.pages.decision_forms import DecisionForms, forms_of, look_of, read_decision
from turngate.approvals_api.pages.grant_form import grant_form
from turngate.wire.requests import RequestDetail


def request_of(**changes):
    run = {
        "id": "run_1",
        "conversation_id": "conv_1",
        "agent": "a",
        "agent_version": "1",
        "model": "m",
        "workspace": None,
        "task": "",
        "status": "running",
        "reason": "",
        "error_class": "",
        "step": 1,
        "started_by": "s",
        "created_at": "2026-01-01T00:00:00+00:00",
        "ended_at": None,
    }
    manifest = {
        "name": "pay",
        "description": "",
        "kind": "local",
        "effect": "once",
        "success": {"type": "object"},
        "parameters": {"type": "object", "properties": {"cents": {"type": "integer"}}, "required": ["cents"]},
    }
    fields = {
        "id": "rq_1",
        "run_id": "run_1",
        "tool_call_id": "c1",
        "kind": "approval",
        "status": "pending",
        "agent": "a",
        "tool_name": "pay",
        "input": '{"cents": 5}',
        "digest": "d",
        "rule": "r",
        "reason": "",
        "risk": "high",
        "expires_at": None,
        "created_at": "2026-01-01T00:00:00+00:00",
        "verb": None,
        "decided_by": None,
        "decided_at": None,
        "manifest": manifest,
        "agent_words": "",
        "preview_kind": None,
        "preview": None,
        "not_by": None,
        "allowed_verbs": [],
        "decision": None,
        "execution": "not_started",
        "partial_output": "",
        "edited_input": None,
        "result": None,
        "run": run,
        "messages": [],
    }
    return RequestDetail.model_validate({**fields, **changes})


def test_every_way_to_run_a_risky_call_wants_its_name():
    """Approving, both ways of editing, and running an unknown call again: none works without the typed name."""
    ways = {
        "approve": (request_of(), {}),
        "edit": (request_of(), {"edit-0": "6"}),
        "edit-json": (request_of(), {"edit-json": '{"cents": 6}'}),
        "rerun": (request_of(kind="outcome"), {}),
    }
    for action, (request, typed) in ways.items():
        drawn = forms_of(request)
        for typed_wrong in ({}, {f"{action}-confirm": "PAY"}, {"approve-confirm": ""}):
            assert list(read_decision(request, drawn, {"action": action, **typed, **typed_wrong}).errors) == [
                f"{action}-confirm"
            ]
        confirmed = read_decision(request, drawn, {"action": action, **typed, f"{action}-confirm": "pay"})
        assert confirmed.errors == {}
    assert read_decision(request_of(), DecisionForms(), {"action": "destroy"}) is None


def test_a_recent_reason_is_sent_where_none_is_typed():
    """Without a script the chosen reason is the message; typed and chosen, neither is sent, and both stay."""
    drawn = forms_of(request_of())
    sent = {"action": "reject", "reject-message": " ", "reject-recent": "Too early."}
    assert read_decision(request_of(), drawn, sent).message == "Too early."
    typed = read_decision(request_of(), drawn, {**sent, "reject-message": "Never."})
    assert list(typed.errors) == ["reject-message"]
    assert read_decision(request_of(), drawn, {**sent, "reject-recent": ""}).message == ""


def test_arguments_that_no_form_can_hold_are_edited_as_json():
    """Doubled keys, or arguments that are not an object, never become a form that would drop a part of them."""
    for raw in ('{"cents": 1, "cents": 2}', "[1]", "{broken"):
        drawn = forms_of(request_of(input=raw))
        assert (drawn.edit, drawn.raw) == (None, raw)


@pytest.mark.parametrize(("text", "begins"), [("plain", "plain"), ("a\u202eb", ""), ("\u200b", ""), ("x" * 201, "")])
def test_a_limit_begins_with_a_value_that_its_field_can_show(text, begins):
    """A field can't mark hidden characters, so a value with one isn't put there."""
    request = request_of(risk="low", rule="tool:ask", input=json.dumps({"note": text}))
    form = grant_form(request, {}, admin=False, wanted=None)
    assert [(row.values, row.start, row.text) for row in form.rows] == [(begins, begins, text)]


async def test_a_row_is_added_by_a_plain_post(sqlite_template, tmp_path):
    """Without a script the page returns with one more row and nothing decided; filled and sent, the row is decided.

    Temporal is not running here: the decision is taken all the same.
    """
    path = "/requests/rq_approval"
    async with pages_of(Filling("words"), sqlite_template, tmp_path / "pages") as served:
        before = PostedPage((await served.client.get(path)).text).form("edit")
        answer = await served.client.post(path, data=before.pressing("Add to rows"))
        assert answer.status_code == 200
        form = PostedPage(answer.text).form("edit")
        new = sorted(form.sent.keys() - before.sent.keys())
        assert [name for name in new if name.endswith("-0")] == ["edit-3-2-0"]
        own = {"edit-3-rows": "0 1 2", "decision_id": form.sent["decision_id"]}
        assert {**form.sent, **before.sent, **own} == form.sent
        sent = {**form.sent, "edit-3-2-0": "a third", "edit-confirm": "words"}
        answer = await served.client.post(path, data=sent)
        assert answer.status_code == 303, answer.text[:500]


async def test_a_row_button_needs_the_form_token(sqlite_template, tmp_path):
    """Another site cannot have the page rendered with its words in the form."""
    path = "/requests/rq_approval"
    async with pages_of(Filling("words"), sqlite_template, tmp_path / "pages") as served:
        form = PostedPage((await served.client.get(path)).text).form("edit")
        answer = await served.client.post(path, data={**form.pressing("Add to rows"), "csrf_token": "stale"})
    assert answer.status_code == 403


@pytest.mark.parametrize(
    ("sent", "known"),
    [
        ("0", 0),
        ("4321", 4321),
        ("86400000", 86_400_000),
        ("86400001", None),
        ("", None),
        ("-1", None),
        ("1.5", None),
        ("1e3", None),
        ("+5", None),
        ("٣", None),
        ("<b>", None),
        ("9" * 5_000, None),
    ],
)
def test_a_look_that_is_no_number_is_not_known(sent, known):
    """What a page's script fills in is a number in its bounds, or it doesn't count; it never stops a decision."""
    assert look_of({"looked_ms": sent}).looked_ms == known
    assert look_of({"seen_percent": sent}).seen_percent == (known if known == 0 else None)
    assert look_of({"seen-rq_1": "100"}, seen="seen-rq_1").seen_percent == 100


async def test_a_row_button_keeps_the_time_of_the_look(sqlite_template, tmp_path):
    """The time that a form was looked at continues after a button that only adds a row; without JavaScript it is empty."""
    path = "/requests/rq_approval"
    async with pages_of(Filling("words"), sqlite_template, tmp_path / "pages") as served:
        before = PostedPage((await served.client.get(path)).text).form("edit")
        assert (before.sent["looked_ms"], before.sent["seen_percent"]) == ("", "")
        sent = {**before.pressing("Add to rows"), "looked_ms": "4321", "seen_percent": "80"}
        form = PostedPage((await served.client.post(path, data=sent)).text).form("edit")
    assert (form.sent["looked_ms"], form.sent["seen_percent"]) == ("4321", "")
