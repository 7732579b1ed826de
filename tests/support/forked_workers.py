"""``pytest --forks N``: N workers that are forked from the process that has collected the tests.

Workers that begin by themselves, as pytest-xdist's do, each import and collect everything: fifteen seconds of processor time,
and twenty in a fresh clone. A worker gets one file after another, and keeps its session's fixtures between them.
"""

from __future__ import annotations

import os
import threading
import traceback
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NoReturn

import pytest
from _pytest.capture import FDCapture, MultiCapture

FIRST = ("chaos", "e2e")
"""Directories whose tests wait longest for something: at the end, they would keep one core busy and the others idle."""
Location = tuple[str, int | None, str]


@dataclass(eq=False)
class Worker:
    """One worker, as its parent knows it. ``runs``: the test that it runs; None between two. ``why``: it died, if it knew."""

    pid: int
    channel: Connection
    runs: tuple[str, Location] | None = None
    has_ended: bool = False
    why: str = ""


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
    _files: deque[list[int]] = field(default_factory=deque)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.testsfailed or self.config.option.collectonly:
            return None  # pytest's own loop knows what to do
        self._files.extend(files_of(session.items))
        base = self.config._tmp_path_factory.getbasetemp()
        workers = [self._fork(session, base / f"worker{n}") for n in range(min(self.count, len(self._files)))]
        try:
            self._serve(session, workers)
        finally:
            for worker in workers:
                worker.channel.close()  # one that still runs ends when it reports
                os.waitpid(worker.pid, 0)
        return True

    def _serve(self, session: pytest.Session, workers: list[Worker]) -> None:
        running = {worker.channel: worker for worker in workers}
        while running:
            for channel in wait(list(running)):
                try:
                    message = channel.recv()
                except (EOFError, ConnectionError):
                    self._end(session, running.pop(channel))
                    continue
                self._receive(running[channel], *message)
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)

    def _receive(self, worker: Worker, kind: str, *content: Any) -> None:
        hook = self.config.hook
        match kind:
            case "next":
                worker.channel.send(self._files.popleft() if self._files else [])
            case "start":
                worker.runs = content
                hook.pytest_runtest_logstart(nodeid=content[0], location=content[1])
            case "report":
                report = hook.pytest_report_from_serializable(config=self.config, data=content[0])
                hook.pytest_runtest_logreport(report=report)
            case "finish":
                worker.runs = None
                hook.pytest_runtest_logfinish(nodeid=content[0], location=content[1])
            case "died":
                worker.why = content[0]
            case "done":
                worker.has_ended = True

    def _end(self, session: pytest.Session, worker: Worker) -> None:
        """Take note of a worker's end. One that had not done all its work died, which fails the tests."""
        if worker.has_ended:
            return
        session.shouldfail = f"worker {worker.pid} died: {worker.why or 'by a signal'}"
        if worker.runs is not None:
            nodeid, location = worker.runs
            died = pytest.TestReport(nodeid, location, {}, "failed", session.shouldfail, "call")
            self.config.hook.pytest_runtest_logreport(report=died)

    def _fork(self, session: pytest.Session, directory: Path) -> Worker:
        assert threading.active_count() == 1, "no thread survives a fork"
        ours, theirs = Pipe()
        pid = os.fork()
        if pid == 0:
            ours.close()
            self._work(session, theirs, directory)
        theirs.close()
        return Worker(pid, ours)

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
    """Return the places of each file's tests, in order; files of directories in FIRST before the others."""
    files: dict[Path, list[int]] = {}
    for place, item in enumerate(items):
        files.setdefault(item.path, []).append(place)
    return [files[path] for path in sorted(files, key=lambda path: path.parent.name not in FIRST)]
