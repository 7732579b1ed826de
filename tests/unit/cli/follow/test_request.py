import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from turngate.cli.follow import request
from turngate.cli.follow.request import GatePrompt, answer_json, edit_text
from turngate.domain.errors import InvalidInputError, TurngateError
from turngate.domain.tools.tool import ToolManifest
from turngate.frontends.acp.choices import may_decide
from turngate.frontends.tui.request_text import barred
from turngate.frontends.tui.session import Session
from turngate.text.presentation import exact_arguments
from turngate.text.run_words import not_by
from turngate.wire.access import MeView
from turngate.wire.requests import RequestDetail
from turngate.wire.runs import RunSummary


def editor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = tmp_path / "editor"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", str(program))


def question(success: dict) -> RequestDetail:
    run = RunSummary(
        id="run_1", conversation_id="c", agent="a", agent_version="1", model="m", workspace=None, task="t",
        status="running", reason="", error_class="", step=1, started_by="s", created_at="", ended_at=None,
    )  # fmt: skip
    manifest = ToolManifest(
        name="ask", description="", kind="interaction", parameters={}, success=success, effect="read"
    )
    return RequestDetail(
        id="rq_1", run_id="run_1", tool_call_id="1", kind="question", status="pending", agent="a", tool_name="ask",
        input="{}", digest="d", rule="r", reason="", risk="low", expires_at=None, created_at="", verb=None,
        decided_by=None, decided_at=None, manifest=manifest, agent_words="", preview_kind=None, preview=None,
        not_by=None, allowed_verbs=["respond"], decision=None, execution="not_started", partial_output="",
        edited_input=None, result=None, run=run, messages=[],
    )  # fmt: skip


def argument_lines(raw: str) -> str:
    return "\n".join(piece if isinstance(piece, str) else piece[0] for piece in exact_arguments(raw))


def test_arguments_are_shown_as_they_were_written():
    """No digit is rounded, a key given twice is pointed out, no character is hidden, and what is not JSON is shown raw."""
    assert "10000000000000000000001" in argument_lines('{"amount": 10000000000000000000001, "rate": 1.10}')
    assert "1.10" in argument_lines('{"rate": 1.10}')
    twice = argument_lines('{"path": "a", "path": "b"}')
    assert "given twice" in twice
    assert '{"path": "a", "path": "b"}' in twice
    assert "⟨U+202E⟩" in argument_lines('{"command": "ls \u202e"}')
    assert argument_lines('{"a": ') == '{"a": '


def test_an_edit_comes_back_as_it_was_typed(tmp_path, monkeypatch):
    """Numbers that it did not touch keep their digits; hidden characters are escapes there; no change is no edit.

    If the editor fails, the prompt stays, and the error says how to choose another.
    """
    editor(tmp_path, monkeypatch, """sed -i 's/7500/6000/' "$1" """)
    assert edit_text('{"cents": 7500, "rate": 1.10}') == '{\n  "cents": 6000,\n  "rate": 1.10\n}'
    editor(tmp_path, monkeypatch, f"""cp "$1" {tmp_path}/seen""")
    assert edit_text('{"command": "ls \u202e"}') is None
    assert "\\u202e" in (tmp_path / "seen").read_text()
    editor(tmp_path, monkeypatch, "exit 3")
    with pytest.raises(InvalidInputError, match="set EDITOR"):
        edit_text("{}")


def test_a_question_of_one_text_takes_plain_words():
    """An operator can say yes without typing JSON; another shape is typed as JSON, and the API checks it."""
    request = question({"type": "object", "properties": {"answer": {"type": "string"}}})
    assert answer_json(request, 'use "main"') == '{"answer": "use \\"main\\""}'
    request = question({"type": "object", "properties": {"a": {"type": "integer"}}})
    assert answer_json(request, '{"a": 1}') == '{"a": 1}'


def test_everyone_who_may_not_decide_is_named():
    """Where a rule wants other eyes, the starter and everyone whose order led to the call, before they try."""
    plain = question({"type": "string"})
    request = plain.model_copy(update={"not_by": "ann", "starters": ["ann", "bob\u202e", "cy"]})
    assert not_by(request) == "ann, who started the run; bob⟨U+202E⟩, cy, whose order led to this call"
    assert not_by(request.model_copy(update={"starters": ["ann"]})) == "ann, who started the run"
    for name, why in (
        ("ann", "you started this run"),
        ("cy", "what you sent or changed led to this call"),
        ("dee", None),
    ):
        me = MeView(name=name, role="operator", scopes=["requests:decide"], via="token", machine=False, session_id=None)
        assert may_decide(request, me) is (why is None)
        reason = barred(request, Session(client=None, navigator=None, who=me))
        assert reason is None if why is None else reason is not None and reason.startswith(why)


