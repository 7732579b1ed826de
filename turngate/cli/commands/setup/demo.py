"""``turngate demo``: a fresh stack, a small project under git, and one run whose gates the user or the demo decides."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from turngate.cli import stack, stores, terminal
from turngate.cli.api_link import ApiLink, read_cli_token
from turngate.cli.api_server import listen
from turngate.cli.default_app import AGENT_NAME
from turngate.cli.errors import EXIT_WENT_WRONG
from turngate.cli.follow.request import StillOpen, answer_json
from turngate.cli.follow.run import Watch
from turngate.cli.options import DEFAULT_APP, ApiPort, DataDir
from turngate.cli.posix_signals import stop_on_posix_signals
from turngate.client import SyncTurngateClient
from turngate.domain.errors import ConfigurationError, UnavailableError
from turngate.runtime import embedded_temporal
from turngate.runtime.app_loader import load_app
from turngate.runtime.settings import Settings, load_settings
from turngate.runtime.telemetry import configure_logging
from turngate.store.access import tokens
from turngate.toolkits.confinement.system_paths import find_helper
from turngate.wire.orders import DecisionOrder
from turngate.wire.requests import RequestDetail
from turngate.wire.runs import RunDetail

DemoDecision = Literal["approve", "reject"]

OPERATOR: Final = "demo-operator"
TASK: Final = "One test of this project fails. Find out why, fix it, and commit the change."
STORY_SECONDS: Final = 900.0
"""How long the demo waits for its run with ``--decide``. A real model may need minutes."""


@dataclass(frozen=True)
class _Ending:
    run: RunDetail | None = None
    error: Exception | None = None


def play(settings: Settings, root: Path, *, decide: DemoDecision | None, port_is_option: bool) -> int:
    """Play the demo and return the exit code. After ``--decide`` succeeded, the demo removes its directories.

    ``root``: an empty directory for the project, which is never inside the data directory: no run could work there.
    """
    stack.require_no_other_stack(settings)
    settings = settings.model_copy(update={"workspaces": (root,)})
    settings.ensure_data_dir()
    listener, settings = _listener(settings, fixed=port_is_option)
    try:
        project = copy_project(root / "invoice")
    except BaseException:
        listener.close()
        raise
    code = asyncio.run(_play(settings, listener, project, decide))
    if decide is not None and code == 0 and settings.data_dir.is_relative_to(root):
        shutil.rmtree(root, ignore_errors=True)
    elif code == 0:
        terminal.note(f"the project is in {project.path}")
    return code


def _listener(settings: Settings, *, fixed: bool) -> tuple[socket.socket, Settings]:
    """Take the API's port, or a free one when it is taken. ``fixed``: take no other.

    The addresses in the settings are those of the one that has the port, so the demo on another port has neither.
    """
    try:
        return listen(settings.api_host, settings.api_port), settings
    except ConfigurationError:
        if fixed:
            raise
    port = embedded_temporal.choose_port()
    terminal.note(f"port {settings.api_port} is taken, so the demo uses {port}")
    return listen(settings.api_host, port), settings.model_copy(
        update={"api_port": port, "api_url": None, "public_url": None}
    )


async def _play(settings: Settings, listener: socket.socket, project: DemoProject, decide: DemoDecision | None) -> int:
    with stop_on_posix_signals() as stop:
        async with stack.whole_stack(settings, load_app(DEFAULT_APP), listener) as running:
            link = ApiLink(
                url=settings.resolved_api_url, token=read_cli_token(settings.data_dir) or "", data_dir=settings.data_dir
            )
            await _introduce(running, decide)
            operator = None if decide is None else await _operator(running, link)
            played = asyncio.create_task(_on_thread(lambda: _story(link, project, operator, decide)), name="demo")
            try:
                stop.running()
                finished = await _wait(running, stop.requested, played, decide)
            finally:
                played.cancel()
            if finished is None:
                return 0
            return _verdict(project, finished, decide) if decide is not None else 0


async def _introduce(running: stack.Stack, decide: DemoDecision | None) -> None:
    settings = running.settings
    link = await stores.owners_login_link(running.database, settings.resolved_public_url)
    terminal.line(("Turngate's demo", "bold"), f": an agent fixes a failing test. Task: {TASK}")
    if settings.model is None:
        terminal.line(("The model is a script", "yellow"), ", not a language model. Everything else is real.")
    if decide is None:
        terminal.line("")
        terminal.line("Open this link to decide what it may do (it works once, within 24 hours; Ctrl-C ends the demo):")
        terminal.line("  ", (link, "bold underline"))
    terminal.line("")


async def _operator(running: stack.Stack, link: ApiLink) -> ApiLink:
    """Return the way in for another person than the run's starter. A demo that approves itself would show nothing."""
    async with running.database.write() as conn:
        secret = await tokens.issue(
            conn, tokens.NewToken(name=OPERATOR, scopes=frozenset({"requests:read", "requests:decide"}))
        )
    return ApiLink(url=link.url, token=secret, data_dir=None)


