import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from approvals_api.pages import forms, json_text
from approvals_api.pages.schema_fields import fields_of
from approvals_api.pages.schema_kinds import ABSENT
from approvals_api.pages.visible import has_hidden


def as_sent(fields, changes=None):
    """What a browser sends for these fields: line ends become CRLF; ``changes`` are typed over by control name."""
    sent = {}
    for field in fields:
        sent[field.name] = field.text
        if len(field.states) > 1:
            sent[field.state_name] = field.state
    sent.update(changes or {})
    return {name: text.replace("\r\n", "\n").replace("\r", "\n").replace("\n", "\r\n") for name, text in sent.items()}


def fields_for(schema, raw):
    parsed = json_text.parse(raw)
    return fields_of(schema, parsed.tree)


def members_of(raw):
    return {key: json_text.dump(value) for key, value in json_text.parse(raw).tree.items()}


_TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=30)
_NUMBER = st.from_regex(r"\A-?(0|[1-9][0-9]{0,24})(\.[0-9]{1,6})?([eE][+-]?[0-9]{1,3})?\Z")
_INTEGER = st.from_regex(r"\A-?(0|[1-9][0-9]{0,24})\Z")
_RAW = {
    "string": _TEXT.map(lambda text: json.dumps(text, ensure_ascii=False)),
    "integer": _INTEGER,
    "number": _NUMBER,
    "boolean": st.sampled_from(["true", "false"]),
}
_ANY = st.recursive(
    st.one_of(*_RAW.values(), st.just("null")),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]"),
        st.dictionaries(_TEXT, inner, max_size=3).map(
            lambda members: "{" + ", ".join(f"{json.dumps(key)}: {value}" for key, value in members.items()) + "}"
        ),
    ),
    max_leaves=4,
)


@st.composite
def _property(draw):
    """A property's schema with a raw JSON value of it, or None when it is left out."""
    kind = draw(st.sampled_from(["string", "integer", "number", "boolean", "enum", "array", "any"]))
    if kind == "enum":
        options = draw(st.lists(st.one_of(_TEXT, st.integers(), st.booleans()), min_size=1, max_size=4))
        schema, value = {"enum": options}, st.sampled_from(options).map(json.dumps)
    elif kind == "array":
        item = draw(st.sampled_from(sorted(_RAW)))
        schema = {"type": "array", "items": {"type": item}}
        value = st.lists(_RAW[item], max_size=4).map(lambda items: f"[{', '.join(items)}]")
    elif kind == "any":
        schema, value = {}, _ANY
    else:
        schema, value = {"type": kind}, _RAW[kind]
    nullable = draw(st.booleans())
    if nullable:
        schema, value = {"anyOf": [schema, {"type": "null"}]}, st.one_of(value, st.just("null"))
    # Now and then a value of a type the schema does not have: it must survive too.
    raw = draw(st.one_of(value, value, value, _ANY))
    required = draw(st.booleans())
    return schema, (None if not required and draw(st.booleans()) else raw), required


# The first text drawn on a machine builds hypothesis's tables of Unicode, which takes longer than its health check allows.
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.dictionaries(_TEXT, _property(), max_size=5), st.dictionaries(_TEXT, _ANY, max_size=2))
def test_form_and_json_lose_nothing(properties, extra):
    """Arguments put in a form and sent back untouched are the same JSON: types, digits, order, extra keys and all."""
    schema = {
        "type": "object",
        "properties": {key: schema for key, (schema, _raw, _required) in properties.items()},
        "required": [key for key, (_schema, _raw, required) in properties.items() if required],
    }
    members = {key: raw for key, (_schema, raw, _required) in properties.items() if raw is not None}
    members |= {key: raw for key, raw in extra.items() if key not in properties}
    raw = "{" + ", ".join(f"{json.dumps(key, ensure_ascii=False)}: {value}" for key, value in members.items()) + "}"
    fields = fields_for(schema, raw)
    sent = as_sent(fields)
    assert forms.read(fields, sent, original=raw) == forms.Reading(args=raw)
    rebuilt = forms.read(fields, sent).args
    assert members_of(rebuilt) == members_of(raw)


@given(_TEXT)
def test_no_edit_field_hides_a_character(text):
    """A person who edits sees every character: hidden ones stand as escapes in a JSON field."""
    (field,) = fields_of({"type": "object", "properties": {"a": {"type": "string"}}}, {"a": text})
    assert not has_hidden(field.text)


class Refund(BaseModel):
    order: str
    cents: int
    rate: float = 1.5
    note: str | None = None
    tags: list[str] = []
    notify: bool = False