class Typist:
    """A person at the prompt, who types a line whenever it waits; also the client that takes the decisions."""

    def __init__(self, monkeypatch, *lines: str) -> None:
        self._lines = list(lines)
        monkeypatch.setattr(request, "POLL_SECONDS", 0.005)
        self._keyboard, terminal = os.openpty()
        monkeypatch.setattr(sys, "stdin", os.fdopen(terminal))
        self.orders = []
        self.refusals = []

    def still_open(self) -> bool:
        if self._lines:
            os.write(self._keyboard, self._lines.pop(0).encode() + b"\n")
            return True
        return False

    def decide(self, request_id, order):
        self.orders.append((request_id, order.verb, order.outcome))
        self.args = order.args
        if self.refusals:
            raise self.refusals.pop()
        return SimpleNamespace(starts_at=None)

    def answers(self, request: RequestDetail) -> None:
        GatePrompt(self)(request, self.still_open)


def long_call(**more) -> RequestDetail:
    arguments = '{"note": "' + "x" * 5_000 + 'END"}'
    verbs = ["approve", "edit", "reject"]
    return question({}).model_copy(update={"kind": "approval", "input": arguments, "allowed_verbs": verbs, **more})


def test_a_folded_call_is_approved_only_after_all_of_it_was_printed(monkeypatch, capsys):
    """The first `a` prints the whole call and approves nothing; only the next one does."""
    typist = Typist(monkeypatch, "a")
    typist.answers(long_call())
    printed = capsys.readouterr().out
    assert typist.orders == []
    folded, whole = printed.split("un[f]old the whole call")
    assert "3,015 more characters" in folded
    assert "END" not in folded
    assert "END" in whole
    typist = Typist(monkeypatch, "a", "a")
    typist.answers(long_call())
    assert typist.orders == [("rq_1", "approve", None)]


def test_a_folded_call_did_not_happen_only_after_all_of_it_was_printed(monkeypatch, capsys):
    """That it did not happen makes it run, so it is printed whole first; that no one knows decides at once."""
    typist = Typist(monkeypatch, "d", "d")
    typist.answers(long_call(kind="outcome", allowed_verbs=["respond"]))
    assert "END" in capsys.readouterr().out
    assert typist.orders == [("rq_1", "respond", "did_not_happen")]
    typist = Typist(monkeypatch, "t")
    typist.answers(long_call(kind="outcome", allowed_verbs=["respond"]))
    assert "END" not in capsys.readouterr().out
    assert typist.orders == [("rq_1", "respond", "tell_model")]


def test_an_edit_is_shown_and_sent_only_by_an_approval(tmp_path, monkeypatch, capsys):
    """Leaving the editor sends nothing: what changes is printed, then `a` sends it, `e` edits it again, `d` drops it."""
    editor(tmp_path, monkeypatch, """sed -i -e 's/6000/5000/' -e 's/7500/6000/' "$1" """)
    call = question({}).model_copy(
        update={"kind": "approval", "input": '{"cents": 7500}', "allowed_verbs": ["approve", "edit", "reject"]}
    )
    typist = Typist(monkeypatch, "e")
    typist.answers(call)
    printed = capsys.readouterr().out
    assert typist.orders == []
    assert "/cents: will be 6000" in printed
    assert "[a]pprove with 1 change, [d]rop your edit, [e]dit it again" in printed
    assert "your edit, as you typed it" in printed
    typist = Typist(monkeypatch, "e", "e", "a", "a")
    typist.refusals = [InvalidInputError("no")]
    typist.answers(call)
    assert "/cents: will be 5000" in capsys.readouterr().out
    assert [verb for _id, verb, _outcome in typist.orders] == ["edit", "edit"]
    assert "5000" in typist.args
    typist = Typist(monkeypatch, "e", "a", "d", "a")
    typist.refusals = [TurngateError("no")]
    typist.answers(call)
    assert [verb for _id, verb, _outcome in typist.orders] == ["edit", "approve"]
    typist = Typist(monkeypatch, "e", "a", call.tool_name)
    typist.answers(call.model_copy(update={"risk": "high"}))
    assert [verb for _id, verb, _outcome in typist.orders] == ["edit"]
    typist = Typist(monkeypatch, "e", "a", "no")
    typist.answers(call.model_copy(update={"risk": "high"}))
    assert typist.orders == []
    typist = Typist(monkeypatch, "e", "a")
    typist.answers(call.model_copy(update={"allowed_verbs": ["edit", "reject"]}))
    assert [verb for _id, verb, _outcome in typist.orders] == ["edit"]


def test_the_prompt_unfolds_and_a_rejection_needs_no_unfolding(monkeypatch, capsys):
    """`f` prints all of a long call; what doesn't run can be rejected from its beginning. A short call offers no `f`."""
    typist = Typist(monkeypatch, "f")
    typist.answers(long_call())
    assert "END" in capsys.readouterr().out
    typist = Typist(monkeypatch, "r", "too long")
    typist.answers(long_call())
    assert typist.orders == [("rq_1", "reject", None)]
    assert "END" not in capsys.readouterr().out
    Typist(monkeypatch, "f").answers(long_call(input="{}"))
    assert "un[f]old" not in capsys.readouterr().out
