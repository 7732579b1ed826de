"""The command line from outside: real processes, exit codes, what a person reads."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from support.programs.terminal_process import DEADLINE_SECONDS, Background, InTerminal, turngate

from turngate.cli.api_server import listen
from turngate.runtime import embedded_temporal

TASK = "The lamp of order A-100 arrived broken."
PROMPT = "leave it to the page: "


class Started:
    """The app that ``turngate init`` made, run by ``turngate up``, which signs the log once, when it stops."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.heads = directory.parent / "heads.jsonl"
        self._key = directory.parent / "key"
        self.public_key = self.turngate("audit", "keygen", str(self._key)).stdout.strip()
        self.start()

    def start(self) -> None:
        signing = {"KEY_FILE": str(self._key), "HEADS": str(self.heads), "EVERY": "10000"}
        signs = {f"TURNGATE_AUDIT_{name}": value for name, value in signing.items()}
        port = str(embedded_temporal.choose_port())
        self.up = Background("up", "my_app:app", "--port", port, cwd=self.directory, **signs)
        self.link = self.up.wait_for(r"http://\S+/login\?link=\S+").group()
        self.data_dir = Path(self.up.wait_for(r"Data +(/\S+)").group(1))
        self.up.wait_for("Start a run")

    def turngate(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return turngate(*arguments, cwd=self.directory)

    def until_says(self, words: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command until it ends well and says this: a check on a busy machine may take too long for it."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            done = self.turngate(*arguments)
            if done.returncode == 0 and words in done.stdout:
                return done
            assert time.monotonic() < deadline, done.stdout

    def pending(self, run_id: str) -> str:
        """The run's open request; `turngate run` prints its address once it is there."""
        listed = json.loads(self.turngate("requests", "--json").stdout)
        return next(item["id"] for item in listed if item["run_id"] == run_id)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    directory = tmp_path_factory.mktemp("cli") / "shop"
    scaffolded = turngate("init", str(directory), cwd=directory.parent)
    assert scaffolded.returncode == 0, scaffolded.stderr
    assert "turngate up my_app:app" in scaffolded.stdout
    (directory / "models.toml").write_text('[profile.missing]\nmodel = "scripted:missing.yaml"\n')
    running = Started(directory)
    yield running
    running.up.stop()


@pytest.fixture
def waiting(started: Started) -> Iterator[tuple[Background, str, str]]:
    """A followed run that waits at its gate: the `turngate run`, the run, the request."""
    follower = Background("run", TASK, cwd=started.directory)
    run_id = follower.wait_for(r"run_\w+").group()
    request_id = follower.wait_for(r"/requests/(rq_\w+)").group(1)
    yield follower, run_id, request_id
    follower.stop(signal.SIGINT)


NEEDS_A_SERVICE = """\
from turngate import Agent, App, Toolkit, tool
class Mail: ...
@tool(ask=True)
async def send(mail: Mail) -> None: ...
app = App(agents=[Agent(name="a", instructions="", toolkit=Toolkit.of(send), model="scripted:s")])
"""

# The app that init makes


def test_a_directory_with_an_app_is_never_served_a_shell_agent(started: Started) -> None:
    """Without an app's name nothing starts, and the command to type is there."""
    for command in ("up", "worker"):
        refused = started.turngate(command)
        assert refused.returncode == 2
        assert f"`turngate {command} my_app:app`" in refused.stderr


# Health


def test_status_finds_the_stack_of_its_directory_and_says_how_it_is(started: Started, tmp_path: Path) -> None:
    """Whatever port it is on; for a person, and as JSON for a program. Where nothing runs, its exit code is for a monitor."""
    assert "Temporal answers." in started.until_says("worker polls for tasks", "status").stdout
    health = json.loads(started.turngate("status", "--json").stdout)
    assert "store" in {each["name"] for each in health["checks"]}
    nowhere = f"http://127.0.0.1:{embedded_temporal.choose_port()}"
    failed = turngate("status", "--url", nowhere, cwd=tmp_path, TURNGATE_TOKEN="t")
    assert failed.returncode == 1
    assert "no Turngate answers at" in failed.stdout
    assert "turngate doctor" in failed.stdout


def test_doctor_looks_at_what_is_there(started: Started) -> None:
    """The app of the directory and the agents that run, with the health of the stack, in order; no demo."""
    looked = started.until_says("worker polls for tasks", "doctor")
    assert "my_app:app is in this directory" in looked.stdout
    assert "agent: support (scripted:script.yaml), published" in looked.stdout
    assert "API: answers at" in looked.stdout
    assert [word for word in ("coder", "✗") if word in looked.stdout] == []


# Runs and requests


def test_i13_runs_work_where_up_was_started_and_not_around_its_data(started: Started) -> None:
    """The project's own directory is taken. The whole disk, processes and the data directory are refused with the fix."""
    ran = started.turngate("run", TASK, "--workspace", ".", "--no-watch")
    assert ran.returncode == 0, ran.stderr
    for place in ("/", "/proc", "..", str(started.data_dir), str(started.data_dir.parent)):
        refused = started.turngate("run", TASK, "--workspace", place, "--no-watch")
        assert refused.returncode == 1, (place, refused.stdout)
        assert "workspace" in refused.stderr
        assert "TURNGATE_" in refused.stderr


def test_a_run_waits_for_its_decision_and_completes(started: Started, waiting: tuple[Background, str, str]) -> None:
    """From init over up, run and decide to completed, each a process; the decider saw exactly the call."""
    follower, run_id, request_id = waiting
    decided = started.turngate("decide", request_id, "approve", "--show")
    assert decided.returncode == 0, decided.stderr
    assert '"amount_cents": 7500' in decided.stdout
    assert f"{request_id} is approved" in decided.stdout
    follower.wait_for("refund approved by cli:")
    follower.wait_for("completed after 3 steps")
    follower.wait_for("75.00 was refunded")
    assert follower.exit_code() == 0
    assert run_id in started.turngate("runs", "--status", "completed").stdout
    assert "refund-" in started.turngate("watch", run_id).stdout


def test_an_edit_runs_in_place_of_the_call(started: Started, waiting: tuple[Background, str, str], tmp_path) -> None:
    """The arguments come from a file, as they are; one that does not fit changes nothing. Who is second learns who won (I4)."""
    follower, _run_id, request_id = waiting
    wrong = started.turngate("decide", request_id, "edit", "--args", '{"order_id": "A-100", "amount_cents": -1}')
    assert wrong.returncode == 1
    assert "args.amount_cents: -1 is not more than 0" in wrong.stderr
    (tmp_path / "args.json").write_text('{"order_id": "A-100", "amount_cents": 6000}')
    assert started.turngate("decide", request_id, "edit", "--args", f"@{tmp_path}/args.json").returncode == 0
    late = started.turngate("decide", request_id, "reject", "--message", "not yet")
    assert late.returncode == 1
    assert "decided first: edit" in late.stderr
    follower.wait_for('"amount_cents": 6000')
    assert follower.exit_code() == 0


def test_ctrl_c_leaves_the_run_running(started: Started, waiting: tuple[Background, str, str]) -> None:
    """A user who detaches reads how to come back and how to stop the run. Followed again, an interrupt exits 3.

    So a script can tell an interrupt from a failure.
    """
    follower, run_id, _request_id = waiting
    code, output = follower.stop(signal.SIGINT)
    assert code == 130
    assert f"turngate watch {run_id}" in output
    assert f"turngate interrupt {run_id}" in output
    assert run_id in started.turngate("runs", "--status", "running").stdout
    again = Background("watch", run_id, cwd=started.directory)
    again.wait_for(r"/requests/rq_\w+")
    assert started.turngate("interrupt", run_id, "--reason", "enough").returncode == 0
    again.wait_for("interrupted by ")
    again.wait_for(" after 2 steps: enough")
    assert again.exit_code() == 3
    assert started.turngate("interrupt", run_id).returncode == 1


def test_json_is_for_programs_to_the_last_byte(started: Started) -> None:
    """One event a line, and the run at the end; a failed run exits 1 and says why."""
    followed = started.turngate("run", TASK, "--model", "missing", "--json")
    lines = [json.loads(line) for line in followed.stdout.splitlines()]
    assert [lines[0]["type"], lines[-2]["type"]] == ["run.started", "run.ended"]
    assert lines[-1]["run"]["status"] == "failed"
    assert "missing.yaml" in lines[-1]["run"]["reason"]
    assert followed.returncode == 1


def test_i13_what_nothing_declares_is_refused(started: Started) -> None:
    """Before anything is opened: the message lists the declared models and agents, and has nothing of a file."""
    for spec in ("scripted:/etc/shadow", "scripted:absent.yaml", "openai:dearest"):
        refused = started.turngate("run", TASK, "--model", spec, "--no-watch")
        assert refused.returncode == 1
        assert f"there is no model '{spec}'; the models are:" in refused.stderr
        assert "missing" in refused.stderr
        assert "root:" not in refused.stdout + refused.stderr
    refused = started.turngate("run", TASK, "--agent", "suport")
    assert refused.returncode == 1
    assert refused.stderr.startswith("error: there is no agent 'suport'; the agents are: support")


# In a terminal


def test_a_gate_is_answered_right_in_the_terminal(started: Started) -> None:
    """The prompt shows the exact call; a key typed before it was on screen approves nothing."""
    terminal = InTerminal("run", TASK, cwd=started.directory)
    terminal.press("a\n")
    terminal.wait_for('"amount_cents": 7500\n')
    terminal.wait_for(PROMPT)
    terminal.press("x\n")
    terminal.wait_for(PROMPT)
    terminal.press("r\n")
    terminal.wait_for("why")
    terminal.press("too much\n")
    terminal.wait_for("refund rejected by cli:.*: too much")
    terminal.wait_for("The refund was not approved")
    assert terminal.exit_code() == 0


def test_a_gate_decided_elsewhere_lets_the_prompt_go(started: Started) -> None:
    """The page or another terminal can decide too: the prompt shows who decided and continues."""
    terminal = InTerminal("run", TASK, cwd=started.directory)
    request_id = terminal.wait_for(r"/requests/(rq_\w+)").group(1)
    terminal.wait_for(PROMPT)
    assert started.turngate("decide", request_id, "approve").returncode == 0
    terminal.wait_for("refund approved by cli:")
    assert terminal.exit_code() == 0


@pytest.mark.exhaustive
def test_ctrl_c_at_the_prompt_detaches(started: Started) -> None:
    """Nothing is decided by leaving."""
    terminal = InTerminal("run", TASK, cwd=started.directory)
    run_id = terminal.wait_for(r"run_\w+").group()
    terminal.wait_for(PROMPT)
    terminal.press("\x03")
    terminal.wait_for("the run continues")
    assert terminal.exit_code() == 130
    assert started.pending(run_id)
    assert started.turngate("interrupt", run_id).returncode == 0


# Serving


@pytest.mark.exhaustive
def test_a_second_stack_in_the_same_directory_is_sent_to_the_first(started: Started) -> None:
    """Two servers never share one data directory."""
    refused = started.turngate("up", "my_app:app")
    assert refused.returncode == 2
    assert "already runs from" in refused.stderr
    assert started.link.partition("/login")[0] in refused.stderr


@pytest.mark.exhaustive
def test_a_stop_is_clean_with_watchers_connected_and_runs_continue(tmp_path: Path) -> None:
    """SIGTERM with an open event stream, which would last: exit 0, no traceback; the run continues after a restart (I5)."""
    directory = tmp_path / "shop"
    assert turngate("init", str(directory), cwd=tmp_path).returncode == 0
    port = str(embedded_temporal.choose_port())
    up = Background("up", "my_app:app", "--port", port, cwd=directory)
    note = Path(up.wait_for(r"Data +(/\S+)").group(1)) / "runtime.json"
    up.wait_for("Start a run")
    assert note.exists()
    follower = Background("run", TASK, cwd=directory)
    request_id = follower.wait_for(r"/requests/(rq_\w+)").group(1)
    code, output = up.stop()
    assert code == 0, output
    assert "Traceback" not in output
    assert not note.exists()
    up = Background("up", "my_app:app", "--port", port, cwd=directory)
    up.wait_for("Start a run")
    assert turngate("decide", request_id, "approve", cwd=directory).returncode == 0
    follower.wait_for("completed after 3 steps")
    assert follower.exit_code() == 0
    assert up.stop(signal.SIGINT)[0] == 0


def test_i14_a_frozen_worker_fails_its_probe(started: Started, tmp_path: Path) -> None:
    """I14: the probe in deploy/compose.yaml passes while a worker runs, and fails before, while it is stopped, and after."""
    file = tmp_path / "worker"
    compose = yaml.safe_load((Path(__file__).parents[2] / "deploy" / "compose.yaml").read_text())
    service = compose["services"]["worker"]
    assert service["command"][:3] == ["worker", "--health", "/tmp/worker"]  # noqa: S108 - in the container
    code = service["healthcheck"]["test"][3].replace("/tmp/worker", str(file))  # noqa: S108

    def passes() -> bool:
        probe = subprocess.run([sys.executable, "-c", code], check=False, stderr=subprocess.DEVNULL)
        return probe.returncode == 0

    assert not passes()
    worker = Background("worker", "my_app:app", "--health", str(file), cwd=started.directory)
    worker.wait_for("worker runs")
    assert passes()
    worker.process.send_signal(signal.SIGSTOP)
    long_ago = time.time() - 16
    os.utime(file, (long_ago, long_ago))
    assert not passes()
    worker.process.send_signal(signal.SIGCONT)
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not passes():
        assert time.monotonic() < deadline
    assert worker.stop()[0] == 0
    assert not passes()


def test_i15_a_stopped_stack_leaves_nothing_unsigned(started: Started) -> None:
    """I15: the last signature of `turngate up` is made when nothing writes any more, so it is over the newest event.

    It is stopped while a run waits and is followed, and starts again.
    """
    follower = Background("run", TASK, cwd=started.directory)
    follower.wait_for(r"/requests/(rq_\w+)")
    code, output = started.up.stop()
    assert code == 0, output
    follower.stop(signal.SIGINT)
    checked = started.turngate("audit", "verify", "--against", str(started.heads), "--key", started.public_key)
    assert checked.returncode == 0, checked.stderr
    covered = re.search(r"signs it up to event (\S+) of (\S+),", " ".join(checked.stderr.split()))
    assert covered is not None, checked.stderr
    assert covered[1] == covered[2]
    assert int(covered[1]) > 0
    started.start()


def test_a_start_that_cannot_work_is_refused_before_anything_starts(tmp_path: Path, state_home: Path) -> None:
    """In one message with the fix, and no data directory is made. Builders' mistakes: tests/unit/cli/test_mistakes.py."""
    without_app, broken = tmp_path / "without-app", tmp_path / "broken-app"
    for directory, file, text in ((without_app, "file", ""), (broken, "broken.py", NEEDS_A_SERVICE)):
        directory.mkdir()
        (directory / file).write_text(text)
    free = str(embedded_temporal.choose_port())
    with listen("127.0.0.1", embedded_temporal.choose_port()) as other:
        taken = str(other.getsockname()[1])
        for directory, words, *texts in (
            (without_app, ["--port", taken], f"port {taken} on 127.0.0.1 is taken", "--port"),
            (without_app, ["--port", free, "--data-dir", "file/below"], "cannot be written", "TURNGATE_DATA_DIR"),
            (broken, ["broken:app", "--port", free], "tool 'send' needs Mail", "registry"),
        ):
            refused = turngate("up", *words, cwd=directory)
            assert (refused.returncode, [text for text in texts if text not in refused.stderr]) == (2, []), refused
            assert "Traceback" not in refused.stderr
    assert os.listdir(without_app) == ["file"]  # noqa: PTH208 - names
    assert not list(state_home.glob("turngate/data/*-app-*"))


# The demo


@pytest.mark.parametrize(
    ("verb", "texts"),
    [
        (
            "approve",
            ("approved by demo-operator", "verified: the tests pass, and there is a commit", "scripted:"),
        ),
        pytest.param(
            "reject",
            ("rejected by demo-operator", "verified: no file was changed and nothing was committed"),
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_the_demo_ends_as_it_was_decided(verb: str, texts: tuple[str, ...], tmp_path: Path) -> None:
    """With every gate approved or rejected by someone other than the starter; a port that is taken is replaced."""
    with listen("127.0.0.1", embedded_temporal.choose_port()) as other:
        taken = str(other.getsockname()[1])
        played = turngate("demo", "--decide", verb, cwd=tmp_path, TURNGATE_API_PORT=taken)
    assert played.returncode == 0, played.stdout + played.stderr
    assert [text for text in texts if text not in played.stdout] == []
    assert f"port {taken} is taken, so the demo uses" in played.stderr
    assert ("Traceback" in played.stderr, "Warning" in played.stderr) == (False, False), played.stderr


@pytest.mark.exhaustive
def test_the_demo_waits_for_a_person_and_stays_up(tmp_path: Path) -> None:
    """Without --decide it prints a link, waits, and ends with Ctrl-C."""
    demo = Background(
        "demo", "--port", str(embedded_temporal.choose_port()), "--data-dir", str(tmp_path / "d"), cwd=tmp_path
    )
    demo.wait_for(r"http://\S+/login\?link=\S+")
    request_id = demo.wait_for(r"/requests/(rq_\w+)").group(1)
    assert turngate("decide", request_id, "reject", "--data-dir", "d", cwd=tmp_path).returncode == 0
    demo.wait_for("stay up until Ctrl-C")
    code, output = demo.stop(signal.SIGINT)
    assert code == 0
    assert "Traceback" not in output
