"""The errors about a value that does not fit its schema: at the right place, in words that help."""

import pytest

from turngate.approvals_api.validation.json_schema import problems_of

CAT = {"type": "object", "properties": {"kind": {"const": "cat"}, "lives": {"type": "integer"}}, "required": ["kind"]}
DOG = {"type": "object", "properties": {"kind": {"const": "dog"}, "name": {"type": "string"}}, "required": ["kind"]}
SCHEMA = {
    "type": "object",
    "properties": {
        "note": {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]},
        "pet": {"oneOf": [CAT, DOG]},
        "either": {"anyOf": [{"type": "string", "minLength": 3}, {"type": "string", "pattern": "^x"}]},
        "deep": {
            "anyOf": [{"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}, {"type": "null"}]
        },
        "pick": {"anyOf": [{"enum": ["a", "b"]}, {"type": "null"}]},
    },
}


@pytest.mark.parametrize(
    ("value", "pointer", "message"),
    [
        ({"note": 0}, "/note", "0 is less than the minimum of 1."),
        ({"note": "x"}, "/note", "“x” is not a whole number or null."),
        ({"pet": {"kind": "cat", "lives": "nine"}}, "/pet/lives", "“nine” is not a whole number."),
        ({"pet": {"kind": "cow"}}, "/pet", '{"kind": "cow"} is nothing that can be sent here.'),
        ({"either": "a"}, "/either", "“a” is nothing that can be sent here."),
        ({"deep": [1, "x"]}, "/deep/1", "“x” is not a whole number or null."),
        ({"pick": "c"}, "/pick", "“c” is none of these: “a”, “b”."),
    ],
)
def test_a_choice_of_types_is_complained_about_where_it_hurts(value, pointer, message):
    """Of several types the one with the value's kind counts; if none or several could, the error stays general."""
    assert problems_of(value, SCHEMA, under="/args") == [{"pointer": f"/args{pointer}", "message": message}]


@pytest.mark.parametrize(
    ("value", "schema", "message"),
    [
        (120, {"maximum": 90}, "120 is more than the maximum of 90."),
        (90, {"exclusiveMaximum": 90}, "90 is not less than 90."),
        (7, {"multipleOf": 2}, "7 is not a multiple of 2."),
        ("", {"minLength": 1}, "“” is shorter than the minimum length of 1."),
        ([1, 2], {"maxItems": 1}, "The number of items is 2, more than the maximum of 1."),
        ([1, 1], {"uniqueItems": True}, "An item is there twice."),
        ("a", {"pattern": "^B"}, "“a” does not have the right form: it has to match “^B”."),
        ("soon", {"format": "date"}, "“soon” is not of the form “date”."),
        ("1", {"type": "boolean"}, "“1” is not true or false."),
        ({"a": 1, "b": 2}, {"properties": {"a": {}}, "additionalProperties": False}, "This can't be sent here: “b”."),
        ("b", {"const": "a"}, "“b” is not “a”."),
        ("x" * 500, {"maxLength": 9}, f"“{'x' * 99}… is longer than the maximum length of 9."),
    ],
)
def test_a_complaint_is_a_sentence(value, schema, message):
    """No word of the schema's validator is shown for what a schema usually asks for; a long value is cut."""
    assert problems_of(value, schema, under="") == [{"pointer": "", "message": message}]


def test_what_is_missing_is_complained_about_at_its_own_place():
    """The form has a field for it, and the complaint is at that field."""
    schema = {"type": "object", "required": ["it's", "b"]}
    assert problems_of({}, schema, under="/args") == [
        {"pointer": "/args/it's", "message": "It is missing."},
        {"pointer": "/args/b", "message": "It is missing."},
    ]
