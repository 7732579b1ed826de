"""The form of a JSON Schema, through the real templates and a browser's rules: no value is lost."""

import json
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import AwareDatetime, BaseModel, Field
from support.pages.html_forms import PostedPage
from support.planted.schema_cases import TEXT, schemas_with_values

from turngate.approvals_api.pages.templating import _environment
from turngate.domain.text import json_text
from turngate.domain.text.hidden_text import has_hidden
from turngate.forms import reader
from turngate.forms.errors import place_errors
from turngate.forms.fields import Control, every
from turngate.forms.rows import MAX_ROWS, grown, pressed
from turngate.forms.schema_fields import form_of
from turngate.forms.schema_kinds import ABSENT

# The first text drawn on a machine builds hypothesis's tables of Unicode, which takes longer than its health check allows.
patient = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)


def html_of(form, typed=None, errors=None):
    return _environment().get_template("fields.html").module.whole_form(form, typed or {}, errors or {}, "arguments")


class Filled:
    """A form as a person sees it: rendered from a value, with what was typed over it."""

    def __init__(self, schema, raw=None):
        self.raw = raw or ""
        self._drawn = form_of(schema, ABSENT if raw is None else json_text.parse(raw).tree)
        self.typed = PostedPage(html_of(self._drawn)).sent

    @property
    def form(self):
        return grown(self._drawn, self.typed)

    def name(self, pointer, what="name"):
        """Return the control of the value at a pointer; ``what``: ``state_name``, ``rows_name``, ``variant_name``."""
        beside, _rest = place_errors(self.form, [{"pointer": pointer, "message": ""}], self.typed)
        (name,) = beside
        return name if what == "name" else getattr(next(each for each in every(self.form) if each.name == name), what)

    def put(self, pointer, text, what="name"):
        self.typed[self.name(pointer, what)] = text
        return self

    def press(self, button):
        """Press a button of the page; return the page that follows."""
        posted = PostedPage(html_of(self.form, self.typed)).forms[0].pressing(button)
        changed = pressed(self.form, posted)
        self.typed = PostedPage(html_of(grown(self._drawn, changed), changed)).sent
        return self

    def read(self):
        return reader.read(self.form, self.typed, original=self.raw)

    @property
    def kinds(self):
        return {each.key: each.kind for each in self.form.fields}


def of(**properties):
    return {"type": "object", "properties": properties, "required": list(properties)}


@pytest.mark.exhaustive
@patient
@given(schemas_with_values())
def test_form_and_json_lose_nothing(case):
    """A value of any schema, put in a form and sent back untouched, is the same JSON: types, digits, order, null, absence.

    With the original at hand it is the same bytes; read from the controls alone, the same canonical text.
    """
    schema, raw = case
    filled = Filled(schema, raw)
    assert filled.read() == reader.FormValue(args=raw)
    alone = reader.read(filled.form, filled.typed).args  # an empty text and null mean no arguments, as {} does
    assert json_text.arguments_text(alone) == json_text.arguments_text(json_text.dump(json_text.parse(raw).tree))


@pytest.mark.exhaustive
@patient
@given(schemas_with_values(), st.data())
def test_one_edit_changes_one_value_and_survives_an_error_page(case, data):
    """What is typed into one field changes that value and no other, and a page shown again for an error still holds it."""
    schema, raw = case
    filled = Filled(schema, raw)
    sent = set(filled.typed)
    texts = [each for each in every(filled.form) if each.kind == "line" and each.name in sent and each.state == "value"]
    controls = [each for each in texts if not has_hidden(each.text)]
    if not controls:
        return
    control = data.draw(st.sampled_from(controls))
    filled.typed[control.name] = "typed by a person"
    again = PostedPage(html_of(filled.form, filled.typed, {control.name: "does not fit"})).sent
    assert again == filled.typed
    result = reader.read(filled.form, again)
    if result.args is None:  # typed into an object that is left out
        assert set(result.errors.values()) == {reader.LEFT_OVER}
        return
    changed = _differences(json_text.parse(raw).tree, json_text.parse(result.args).tree)
    # A field of an option that is not chosen holds a default, and is not part of the value.
    assert changed in ([], [(control.text, "typed by a person")])


