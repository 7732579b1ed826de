"""``pytest --forks N``: N workers that are forked from the process that has collected the tests.

Workers that begin by themselves, as pytest-xdist's do, each import and collect everything: 11 s of processor time, and 18 in a
fresh clone, so three of them would add 22 to 36 s to the 600 of five minutes on two cores. For tests/unit alone, ``-n 3`` took
31 s where one process takes 9, and ran nothing: cases that come from sets are in another order in each worker.
A worker gets one file after another, and keeps its session's fixtures between them.

No test hangs forever. When a worker reports nothing for longer than its test may take, the parent asks it for its stacks, kills
it with everything that it has started, and the test fails with these stacks. A worker that dies fails its test too. Another
worker runs the rest.
"""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from tempfile import TemporaryFile
from time import monotonic, sleep
from typing import Any, Literal, NoReturn

import pytest
from _pytest.capture import FDCapture, MultiCapture
from support.runner.stacks import read_stacks, write_stacks_when_asked

LONGEST_FIRST = ("e2e", "chaos", "workflow", "web", "frontends", "bridges", "api")
"""Directories whose tests wait for something, longest first. At the end, one of them would run alone; unit tests don't wait."""
Location = tuple[str, int | None, str]


BOUND_SECONDS = 175.0
"""No setup, test or teardown may take longer: a worker reports each. The slowest take a minute on a busy machine."""
LONG_BOUNDS = {"exhaustive": 900.0, "alone": 3600.0}
"""The same for a test of this mark."""
END_SECONDS = 60.0
"""How long workers may take to end when the tests have been stopped."""
LOOK_SECONDS = 1.0


