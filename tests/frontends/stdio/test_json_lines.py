"""``turngate run --json`` as a shell user uses it: lines of JSON, pipes, exit codes."""

from __future__ import annotations

import asyncio
import json
import signal
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import pytest
from support.api.api_server import Api
from support.api.frontend_app import DEADLINE_SECONDS, GO, environment, owner_token
from support.programs.terminal_process import TURNGATE


@pytest.fixture(scope="module")
async def env(driven_api: Api, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return environment(driven_api, await owner_token(driven_api), tmp_path_factory.mktemp("state"))


async def started(env: dict[str, str], directory: Path, command: str) -> Process:
    """A shell's pipeline with our command in it; with ``pipefail`` the exit code is that of the failed part."""
    script = f"set -o pipefail; {command.replace('turngate', str(TURNGATE), 1)}"
    return await asyncio.create_subprocess_exec(
        "bash", "-c", script, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=env, cwd=directory, limit=2**22
    )


@pytest.mark.exhaustive
async def test_every_line_is_an_event_and_the_last_the_outcome(
    driven_api: Api, env: dict[str, str], tmp_path: Path
) -> None:
    """The task comes from stdin; each line comes at once, and stderr stays empty."""
    process = await started(env, tmp_path, "turngate run - --json")
    process.stdin.write(b"pay 41")
    process.stdin.close()
    lines = []
    async with asyncio.timeout(DEADLINE_SECONDS):
        async for line in process.stdout:
            lines.append(json.loads(line))
            if lines[-1]["type"] == "request.opened":  # only a line that was flushed lets this continue
                request = await driven_api.request({"id": lines[-1]["run_id"]})
                assert (await driven_api.decide(request)).status_code == 200
        assert await process.wait() == 0
    assert await process.stderr.read() == b""
    assert all({"type", "seq"} <= line.keys() for line in lines)
    numbered = [line["seq"] for line in lines if line["seq"] is not None and line["type"] != "run.outcome"]
    assert numbered == sorted(set(numbered))
    last = lines[-1]
    assert (last["type"], last["outcome"], last["exit_code"]) == ("run.outcome", "completed", 0)
    assert (last["seq"], last["run"]["final_text"]) == (numbered[-1], "All done.")


async def test_live_text_is_lines_too(env: dict[str, str], tmp_path: Path) -> None:
    """The first word is a line before the model says the second; a line that is stored nowhere has no ``seq``."""
    GO.clear()
    process = await started(env, tmp_path, 'turngate run "hold on" --json')
    async with asyncio.timeout(DEADLINE_SECONDS):
        lines = []
        async for line in process.stdout:
            lines.append(json.loads(line))
            if lines[-1]["type"] == "response.delta" and any(each["text"] == "You" for each in lines[-1]["deltas"]):
                assert lines[-1]["seq"] is None
                GO.set()
        assert await process.wait() == 0
    assert lines[-1]["run"]["final_text"] == "You said: hold on"


@pytest.mark.exhaustive
async def test_head_ends_it_silently_and_ctrl_c_leaves_the_run(
    driven_api: Api, env: dict[str, str], tmp_path: Path
) -> None:
    """A closed output is noticed although the run waits at its gate, and it is no error.

    SIGINT exits 130, and prints on stderr how to come back.
    """
    piped = await started(env, tmp_path, 'turngate run "pay 42" --json | head -1')
    left = await asyncio.create_subprocess_exec(
        TURNGATE, "run", "pay 43", "--json", stdin=PIPE, stdout=PIPE, stderr=PIPE, env=env, cwd=tmp_path
    )
    async with asyncio.timeout(2 * DEADLINE_SECONDS):
        while json.loads(await left.stdout.readline())["type"] != "request.opened":
            pass
        left.send_signal(signal.SIGINT)
        _rest, errors = await left.communicate()
        assert (left.returncode, b"turngate watch run_" in errors) == (130, True)
        out, err = await piped.communicate()
    assert json.loads(out)["type"] == "run.started"
    assert (piped.returncode, err) == (128 + signal.SIGPIPE, b"")
    running = (await driven_api.operator.get("/api/v1/runs", params={"status": "running"})).json()["items"]
    assert {"pay 42", "pay 43"} <= {each["task"] for each in running}