def _story(link: ApiLink, project: DemoProject, operator: ApiLink | None, decide: DemoDecision | None) -> RunDetail:
    """Start the run and follow it to its end. This blocks; the API serves on another thread."""
    with link.client() as client:
        started = client.start_run(agent=AGENT_NAME, text=TASK, workspace=str(project.path))
        if operator is None or decide is None:
            return Watch(link, client, started.id).to_the_end()
        with operator.client() as deciding:
            return Watch(link, client, started.id, on_gate=_Decider(deciding, decide)).to_the_end()


@dataclass(frozen=True)
class _Decider:
    """Answers every gate the same way, through the public API."""

    client: SyncTurngateClient
    answer: DemoDecision

    def __call__(self, request: RequestDetail, _still_open: StillOpen) -> None:
        if self.answer == "reject" and "reject" in request.allowed_verbs:
            self.client.decide(
                request.id, DecisionOrder(verb="reject", digest=request.digest, message="The demo rejects everything.")
            )
        elif "approve" in request.allowed_verbs:
            self.client.decide(request.id, DecisionOrder(verb="approve", digest=request.digest))
        elif request.kind == "question":
            args = answer_json(request, "Use your own judgement.")
            self.client.decide(request.id, DecisionOrder(verb="respond", digest=request.digest, args=args))
        else:
            self.client.decide(request.id, DecisionOrder(verb="respond", digest=request.digest, outcome="tell_model"))


