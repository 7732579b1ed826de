import json
from html.parser import HTMLParser

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from approvals_api.pages import forms, json_text
from approvals_api.pages.decision_forms import DecisionForms, forms_of, read_decision
from approvals_api.pages.schema_fields import fields_of
from approvals_api.pages.templating import _environment
from approvals_api.read_models import RequestDetail


class _Browser(HTMLParser):
    """The controls of a page as a browser would send them, by the rules of HTML: the first newline of a textarea is none."""

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.sent = {}
        self._area = self._select = None
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if tag == "input":
            self.sent[given["name"]] = given["value"]
        elif tag == "textarea":
            self._area, self.sent[given["name"]] = given["name"], ""
        elif tag == "select":
            self._select = given["name"]
        elif tag == "option" and (self._select not in self.sent or "selected" in given):
            self.sent[self._select] = given["value"]

    def handle_endtag(self, tag):
        if tag == "textarea":
            self.sent[self._area] = self.sent[self._area].removeprefix("\n").replace("\n", "\r\n")
            self._area = None

    def handle_data(self, data):
        if self._area:
            self.sent[self._area] += data


def rendered(fields):
    macro = _environment().get_template("fields.html").module.control
    return "".join(macro(field, {}, {}) for field in fields)


_TEXT = st.one_of(
    st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=20),
    st.text(alphabet="\n\r\t <>&\"'/ab", max_size=12),
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(_TEXT, _TEXT, st.lists(_TEXT, max_size=3), _TEXT)
def test_the_html_itself_loses_nothing(key, line, lines, extra):
    """Through the real templates and a browser's rules of reading them, every text comes back as it was."""
    schema = {
        "type": "object",
        "properties": {
            key: {"type": "string"},
            f"{key}-area": {"type": "string"},
            f"{key}-lines": {"type": "array", "items": {"type": "string"}},
            f"{key}-pick": {"enum": [line, extra]},
        },
        "required": [key],
    }
    raw = json.dumps(
        {key: line, f"{key}-area": f"\n{extra}", f"{key}-lines": lines, f"{key}-pick": extra, "x": {extra: 1}}
    )
    fields = fields_of(schema, json_text.parse(raw).tree)
    assert forms.read(fields, _Browser(rendered(fields)).sent, original=raw) == forms.Reading(args=raw)


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
    given = {
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
    return RequestDetail.model_validate({**given, **changes})


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
        for said in ({}, {f"{action}-confirm": "PAY"}, {"approve-confirm": ""}):
            assert list(read_decision(request, drawn, {"action": action, **typed, **said}).errors) == [
                f"{action}-confirm"
            ]
        confirmed = read_decision(request, drawn, {"action": action, **typed, f"{action}-confirm": "pay"})
        assert confirmed.errors == {}
    assert read_decision(request_of(), DecisionForms(), {"action": "destroy"}) is None


def test_arguments_that_no_form_can_hold_are_edited_as_json():
    """Doubled keys, or arguments that are not an object, are never poured into a form that would drop a part of them."""
    for raw in ('{"cents": 1, "cents": 2}', "[1]", "{broken"):
        drawn = forms_of(request_of(input=raw))
        assert (drawn.edit, drawn.raw) == ((), raw)
