"""bash: what it returns, and that no process of it survives."""

from __future__ import annotations

import asyncio
import resource
import subprocess
import time
from pathlib import Path

import pytest

from turngate import OutcomeUnknown
from turngate.domain.tools.failures import InvalidToolInput
from turngate.domain.tools.presentation import CommandBlock, TextBlock
from turngate.domain.tools.preview import command_words
from turngate.domain.tools.results import Failure
from turngate.toolkits.processes.head_tail import HeadTail
from turngate.toolkits.processes.live_output import MAX_PIECE_BYTES, LiveOutput
from turngate.toolkits.shell import BashParams, CommandNotStarted, bash, scrubbed_environment


def marked(workspace: Path) -> list[int]:
    """Return the live processes that carry the command's mark, which it wrote to ``mark``; empty before that."""
    file = workspace / "mark"
    mark = file.read_bytes().strip() if file.exists() else b""
    pids = []
    for environ in Path("/proc").glob("[0-9]*/environ") if mark else ():
        try:
            if mark in environ.read_bytes():
                pids.append(int(environ.parent.name))
        except OSError:
            continue
    return pids


def children() -> list[str]:
    """Return this process's children, zombies included."""
    return [pid for file in Path("/proc/self/task").glob("*/children") for pid in file.read_text().split()]


async def test_output_is_merged_in_order_and_a_bad_exit_is_a_result(call, workspace):
    """Both streams in the order of output; the command ran in the workspace."""
    result = await call(bash, command="echo one; echo two >&2; echo three; pwd; exit 3")
    assert result["output"] == f"one\ntwo\nthree\n{workspace.resolve()}\n"
    assert (result["exit_code"], result["truncated"]) == (3, False)
    assert result["output_bytes"] == len(result["output"])
    assert 0 < result["duration_seconds"] < 120


async def test_a_command_killed_by_a_signal_exits_as_in_a_shell(call):
    """128 + the signal's number. Before, a question got no answer instead of hanging, and what is no text is visible.

    Wrong UTF-8 and NUL become U+FFFD, so every store can hold the result.
    """
    result = await call(bash, command=r"read x || echo nothing; printf 'a\xff\0b'; kill -9 $$")
    assert (result["exit_code"], result["output"]) == (137, "nothing\na\ufffd\ufffdb")


async def test_a_command_has_the_network_only_if_its_call_asks(call):
    """Without asking, it has a loopback of its own and nothing else; the request says which it is, and who asked for it."""
    interfaces = "cat /proc/net/dev | tail -n +3 | cut -d: -f1 | sort | tr -d ' \n'"
    assert (await call(bash, command=interfaces))["output"] == "lo"
    assert (await call(bash, command=interfaces, network=True))["output"] == "lotap0"
    confinement = bash.confinement
    assert "has no network" in confinement(BashParams(command="true")).text
    granted = confinement(BashParams(command="true", network=True))
    assert (granted.network_asked, "neither this machine nor private networks" in granted.text) == (True, True)