def _differences(before, after):
    if isinstance(before, dict) and isinstance(after, dict) and list(before) == list(after):
        return [each for key in before for each in _differences(before[key], after[key])]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return [each for one, other in zip(before, after, strict=True) for each in _differences(one, other)]
    return [] if json_text.dump(before) == json_text.dump(after) else [(before, after)]


@given(TEXT)
def test_no_edit_field_hides_a_character(text):
    """A person who edits sees every character: hidden ones are escapes in a JSON field."""
    filled = Filled(of(a={"type": "string"}), json.dumps({"a": text}))
    assert not has_hidden(filled.form.fields[0].text)


class Size(BaseModel):
    kind: Literal["size"] = "size"
    width: int


class Colour(BaseModel):
    """A colour by name."""

    kind: Literal["colour"] = "colour"
    name: str


class Line(BaseModel):
    article: str
    count: int = 1
    price: Decimal = Decimal("1.10")


class Speed(Enum):
    SLOW = 1
    FAST = 2


class Order(BaseModel):
    order: str = Field(description="The order's number.")
    cents: int
    rate: float = 1.5
    note: str | None = None
    tags: list[str] = []
    notify: bool = False
    day: AwareDatetime | None = None
    speed: Speed = Speed.SLOW
    lines: list[Line] = []
    detail: Annotated[Size | Colour, Field(discriminator="kind")] | None = None
    counts: dict[str, int] = {}
    either: int | str = 0


ORDER = Order.model_json_schema()
RAW = (
    '{"order": "A-7", "cents": 12345678901234567890, "note": "two\\nlines", "x": {"kept": 1}, "rate": 1.0, '
    '"lines": [{"article": "nail", "price": "1.10"}, {"article": "", "count": 2, "price": 1.10}], '
    '"detail": {"kind": "colour", "name": "red"}, "counts": {"b": 1, "a": 2}, "either": "5"}'
)


def test_a_pydantic_model_gives_the_controls_one_expects():
    """Each type of a tool's parameters has its control, and other schemas give a JSON field."""
    filled = Filled(ORDER, RAW)
    assert filled.kinds == {
        "order": "line",
        "cents": "integer",
        "rate": "number",
        "note": "text",
        "tags": "lines",
        "notify": "choice",
        "day": "instant",
        "speed": "choice",
        "lines": "rows",
        "detail": "variants",
        "counts": "rows",
        "either": "variants",
        "x": "json",
    }
    fields = {field.key: field for field in filled.form.fields}
    assert fields["note"].states == ("value", "null", "absent")
    assert fields["tags"].state == "absent"
    assert fields["tags"].note == "Left out, it is []."
    assert fields["day"].hint == "date and time in UTC, as 2026-01-31T09:30:00"
    assert fields["either"].labels == ("whole number", "text")
    assert fields["detail"].labels == ("Size", "Colour")
    assert fields["detail"].options[1].description == "A colour by name."


EDITS = {
    "integer": ("/cents", "1" + "0" * 30, '"cents": 12345678901234567890', '"cents": 1' + "0" * 30),
    "integer in a float": ("/rate", "1", '"rate": 1.0', '"rate": 1'),
    "a digit more": ("/rate", "1.00", '"rate": 1.0', '"rate": 1.00'),
    "empty text": ("/order", "", '"order": "A-7"', '"order": ""'),
    "in a row": ("/lines/1/article", "screw", '"article": ""', '"article": "screw"'),
    "decimal as text": ("/lines/0/price", "1.20", '"price": "1.10"', '"price": "1.20"'),
    "decimal as number": ("/lines/1/price", "1.20", '"price": 1.10', '"price": 1.20'),
    "in a variant": ("/detail/name", "blue", '"red"', '"blue"'),
    "in a map": ("/counts/a", "3", '"a": 2', '"a": 3'),
}


@pytest.mark.parametrize(("pointer", "text", "before", "after"), EDITS.values(), ids=list(EDITS))
def test_only_the_edited_value_changes(pointer, text, before, after):
    """An edit changes what was edited and keeps its type; every other argument keeps its text and its place."""
    filled = Filled(ORDER, RAW)
    filled.typed[_control_at(filled, pointer).name] = text
    assert filled.read().args == RAW.replace(before, after, 1)


