"""What an editor displays, as values: exact arguments, fences, diffs, and why a turn stopped."""

from __future__ import annotations

import json
from typing import Any

import pytest
from acp import RequestError, image_block, resource_link_block, text_block
from hypothesis import given
from hypothesis import strategies as st

from turngate.domain.errors import ModelError
from turngate.domain.runs.outcomes import outcome_of
from turngate.domain.tools.presentation import DiffBlock, TextBlock
from turngate.domain.tools.results import Failure, Ok
from turngate.frontends.acp import render as show
from turngate.frontends.acp.agent import prompt_text
from turngate.frontends.acp.calls import Calls
from turngate.frontends.acp.diffs import Hunk, hunks
from turngate.frontends.acp.turn import stop_reason
from turngate.text.line_diff import unified_diff
from turngate.wire.calls import CallView
from turngate.wire.runs import RunDetail

CHANGE = "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-x\n+y\n"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def text_of(content: show.Content) -> str:
    assert content.type == "content"
    return content.content.text


@given(st.dictionaries(st.text(max_size=3), JSON, max_size=3))
def test_indented_arguments_are_the_same_arguments(value: dict[str, Any]) -> None:
    """Reading gets easier, and nothing else changes."""
    assert json.loads(show._indented(json.dumps(value))) == value


@pytest.mark.parametrize(
    ("raw", "rendered", "decoded"),
    [
        ('{"a": 1.10}', '{\n  "a": 1.10\n}', '{"a": 1.10}'),
        ('{"a": 1, "a": 2}', '{\n  "a": 1,\n  "a": 2\n}', '{"a": 1, "a": 2}'),
        ('{"a": [], "b": "}, {"}', '{\n  "a": [],\n  "b": "}, {"\n}', {"a": [], "b": "}, {"}),
        ("{}", "{}", {}),
        ("{not json", "{not json", "{not json"),
    ],
)
def test_arguments_are_rendered_token_by_token(raw: str, rendered: str, decoded: Any) -> None:
    """Digits, doubled members and nonsense stay as written; what can't be decoded without loss is text."""
    assert rendered in "".join(text_of(each) for each in show.arguments(raw))
    assert show.as_json(raw) == decoded


@given(st.text(alphabet="`~a\n\u202e\x1b", max_size=30))
def test_no_value_closes_its_fence(text: str) -> None:
    """However many back quotes it has; hidden characters are made visible."""
    fence, *inside, end = show.fenced(text).split("\n")
    assert end == fence.removesuffix("text")
    assert not any(line.startswith(end) for line in inside)
    assert "\x1b" not in "".join(inside)


LINES = st.lists(st.sampled_from(["a\n", "--- x\n", "+++ x\n", "@@ -1 +1 @@\n", "\\ b\n"]), max_size=6)


@given(LINES, LINES, st.booleans())
def test_a_diffs_hunks_are_the_old_and_the_new_text(old: list[str], new: list[str], ends: bool) -> None:
    """For any two texts, including lines that look like headers and a last line without its end."""
    before, after = "".join(old) + ("" if ends else "z"), "".join(new) + ("" if ends else "z")
    parsed = hunks(unified_diff("d/f.txt", before, after, max_chars=10_000))
    if before == after:
        assert parsed is None
    else:
        assert {hunk.path for hunk in parsed} == {"d/f.txt"}
        assert all(hunk.before in before for hunk in parsed)
        assert all(hunk.after in after for hunk in parsed)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no diff",
        "--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n-a\n",
        "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n\\ … 3 more lines\n",
    ],
    ids=["empty", "text", "cut", "clipped"],
)
def test_an_incomplete_diff_is_text(text: str) -> None:
    """An editor that drew half a diff would display a change that does not exist."""
    assert hunks(text) is None
    assert all(each.type == "content" for each in show.preview("diff", text, directory="/p"))


def test_a_new_file_has_no_earlier_text() -> None:
    """The editor draws it as new."""
    assert hunks(unified_diff("f", None, "x\n", max_chars=100)) == [Hunk(path="f", line=1, before=None, after="x\n")]


@pytest.mark.parametrize(
    ("status", "error_class", "reason"),
    [
        ("completed", "", "end_turn"),
        ("interrupted", "", "cancelled"),
        ("failed", "token_cap", "max_tokens"),
        ("failed", "cost_cap", "max_turn_requests"),
        ("failed", "step_cap", "max_turn_requests"),
        ("failed", "no_progress", "max_turn_requests"),
        ("failed", "authentication", None),
        ("failed", "malformed", None),
        ("failed", ModelError.__name__, None),
    ],
)
def test_a_turn_stops_for_the_reason_that_its_run_had(status: Any, error_class: str, reason: str | None) -> None:
    """Each outcome has one word in the protocol, or is an error that says it."""
    run = RunDetail.model_construct(
        id="run_1", status=status, outcome=outcome_of(status, error_class), error_class=error_class, reason="why",
        ended_by=None,
    )  # fmt: skip
    if reason is not None:
        assert stop_reason(run) == reason
        return
    with pytest.raises(RequestError, match="the run failed") as failed:
        stop_reason(run)
    assert failed.value.data["outcome"] == run.outcome


def test_a_prompt_is_text_and_anything_else_is_refused() -> None:
    """Links are sent as their address; a picture is not dropped silently."""
    assert prompt_text([text_block("see"), resource_link_block("a.py", "file:///a.py")]) == "see\na.py (file:///a.py)"
    with pytest.raises(RequestError, match="Invalid params"):
        prompt_text([image_block("AA==", "image/png")])


class LastUpdate:
    """An editor that keeps the last update that it got."""

    async def tell(self, *updates: Any) -> None:
        self.last = updates[-1]


@pytest.mark.parametrize(
    ("changes", "diffs"),
    [
        ({"presentation": [DiffBlock(diff=CHANGE)], "result": Ok(value={})}, ["y\n"]),
        ({"presentation": [TextBlock(text="done")], "result": Ok(value={})}, ["new\n"]),
        ({"presentation": [], "result": Failure(kind="rejected", reason="no")}, ["new\n"]),
        ({"presentation": [], "result": Ok(value={}), "edited_input": '{"text": "y"}'}, []),
    ],
    ids=["the change itself", "no change shown", "refused", "edited"],
)
async def test_a_preview_is_beside_no_other_change(changes: dict[str, Any], diffs: list[str]) -> None:
    """A result with its change replaces the preview; a preview of a call that did not run is not displayed as a change."""
    calls = Calls(editor := LastUpdate(), "/p")
    preview = show.preview("diff", CHANGE.replace("y\n", "new\n"), directory="/p")
    await calls.ask(
        "run_1/c", kind="edit", arguments=[], preview=preview, question=[show.paragraph("Why?")], locations=[]
    )
    view = {"tool_call_id": "c", "input": "{}", "edited_input": None, "in_part": None, **changes}
    await calls.settle("run_1", CallView.model_construct(**view))
    assert [block.new_text for block in editor.last.content if block.type == "diff"] == diffs
    assert not [block for block in editor.last.content if block.type == "content" and "Why?" in block.content.text]


def test_i14_an_unclosed_string_is_split_in_linear_time() -> None:
    """Quotes without an end keep no editor waiting: the square of this text's length would take minutes."""
    tokens = show._TOKEN.findall('"' + '\\"' * 200_000)
    assert len(tokens) == 1
