"""What a preview shows of files is what was approved: who approved `sh x.sh` approved its text, and so for changes of files."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.engine.stack import OPERATOR, ListModel, call, says, stack
from temporalio.client import Client

from turngate import Preview, Tool, ToolContext, tool
from turngate.approvals_api.policy.grants import ungrantable
from turngate.approvals_api.requests.views import request_detail
from turngate.approvals_api.runs import control
from turngate.domain.policy.grants import NOT_GRANTED
from turngate.domain.tools.tool import ProcessConfinement
from turngate.store.database import Database
from turngate.toolkits.edits import EditFileParams
from turngate.toolkits.files import edit_file, write_file
from turngate.toolkits.shell import bash


async def test_i6_a_script_that_changes_after_the_approval_is_asked_about_again(
    client: Client, sqlite: Database, tmp_path: Path
) -> None:
    """The approval of a command does not cover a script that was replaced since: its new text is shown, and then runs."""
    (tmp_path / "x.sh").write_text("echo first > out\n")
    model = ListModel(says("I run it.", call("bash", '{"command": "sh x.sh"}', "b")), says("Done."))
    async with stack(client, sqlite, bash, model=model) as engine:
        run = await engine.start(workspace=str(tmp_path))
        first = await engine.request(run)
        assert "echo first > out" in (first.preview or "")
        await control.pause(engine.services, OPERATOR, run.id)
        await engine.event(run, "run.paused")
        await engine.decide(first, "approve", decision_id="first")
        (tmp_path / "x.sh").write_text("echo second > out\n")
        await control.resume(engine.services, OPERATOR, run.id)
        second = await engine.request(run, first)
        assert "echo second > out" in (second.preview or "")
        assert not (tmp_path / "out").exists()
        await engine.decide(second, "approve", decision_id="second")
        assert (await engine.ended(run)).status == "completed"
    assert (tmp_path / "out").read_text() == "second\n"


def show_text(params: EditFileParams, workspace: Path | None) -> Preview:
    assert workspace is not None
    text = (workspace / params.path).read_text()
    return Preview(kind="text", text=text, depends_on={params.path: hashlib.sha256(text.encode()).hexdigest()})


@tool(effect="once", ask=True, preview=show_text, precondition="preview")
async def publish(params: EditFileParams, ctx: ToolContext) -> dict[str, str]:
    """Publish a file."""
    assert ctx.workspace is not None
    (ctx.workspace / "out").write_text((ctx.workspace / params.path).read_text())
    return {}


@pytest.mark.parametrize("declared", [bash, write_file, edit_file, publish], ids=lambda declared: declared.name)
async def test_i6_what_changes_after_the_preview_has_read_it_is_asked_about(
    client: Client, sqlite: Database, tmp_path: Path, declared: Tool
) -> None:
    """What is compared when the call starts is what the preview read: not what was there before the request was stored."""
    script = tmp_path / "x.sh"
    script.write_text("touch out\necho ours\n")
    read = declared.preview
    assert read is not None

    def swapped_after(params: Any, workspace: Path | None) -> Preview | None:
        preview = read(params, workspace)
        script.write_text("touch out\necho theirs\n")
        return preview

    arguments = {
        "bash": {"command": "sh x.sh"},
        "write_file": {"path": "x.sh", "text": "echo new\n"},
    }.get(declared.name, {"path": "x.sh", "old_text": "touch out", "new_text": "touch other"})
    model = ListModel(says("I do.", call(declared.name, json.dumps(arguments), "b")), says("Done."))
    async with stack(client, sqlite, replace(declared, preview=swapped_after), model=model) as engine:
        run = await engine.start(workspace=str(tmp_path))
        first = await engine.request(run)
        assert "echo ours" in (first.preview or "")
        await engine.decide(first, "approve", decision_id="first")
        second = await engine.request(run, first)
        assert "echo theirs" in (second.preview or "")
        assert (script.read_text(), (tmp_path / "out").exists()) == ("touch out\necho theirs\n", False)
        await engine.decide(second, "reject")
        await engine.ended(run)


async def test_i6_an_edited_command_shows_the_script_that_only_it_names(
    client: Client, sqlite: Database, tmp_path: Path
) -> None:
    """An edit that names another script is asked about, with its text; one that names none runs."""
    (tmp_path / "x.sh").write_text("echo unseen > out\n")
    calls = [call("bash", json.dumps({"command": f"echo {each}"}), each) for each in ("a", "b")]
    async with stack(client, sqlite, bash, model=ListModel(*map(says, calls), says("Done."))) as engine:
        run = await engine.start(workspace=str(tmp_path))
        first = await engine.request(run)
        await engine.decide(first, "edit", args='{"command": "sh x.sh"}')
        second = await engine.request(run, first)
        assert second.reason.startswith("operator edited this, and what it depends on now is not what was shown")
        assert "echo unseen > out" in (second.preview or "")
        assert not (tmp_path / "out").exists()
        await engine.decide(second, "reject")
        third = await engine.request(run, second)
        await engine.decide(third, "edit", args='{"command": "echo no > out"}')
        assert (await engine.ended(run)).status == "completed"
    assert (tmp_path / "out").read_text() == "no\n"


async def test_i6_a_call_that_would_run_otherwise_confined_is_asked_about(
    client: Client, sqlite: Database, tmp_path: Path
) -> None:
    """What confines a command is part of what was shown: a worker that confines it otherwise doesn't run it."""
    texts = ["Runs confined."]

    def confinement(params: Any) -> ProcessConfinement:
        return ProcessConfinement(confined=len(texts) == 1, text=texts[-1])

    model = ListModel(says("I run it.", call("bash", '{"command": "echo > out"}', "b")), says("Done."))
    async with stack(client, sqlite, replace(bash, confinement=confinement), model=model) as engine:
        run = await engine.start(workspace=str(tmp_path))
        first = await engine.request(run)
        texts.append("Runs unconfined.")
        await engine.decide(first, "approve")
        second = await engine.request(run, first)
        assert second.reason.endswith("which confines it otherwise. Now: Runs unconfined.")
        assert (second.process_confinement, (tmp_path / "out").exists()) == (confinement(None), False)
        await engine.decide(second, "reject")
        await engine.ended(run)


