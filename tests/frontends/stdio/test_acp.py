"""``turngate acp`` as an editor uses it: the protocol package's own client side, and a process at the other end."""

from __future__ import annotations

import asyncio
import os
import pty
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from acp import RequestError
from support.api.api_server import Api
from support.api.frontend_app import DEADLINE_SECONDS, GO, environment, inside, owner_token, secret
from support.engine.stack import until
from support.programs.editor import Desk, desk_on, process_at, the_run
from support.programs.terminal_process import TURNGATE, Screen
from typer.testing import CliRunner

from turngate.cli import main
from turngate.frontends.acp.agent import serve_acp


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("project")


@pytest.fixture(scope="module")
async def token(driven_api: Api) -> str:
    return await owner_token(driven_api)


@pytest.fixture(scope="module")
async def desk(driven_api: Api, token: str, project: Path) -> AsyncIterator[Desk]:
    async with process_at(driven_api, token, project) as desk:
        yield desk


@pytest.mark.exhaustive
async def test_a_prompt_is_answered_with_thoughts_and_words_each_once(driven_api: Api, desk: Desk) -> None:
    """The first word arrives before the model says the second, and only once; the project is the run's workspace."""
    await desk.fresh()
    GO.clear()
    prompted = asyncio.create_task(desk.prompt("hold on *there*"))
    await until(lambda: asyncio.sleep(0, desk.editor.text_of("agent_message_chunk") == "You"), "first word")
    GO.set()
    assert await prompted == "end_turn"
    assert desk.editor.text_of("agent_thought_chunk") == "Let me see."
    assert desk.editor.text_of("agent_message_chunk") == "You said: hold on *there*"
    assert (await the_run(driven_api))["workspace"] == str(desk.directory)


async def test_a_gate_is_a_question_in_the_editor(driven_api: Api, desk: Desk) -> None:
    """It has the exact call and its diff, hidden characters marked; the answer runs it, in the person's name."""
    await desk.fresh()
    assert await desk.prompt("write *x*") == "end_turn"
    ((call, options),) = desk.editor.questions
    assert {option.kind for option in options.values()} == {"allow_once", "allow_always", "reject_once"}
    assert call.raw_input == {"text": "*x*"}
    assert call.title == "write"
    (diff,) = [block for block in call.content if block.type == "diff"]
    assert (diff.path, diff.old_text) == (f"{desk.directory}/notes.md", "# Notes\nold\n")
    assert diff.new_text == "# Notes\nnew ⟨U+202E⟩\n"
    assert '```json\n{\n  "text": "*x*"\n}\n```' in call.content[0].content.text
    statuses = [each.status for each in desk.editor.calls()[call.tool_call_id] if each.status]
    assert (statuses[0], statuses[-1]) == ("pending", "completed")
    run = await the_run(driven_api)
    assert run["steps"][0]["calls"][0]["requests"][0]["decided_by"] == run["started_by"]
    assert desk.editor.text_of("agent_message_chunk").endswith("All done.")


async def test_always_is_a_grant_whose_exact_pattern_was_displayed(driven_api: Api, desk: Desk) -> None:
    """No one grants more than they read: the option's name is the pattern, and the grant is that."""
    await desk.fresh("always")
    assert await desk.prompt("pay 31") == "end_turn"
    name = desk.editor.questions[0][1]["always"].name
    granted = (await driven_api.operator.get("/api/v1/grants")).json()["items"][0]
    assert (granted["pattern"]["fixed"], granted["scope"]) == ({"cents": 31}, "run")
    assert granted["says"] in name
    assert "31" in name


async def test_a_rejection_reaches_the_agent(driven_api: Api, desk: Desk) -> None:
    """Reject is a decision like any other: the call fails in the editor, and nothing ran."""
    await desk.fresh("reject")
    assert await desk.prompt("pay 32") == "end_turn"
    (updates,) = desk.editor.calls().values()
    assert updates[-1].status == "failed"
    assert (await the_run(driven_api))["steps"][0]["calls"][0]["execution"] == "not_started"


