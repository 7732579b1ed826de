"""What a call leaves out, and its handler gets all the same."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import pytest
from pydantic import (
    AfterValidator,
    AliasChoices,
    AnyUrl,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    SecretStr,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema

from turngate import Policy, Rule, Tool, declare_tool
from turngate.domain.digest import call_digest, repeat_key
from turngate.domain.policy.arguments import ArgumentMatcher
from turngate.domain.policy.grants import GrantPattern, exact_pattern, with_left_out
from turngate.domain.policy.policy import evaluate
from turngate.domain.tools import defaults
from turngate.domain.tools.defaults import (
    Default,
    agree,
    complete_text,
    constant_text,
    default_rows,
    for_readers,
    in_one_line,
    in_short,
    leave_out,
    stored,
)
from turngate.domain.tools.secrets import MASKED
from turngate.domain.tools.summary import describe
from turngate.policies.facts import call_facts
from turngate.toolkits.json_schema import json_schema_tool

_numbers = iter(range(10**6))


def next_number() -> int:
    return next(_numbers)


class Options(BaseModel):
    force: bool = True
    note: str | None = None


class Card(BaseModel):
    kind: Literal["card"]
    cents: int = 100


class Cash(BaseModel):
    kind: Literal["cash"]
    place: str = "desk"


@dataclass
class Pair:
    left: str
    right: int = 7


class Span(NamedTuple):
    begin: int
    end: int = 9


class Named(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    account: int = Field(default=3, validation_alias=AliasChoices("acct", "account_id"))


class FilledIn(BaseModel):
    currency: str = ""

    @model_validator(mode="before")
    @classmethod
    def _add(cls, arguments: dict[str, Any]) -> dict[str, Any]:
        return {"currency": "EUR", **arguments}


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    path: str


def tool_with(annotation: Any, default: Any = ...) -> Tool:
    model = type("Params", (BaseModel,), {"__annotations__": {"at": annotation}, "at": default, "__module__": __name__})
    return declare_tool(name="do", description="Do it.", params=model, success=str)


@pytest.mark.parametrize(
    ("annotation", "default", "sent", "expected"),
    [
        (bool, True, {}, {"/at": True}),
        (bool, True, {"at": True}, {}),
        (Options, ..., {"at": {}}, {"/at/force": True, "/at/note": None}),
        (Options, Options(), {}, {"/at": {"force": True, "note": None}}),
        (list[Options], ..., {"at": [{"force": False, "note": "x"}, {"note": "y"}]}, {"/at/1/force": True}),
        (dict[str, Options], ..., {"at": {"a/b": {"note": "x"}}}, {"/at/a~1b/force": True}),
        (Annotated[Card | Cash, Field(discriminator="kind")], ..., {"at": {"kind": "cash"}}, {"/at/place": "desk"}),
        (Card | Options, ..., {"at": {"kind": "card"}}, {"/at/cents": 100}),
        (Pair, ..., {"at": {"left": "x"}}, {"/at/right": 7}),
        (Named, ..., {"at": {}}, {"/at/acct": 3}),
        (Named, ..., {"at": {"account": 1}}, {}),
        (Named, ..., {"at": {"account_id": 1}}, {}),
        (FilledIn, ..., {"at": {}}, {"/at/currency": "EUR"}),
        (Open, ..., {"at": {"path": "x", "more": 1}}, {}),
        (tuple[str, ...], Field(default_factory=lambda: ("a",)), {}, {"/at": ["a"]}),
        (SkipJsonSchema[int], 5, {}, {"/at": 5}),
    ],
)
def test_i6_what_the_handler_gets_and_the_model_left_out_is_found(
    annotation: Any, default: Any, sent: Any, expected: dict[str, Any]
) -> None:
    """I6: each value that decoding fills in is named, wherever it is, and nothing that the model wrote is."""
    declared = tool_with(annotation, default)
    _params, left_out = declared.decode_new(json.dumps(sent))
    assert {each.at: each.value for each in left_out} == expected
    assert {each.source for each in left_out} <= {"default"}


def moved(value: Any) -> str:
    return f"{value}-{next_number()}"


class Renamed(BaseModel):
    """Takes ``link``, and its handler gets it as ``url``."""

    url: str = ""

    @model_validator(mode="before")
    @classmethod
    def _rename(cls, arguments: dict[str, Any]) -> dict[str, Any]:
        return {"url": arguments["link"]} if "link" in arguments else arguments


class Counted(BaseModel):
    """Adds to what was written."""

    cents: int = 0

    @model_validator(mode="after")
    def _add(self) -> Counted:
        self.cents += 100
        return self


def stripped(text: str) -> str:
    return text.strip()


@pytest.mark.parametrize(
    ("annotation", "sent", "expected"),
    [
        (Annotated[str, AfterValidator(stripped)], " x ", {"/at": ("read", "x")}),
        (Annotated[str, AfterValidator(stripped)], "x", {}),
        (Annotated[str, StringConstraints(to_lower=True)], "A", {"/at": ("read", "a")}),
        (Annotated[int, BeforeValidator(int), WithJsonSchema({"type": "string"})], "5", {"/at": ("read", 5)}),
        (float, 9007199254740993, {"/at": ("read", 9007199254740992.0)}),
        (float, 5, {}),
        (int, 5.0, {}),
        (Decimal, "1.10", {}),
        (Decimal, 1.10, {}),
        (Annotated[Decimal, AfterValidator(abs)], "-1.10", {"/at": ("read", 1.1)}),
        (AnyUrl, "https://exämple.com/", {"/at": ("read", "https://xn--exmple-cua.com/")}),
        (AnyUrl, "https://example.com/", {}),
        (datetime, "2026-01-02T03:04:05.000+02:00", {}),
        (Path, "a/./b", {"/at": ("read", "a/b")}),
        (ByteSize, "10MB", {"/at": ("read", 10_000_000)}),
        (set[float], [0.2, 0.1], {}),
        (dict[str, float], {"a": 0.1}, {}),
        (Any, {"a": [0.1, None, True]}, {}),
        (SecretStr, "hunter2-hunter2", {}),
        (Annotated[SecretStr, AfterValidator(lambda _secret: SecretStr("other"))], "x", {"/at": ("read", MASKED)}),
        (dict[int, Options], {"07": {"note": "x"}}, {"/at": ("read", {"7": {"force": True, "note": "x"}})}),
        (Span, [1], {"/at": ("read", [1, 9])}),
        (list[Annotated[str, AfterValidator(stripped)]], ["x", " y"], {"/at/1": ("read", "y")}),
        (Annotated[list[str], AfterValidator(lambda _names: ["all"])], ["x", "y"], {"/at": ("read", ["all"])}),
        (Options, {"force": True, "note": "", "dry_run": True}, {"/at/dry_run": ("ignored", None)}),
        (Named, {"acct": 1, "account_id": 2}, {"/at/account_id": ("ignored", None)}),
        (Renamed, {"link": "x"}, {"/at/url": ("default", "x"), "/at/link": ("ignored", None)}),
        (Counted, {"cents": 5}, {"/at/cents": ("read", 105)}),
        (Open, {"path": "x", "more": 1}, {}),
        (Annotated[str, AfterValidator(moved), WithJsonSchema({})], "x", {"/at": ("opaque", None)}),
    ],
)  # fmt: skip
def test_i6_what_the_tool_reads_otherwise_than_it_is_written_is_found(
    annotation: Any, sent: Any, expected: dict[str, tuple[str, Any]]
) -> None:
    """I6: each value that a validator or a type changes is named as the handler gets it, and each name it doesn't get."""
    declared = tool_with(annotation)
    raw = json.dumps({"at": sent})
    params, changed = declared.decode_new(raw)
    assert {each.at: (each.source, each.value) for each in changed} == expected
    assert agree(changed, declared.defaults_of(raw, declared.decode(raw, changed)))
    assert all(each.words.startswith(("not as written", "left out")) for each in default_rows(changed))
    if any(each.source == "opaque" for each in changed):
        assert params != declared.decode(raw, changed)


