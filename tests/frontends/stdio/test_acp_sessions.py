"""Sessions in an editor: closed, resumed, watched again, with another model; and what else an editor may send."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from acp import RequestError
from support.api.api_server import Api
from support.api.frontend_app import GO, inside, owner_token
from support.engine.stack import until
from support.programs.editor import Desk, desk_on, the_run

from turngate.client import Retries, TurngateClient
from turngate.frontends.acp.agent import serve_acp
from turngate.store.access import access, tokens, users
from turngate.wire.orders import DecisionOrder


@pytest.fixture(scope="module")
async def desk(driven_api: Api, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Desk]:
    """An editor with a driver in this process."""
    sessions, project = tmp_path_factory.mktemp("kept"), tmp_path_factory.mktemp("project")
    serve = partial(serve_acp, agent=None, model=None, sessions=sessions)
    async with (
        inside(driven_api, await owner_token(driven_api), serve) as (reader, writer, _served),
        desk_on(reader, writer, project) as desk,
    ):
        yield desk


async def test_a_withdrawn_prompt_is_cancelled(driven_api: Api, desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    """Editors also end a request by its id: the run is interrupted, and nothing unknown is an error in our log."""
    await desk.fresh(held=True)
    prompted = asyncio.create_task(desk.prompt("pay 51"))
    await desk.question()
    prompt_id = [each["id"] for each in desk.messages if each.get("method") == "session/prompt"][-1]
    conn = desk.connection._conn
    await conn.send_notification("$/cancel_request", {"requestId": "unknown"})
    await conn.send_notification("$/made_up", {})
    await conn.send_notification("$/cancel_request", {"requestId": prompt_id})
    assert await prompted == "cancelled"
    assert (await the_run(driven_api))["outcome"] == "interrupted"
    assert "$/made_up" not in caplog.text


async def test_a_cancelled_dialog_mentions_no_other_place(driven_api: Api, desk: Desk) -> None:
    """An editor answers its open questions with `cancelled` when it cancels: its request ends, and is not left open."""
    await desk.fresh("dismiss", held=True)
    prompted = asyncio.create_task(desk.prompt("pay 52"))
    await desk.question()
    await desk.connection.cancel(session_id=desk.session_id)
    desk.editor.go.set()
    assert await prompted == "cancelled"
    assert "Left open" not in desk.editor.call_text()
    assert "cancelled" in desk.editor.call_text()


async def test_a_closed_session_is_cancelled_and_resumed_later(driven_api: Api, desk: Desk) -> None:
    """Closing stops the run; resuming repeats nothing, and the conversation continues."""
    await desk.fresh(held=True)
    prompted = asyncio.create_task(desk.prompt("pay 53"))
    await desk.question()
    before = await the_run(driven_api)
    for again in (
        desk.prompt("more"),
        desk.connection.load_session(session_id=desk.session_id, cwd=str(desk.directory), mcp_servers=[]),
    ):
        with pytest.raises(RequestError) as refused:
            await again
        assert refused.value.data == {"details": "this session answers a prompt already: cancel that first"}
    await desk.connection.close_session(session_id=desk.session_id)
    assert await prompted == "cancelled"
    with pytest.raises(RequestError, match="no session"):
        await desk.prompt("hello?")
    desk.editor.updates.clear()
    await desk.connection.resume_session(session_id=desk.session_id, cwd=str(desk.directory), mcp_servers=[])
    assert desk.editor.updates == []
    assert await desk.prompt("hello") == "end_turn"
    assert (await the_run(driven_api))["conversation_id"] == before["conversation_id"]


async def test_a_live_run_is_watched_without_a_word_to_it(driven_api: Api, desk: Desk) -> None:
    """A run that outlived its editor: loading says that it is live, and a command follows it and asks about its gate."""
    run = await driven_api.start("pay 54")
    await driven_api.request(run)
    await desk.fresh()
    desk.session_id = run["conversation_id"]
    await desk.connection.load_session(cwd=str(desk.directory), session_id=desk.session_id, mcp_servers=[])
    commands = [each for each in desk.editor.updates if each.session_update == "available_commands_update"]
    assert [each.name for each in commands[0].available_commands] == ["watch"]
    assert "is live" in desk.editor.text_of("agent_message_chunk")
    assert await desk.prompt("/watch") == "end_turn"
    whole = (await driven_api.operator.get(f"/api/v1/runs/{run['id']}")).json()
    assert [step["told"] for step in whole["steps"]] == [[], []]
    assert whole["outcome"] == "completed"
    (updates,) = desk.editor.calls().values()
    assert [each.session_update for each in updates].count("tool_call") == 1
    assert updates[-1].status == "completed"
    assert await desk.prompt("/watch") == "end_turn"
    assert "No run of this conversation is live" in desk.editor.text_of("agent_message_chunk")


async def test_a_session_has_the_model_that_was_chosen(driven_api: Api, desk: Desk) -> None:
    """In the next run, or at once in the live one; another person's switch appears; unknown models are refused."""
    await desk.fresh()
    chosen = partial(desk.connection.set_config_option, config_id="model", session_id=desk.session_id)
    session = await desk.connection.new_session(cwd=str(desk.directory), mcp_servers=[])
    (option,) = session.config_options
    assert (option.category, option.current_value) == ("model", "scripted:test")
    assert "scripted:test" in {each.value for each in option.options}
    with pytest.raises(RequestError, match=r"was not offered; these are: .*scripted:test"):
        await chosen(value="scripted:nowhere")
    GO.clear()
    prompted = asyncio.create_task(desk.prompt("hold on"))
    await until(lambda: asyncio.sleep(0, desk.editor.text_of("agent_message_chunk") == "You"), "first word")
    run = await the_run(driven_api)
    switched = await driven_api.operator.post(f"/api/v1/runs/{run['id']}/model", json={"model": "scripted:other"})
    assert switched.status_code == 200
    await until(
        lambda: asyncio.sleep(
            0, [each for each in desk.editor.updates if each.session_update == "config_option_update"]
        ),
        "the switched model",
    )
    option_now = desk.editor.updates[-1].config_options[0]
    assert option_now.current_value == "scripted:other"
    back = await chosen(value="scripted:test")
    assert back.config_options[0].current_value == "scripted:test"
    assert (await the_run(driven_api))["model"] == "scripted:test"
    await driven_api.operator.post(f"/api/v1/runs/{run['id']}/model", json={"model": "scripted:other"})
    GO.set()
    assert await prompted == "end_turn"
    await chosen(value="scripted:test")
    assert await desk.prompt("and then?") == "end_turn"
    after = await the_run(driven_api)
    assert (after["model"], after["conversation_id"]) == ("scripted:test", run["conversation_id"])