@pytest.mark.exhaustive
async def test_a_decision_elsewhere_withdraws_the_question(driven_api: Api, desk: Desk) -> None:
    """The page was first: the turn continues, the editor's question is withdrawn, and its late answer changes nothing."""
    await desk.fresh(held=True)
    prompted = asyncio.create_task(desk.prompt("pay 33"))
    await desk.question()
    request = await driven_api.request(await the_run(driven_api))
    assert (await driven_api.decide(request, "reject", message="not today")).status_code == 200
    assert await prompted == "end_turn"
    assert "rejected by ada-" in desk.editor.call_text()
    assert "not today" in desk.editor.call_text()
    (question_id,) = [each["id"] for each in desk.messages if each.get("method") == "session/request_permission"][-1:]
    (withdrawn,) = [each["params"] for each in desk.messages if each.get("method") == "$/cancel_request"]
    assert withdrawn == {"requestId": question_id}
    desk.editor.go.set()
    assert await desk.prompt("still there?") == "end_turn"
    assert (await driven_api.operator.get(f"/api/v1/requests/{request['id']}")).json()["status"] == "rejected"


async def test_a_refused_answer_is_reported_and_ends_nothing(driven_api: Api, desk: Desk) -> None:
    """Another person has claimed the request: the editor's answer gets a 409, which its user reads; theirs counts."""
    await desk.fresh(held=True)
    prompted = asyncio.create_task(desk.prompt("pay 34"))
    await desk.question()
    request = await driven_api.request(await the_run(driven_api))
    claimed = await driven_api.operator.post(f"/api/v1/requests/{request['id']}/claim", json={})
    assert claimed.status_code == 200
    desk.editor.go.set()
    await until(
        lambda: asyncio.sleep(0, "Your answer does not count" in desk.editor.call_text()), "note of the refusal"
    )
    assert f"ada-{driven_api.name}" in desk.editor.call_text()
    assert (await driven_api.decide(request)).status_code == 200
    assert await prompted == "end_turn"


async def test_a_dismissed_question_leaves_the_gate_open(driven_api: Api, desk: Desk) -> None:
    """Closing the editor's dialog decides nothing: the turn waits for an answer on the page."""
    await desk.fresh("dismiss")
    prompted = asyncio.create_task(desk.prompt("pay 37"))
    await until(lambda: asyncio.sleep(0, "Left open" in desk.editor.call_text()), "note that it was left open")
    request = await driven_api.request(await the_run(driven_api))
    assert (await driven_api.decide(request)).status_code == 200
    assert await prompted == "end_turn"


@pytest.mark.exhaustive
async def test_a_sub_agents_gate_is_asked_in_the_same_session(driven_api: Api, desk: Desk) -> None:
    """With the names of the agents that lead to it; its words are thoughts, and its call has an id of its own."""
    await desk.fresh()
    assert await desk.prompt("helper pay 39") == "end_turn"
    assert [call.title for call, _options in desk.editor.questions] == ["agent \u203a helper: pay"]
    assert "agent \u203a helper: I will use pay." in desk.editor.text_of("agent_thought_chunk")
    assert [updates[-1].status for updates in desk.editor.calls().values()] == ["completed", "completed"]


@pytest.mark.exhaustive
async def test_cancel_interrupts_the_run(driven_api: Api, desk: Desk) -> None:
    """The prompt gets the protocol's answer, the gate is closed, and the conversation continues."""
    await desk.fresh("dismiss", held=True)
    prompted = asyncio.create_task(desk.prompt("pay 35"))
    await desk.question()
    await desk.connection.cancel(session_id=desk.session_id)
    desk.editor.go.set()
    assert await prompted == "cancelled"
    run = await the_run(driven_api)
    assert (run["outcome"], run["reason"]) == ("interrupted", "cancelled in the editor")
    desk.editor.answer = "allow"
    assert await desk.prompt("hello again") == "end_turn"
    assert (await the_run(driven_api))["conversation_id"] == run["conversation_id"]


@pytest.mark.parametrize(
    ("text", "where"), [("wire 5", "typed out"), ("ask_person Why?", "give it at")], ids=["high risk", "question"]
)
async def test_what_takes_more_than_a_click_can_only_be_rejected_here(desk: Desk, text: str, where: str) -> None:
    """The editor can't take a typed confirmation or an answer in words: it says where to give it."""
    await desk.fresh("reject")
    assert await desk.prompt(text) == "end_turn"
    ((call, options),) = desk.editor.questions
    assert [option.kind for option in options.values()] == ["reject_once"]
    assert where in call.content[-1].content.text
    assert "/requests/rq_" in call.content[-1].content.text


async def test_a_result_is_text(desk: Desk) -> None:
    """A tool's Markdown is text in a fence, and a call without a gate asks nothing."""
    await desk.fresh()
    assert await desk.prompt("look ```here") == "end_turn"
    assert not desk.editor.questions
    assert "````json" in desk.editor.call_text()
    assert desk.editor.calls().popitem()[1][0].kind == "read"