def test_i6_a_tool_without_parameters_says_that_it_gets_none() -> None:
    """I6: what the model makes up for a tool that takes nothing is marked as not reaching it."""
    declared = declare_tool(name="stop", description="", success=str)
    assert declared.decode_new('{"after": 5}')[1] == (Default(at="/after", source="ignored"),)


def test_i6_a_call_that_writes_a_default_is_the_call_that_leaves_it_out() -> None:
    """I6: both, and one that is written otherwise and read as the same, are one call for duplicates and precedents."""
    texts = ['{"path": "x"}', '{"path": "x", "recursive": true}', '{"recursive": true, "path": "x", "colour": 1}']
    keys = {repeat_key("do", constant_text(raw, DO.decode_new(raw)[1])) for raw in texts}
    assert len(keys) == 1
    other = '{"path": "x", "recursive": false}'
    assert repeat_key("do", constant_text(other, DO.decode_new(other)[1])) not in keys


def test_i6_an_edit_keeps_what_is_known_of_arguments_that_it_leaves_as_they_are() -> None:
    """I6: only what the edit writes itself has to be read by the tool; until then nothing is said of it."""
    known = [Default(at="/url", value="https://a/", source="read"), Default(at="/old", source="ignored")]
    before = '{"url": "https://a", "old": 1}'
    assert DO.manifest.defaults_of_edit('{"url": "https://a", "old": 1, "path": "x"}', before, known)[-2:] == (*known,)
    changed = DO.manifest.defaults_of_edit('{"url": "https://b"}', before, known)
    assert not {"/url", "/old"} & {each.at for each in changed}


