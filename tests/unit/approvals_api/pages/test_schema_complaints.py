"""The errors about a value that does not fit its schema: at the right place, in words that help."""

import pytest

from approvals_api.validation.json_schema import problems_of

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
        ({"note": 0}, "/note", "0 is less than the minimum of 1"),
        ({"note": "x"}, "/note", "'x' is not valid under any of the given schemas"),
        ({"pet": {"kind": "cat", "lives": "nine"}}, "/pet/lives", "'nine' is not of type 'integer'"),
        ({"pet": {"kind": "cow"}}, "/pet", "{'kind': 'cow'} is not valid under any of the given schemas"),
        ({"either": "a"}, "/either", "'a' is not valid under any of the given schemas"),
        ({"deep": [1, "x"]}, "/deep/1", "'x' is not valid under any of the given schemas"),
        ({"pick": "c"}, "/pick", "'c' is not one of ['a', 'b']"),
    ],
)
def test_a_choice_of_types_is_complained_about_where_it_hurts(value, pointer, message):
    """Of several types the one with the value's kind counts; if none or several could, the error stays general."""
    assert problems_of(value, SCHEMA, under="/args") == [{"pointer": f"/args{pointer}", "message": message}]