async def test_the_environment_is_scrubbed(call, monkeypatch):
    """A few harmless variables pass; credentials of the worker do not."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    monkeypatch.setenv("TURNGATE_DATABASE_URL", "postgresql://u:p@h/d")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    monkeypatch.setenv("BASH_ENV", "/dev/null")
    names = {line.split("=")[0] for line in (await call(bash, command="env"))["output"].splitlines()}
    assert "LC_ALL" in names
    assert "PATH" in names
    assert names <= {
        "PATH",
        "HOME",
        "RUSTUP_HOME",
        "LANG",
        "LC_ALL",
        "LC_CTYPE",
        "TERM",
        "TMPDIR",
        "USER",
        "PWD",
        "OLDPWD",
        "SHLVL",
        "_",
        "TURNGATE_COMMAND",  # the mark that identifies the command's processes
        *(f"GIT_CONFIG_{name}" for name in ("COUNT", "KEY_0", "VALUE_0", "KEY_1", "VALUE_1")),
    }


async def test_git_runs_nothing_of_a_directory_that_looks_like_a_repository(call, workspace):
    """What the file tools wrote without a protected name is no repository for git, however a command enters it."""
    (workspace / "sub/objects").mkdir(parents=True)
    (workspace / "sub/refs").mkdir()
    (workspace / "sub/HEAD").write_text("ref: refs/heads/x\n")
    settings = "repositoryformatversion = 0\n bare = false\n worktree = .\n fsmonitor = echo ran >&2"
    (workspace / "sub/config").write_text(f"[core]\n {settings}\n")
    ways = ("cd sub && git status", "pushd sub && git status", "git -C sub status", "env -C sub git status")
    result = await call(bash, command="; ".join(f"({way})" for way in ways))
    assert result["output"].count("cannot use bare repository") == len(ways)
    assert "ran" not in result["output"]


@pytest.fixture
def repository(workspace):
    """A workspace that is a repository without remotes, and in which file tools wrote a directory that git would push to."""
    for words in ("init -q -b main", "-c user.name=a -c user.email=a@b commit -q --allow-empty -m 1"):
        subprocess.run(["git", *words.split()], cwd=workspace, check=True)
    settings = '[core]\n repositoryformatversion = 0\n bare = true\n alternateRefsCommand = "touch ../ran; true"\n'
    files = {"HEAD": "ref: refs/heads/main\n", "config": settings, "objects/info/alternates": "../../alt/objects\n"}
    empty = {"refs/heads/.keep": "", "../alt/objects/info/x": "", "../alt/refs/heads/.keep": ""}
    for name, text in {**files, **empty, "../alt/HEAD": "ref: refs/heads/main\n"}.items():
        path = workspace / "origin" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return workspace


async def test_git_takes_no_directory_for_a_remote(call, repository):
    """One that is named like a remote that there isn't: git doesn't run what its settings say. A setting allows it for once."""
    ways = ("git push origin main", "git fetch origin", "git pull origin main", "git clone origin y")
    assert (await call(bash, command="; ".join(ways)))["output"].count("transport 'file' not allowed") == len(ways)
    assert not list(repository.rglob("ran"))
    allowed = await call(bash, command="git -c protocol.file.allow=always ls-remote .")
    assert (allowed["exit_code"], "refs/heads/main" in allowed["output"]) == (0, True)


def test_a_name_that_suggests_a_secret_never_passes():
    """Not even one that the allow list would let through."""
    environment = {"PATH": "/bin", "LC_SECRET": "x", "LC_TOKEN": "x", "LC_KEY": "x", "HOME_KEY": "x", "LC_CTYPE": "C"}
    assert scrubbed_environment(environment) == {"PATH": "/bin", "LC_CTYPE": "C"}


async def test_fifty_megabytes_of_output_fit_into_little_memory(call):
    """Head and tail stay, the count is true, the command is not delayed, memory stays flat."""
    command = "echo begin; head -c 50000000 /dev/zero | tr '\\0' x; echo; echo end"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = await call(bash, command=command)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    total = len("begin\n") + 50_000_000 + len("\nend\n")
    assert (result["exit_code"], result["output_bytes"], result["truncated"]) == (0, total, True)
    assert result["output"].startswith("begin\nxxx")
    assert result["output"].endswith("xxx\nend\n")
    assert f"[{total - 65_536} of {total} bytes of output left out here]" in result["output"]
    assert len(result["output"]) < 66_000
    assert grown_kib < 20_000


def test_head_and_tail_are_exact_however_the_bytes_arrive():
    """At the limit nothing is left out; past it the two ends are the stream's own, for every chunk size."""
    stream = bytes(32 + number % 90 for number in range(1000))
    for size in (1, 7, 64, 999, 1000):
        buffer = HeadTail(100)
        for start in range(0, 1000, size):
            buffer.feed(stream[start : start + size])
        text = buffer.text().encode()
        assert text.startswith(stream[:100] + "\n… [800 of 1000".encode())
        assert text.endswith("…\n".encode() + stream[-100:])
        whole = HeadTail(500)
        whole.feed(stream)
        assert (whole.text().encode(), whole.truncated) == (stream, False)