class Booking(BaseModel):
    day: date
    at: datetime
    price: Decimal


BOOKING = Booking.model_json_schema()
BOOKED = '{"day": "2026-01-31", "at": "2026-01-31T09:30:05+02:00", "price": "1.10"}'
TYPED = {
    "a day": ("/day", "2026-02-28", "2026-01-31", "2026-02-28"),
    "a time": ("/at", "2026-01-31T10:00:01", "T09:30:05+", "T10:00:01+"),
    "a time without seconds, as browsers send it": ("/at", "2026-01-31T10:00", "T09:30:05+", "T10:00:00+"),
    "a time with a zone of its own": ("/at", "2026-01-31T10:00:01Z", "T09:30:05+02:00", "T10:00:01Z"),
    "a price of many digits": ("/price", f"0.{'1' * 40}", "1.10", f"0.{'1' * 40}"),
}  # fmt: skip


@pytest.mark.parametrize(("pointer", "text", "before", "after"), TYPED.values(), ids=list(TYPED))
def test_dates_and_decimals_have_fields_of_their_own(pointer, text, before, after):
    """What a browser's field for them sends becomes the text that the tool takes: with its zone, and digit by digit."""
    filled = Filled(BOOKING, BOOKED)
    assert filled.kinds == {"day": "date", "at": "instant", "price": "decimal"}
    html = html_of(filled.form)
    assert 'value="2026-01-31" dir="auto"' in html
    assert 'value="2026-01-31T09:30:05" dir="auto"' in html
    assert "date and time in UTC+02:00" in html
    assert filled.read().args == BOOKED
    filled.put(pointer, text)
    assert filled.read().args == BOOKED.replace(before, after, 1)


def test_what_is_no_date_or_decimal_is_refused_at_its_field():
    """The field says what to type; nothing is rounded, and nothing is guessed."""
    for pointer, texts in {
        "/day": ("", "31.1.2026", "2026-02-30", "2026-01-31T00:00:00"),
        "/at": ("", "2026-01-31", "2026-01-31T25:00", "2026-01-31 09:30:00", "2026-01-31T09:30:00.5"),
        "/price": ("", "1,10", "1e3", "NaN", "--1", "."),
    }.items():
        for text in texts:
            filled = Filled(BOOKING, BOOKED).put(pointer, text)
            answer = filled.read()
            assert (answer.args, list(answer.errors)) == (None, [filled.name(pointer)]), text


@pytest.mark.parametrize(
    ("raw", "kinds"),
    [
        ('{"day": "31 January", "at": "2026-01-31T09:30:05.123456Z", "price": 1.10}', ["line", "line", "decimal"]),
        ('{"day": "2026-02-30", "at": "2026-01-31t09:30:05z", "price": "1e3"}', ["line", "line", "variants"]),
        ('{"day": "2026-01-31", "at": "2026-01-31T09:30:05", "price": "+.5"}', ["date", "instant", "decimal"]),
        ('{"day": 5, "at": null, "price": "\u202e1"}', ["json", "json", "variants"]),
    ],
)
def test_a_value_that_a_native_field_would_change_has_a_plain_one(raw, kinds):
    """Fractions of seconds, other spellings and other types stay as they are, to the character."""
    filled = Filled(BOOKING, raw)
    assert list(filled.kinds.values()) == kinds
    assert filled.read() == reader.FormValue(args=raw)
    alone = reader.read(filled.form, filled.typed).args  # an empty text and null mean no arguments, as {} does
    assert json_text.arguments_text(alone) == json_text.arguments_text(json_text.dump(json_text.parse(raw).tree))


def _control_at(filled, pointer):
    """Return the control at a pointer; with a choice of types, that of the chosen one."""
    name = filled.name(pointer)
    field = next(each for each in every(filled.form) if each.name == name)
    while field.kind == "variants":
        field = field.options[int(filled.typed[field.variant_name])]
    assert isinstance(field, Control)
    return field