async def test_i6_no_grant_lets_a_command_run_a_script(client: Client, sqlite: Database, tmp_path: Path) -> None:
    """I6: a grant lets commands run, but not one that runs a script: it is asked about, and no grant is made of its request."""
    commands = ("echo 'echo unseen > out' > x.sh", "echo yes > other", "sh x.sh")
    calls = [call("bash", json.dumps({"command": each}), f"b{at}") for at, each in enumerate(commands)]
    async with stack(client, sqlite, bash, model=ListModel(*map(says, calls), says("Done."))) as engine:
        run = await engine.start(workspace=str(tmp_path))
        first = await engine.request(run)
        assert ungrantable(first) is None
        pattern = {"tool": "bash", "fixed": {"timeout_seconds": 120, "network": False}, "open": ["command"]}
        await engine.decide(first, "approve", grant={"pattern": pattern, "scope": "agent", "max_uses": 9})
        second = await engine.request(run, first)
        assert (tmp_path / "other").read_text() == "yes\n"
        assert (second.rule, NOT_GRANTED[3:] in second.reason) == ("tool:ask", True)
        assert "echo unseen > out" in (second.preview or "")
        assert ungrantable(second) == NOT_GRANTED
        assert not (tmp_path / "out").exists()
        await engine.decide(second, "approve")
        assert (await engine.ended(run)).status == "completed"
    assert (tmp_path / "out").read_text() == "unseen\n"


async def test_a_command_without_scripts_depends_on_nothing(client: Client, sqlite: Database, tmp_path: Path) -> None:
    """A command that names no script runs once it is approved, and its request says nothing of what it depends on."""
    model = ListModel(says("I look.", call("bash", '{"command": "echo yes > out"}', "b")), says("Done."))
    async with stack(client, sqlite, bash, model=model) as engine:
        run = await engine.start(workspace=str(tmp_path))
        request = await engine.request(run)
        assert request.depends_on is None
        async with engine.database.read() as conn:
            assert (await request_detail(conn, request.id)).precondition is None
        await engine.decide(request, "approve", decision_id="first")
        assert (await engine.ended(run)).status == "completed"
    assert (tmp_path / "out").read_text() == "yes\n"


async def test_i6_an_edited_change_is_shown_before_it_is_made(client: Client, sqlite: Database, tmp_path: Path) -> None:
    """Who edits an edit of a file hasn't seen the change that it makes, so they are asked with it; a whole text they typed."""
    file = tmp_path / "a.txt"
    file.write_text("one\ntwo\n")
    write = call("write_file", json.dumps({"path": "a.txt", "text": "no\n"}), "w")
    edit = call("edit_file", json.dumps({"path": "a.txt", "old_text": "mine", "new_text": "no"}), "e")
    async with stack(
        client, sqlite, write_file, edit_file, model=ListModel(says(write), says(edit), says("Done."))
    ) as engine:
        run = await engine.start(workspace=str(tmp_path))
        first = await engine.request(run)
        await engine.decide(first, "edit", args=json.dumps({"path": "a.txt", "text": "mine\n"}))
        second = await engine.request(run, first)
        assert (second.tool_name, file.read_text()) == ("edit_file", "mine\n")
        await engine.decide(second, "edit", args=json.dumps({"path": "a.txt", "old_text": "mine", "new_text": "ours"}))
        third = await engine.request(run, second)
        assert third.reason.startswith("operator edited this, and what it depends on now is not what was shown")
        assert ("+ours" in (third.preview or ""), file.read_text()) == (True, "mine\n")
        await engine.decide(third, "approve")
        assert (await engine.ended(run)).status == "completed"
    assert file.read_text() == "ours\n"