async def test_i3_a_timeout_kills_the_whole_group_and_keeps_the_output(call, workspace, until):
    """Background children and those that ignore SIGTERM too. What it has done is not known, and its output so far is kept.

    SIGTERM comes first, and the output of its handler is part of the result.
    """
    command = (
        "echo $TURNGATE_COMMAND > mark; echo partial; (trap '' TERM; sleep 1000) &"
        "trap 'echo tidied; exit' TERM; while :; do sleep 0.01; done"
    )
    began = time.monotonic()
    with pytest.raises(OutcomeUnknown, match="did not end within 1 s and was killed"):
        await call(bash, command=command, timeout_seconds=1)
    assert time.monotonic() - began >= 1
    assert call.partial[-1].startswith("partial\n")
    assert "tidied" in call.partial[-1]
    await until(lambda: not marked(workspace))


@pytest.mark.parametrize(
    "command",
    [
        "echo so far; trap 'echo warned' TERM; echo $TURNGATE_COMMAND > mark; sleep 1000 & sleep 1000",
        "echo so far; trap '' TERM INT HUP; echo $TURNGATE_COMMAND > mark; bash -c 'trap \"\" TERM; sleep 1000 & sleep 1000'",
        "echo so far; echo $TURNGATE_COMMAND > mark; kill -STOP $$",
        "echo so far; echo $TURNGATE_COMMAND > mark; exec >/dev/null 2>&1; sleep 1000 | sleep 1000 | sleep 1000",
    ],
    ids=["background child", "deaf to signals", "stopped", "no pipe held"],
)
async def test_cancellation_kills_the_whole_group_at_once(call, workspace, command, until):
    """The group is killed without a warning, no process of it lives on, and the output so far is stored."""
    running = asyncio.create_task(call(bash, command=command))
    await until(lambda: marked(workspace))
    began = time.monotonic()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert time.monotonic() - began < 120
    await until(lambda: not marked(workspace))
    assert call.partial == ["so far\n"]


@pytest.mark.parametrize("cancelled", [True, False], ids=["cancelled", "ended"])
async def test_processes_that_left_the_group_are_killed_too(call, workspace, cancelled, until):
    """``setsid`` and daemons leave the process group; the whole tree dies all the same, cancelled or not."""
    escapes = (
        "setsid sleep 1000 &"
        "setsid bash -c 'sleep 1000 & exit' >/dev/null 2>&1 &"
        "setsid -f bash -c 'exec -a harmless sleep 1000' &"
    )
    last = "sleep 1000" if cancelled else "while ! test -e go; do sleep 0.01; done"
    running = asyncio.create_task(call(bash, command=f"echo $TURNGATE_COMMAND > mark; {escapes} {last}"))
    await until(lambda: len(marked(workspace)) > 3)
    if cancelled:
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    else:
        (workspace / "go").touch()
        await running
    await until(lambda: not marked(workspace))


async def test_output_is_emitted_while_the_command_runs(call, workspace, until):
    """Watchers see a line before the command ends, and the emitted texts together are the output."""
    running = asyncio.create_task(
        call(bash, command="echo one; while ! test -e go; do sleep 0.01; done; printf two; printf ' three\\nfour'")
    )
    await until(lambda: call.emitted == ["one\n"])
    assert not running.done()
    (workspace / "go").touch()
    result = await running
    assert "".join(call.emitted) == result["output"] == "one\ntwo three\nfour"


async def test_output_is_emitted_ten_times_a_second_at_most(call):
    """Many lines in a fifth of a second are emitted in a few pieces, none after the call's end."""
    result = await call(bash, command="for i in $(seq 60); do echo line $i; sleep 0.0025; done")
    emitted = list(call.emitted)
    assert 2 <= len(emitted) <= 2 + 10 * result["duration_seconds"]
    assert "".join(emitted) == result["output"]
    await asyncio.sleep(0.15)
    assert call.emitted == emitted


async def test_a_flood_is_emitted_in_part_and_says_so():
    """A piece is bounded; skipped output is counted; a character that two chunks share is whole."""
    emitted: list[str] = []
    live = LiveOutput(100, emitted.append)
    live.feed(b"x" * 50_000 + b"\n" + "ü".encode()[:1])
    live.feed("ü".encode()[1:])
    live.finish()
    live.finish()
    [text] = emitted
    assert text.startswith(f"… [{50_003 - MAX_PIECE_BYTES} bytes of output passed by here] …\nxxx")
    assert text.endswith("x\nü")
    assert live.total == 50_003


