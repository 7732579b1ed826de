"""What `turngate watch`, `runs`, `requests` and `decide` print about sub-agents, control calls and results in part."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

import pytest
from support.api.api_server import Api
from support.engine.sub_agent_app import World, step, task

from turngate.store.runs import runs

Printed = Callable[..., Awaitable[str]]


async def begun(api: Api, text: str) -> runs.Run:
    started = await api.start(text)
    async with api.stack.database.read() as conn:
        run = await runs.get(conn, started["id"])
    assert run is not None
    return run


@pytest.mark.exhaustive
async def test_control_calls_and_malformed_responses_are_printed_in_words(office: Api) -> None:
    """A wait says until when, a switch and a hand-off who continues, a malformed response what the model reads about it."""
    steps = (
        step(("wait_until", {"seconds": 0})),
        step(malformed="a brace\x1b[31m is missing"),
        step(("switch_model", {"model": "scripted:other"})),
        step(("hand_off", {"agent": "researcher"})),
    )
    run = await begun(office, task(*steps))
    await office.stack.ended(run)
    output = await office.printed("watch", run.id)
    assert "⏲ waits until 2" in output
    assert "this response could not be used; the model gets this answer:" in output
    assert "┊ Your last response could not be parsed: a brace⟨U+001B⟩[31m is missing" in output
    assert "⇒ model scripted:other continues instead of scripted:test" in output
    assert "⇒ handed over from agent to researcher, who continues" in output
    assert "\x1b" not in output


@pytest.mark.exhaustive
async def test_a_finished_runs_answer_is_printed(office: Api) -> None:
    """A control call's answer is at the end, and the last step's words are where the model said them."""
    run = await begun(office, task(step(("finish", {"answer": "It is 42."}), words="I end this.")))
    await office.stack.ended(run)
    lines = (await office.printed("watch", run.id)).splitlines()
    assert lines.index("  │ I end this.") < lines.index("  │ It is 42.")


@pytest.mark.exhaustive
async def test_a_run_is_paused_gets_a_message_and_is_resumed(office: Api) -> None:
    """`pause`, `send` and `resume` say what they did and how to follow; `watch` says who paused it, why, and who wrote."""
    run = await begun(office, task(step(("pay", {"cents": 5}))))
    await office.stack.request(run)
    assert f"{run.id} holds" in await office.printed("pause", run.id, "--reason", "lunch\x1b[31m")
    await office.stack.event(run, "run.paused")
    assert f"{run.id} gets the message" in await office.printed(
        "send", run.id, json.dumps(task(step(words="Never mind."))), "--while-running", "supersede"
    )
    await office.stack.event(run, "request.superseded")
    assert f"{run.id} continues with scripted:other" in await office.printed("model", run.id, "scripted:other")
    assert f"{run.id} resumes" in await office.printed("resume", run.id)
    await office.stack.ended(run)
    output = await office.printed("watch", run.id)
    for line in (
        "⇒ cli holds the run: lunch⟨U+001B⟩[31m",
        "⇒ cli sent a message; the agent reads it before the next step",
        "the request superseded",
        "⇒ cli resumes the run",
        "⇒ model scripted:other continues instead of scripted:test, switched by cli",
    ):
        assert line in output


@pytest.mark.exhaustive
async def test_a_sub_agents_lines_carry_its_path(office: Api, world: World) -> None:
    """Lists and stories print the path of agents; the request is decided by its id like any other."""
    run = await begun(office, task(step(("researcher", {"task": task(step(("pay", {"cents": 9})))}))))
    child = await office.stack.started_below(run)
    request = await office.stack.request(child)
    assert (await office.printed("requests")).split("\t")[3] == "agent \u203a researcher"
    listed = {line.split("\t")[0]: line.split("\t") for line in (await office.printed("runs")).splitlines()}
    assert listed[child.id][2] == "agent \u203a researcher"
    assert listed[child.id][5].startswith(f"↳ of run {run.id}: ")
    assert not listed[run.id][5].startswith("↳")
    decided = await office.printed("decide", request.id, "approve", "--show")
    assert "agent agent \u203a researcher" in decided
    await office.stack.ended(run)
    output = await office.printed("watch", run.id)
    assert f"↳ answered by its own run: {child.id}" in output
    assert "agent \u203a researcher │   ⏸ pay waits for approval" in output
    assert world.paid == [9]


@pytest.mark.exhaustive
async def test_where_a_tool_comes_from_is_printed_before_the_decision(office: Api) -> None:
    """Origin and precondition are lines of the request."""
    booking = await office.stack.request(await begun(office, task(step(("ledger_book", {})))))
    output = await office.printed("decide", booking.id, "reject", "--show")
    assert f"comes from mcp server ledger<b>, server version 1.2, manifest digest {'ab' * 32}" in output
    deploying = await office.stack.request(await begun(office, task(step(("deploy", {})))))
    assert 'depends on {"release": "r1"}' in await office.printed("decide", deploying.id, "reject", "--show")


@pytest.mark.exhaustive
async def test_what_changed_since_an_approval_is_printed(office: Api, world: World) -> None:
    """The second request says whose approval it replaces, and what that depended on then and now; nothing moves the cursor."""
    run = await begun(office, task(step(("deploy", {}))))
    first = await office.stack.request(run)
    world.release = "r2\x1b[2J"
    await office.printed("decide", first.id, "approve")
    again = await office.stack.request(run)
    lines = (await office.printed("decide", again.id, "reject", "--show")).splitlines()
    assert any(line.startswith(f"  instead of the approval {first.id} by cli at ") for line in lines)
    at = lines.index("  what changed since that approval")
    assert '    -  "release": "r1"' in lines[at:]
    assert any(line.startswith('    +  "release": "r2') for line in lines[at:])
    assert "\x1b" not in "".join(lines)
    await office.stack.ended(run)


@pytest.mark.exhaustive
async def test_a_result_in_part_names_the_command_that_prints_it(office: Api) -> None:
    """The story says how much is printed; the command that it names prints all of it."""
    run = await begun(office, task(step(("read_log", {"chars": 5_000}))))
    await office.stack.ended(run)
    output = await office.printed("watch", run.id)
    line = next(line for line in output.splitlines() if "shown in part (1,000 of " in line)
    command = line.partition("all of it: turngate ")[2].split()
    assert len(await office.printed(*command)) == 5_001


async def test_a_tool_name_that_a_model_made_up_is_inert(office: Api) -> None:
    """No toolkit declared it, so it may contain anything; the terminal gets markers."""
    run = await begun(office, task(step(("no\x1b[2Jsuch", {}))))
    await office.stack.ended(run)
    output = await office.printed("watch", run.id)
    assert "✗ no⟨U+001B⟩[2Jsuch unknown_tool" in output
    assert "\x1b" not in output