class Varying(BaseModel):
    path: str
    number: int = Field(default_factory=next_number)
    at: datetime = Field(default_factory=lambda: datetime.fromtimestamp(next_number(), UTC))


def test_i6_a_value_that_differs_each_time_is_made_once_for_the_call() -> None:
    """I6: what was shown of a varying default is what every later decoding gives, and the model still didn't set it.

    A grant for calls like this one doesn't fix it.
    """
    declared = declare_tool(name="do", description="", params=Varying, success=str)
    first, left_out = declared.decode_new('{"path": "x"}')
    assert [each.source for each in left_out] == ["made", "made"]
    assert with_left_out({"path": "x"}, left_out) == {"path": "x"}
    again = declared.decode('{"path": "x"}', left_out)
    assert again == first
    assert again.model_fields_set == {"path"}
    assert agree(left_out, declared.defaults_of('{"path": "x"}', again))
    assert declared.decode('{"path": "x"}') != first


class NoWay:
    """A type of the author's that can't be read from JSON."""


class Unreadable(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    path: str
    it: SkipJsonSchema[NoWay] = Field(default_factory=NoWay)


def test_i6_a_value_that_can_only_be_made_later_says_so() -> None:
    """I6: a varying value that can't be kept isn't shown as one: it is made when the call runs."""
    declared = declare_tool(name="do", description="", params=Unreadable, success=str)
    _params, left_out = declared.decode_new('{"path": "x"}')
    assert left_out == (Default(at="/it", source="later"),)
    assert default_rows(left_out)[0].words == "left out by the agent: made when the call runs"
    assert agree(left_out, declared.defaults_of('{"path": "x"}', declared.decode('{"path": "x"}', left_out)))


class WithSecret(BaseModel):
    path: str
    token: SecretStr = SecretStr("hunter2-hunter2")
    url: str = "https://user:hunter2-hunter2@example.com/"


def test_a_secret_default_is_never_shown_nor_stored() -> None:
    """A default that is declared secret is a mark from the beginning; what only looks like a credential is one for readers."""
    declared = declare_tool(name="do", description="", params=WithSecret, success=str)
    _params, left_out = declared.decode_new('{"path": "x"}')
    assert [each.is_known for each in left_out] == [False, True]
    assert left_out[0].value == MASKED
    assert "hunter2" not in (stored(for_readers(left_out)) or "")
    alike = [
        Default(at=f"/{'ghp_' + 'a1B2c3D4e5F6' * 3}", value="x"),
        Default(at="/a.b", value=1),
        Default(at="/a/b", value=2),
    ]
    assert [each.value for each in for_readers(alike)] == ["x", 1, 2]


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "recursive": {"type": "boolean", "default": True},
        "options": {"$ref": "#/$defs/Options"},
        "rows": {"type": "array", "items": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/Options"}]}},
    },
    "$defs": {
        "Options": {"type": "object", "properties": {"depth": {"default": 3}, "self": {"$ref": "#/$defs/Options"}}}
    },
}


def test_i6_of_a_tool_without_a_model_the_schema_tells_what_its_server_uses() -> None:
    """I6: defaults of a JSON Schema are shown as its server's claim, and the handler gets what was sent."""
    declared = json_schema_tool(name="do", description="", parameters=SCHEMA)
    params, left_out = declared.decode_new('{"path": "x", "options": {"self": {}}, "rows": ["a", {}]}')
    assert params == {"path": "x", "options": {"self": {}}, "rows": ["a", {}]}
    assert {each.at: each.value for each in left_out} == {
        "/recursive": True,
        "/options/depth": 3,
        "/options/self/depth": 3,
        "/rows/1/depth": 3,
    }
    assert {each.words for each in left_out} == {"left out by the agent: the default, as its server says"}


def test_i14_a_hostile_schema_is_looked_through_within_a_bound() -> None:
    """I14: a schema that refers to itself twice at each step ends at a bound."""
    bomb: dict[str, Any] = {
        "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]}},
        "$ref": "#/$defs/a",
    }
    assert defaults.of_schema({"x": {}}, bomb) == ()