async def test_cancelling_twice_still_cleans_up(call, workspace, until, descriptors):
    """An impatient second cancellation leaves neither a process nor a descriptor."""
    before = descriptors()
    running = asyncio.create_task(call(bash, command="echo $TURNGATE_COMMAND > mark; setsid sleep 3 & sleep 1000"))
    await until(lambda: marked(workspace))
    running.cancel()
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await until(lambda: not marked(workspace))
    await until(lambda: descriptors() <= before)


async def test_a_child_in_the_background_does_not_hang_the_call(call, workspace, until):
    """It holds the pipe; the call ends a moment after bash does, and kills the child."""
    result = await call(bash, command="echo $TURNGATE_COMMAND > mark; sleep 1000 & echo done")
    assert (result["exit_code"], result["output"]) == (0, "done\n")
    assert result["duration_seconds"] < 120
    assert (workspace / "mark").read_text().strip()
    await until(lambda: not marked(workspace))


async def test_a_silent_child_in_the_background_is_killed_too(call, workspace, until):
    """It holds no pipe, so only its group identifies it."""
    result = await call(bash, command="echo $TURNGATE_COMMAND > mark; sleep 1000 >/dev/null 2>&1 & echo done")
    assert result["duration_seconds"] < 120
    assert (workspace / "mark").read_text().strip()
    await until(lambda: not marked(workspace))


@pytest.mark.exhaustive
async def test_many_commands_leak_nothing(call, descriptors):
    """No descriptor and no zombie child is left after twenty parallel commands."""
    await call(bash, command="true")
    before, children_before = descriptors(), children()
    results = await asyncio.gather(*(call(bash, command=f"echo {number}; exit {number}") for number in range(20)))
    assert [(result["exit_code"], result["output"]) for result in results] == [(n, f"{n}\n") for n in range(20)]
    assert descriptors() == before
    assert children() == children_before


async def test_a_command_that_cannot_start_is_a_failure_and_ran_nothing(call, workspace):
    """The workspace is gone, or the command is longer than the kernel accepts."""
    with pytest.raises(CommandNotStarted, match="Argument list too long"):
        await call(bash, command="true " + "x" * 200_000)
    workspace.rmdir()
    with pytest.raises(CommandNotStarted, match="No such file"):
        await call(bash, command="true")


@pytest.mark.parametrize(
    "bad",
    [
        {"command": ""},
        {"command": "a\0b"},
        {"command": "a", "timeout_seconds": 3601},
        {"command": "a", "timeout_seconds": 0},
    ],
)
async def test_a_senseless_command_is_refused_at_planning(call, bad):
    """Empty, with NUL, or with a time outside 1 to 3600 seconds."""
    with pytest.raises(InvalidToolInput):
        await call(bash, **bad)


def test_the_preview_is_the_exact_command(call):
    """The shown command is the one that runs, line feeds included."""
    preview = call.preview(bash, command="git status\nrm -rf x  ")
    assert preview.kind == "command"
    assert command_words(preview.text) == ["bash", "-c", "git status\nrm -rf x  "]


async def test_people_see_the_command_its_exit_and_its_output(call):
    """The argument vector, not a string; no output block without output; one that was stopped shows the output so far."""
    command = "echo hello; exit 3"
    argv, ended, output = await call.presented(bash, command=command)
    assert argv == CommandBlock(argv=("bash", "-c", command))
    assert ended.text.startswith("exit code 3 after ")
    assert ended.tone == "warning"
    assert output == TextBlock(text="hello\n")
    _argv, ended = await call.presented(bash, command="true")
    assert ended.tone == "plain"
    stopped = Failure(kind="unknown", reason="It was killed.", fields={"partial_output": "so far\n"})
    argv, why, partial = bash.presentation_of(bash.decode(f'{{"command": "{command}"}}'), stopped)
    assert argv == CommandBlock(argv=("bash", "-c", command))
    assert why.text == "It was killed."
    assert "so far\n" in partial.text
