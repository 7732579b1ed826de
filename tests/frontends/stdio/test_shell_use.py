"""``turngate run`` in a shell's pipelines and files: what goes to which stream, and who learns that a run waits."""

from __future__ import annotations

import asyncio
import fcntl
import io
import os
import pty
import struct
import sys
import termios
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import pytest
from support.api.api_server import Api, api_on
from support.api.frontend_app import DEADLINE_SECONDS, environment, owner_token
from support.engine.stack import until
from support.programs.terminal_process import TURNGATE, Screen
from typer.testing import CliRunner

from turngate.approvals_api.gateway.client import Gateway
from turngate.cli import main
from turngate.cli.api_link import ApiLink
from turngate.cli.commands.runs.runs import task_text
from turngate.cli.follow.run import Follower, Output
from turngate.client import event_stream
from turngate.domain.errors import ConfigurationError, InvalidInputError, UnavailableError


@pytest.fixture(scope="module")
async def env(driven_api: Api, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return environment(driven_api, await owner_token(driven_api), tmp_path_factory.mktemp("state"))


async def begun(env: dict[str, str], command: str) -> Process:
    script = f"set -o pipefail; {command.replace('turngate', str(TURNGATE))}"
    return await asyncio.create_subprocess_exec("bash", "-c", script, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=env)


async def done(process: Process) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command that ends by itself."""
    async with asyncio.timeout(2 * DEADLINE_SECONDS):
        out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


@pytest.mark.exhaustive
async def test_commands_end_as_other_tools_do(env: dict[str, str]) -> None:
    """Quiet prints the answer alone, also for a task on stdin; a closed output is no error, and causes no traceback."""
    commands = {
        "printf 'hello *you*' | turngate run --quiet": (0, "You said: hello *you*\n"),
        "turngate run -q 'hello there' >&-": (0, ""),
    }
    processes = [await begun(env, command) for command in commands]
    for process, (command, wanted) in zip(processes, commands.items(), strict=True):
        code, out, err = await done(process)
        assert (code, out, err) == (*wanted, ""), command


@pytest.mark.exhaustive
async def test_a_quiet_run_prints_on_stderr_that_it_waits(driven_api: Api, env: dict[str, str]) -> None:
    """Stderr says where to decide while the run waits; a run without an answer says why, and exits as it ended."""
    process = await begun(env, "turngate run -q 'pay 71'")
    line = (await asyncio.wait_for(process.stderr.readline(), DEADLINE_SECONDS)).decode()
    request = await driven_api.request({"id": (await newest(driven_api))["id"]})
    assert line == f"⏸ waits for an operator: pay  {driven_api.url}/requests/{request['id']}\n"
    interrupted = await driven_api.operator.post(f"/api/v1/runs/{request['run_id']}/interrupt", json={"reason": "tea"})
    assert interrupted.status_code == 202
    code, out, err = await done(process)
    assert (code, out) == (3, "")
    assert f"run {request['run_id']} has no answer (interrupted by " in err
    assert err.endswith("): tea\n")


@pytest.mark.exhaustive
async def test_a_story_in_a_file_says_on_the_terminal_that_it_waits(
    driven_api: Api, env: dict[str, str], tmp_path: Path
) -> None:
    """Stdout is a file, so the terminal gets the address, without colours if they are turned off."""
    master, slave = pty.openpty()
    with (tmp_path / "story.txt").open("wb") as story:
        process = await asyncio.create_subprocess_exec(
            TURNGATE, "run", "pay 72", stdin=slave, stdout=story, stderr=slave, env={**env, "NO_COLOR": "1"}
        )
    os.close(slave)
    screen = Screen(master)
    match = await asyncio.to_thread(screen.wait_for, r"waits for an operator: pay  \S+/requests/(rq_\w+)")
    request = (await driven_api.operator.get(f"/api/v1/requests/{match[1]}")).json()
    assert (await driven_api.decide(request)).status_code == 200
    async with asyncio.timeout(DEADLINE_SECONDS):
        assert await process.wait() == 0
    screen.read_rest()
    os.close(master)
    assert b"\x1b" not in screen._raw
    assert "pay waits for approval" in (tmp_path / "story.txt").read_text()


@pytest.mark.exhaustive
async def test_a_narrow_terminal_cuts_no_id(driven_api: Api, env: dict[str, str]) -> None:
    """The table's text gives way to the ids, which people copy."""
    run = await driven_api.start("look here, and then at everything else that there is to be seen around here")
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    narrow = {name: value for name, value in env.items() if name != "COLUMNS"}
    process = await asyncio.create_subprocess_exec(
        TURNGATE, "runs", stdin=slave, stdout=slave, stderr=slave, env=narrow
    )
    os.close(slave)
    screen = Screen(master)
    await asyncio.to_thread(screen.wait_for, rf"RUN +STATUS +AGENT .*\n(.*\n)*?{run['id']}  \w+ .*  look here…\n")
    async with asyncio.timeout(DEADLINE_SECONDS):
        assert await process.wait() == 0
    os.close(master)


async def newest(api: Api) -> dict[str, str]:
    return (await api.operator.get("/api/v1/runs", params={"limit": 1})).json()["items"][0]


def test_a_task_is_read_from_stdin_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Line ends stay; text that is not UTF-8, or empty, is refused with the reason; an argument comes first."""

    def coming(content: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))

    coming("ü\r\n".encode())
    assert task_text("-") == "ü\r\n"
    coming(b"from stdin")
    assert task_text("from here") == "from here"
    for content, message in [(b"ab\xff", "not UTF-8 text, at byte 2"), (b" \n", "stdin is empty")]:
        coming(content)
        with pytest.raises(InvalidInputError, match=message):
            task_text(None)


def test_without_a_task_the_command_does_not_wait_for_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command must not seem to hang: it says both ways to pass a task."""
    master, slave = pty.openpty()
    with os.fdopen(slave, encoding="utf-8") as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        with pytest.raises(ConfigurationError, match="on stdin"):
            task_text(None)
    os.close(master)


def test_two_ways_to_print_a_run_contradict_each_other() -> None:
    """It is an error before anything starts."""
    refused = CliRunner().invoke(main.app, ["run", "-q", "--json", "hello"])
    assert (refused.exit_code, "choose one" in refused.stderr) == (2, True)


@pytest.mark.parametrize("command", ["run", "watch"])
def test_every_exit_code_is_in_the_help(command: str) -> None:
    """A script's author reads them there."""
    help_text = CliRunner().invoke(main.app, [command, "--help"], env={"COLUMNS": "400"}).stdout
    for code in ("0 completed", "1 failed", "2 the command", "3 interrupted", "130 left", "141 left"):
        assert code in help_text


async def test_a_lost_connection_says_how_to_come_back(
    driven_api: Api, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The API went away for good: the run is durable, and the way back names the address of the command."""
    monkeypatch.setattr(event_stream, "GIVE_UP_SECONDS", 0.1)
    run = await driven_api.start("pay 73")
    request = await driven_api.request(run)
    async with api_on(driven_api.stack, Gateway(driven_api.stack.client)) as passing:
        link = ApiLink(url=passing.url, token=await owner_token(passing), data_dir=None, url_is_option=True)
        client = link.client()
        follower = asyncio.create_task(
            asyncio.to_thread(Follower(link, client, Output.STORY, stream=False).follow, run["id"])
        )
        output: list[str] = []

        async def waits() -> bool:
            output.append(capfd.readouterr().out)
            return request["id"] in "".join(output)

        await until(waits, "gate in the story")
    with client, pytest.raises(UnavailableError, match="no Turngate answers"):
        await follower
    errors = capfd.readouterr().err
    assert "Not connected since" in errors
    assert "The connection is lost; the run continues" in errors
    assert f"turngate watch --url {link.url} {run['id']}" in errors