@pytest.mark.exhaustive
async def test_a_session_is_loaded_by_another_process(driven_api: Api, desk: Desk, token: str, project: Path) -> None:
    """After a restart the editor gets the conversation again, and the next prompt continues it."""
    await desk.fresh()
    assert await desk.prompt("look here") == "end_turn"
    before = await the_run(driven_api)
    async with process_at(driven_api, token, project) as again:
        again.session_id = desk.session_id
        await again.connection.load_session(cwd=str(project), session_id=desk.session_id, mcp_servers=[])
        assert again.editor.text_of("user_message_chunk") == "look here"
        assert again.editor.text_of("agent_message_chunk") == "I will use look.All done."
        (updates,) = again.editor.calls().values()
        assert [each.status for each in updates] == ["pending", "completed"]
        listed = await again.connection.list_sessions(cwd=str(project))
        assert listed.sessions[0].session_id == desk.session_id
        assert await again.prompt("more") == "end_turn"
        assert (await the_run(driven_api))["conversation_id"] == before["conversation_id"]
        with pytest.raises(RequestError, match="no session"):
            await again.connection.load_session(cwd=str(project), session_id="session_" + "0" * 24, mcp_servers=[])


async def test_a_prompt_joins_the_live_run_of_a_loaded_conversation(driven_api: Api, desk: Desk) -> None:
    """A run that started elsewhere waits at its gate: the editor that loads its conversation is asked, and sends a message."""
    run = await driven_api.start("pay 38")
    request = await driven_api.request(run)
    await desk.fresh(held=True)
    desk.session_id = run["conversation_id"]
    await desk.connection.load_session(cwd=str(desk.directory), session_id=desk.session_id, mcp_servers=[])
    prompted = asyncio.create_task(desk.prompt("and say hello"))
    await desk.question()
    desk.editor.go.set()
    assert await prompted == "end_turn"
    whole = (await driven_api.operator.get(f"/api/v1/runs/{run['id']}")).json()
    assert whole["steps"][0]["calls"][0]["requests"][0]["id"] == request["id"]
    assert [message["text"] for step in whole["steps"] for message in step["told"]] == ["and say hello"]


async def test_i10_an_editor_with_an_agents_token_is_asked_nothing(driven_api: Api, tmp_path: Path) -> None:
    """Without the scope to decide there is no question to answer; the gate waits for a person who may decide."""
    bot = await secret(driven_api, "acp-bot", "runs:write", "requests:read")
    serve = partial(serve_acp, agent="agent", model=None, sessions=tmp_path)
    async with (
        inside(driven_api, bot, serve) as (reader, writer, _served),
        desk_on(reader, writer, tmp_path) as poor,
    ):
        await poor.fresh()
        prompted = asyncio.create_task(poor.prompt("pay 36"))
        await until(lambda: asyncio.sleep(0, "You may not decide" in poor.editor.call_text()), "note")
        request = await driven_api.request(await the_run(driven_api))
        assert request["status"] == "pending"
        assert not poor.editor.questions
        assert (await driven_api.decide(request)).status_code == 200
        assert await prompted == "end_turn"


@pytest.mark.exhaustive
async def test_in_a_terminal_it_says_who_it_is_or_what_is_wrong(driven_api: Api, token: str, tmp_path: Path) -> None:
    """A person who tries the editor's command by hand sees that it works, or why not; Ctrl-D ends it."""
    env = environment(driven_api, token, tmp_path)
    for options, message, code in [
        ((), f"speaks .* for agent as ada-.* at {driven_api.url}", 0),
        (("--agent", "x"), "no agent 'x'", 2),
    ]:
        master, slave = pty.openpty()
        process = await asyncio.create_subprocess_exec(
            TURNGATE, "acp", *options, stdin=slave, stdout=PIPE, stderr=slave, env=env, cwd=tmp_path
        )
        os.close(slave)
        screen = Screen(master)
        await asyncio.to_thread(screen.wait_for, message)
        os.write(master, b"\x04")
        async with asyncio.timeout(DEADLINE_SECONDS):
            assert await process.wait() == code
        assert await process.stdout.read() == b""
        os.close(master)


def test_without_its_package_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra is named, and the exit code is that of a wrong configuration."""
    for name in [name for name in sys.modules if name.startswith("turngate.frontends.acp")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "acp", None)
    done = CliRunner().invoke(main.app, ["acp"])
    assert done.exit_code == 2
    assert "the extra 'acp' is not installed" in done.stderr