def test_i6_a_digest_differs_with_what_is_left_out() -> None:
    """I6: calls of one text whose tools fill in other values differ."""
    parts = {
        "tool_name": "t",
        "manifest_digest": "m",
        "raw_input": "{}",
        "run_id": "r",
        "tool_call_id": "c",
        "policy_version": "p",
        "nonce": "n",
    }
    digests = {call_digest(**parts, defaults=each) for each in (None, stored([Default(at="/a", value=1)]), "[]")}
    assert len(digests) == 3


def test_i6_an_edit_leaves_out_what_it_sends_back_as_shown() -> None:
    """I6: a form sends defaults back; those that no one changed stay left out, also inside an object, and no others do."""
    declared = tool_with(Options, ...)
    _params, left_out = declared.decode_new('{"at": {}}')
    assert leave_out('{"at": {"force": true, "note": null}}', left_out) == '{"at": {}}'
    assert leave_out('{"at": {"force": false, "note": null}}', left_out) == '{"at": {"force": false}}'
    assert leave_out('{"at":  {}}', left_out) == '{"at":  {}}'
    edited = declared.manifest.defaults_of_edit('{"at": {"force": false}}', '{"at": {}}', left_out)
    assert {each.at: each.value for each in edited} == {"/at/note": None}
    assert declared.manifest.defaults_of_edit("no JSON", "{}", left_out) == ()


def test_defaults_are_shown_after_the_arguments() -> None:
    """What is nothing takes one line; a list has the others in short; a summary's text may name one."""
    left_out = [Default(at="/a/b", value=True), Default(at="/c"), Default(at="/d"), Default(at="/e", value="x" * 200)]
    assert [(each.label, each.text) for each in default_rows(left_out)][:1] == [("a.b", "true")]
    assert [(each.label, each.text) for each in default_rows(left_out)][-1] == ("c, d", "null")
    assert in_short(left_out) == {"left out": f'a.b true, e "{"x" * 38}…'}
    many = [Default(at=f"/{'y' * 30}", value=number, source="read") for number in range(30)]
    assert len(in_short(many)["tool reads"]) <= defaults.SHORT_CHARS
    assert in_short(many)["tool reads"].endswith("as 3 and 26 more")
    assert in_one_line([Default(at="/dry_run", source="ignored")]) == "tool reads: dry_run not under this name"
    assert complete_text('{"a": {"n": 1.10}}', left_out[:2]) == '{"a": {"n": 1.10, "b": true}, "c": null}'
    declared = tool_with(bool, True)
    assert describe(declared.manifest, "{}", "Do it at {at}", [Default(at="/at", value=False)]) == "Do it at no"


class Removal(BaseModel):
    path: str
    recursive: bool = True
    depth: int | None = None
    cents: float = Field(default=12.5, validation_alias="amount")
    target: Options = Options()


DO = declare_tool(name="do", description="", params=Removal, success=str)
CLAIMING = json_schema_tool(name="do", description="", parameters=SCHEMA)


def verdict(answer: Any, matcher: dict[str, Any], *, tool: Tool = DO, raw: str = '{"path": "x"}') -> str:
    """Return what policy answers to a call of a tool that asks, by one rule with one condition."""
    params, left_out = tool.decode_new(raw)
    rule = Rule(name="r", verdict=answer, tools=["do"], args=[ArgumentMatcher(**matcher)])
    facts = partial(call_facts, raw, None, None, left_out)
    decided = evaluate(Policy(rule=[rule]), tool, params, agent="a", facts=facts)
    return decided.answer if decided.rule == "r" else "-"


@pytest.mark.parametrize(
    ("answer", "matcher", "decided"),
    [
        ("deny", {"at": "/recursive", "op": "eq", "value": True}, "deny"),
        ("deny", {"at": "/recursive", "op": "eq", "value": False}, "-"),
        ("allow", {"at": "/recursive", "op": "eq", "value": True}, "allow"),
        ("allow", {"at": "/recursive", "op": "ne", "value": True}, "-"),
        ("deny", {"at": "/amount", "op": "gt", "value": 12}, "deny"),
        ("deny", {"at": "/cents", "op": "gt", "value": 12}, "deny"),
        ("allow", {"at": "/amount", "op": "le", "value": 12}, "-"),
        ("deny", {"at": "/target/force", "op": "eq", "value": True}, "deny"),
        ("deny", {"at": "/recursive", "op": "exists"}, "-"),
        ("allow", {"at": "/recursive", "op": "absent"}, "allow"),
        ("deny", {"at": "/depth", "op": "gt", "value": 1}, "ask"),
    ],
)
def test_i6_a_rule_sees_what_a_call_leaves_out(answer: Any, matcher: dict[str, Any], decided: str) -> None:
    """I6: a rule about an argument that the model left out is judged by its default; whether it exists, by what was written."""
    assert verdict(answer, matcher) == decided


