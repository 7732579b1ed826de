import pytest
from pydantic import BaseModel, ConfigDict, ValidationError

from turngate.domain.text.suggestions import did_you_mean, keys_at, problems


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    colour: str = ""


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str
    inner: list[Inner] | None = None


@pytest.mark.parametrize(
    ("word", "known", "meant"),
    [
        ("tools", ["toolkit", "model"], "toolkit"),
        ("reads", ["read", "once"], "read"),
        ("refnd", ["Refund", "refund"], "refund"),
        ("Agnt", ["agent"], "agent"),
        ("expires", ["on_expiry", "expires_after_seconds"], "expires_after_seconds"),
        ("payments", ["Agent", "App"], None),
        ("", ["a"], None),
        ("x", [], None),
    ],
)
def test_the_name_that_is_most_alike_is_meant(word: str, known: list[str], meant: str | None) -> None:
    """Its own case first; a longer name that begins with the word before one that only looks like it; else none."""
    assert did_you_mean(word, known) == ("" if meant is None else f" Did you mean {meant!r}?")


def test_an_unknown_key_names_the_one_that_was_meant_and_no_value() -> None:
    """The key that was meant is then not reported as missing too. At any depth."""
    with pytest.raises(ValidationError) as wrong:
        Outer.model_validate({"nam": "secret", "inner": [{"color": "secret"}]})
    assert problems(wrong.value, Outer) == [
        (("inner", 0, "color"), "there is no such key. Did you mean 'colour'?"),
        (("nam",), "there is no such key. Did you mean 'name'?"),
    ]


def test_the_keys_at_a_place_that_is_not_there_are_none() -> None:
    """A path from a validator's own place leads nowhere."""
    assert keys_at(Outer, ("inner", 3)) == ["colour"]
    assert keys_at(Outer, ("nowhere", "x")) == []