def test_null_empty_text_and_absence_are_three_things():
    """A nullable, optional text can be each of the three, and each is sent as what it is."""
    schema = {"type": "object", "properties": {"note": {"anyOf": [{"type": "string"}, {"type": "null"}]}}}
    for raw, state in (('{"note": ""}', "value"), ('{"note": null}', "null"), ("{}", "absent")):
        assert Filled(schema, raw).typed == {"field-0": "", "field-0-state": state}
        for start in ('{"note": "x"}', '{"note": null}', "{}"):
            filled = Filled(schema, start).put("/note", "").put("/note", state, "state_name")
            assert filled.read().args == raw


def test_a_row_is_added_and_filled_without_a_script():
    """The button returns the page with one empty row more, with its defaults and everything typed so far."""
    filled = Filled(ORDER, RAW).put("/order", "typed before").press("Add to lines")
    filled.put("/lines/2/article", "bolt")
    price = next(each for each in every(filled.form) if each.name == filled.name("/lines/2/price"))
    filled.put("/lines/2/count", "value", "state_name")
    args = json.loads(filled.read().args)
    assert args["order"] == "typed before"
    assert args["lines"][2] == {"article": "bolt", "count": 1, "price": "1.10"}
    assert (price.kind, price.text) == ("decimal", "1.10")


def test_the_new_row_has_the_focus():
    """The page returns with the keyboard focus where the person was: in the new row, or at the button."""
    filled = Filled(ORDER, RAW)
    posted = PostedPage(html_of(filled.form, filled.typed)).forms[0]
    new = (
        '<fieldset class="group" id="field-8-2" tabindex="-1" autofocus',
        'aria-label="counts 3" tabindex="-1" autofocus',
    )
    for button, mark in (("Add to lines", new[0]), ("Add to counts", new[1]), ("Remove lines 1", '-add"')):
        changed = pressed(filled.form, posted.pressing(button))
        html = html_of(grown(filled.form, changed), changed)
        assert html.count("autofocus") == 1
        assert mark in html[html.index("autofocus") - 200 : html.index("autofocus") + 9]


def test_rows_are_removed_without_mixing_up_the_others():
    """A removed row is gone; later rows keep their values, their kinds of field and what was typed."""
    raw = '{"lines": [{"article": "a"}, {"article": "hidden\\u200b"}, {"article": "c"}]}'
    filled = Filled({**ORDER, "required": []}, raw).put("/lines/2/article", "typed").press("Remove lines 1")
    assert json.loads(filled.read().args) == {"lines": [{"article": "hidden\u200b"}, {"article": "typed"}]}
    filled.press("Remove lines 1").press("Remove lines 1").press("Add to lines")
    assert filled.typed[filled.name("/lines/0/article")] == ""
    filled.typed[filled.name("/lines/0/article")] = "new"
    assert json.loads(filled.read().args)["lines"][0]["article"] == "new"


def test_a_list_that_was_left_out_is_sent_once_a_row_was_added():
    """Adding a row says that there is a value; nested lists have rows of their own."""
    schema = {
        "type": "object",
        "properties": {"grid": {"type": "array", "items": {"type": "array", "items": {"enum": [1, 2]}}}},
    }
    filled = Filled(schema, "{}").press("Add to grid").press("Add to grid 1").press("Add to grid 1")
    filled.put("/grid/0/0", "1").put("/grid/0/1", "2")
    assert filled.read().args == '{"grid": [[1, 2]]}'


def test_members_of_a_map_have_names_that_can_be_typed():
    """Free members are added, renamed and removed; a duplicate or missing name is reported at its field."""
    filled = Filled(ORDER, RAW).press("Add to counts")
    rows = next(each for each in every(filled.form) if each.key == "counts")
    key = rows.rows[2].key_name
    filled.typed[rows.rows[2].field.name] = "7"
    assert list(filled.read().errors) == [key]
    filled.typed[key] = "a"
    assert filled.read().errors == {key: "The name “a” is given twice; each may be used once."}
    filled.typed[key] = "c"
    assert '"counts": {"b": 1, "a": 2, "c": 7}' in filled.read().args
    filled.press("Remove counts 1")
    assert '"counts": {"a": 2, "c": 7}' in filled.read().args