def test_i6_a_condition_on_an_object_is_judged_with_and_without_what_was_left_out() -> None:
    """I6: a default inside an object opens no way around a rule that names the object as the model writes it."""
    raw = '{"path": "x", "target": {"force": false}}'
    as_written = {"at": "/target", "op": "eq", "value": {"force": False}}
    assert verdict("deny", as_written, raw=raw) == "deny"
    assert verdict("allow", as_written, raw=raw) == "-"


def test_i6_what_only_a_server_says_never_helps_a_call() -> None:
    """I6: a default that a tool's server claims can deny a call, and allows none."""
    claimed = {"at": "/recursive", "op": "eq", "value": True}
    assert verdict("deny", claimed, tool=CLAIMING) == "deny"
    assert verdict("allow", claimed, tool=CLAIMING) == "-"


class Run(BaseModel):
    path: Annotated[str, AfterValidator(str.lower)]


RUN = declare_tool(name="do", description="", params=Run, success=str)


@pytest.mark.parametrize(
    ("answer", "matcher", "decided"),
    [
        ("allow", {"at": "/path", "op": "eq", "value": "X"}, "-"),
        ("deny", {"at": "/path", "op": "eq", "value": "X"}, "deny"),
        ("deny", {"at": "/path", "op": "eq", "value": "x"}, "deny"),
        ("allow", {"at": "/dry_run", "op": "eq", "value": True}, "-"),
        ("deny", {"at": "/dry_run", "op": "eq", "value": True}, "deny"),
    ],
)
def test_i6_a_rule_judges_the_call_as_it_is_written_and_as_the_tool_reads_it(
    answer: Any, matcher: dict[str, Any], decided: str
) -> None:
    """I6: a value that the tool reads otherwise, or doesn't get, never helps a call by how it is written."""
    assert verdict(answer, matcher, tool=RUN, raw='{"path": "X", "dry_run": true}') == decided


def test_i6_a_grant_is_for_calls_as_the_tool_reads_them() -> None:
    """I6: a grant covers each spelling that the tool reads as what it names, and no spelling that it reads otherwise."""
    raw = '{"path": "X", "dry_run": true}'
    _params, changed = RUN.decode_new(raw)
    pattern = exact_pattern("do", with_left_out({"path": "X", "dry_run": True}, changed))
    assert pattern.fixed == {"path": "x"}
    assert pattern.fits_text("do", raw, changed)
    assert pattern.fits_text("do", '{"path": "x"}')
    assert not pattern.fits_text("do", '{"path": "x"}', [Default(at="/path", value="y", source="read")])


def test_i6_a_grant_names_what_the_call_left_out() -> None:
    """I6: a grant fixes the defaults that were shown: another value isn't covered, and the same value, written, is."""
    _params, left_out = DO.decode_new('{"path": "x"}')
    pattern = exact_pattern("do", with_left_out({"path": "x"}, left_out))
    assert pattern.fixed["recursive"] is True
    assert pattern.fits_text("do", '{"path": "x"}', left_out)
    assert pattern.fits_text("do", '{"path": "x", "recursive": true}', left_out[1:])
    changed = [each.model_copy(update={"value": False}) if each.at == "/recursive" else each for each in left_out]
    assert not pattern.fits_text("do", '{"path": "x"}', changed)
    assert not pattern.fits_text("do", '{"path": "x"}')
    by_hand = GrantPattern(tool="do", fixed={"path": "x"})
    assert by_hand.fits_text("do", '{"path": "x"}', left_out)
    assert not by_hand.fits_text("do", '{"path": "x", "recursive": true}', left_out[1:])


def test_i6_a_fixed_value_is_all_that_the_tool_gets() -> None:
    """I6: people read "exactly" of a fixed value, so it has what the tool fills in inside of it, null as null."""
    inside = [Default(at="/at/note", value=None)]
    pattern = exact_pattern("do", with_left_out({"at": {}}, inside))
    assert pattern.fixed == {"at": {"note": None}}
    assert pattern.fits_text("do", '{"at": {}}', inside)
    assert pattern.fits_text("do", '{"at": {"note": null}}')
    assert not GrantPattern(tool="do", fixed={"at": {}}).fits_text("do", '{"at": {}}', inside)