@dataclass(eq=False)
class Worker:
    """One worker, as its parent knows it."""

    pid: int
    channel: Connection
    stacks: Path
    """Where it writes its stacks."""
    places: deque[int] = field(default_factory=deque)
    """The tests that it got and has not begun, in order."""
    runs: tuple[str, Location] | None = None
    """The test that it runs; None between two."""
    phase: Literal["setup", "call", "teardown"] = "setup"
    """Which part of the test it runs: setup, call or teardown."""
    bound: float = BOUND_SECONDS
    reported_at: float = field(default_factory=monotonic)
    has_ended: bool = False
    why: str = ""
    """Why it died, if it knew."""

    def is_silent(self) -> bool:
        return monotonic() - self.reported_at > self.bound

    def is_dead(self) -> bool:
        """Whether it has ended, which takes note of how."""
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:
            return True
        if pid:
            self.why = self.why or died_of(os.waitstatus_to_exitcode(status))
        return pid != 0

    def kill(self) -> None:
        """Kill it and everything that it has started."""
        for pid in [self.pid, *below(self.pid)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def died_of(exit_code: int) -> str:
    if exit_code == -signal.SIGKILL:
        return "by SIGKILL, which the kernel sends when memory is used up"
    if exit_code < 0:
        return f"by {signal.Signals(-exit_code).name}"
    return f"it exited with {exit_code}"


def below(pid: int) -> list[int]:
    """The processes that this one has started, and those that they have started."""
    pids = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # it ends while we look
            for child in map(int, file.read_text().split()):
                pids += [child, *below(child)]
    return pids


@dataclass(eq=False)
class Reports:
    """Sends what happens to a worker's tests to its parent."""

    config: pytest.Config
    channel: Connection

    def pytest_runtest_logstart(self, nodeid: str, location: Location) -> None:
        self.channel.send(("start", nodeid, location))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.channel.send(("report", self.config.hook.pytest_report_to_serializable(config=self.config, report=report)))

    def pytest_runtest_logfinish(self, nodeid: str, location: Location) -> None:
        self.channel.send(("finish", nodeid, location))


@dataclass(eq=False)
class ForkedWorkers:
    """The plug-in of the process that has collected."""

    config: pytest.Config
    count: int
    bound: float = BOUND_SECONDS
    _files: deque[list[int]] = field(default_factory=deque)
    _running: dict[Connection, Worker] = field(default_factory=dict)
    _forked: int = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.testsfailed or self.config.option.collectonly:
            return None  # pytest's own loop knows what to do
        self._files.extend(files_of(session.items))
        try:
            for _ in range(min(self.count, len(self._files))):
                self._fork(session)
            self._serve(session)
        finally:
            self._stop()
        return True

    def _serve(self, session: pytest.Session) -> None:
        while self._running:
            for channel in wait(list(self._running), timeout=LOOK_SECONDS):
                self._receive(session, self._running[channel])
            for worker in list(self._running.values()):
                if worker.is_dead():
                    while worker.channel in self._running and worker.channel.poll():
                        self._receive(session, worker)
                    if worker.channel in self._running:  # something that it started holds the channel open
                        self._end(session, worker)
                elif worker.is_silent():
                    self._give_up(session, worker)
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)

    def _receive(self, session: pytest.Session, worker: Worker) -> None:
        try:
            message = worker.channel.recv()
        except (EOFError, ConnectionError):
            while not worker.is_dead():
                sleep(0.01)  # the kernel closes its channel a moment before
            self._end(session, worker)
            return
        worker.reported_at = monotonic()
        self._note(session, worker, *message)

    def _note(self, session: pytest.Session, worker: Worker, kind: str, *content: Any) -> None:
        hook = self.config.hook
        match kind:
            case "next":
                places = self._files.popleft() if self._files else []
                worker.places.extend(places)
                worker.channel.send(places)
            case "start":
                worker.runs, worker.phase = content, "setup"
                worker.bound = self._bound_of(session.items[worker.places.popleft()])
                hook.pytest_runtest_logstart(nodeid=content[0], location=content[1])
            case "report":
                report = hook.pytest_report_from_serializable(config=self.config, data=content[0])
                worker.phase = "call" if report.when == "setup" and report.passed else "teardown"
                hook.pytest_runtest_logreport(report=report)
            case "finish":
                worker.runs = None
                hook.pytest_runtest_logfinish(nodeid=content[0], location=content[1])
            case "died":
                worker.why = content[0]
            case "done":
                worker.has_ended = True

    def _bound_of(self, item: pytest.Item) -> float:
        return max(
            (seconds for name, seconds in LONG_BOUNDS.items() if item.get_closest_marker(name)), default=self.bound
        )

    def _give_up(self, session: pytest.Session, worker: Worker) -> None:
        """End a worker that hangs: its stacks say where."""
        stacks = read_stacks(worker.pid, worker.stacks)
        worker.kill()
        place = f"in {worker.phase}" if worker.runs else "between two tests"
        worker.why = f"it hung {place} for {worker.bound:.0f} seconds\n\n{stacks}"
        self._end(session, worker)

    def _end(self, session: pytest.Session, worker: Worker) -> None:
        """Take note of a worker's end. One that had not done all its work died: that fails its test, or else all tests."""
        del self._running[worker.channel]
        worker.channel.close()
        if worker.has_ended:
            return
        why = f"worker {worker.pid} died: {worker.why}"
        if worker.runs is None:
            session.shouldfail = why
            return
        nodeid, location = worker.runs
        died = pytest.TestReport(nodeid, location, {}, "failed", why, worker.phase)
        self.config.hook.pytest_runtest_logreport(report=died)
        self.config.hook.pytest_runtest_logfinish(nodeid=nodeid, location=location)
        if worker.places:
            self._files.appendleft(list(worker.places))
        if self._files and not session.shouldfail:
            self._fork(session)

    def _stop(self) -> None:
        """End the workers that still run, if the tests have been stopped: each by itself when it reports, or else by force."""
        for worker in self._running.values():
            worker.channel.close()
        until = monotonic() + END_SECONDS
        while not all(worker.is_dead() for worker in self._running.values()) and monotonic() < until:
            sleep(0.05)
        for worker in self._running.values():
            if not worker.is_dead():
                worker.kill()

    def _fork(self, session: pytest.Session) -> None:
        assert threading.active_count() == 1, "no thread survives a fork"
        directory = self.config._tmp_path_factory.getbasetemp() / f"worker{self._forked}"
        self._forked += 1
        ours, theirs = Pipe()
        pid = os.fork()
        if pid == 0:
            ours.close()
            self._work(session, theirs, directory)
        theirs.close()
        self._running[ours] = Worker(pid, ours, directory / "stacks", bound=self.bound)

    def _work(self, session: pytest.Session, channel: Connection, directory: Path) -> NoReturn:
        code = 1
        try:
            self._become_worker(channel, directory)
            try:
                run_files(session, channel)
                channel.send(("done",))
                code = 0
            finally:
                session._setupstate.teardown_exact(None)
        except (KeyboardInterrupt, ConnectionError):
            pass  # the parent ends, and says why
        except BaseException:  # noqa: BLE001 - nothing of the parent's own end may run here
            channel.send(("died", traceback.format_exc()))
        os._exit(code)

    def _become_worker(self, channel: Connection, directory: Path) -> None:
        plugins = self.config.pluginmanager
        directory.mkdir()
        write_stacks_when_asked(directory / "stacks")
        self.config._tmp_path_factory._basetemp = directory
        _capture_into_own_files(plugins.getplugin("capturemanager")._global_capturing)
        plugins.unregister(name="terminalreporter")
        plugins.unregister(self)
        plugins.register(Reports(self.config, channel))


def _capture_into_own_files(capturing: MultiCapture[str]) -> None:
    """Let the parent's descriptors, which all workers would share, lead to files of this process.

    Modules that were imported during the collection may hold ``sys.stderr`` of that time, so it stays open.
    """
    for each in (capturing.out, capturing.err):
        if isinstance(each, FDCapture):
            with TemporaryFile(buffering=0) as own:
                os.dup2(own.fileno(), each.tmpfile.fileno(), inheritable=False)
            if each._state == "started":
                os.dup2(each.tmpfile.fileno(), each.targetfd)


def run_files(session: pytest.Session, channel: Connection) -> None:
    """Run the tests of one file after another, as the parent hands them out."""

    def order() -> Iterator[pytest.Item]:
        while True:
            channel.send(("next",))
            places = channel.recv()
            if not places:
                return
            yield from (session.items[place] for place in places)

    waiting = order()
    item = next(waiting, None)
    while item is not None:
        following = next(waiting, None)  # pytest keeps the fixtures that this one needs too
        session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        item = following


def files_of(items: list[pytest.Item]) -> list[list[int]]:
    """Return the places of each file's tests, in order; files of directories in LONGEST_FIRST before the others."""

    def turn(path: Path) -> int:
        return LONGEST_FIRST.index(path.parent.name) if path.parent.name in LONGEST_FIRST else len(LONGEST_FIRST)

    files: dict[Path, list[int]] = {}
    for place, item in enumerate(items):
        files.setdefault(item.path, []).append(place)
    return [files[path] for path in sorted(files, key=turn)]