def test_another_type_is_one_click():
    """Choosing another option sends its value; the first one's content is still on the page."""
    filled = Filled(ORDER, RAW)
    (integer, text) = next(each for each in every(filled.form) if each.key == "either").options
    filled.put("/either", "0", "variant_name")
    filled.typed[integer.name] = "5"
    assert '"either": 5}' in filled.read().args
    assert filled.typed[text.name] == "5"


def test_a_choice_of_types_must_be_made():
    """If no option is chosen for a required value, the form asks for one."""
    filled = Filled(of(either={"anyOf": [{"type": "integer"}, {"type": "string"}]}))
    assert filled.read().errors == {"field-0": reader.CHOOSE}


def test_the_value_determines_the_option():
    """The option is the one whose constants, required members and types the value has; no pattern is run for it."""
    pets = [
        {
            "type": "object",
            "properties": {"kind": {"const": "cat"}, "lives": {"type": "integer"}},
            "required": ["kind"],
        },
        {"type": "object", "properties": {"kind": {"const": "dog"}, "name": {"type": "string"}}, "required": ["kind"]},
        {"type": "string", "pattern": "^(a+)+$"},
        {"type": "number"},
    ]
    schema = of(pet={"oneOf": pets})
    evil = "a" * 200 + "!"
    for raw, chosen in (
        ('{"pet": {"kind": "cat"}}', 0), ('{"pet": {"kind": "dog", "name": "x"}}', 1), (json.dumps({"pet": evil}), 2),
        ('{"pet": 1.50}', 3), ('{"pet": true}', None), ('{"pet": {"kind": "cow"}}', None),
    ):  # fmt: skip
        (pet,) = Filled(schema, raw).form.fields
        assert (pet.chosen if pet.kind == "variants" else None) == chosen


def test_a_number_keeps_its_kind():
    """Where integers and other numbers are different types, 1 and 1.0 keep their own."""
    schema = of(n={"anyOf": [{"type": "number"}, {"type": "integer"}]}, m={"type": ["integer", "number"]})
    for raw, m in (("1", 0), ("1.0", 1), ("1e2", 1), ("1" + "0" * 30, 0)):
        filled = Filled(schema, f'{{"n": {raw}, "m": {raw}}}')
        assert [field.chosen for field in filled.form.fields] == [0, m]
        assert reader.read(filled.form, filled.typed).args == filled.raw


def test_what_must_be_there_and_is_not_is_not_made_up():
    """Arguments that lack a required member still lack it after an untouched form."""
    filled = Filled(of(a={"type": "string"}, b={"enum": [1]}, c=of(d={"type": "string"})), '{"c": {}}')
    assert reader.read(filled.form, filled.typed).args == '{"c": {}}'


def test_constants_that_look_alike_have_different_labels():
    """The text "1", the number 1, and a text that reads like one of the form's own words each have their own label."""
    schema = {"type": "object", "properties": {"a": {"enum": ["1", 1, "", "(leave it out)", "plain", None]}}}
    (field,) = Filled(schema, "{}").form.fields
    assert [choice.label for choice in field.choices] == [
        '"1"', "1", '""', '"(leave it out)"', "plain", "null", "(leave it out)",
    ]  # fmt: skip


def test_what_refers_to_itself_is_json_for_that_part_only():
    """A tree has fields for its first node, and JSON for the nodes inside."""
    node = {"type": "object", "properties": {"name": {"type": "string"}, "next": {"$ref": "#/$defs/Node"}}}
    schema = {"$defs": {"Node": node}, **of(root={"$ref": "#/$defs/Node"}, self={"$ref": "#"})}
    filled = Filled(schema, '{"root": {"name": "a", "next": {"name": "b"}}, "self": {}}')
    assert [field.kind for field in filled.form.fields[0].fields] == ["line", "json"]
    filled.put("/root/name", "z")
    assert filled.read().args == '{"root": {"name": "z", "next": {"name": "b"}}, "self": {}}'


def test_a_type_that_is_one_of_itself_is_json():
    """A choice that refers to itself, as a tool server may send one, never ends: the value gets a JSON field."""
    endless = {"anyOf": [{"$ref": "#/$defs/endless"}, {"type": "string"}]}
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/endless"}}, "$defs": {"endless": endless}}
    (field,) = form_of(schema, json_text.parse('{"a": 1}').tree).fields
    assert (field.key, field.kind, field.text) == ("a", "json", "1")