async def test_a_session_has_a_title(desk: Desk) -> None:
    """Its first prompt on one line, sent once."""
    await desk.fresh()
    for text in ("look here,\n\tnow", "look there"):
        assert await desk.prompt(text) == "end_turn"
    titles = [each.title for each in desk.editor.updates if each.session_update == "session_info_update"]
    assert titles == ["look here, now"]


async def test_a_change_appears_once_and_links_to_its_place(desk: Desk) -> None:
    """The diff of a decided call appears once, without what was needed to decide it; its result is unchanged."""
    await desk.fresh()
    assert await desk.prompt("write x") == "end_turn"
    (updates,) = desk.editor.calls().values()
    places = [each.locations for each in updates if each.locations]
    assert [(each.path, each.line) for each in places[0]] == [(f"{desk.directory}/notes.md", 1)]
    assert [block.type for block in updates[-1].content].count("diff") == 1
    texts = [block.content.text for block in updates[-1].content if block.type == "content"]
    assert not [text for text in texts if "/requests/" in text or "risk" in text]
    assert [text for text in texts if "approved by" in text]
    assert updates[-1].raw_output == {"written": "x"}


@pytest.mark.parametrize("session_id", ["../../etc/passwd", "a b", "", "conv_none"])
async def test_an_invalid_session_id_is_refused(desk: Desk, session_id: str) -> None:
    """Its name reaches neither a file nor an address."""
    with pytest.raises(RequestError, match=r"there is no (session|conversation)"):
        await desk.connection.load_session(cwd="/", session_id=session_id, mcp_servers=[])


async def test_an_error_is_reported_when_a_session_starts(driven_api: Api, tmp_path: Path) -> None:
    """An editor displays errors of its requests, but not a process that ended: so it starts in any case."""
    token = await owner_token(driven_api)
    for agent, url, message in [
        ("missing", None, "give --agent one of"),
        (None, "http://127.0.0.1:1", "turngate up"),
    ]:
        serve = partial(serve_acp, agent=agent, model=None, sessions=tmp_path)
        async with (
            inside(driven_api, token, serve, url=url, retries=Retries(attempts=1)) as (reader, writer, _served),
            desk_on(reader, writer, tmp_path) as lost,
        ):
            with pytest.raises(RequestError, match=message):
                await lost.fresh()


async def person(api: Api, name: str) -> str:
    """A token that belongs to a person, whom a quorum counts."""
    name = f"{name}-{api.name}"
    async with api.stack.database.write() as conn:
        await users.add(conn, users.User(name=name, role="operator", password_hash=None), by="test")
        scopes: list[access.Scope] = ["requests:read", "requests:decide"]
        return await tokens.issue(conn, tokens.NewToken(name=f"{name}-editor", scopes=scopes, owner=name))


async def test_one_approval_of_two_says_that_it_still_waits(driven_api: Api, tmp_path: Path) -> None:
    """The person who approved in the editor reads why nothing happens yet; a second person lets it run."""
    people = [await person(driven_api, name) for name in ("eve", "joe")]
    serve = partial(serve_acp, agent="agent", model=None, sessions=tmp_path)
    async with (
        inside(driven_api, people[0], serve) as (reader, writer, _served),
        desk_on(reader, writer, tmp_path) as eves,
    ):
        run = await driven_api.start("sign 40")
        request = await driven_api.request(run)
        await eves.fresh()
        eves.session_id = run["conversation_id"]
        await eves.connection.load_session(cwd=str(tmp_path), session_id=eves.session_id, mcp_servers=[])
        prompted = asyncio.create_task(eves.prompt("/watch"))
        await until(
            lambda: asyncio.sleep(0, "one more person must approve" in eves.editor.call_text()), "note that it waits on"
        )
        async with TurngateClient(driven_api.url, token=people[1]) as joe:
            assert (await joe.get_request(request["id"])).approvals == 1
            await joe.decide(request["id"], DecisionOrder(verb="approve", digest=request["digest"]))
        assert await prompted == "end_turn"