async def _on_thread(story: Callable[[], RunDetail]) -> _Ending:
    """Run a blocking function on a daemon thread, so that a stop of the demo does not wait for it."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[_Ending] = loop.create_future()

    def settle(played: _Ending) -> None:
        if not done.done():
            done.set_result(played)

    def work() -> None:
        try:
            played = _Ending(run=story())
        except Exception as error:  # noqa: BLE001 - raised on the loop's thread
            played = _Ending(error=error)
        with suppress(RuntimeError):  # the loop is closed, so no one waits
            loop.call_soon_threadsafe(settle, played)

    threading.Thread(target=work, name="demo-story", daemon=True).start()
    return await done


async def _wait(
    running: stack.Stack, stop: asyncio.Event, played: asyncio.Task[_Ending], decide: DemoDecision | None
) -> RunDetail | None:
    """Return the ended run, or None when the demo was stopped. Without ``decide`` the stack stays up until Ctrl-C."""
    stopped = asyncio.create_task(running.until(stop))
    try:
        async with asyncio.timeout(None if decide is None else STORY_SECONDS):
            await asyncio.wait([stopped, played], return_when=asyncio.FIRST_COMPLETED)
            if stopped.done():
                await stopped
                return None
            finished = played.result()
            if finished.error is not None:
                raise finished.error
            if decide is None:
                terminal.note("")
                terminal.note("The run has ended. Its pages stay up until Ctrl-C.")
                await stopped
            return finished.run
    except TimeoutError:
        raise UnavailableError(f"the demo's run did not end within {STORY_SECONDS:g} s") from None
    finally:
        stopped.cancel()


def _verdict(project: DemoProject, run: RunDetail, decide: DemoDecision) -> int:
    """Check the project itself, not what the agent says about it."""
    terminal.line("")
    if run.status != "completed":
        terminal.line(("✗ ", "red"), f"the run is {run.status}: {run.reason}")
        return EXIT_WENT_WRONG
    if decide == "reject":
        if project.is_untouched():
            terminal.line(("✓ ", "green"), "verified: no file was changed and nothing was committed")
            return 0
        terminal.line(("✗ ", "red"), f"files were changed in {project.path}")
        return EXIT_WENT_WRONG
    passing, commits = project.tests_pass(), project.new_commits()
    if passing and commits:
        terminal.line(("✓ ", "green"), f"verified: the tests pass, and there is a commit: {commits[0]}")
        return 0
    tests = "pass" if passing else "fail"
    terminal.line(("✗ ", "red"), f"the tests {tests}, and there are {len(commits)} new commits in {project.path}")
    return EXIT_WENT_WRONG


def demo(
    decide: Annotated[
        Literal["approve", "reject"] | None,
        typer.Option(help="Let the demo answer every gate, check the project and exit.", show_default=False),
    ] = None,
    data_dir: DataDir = None,
    port: ApiPort = None,
) -> None:
    """Watch an agent fix a failing test in a small project, and decide what it may do.

    Everything runs on this machine, in fresh directories. The model is a script unless TURNGATE_MODEL names a real one.
    """
    root = Path(tempfile.mkdtemp(prefix="turngate-demo-")).resolve()
    settings = load_settings(data_dir=data_dir or root / "data", api_port=port)
    # The command prints the story of the demo. A log among its lines would hide it.
    configure_logging(settings.log_level if "TURNGATE_LOG_LEVEL" in os.environ else "warning", settings.log_format)
    raise typer.Exit(
        play(
            settings,
            root,
            decide=decide,
            port_is_option=port is not None,
        )
    )


IDENTITY: Final = (
    "-c",
    "user.name=Turngate Demo",
    "-c",
    "user.email=demo@example.invalid",
    "-c",
    "commit.gpgsign=false",
)
TESTS: Final = (sys.executable, "-m", "unittest", "-q")


@dataclass(frozen=True)
class DemoProject:
    """The copy of the project, and its first commit."""

    path: Path
    first_commit: str

    def tests_pass(self) -> bool:
        """Run the project's tests."""
        return subprocess.run(TESTS, cwd=self.path, capture_output=True, check=False).returncode == 0

    def new_commits(self) -> list[str]:
        """Return the commits after the first one, newest first, one line each."""
        return _git(self.path, "log", "--oneline", f"{self.first_commit}..HEAD").splitlines()

    def is_untouched(self) -> bool:
        """Return whether no file differs from the first commit and nothing was committed."""
        changed = _git(self.path, "status", "--porcelain")
        return not changed and _git(self.path, "rev-parse", "HEAD").strip() == self.first_commit


def copy_project(path: Path) -> DemoProject:
    """Copy the project to a new directory and commit it there. Raises ConfigurationError without git."""
    with as_file(files("turngate.cli").joinpath("demo_project")) as source:
        shutil.copytree(source, path, ignore=shutil.ignore_patterns("__pycache__"))
    _git(path, "init", "-q", "-b", "main")
    _git(path, "add", "-A")
    _git(path, *IDENTITY, "commit", "-q", "-m", "An invoice with a failing test")
    return DemoProject(path, _git(path, "rev-parse", "HEAD").strip())


def _git(path: Path, *arguments: str) -> str:
    git = find_helper("git", (path,))
    if git is None:
        raise ConfigurationError("git is not on PATH, and the demo's agent commits its work: install git")
    try:
        done = subprocess.run([git, *arguments], cwd=path, capture_output=True, text=True, check=True)
    except subprocess.CalledProcessError as error:
        raise ConfigurationError(f"git {arguments[0]} failed in {path}: {error.stderr.strip()}") from None
    return done.stdout