def test_a_form_stays_small_enough_to_look_through():
    """Long lists and wide objects become JSON in their place; a schema that grows without bound stays quick."""
    wide = of(**{f"m{n}": {"type": "integer"} for n in range(300)})
    values = {"a": "x", "one": dict.fromkeys(wide["properties"], 1)}
    filled = Filled(of(a={"type": "string"}, one=wide, other=wide), json.dumps(values))
    assert [field.kind for field in filled.form.fields] == ["line", "group", "json"]
    long = Filled(
        of(rows={"type": "array", "items": of(a={"type": "string"})}), json.dumps({"rows": [{"a": "x"}] * 51})
    )
    assert long.form.fields[0].kind == "json"
    bomb = {"$defs": {f"L{n}": {"anyOf": [{"$ref": f"#/$defs/L{n + 1}"}] * 10} for n in range(9)}}
    assert form_of({**bomb, **of(a={"$ref": "#/$defs/L0"})}, {}) is not None
    assert form_of(of(**{f"m{n}": {} for n in range(500)}), {}) is None


def test_a_form_that_was_tampered_with_cannot_grow_without_bound():
    """Row numbers that no button gave are refused, and there are never more rows than the page takes."""
    filled = Filled(ORDER, RAW)
    name = filled.name("/lines", "rows_name")
    for rows in ("0 0", "0 x", "-1", "0 1 99999", " ".join(map(str, range(MAX_ROWS + 1))), "٣"):
        filled.typed[name] = rows
        assert filled.read().errors == {name.removesuffix("-rows"): reader.DID_NOT_ARRIVE}
    filled.typed[name] = " ".join(map(str, range(MAX_ROWS)))
    assert len([*every(filled.form)]) < 1_000


def test_wrong_types_are_reported_at_the_field():
    """A word instead of a number is an error of that control, at any depth, and nothing is sent."""
    filled = Filled(ORDER, RAW).put("/cents", "many").put("/lines/0/count", "few")
    filled.put("/lines/0/count", "value", "state_name").put("/counts/b", "1.5")
    assert filled.read().args is None
    assert set(filled.read().errors) == {filled.name(at) for at in ("/cents", "/lines/0/count", "/counts/b")}


def test_text_beside_null_is_not_dropped():
    """Text typed into a field that says null is an error, never silently lost; so is a change inside an object left out."""
    filled = Filled(ORDER, RAW).put("/note", "null", "state_name")
    assert filled.read().errors == {filled.name("/note"): reader.LEFT_OVER}
    schema = {"type": "object", "properties": {"in": of(a={"type": "string", "default": "x"})}}
    filled = Filled(schema, "{}")
    assert filled.read().args == "{}"
    filled.put("/in/a", "typed")
    assert filled.read().errors == {"field-0": reader.LEFT_OVER}


def test_a_field_that_did_not_arrive_is_an_error():
    """A form that lost any control on its way is refused, instead of dropping the argument."""
    schema = {key: value for key, value in ORDER.items() if key != "required"}
    for name in Filled(schema, RAW).typed:
        filled = Filled(schema, RAW)
        # An option that is not chosen does not count.
        if any(name.startswith(f"{each.name}-{at}") for each in every(filled.form) if each.kind == "variants"
               for at in range(len(each.options)) if at != each.chosen):  # fmt: skip
            continue
        del filled.typed[name]
        assert filled.read().args is None, name


def test_an_answer_form_starts_from_the_defaults():
    """Without a value the form has the schema's defaults, and a required choice has to be made."""
    schema = {
        "type": "object",
        "properties": {
            "answer": {"type": "string"},
            "sure": {"type": "boolean"},
            "times": {"type": "integer", "default": 3},
            "inner": {"type": "object", "properties": {"deep": {"type": "integer", "default": 4}}, "default": {}},
        },
        "required": ["answer", "sure"],
    }
    filled = Filled(schema)
    answer, sure, times, _inner = filled.form.fields
    assert (answer.kind, times.text, times.state) == ("text", "3", "value")
    assert sure.choices[0].label == "(choose)"
    assert list(filled.put("/answer", "yes").read().errors) == [sure.name]
    assert (
        filled.put("/sure", "true").read().args == '{"answer": "yes", "sure": true, "times": 3, "inner": {"deep": 4}}'
    )