RAW = '{"order": "A-7", "cents": 12345678901234567890, "note": "two\\nlines", "x": {"kept": 1}}'


def _refund_fields():
    return {field.key: field for field in fields_for(Refund.model_json_schema(), RAW)}


def test_a_pydantic_model_gives_the_controls_one_expects():
    """Each type of a tool's parameters has its control, and what the schema does not know is kept as JSON."""
    fields = _refund_fields()
    assert {key: field.kind for key, field in fields.items()} == {
        "order": "line",
        "cents": "integer",
        "rate": "number",
        "note": "text",
        "tags": "lines",
        "notify": "choice",
        "x": "json",
    }
    assert fields["order"].states == ("value",)
    assert fields["note"].states == ("value", "null", "absent")
    assert fields["rate"].state == "absent"


def test_only_the_edited_value_changes():
    """An edit changes what was edited; every other argument keeps its bytes and its place."""
    fields = _refund_fields()
    sent = as_sent(
        fields.values(), {fields["cents"].name: "42", fields["rate"].name: "2.50", fields["rate"].state_name: "value"}
    )
    reading = forms.read(list(fields.values()), sent, original=RAW)
    assert reading.args == '{"order": "A-7", "cents": 42, "note": "two\\nlines", "x": {"kept": 1}, "rate": 2.50}'


def test_an_edit_back_to_the_same_is_the_same_text():
    """When nothing differs the very bytes come back, whatever their spacing."""
    raw = '{ "order":"A-7",\n "cents":1 }'
    fields = fields_for(Refund.model_json_schema(), raw)
    assert forms.read(fields, as_sent(fields), original=raw).args == raw


def test_wrong_types_are_said_beside_the_field():
    """A word where a number belongs is an error of that control, and nothing is sent."""
    fields = _refund_fields()
    reading = forms.read(list(fields.values()), as_sent(fields.values(), {fields["cents"].name: "many"}))
    assert reading.args is None
    assert list(reading.errors) == [fields["cents"].name]


def test_text_beside_null_is_not_dropped():
    """Text typed into a field that says null is an error, never silently lost."""
    fields = _refund_fields()
    sent = as_sent(fields.values(), {fields["note"].name: "typed", fields["note"].state_name: "null"})
    assert forms.read(list(fields.values()), sent).errors == {fields["note"].name: forms.LEFT_OVER}


def test_a_field_that_did_not_arrive_is_an_error():
    """A form that lost a control on its way is refused, instead of dropping the argument."""
    fields = _refund_fields()
    sent = as_sent(fields.values())
    del sent[fields["order"].name]
    assert forms.read(list(fields.values()), sent).errors == {fields["order"].name: forms.DID_NOT_ARRIVE}


def test_an_answer_form_starts_from_the_defaults():
    """Without a value the form shows the schema's defaults, and a required choice asks to be made."""
    schema = {
        "type": "object",
        "properties": {
            "answer": {"type": "string"},
            "sure": {"type": "boolean"},
            "times": {"type": "integer", "default": 3},
        },
        "required": ["answer", "sure"],
    }
    answer, sure, times = fields_of(schema)
    assert (answer.kind, times.text, times.state) == ("text", "3", "value")
    assert sure.choices[0].label == "(choose)"
    reading = forms.read((answer, sure, times), as_sent((answer, sure, times), {answer.name: "yes"}))
    assert list(reading.errors) == [sure.name]


def test_a_result_that_is_no_object_has_one_field():
    """A tool that returns a bare value gets a form of one field for the whole of it."""
    (field,) = fields_of({"type": "string"}, ABSENT)
    assert field.key is None
    assert forms.read((field,), as_sent((field,), {field.name: "done"})).args == '"done"'


def test_references_are_local_only():
    """A schema's reference is followed inside it and never anywhere else."""
    schema = {
        "$defs": {"Mode": {"enum": ["fast", "slow"]}},
        "type": "object",
        "properties": {"mode": {"$ref": "#/$defs/Mode"}, "far": {"$ref": "https://example.invalid/schema.json"}},
    }
    mode, far = fields_of(schema, {"mode": "fast"})
    assert [choice.label for choice in mode.choices] == ["fast", "slow", "(leave it out)"]
    assert far.kind == "json"


def test_complaints_stand_beside_their_field():
    """A pointer finds its field, deeper ones say where inside, others are listed on their own."""
    fields = _refund_fields()
    beside, rest = forms.place_errors(
        list(fields.values()),
        [{"pointer": "/tags/1", "message": "too short"}, {"pointer": "", "message": "'y' is a required property"}],
    )
    assert beside == {fields["tags"].name: "/1: too short"}
    assert rest == ["'y' is a required property"]