def test_a_result_that_is_no_object_has_one_field():
    """A tool that returns a bare value gets a form of one field for the whole of it."""
    filled = Filled({"type": "string"})
    assert filled.form.key is None
    filled.typed[filled.form.name] = "done"
    assert filled.read().args == '"done"'


def test_references_are_local_only():
    """A schema's reference is followed inside it, through as many as there are, and never anywhere else."""
    schema = {
        "$defs": {"Mode": {"enum": ["fast", "slow"]}, "M": {"$ref": "#/$defs/Mode"}, "Loop": {"$ref": "#/$defs/Loop"}},
        "type": "object",
        "properties": {
            "mode": {"anyOf": [{"$ref": "#/$defs/M"}, {"type": "null"}]},
            "far": {"$ref": "https://example.invalid/schema.json"},
            "loop": {"$ref": "#/$defs/Loop"},
        },
    }
    mode, far, loop = Filled(schema, '{"mode": "fast"}').form.fields
    assert [choice.label for choice in mode.choices] == ["fast", "slow", "null", "(leave it out)"]
    assert (far.kind, loop.kind) == ("json", "json")


def test_errors_are_placed_at_their_field():
    """A pointer finds its field at any depth; for a JSON or line field the message says where; the rest is listed."""
    filled = Filled(ORDER, RAW).press("Remove lines 1").press("Add to counts")
    rows = next(each for each in every(filled.form) if each.key == "counts")
    filled.typed[rows.rows[2].key_name] = "n~/e/w"
    places = {
        "/tags/1": ("tags", "/1: m"),
        "/x/kept/0": ("x", "/kept/0: m"),
        "/lines": ("lines", "m"),
        "/detail": ("detail", "m"),
        "/either": ("either", "m"),
    }
    for pointer, (key, message) in places.items():
        name = next(each for each in filled.form.fields if each.key == key).name
        assert place_errors(filled.form, [{"pointer": pointer, "message": "m"}], filled.typed) == ({name: message}, [])
    assert filled.name("/counts/n~0~1e~1w") == rows.rows[2].field.name
    assert filled.name("/lines/0/article").endswith("-1-0")  # the first row that is left was the second
    assert place_errors(filled.form, [{"pointer": "", "message": "m"}, {"pointer": "/y", "message": "n"}], {}) == (
        {},
        ["m", "/y: n"],
    )


def test_every_field_has_its_label_description_mark_and_complaint():
    """Each control is labelled, required ones are marked for eyes and screen readers, and an error is tied to its control."""
    filled = Filled(ORDER, RAW)
    html = html_of(filled.form, filled.typed, {filled.name("/cents"): "too much", filled.name("/lines"): "too few"})
    assert (
        '<label for="field-1"><code><bdi lang translate=no>cents</bdi></code> <span class="dim">integer</span></label>'
        in html
    )
    assert html.count('aria-hidden="true">required<') == len([
        each for each in every(filled.form) if each.required and each.key is not None
    ])  # fmt: skip
    assert 'aria-describedby="field-0-about"' in html
    assert '<p class="about" id="field-0-about"><bdi lang translate=no>The order&#39;s number.</bdi></p>' in html
    assert 'aria-describedby="field-1-complaint" aria-invalid="true"' in html
    assert '<p class="complaint" id="field-1-complaint"><bdi lang translate=no>too much</bdi></p>' in html
    assert '<fieldset class="group" id="field-8" aria-describedby="field-8-complaint"' in html


def test_i14_a_list_of_choices_that_no_one_could_read_makes_no_form():
    """I14: a schema from outside with a million options would hold up the page; people edit its JSON instead."""
    few, many = ({"type": "object", "properties": {"n": {"enum": list(range(count))}}} for count in (1_000, 1_001))
    assert form_of(few, {}) is not None
    assert form_of(many, {}) is None
