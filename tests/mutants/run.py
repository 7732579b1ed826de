"""Change the code that decides whether something runs, one place at a time, and count the changes that the tests notice.

The entry point of ``make mutants``; docs/reliability.md has its figures, and says how to read them. It keeps in ``.mutants``:

- ``lines.jsonl``: which lines each test runs, by a probe before each statement. Only new tests are recorded, and those that
  ran a module that has changed since.
- ``results.jsonl``: which test noticed which mutant. Only those that survived are tried again.
- ``unsteady.jsonl``: tests that noticed a mutant, but fail without one, too.

A mutant's functions get the changed code in a process forked from the one that has collected the tests. It runs the tests that
run the changed line, those that run little else first, until one fails, hangs, or the mutant's time is over.
"""

from __future__ import annotations

import argparse
import ast
import gc
import hashlib
import json
import os
import random
import shutil
import sys
import tomllib
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import _lru_cache_wrapper
from importlib import import_module
from operator import itemgetter
from pathlib import Path
from tempfile import mkdtemp
from time import monotonic
from types import CodeType, FunctionType
from typing import Any

# In place of this script's own directory.
sys.path.pop(0)
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pytest
from mutants.changes import Mutant, changed, mutants_of, probed
from support.runner.forked_workers import ForkedWorkers

ROOT = Path(__file__).resolve().parents[2]
PATHS = (
    *("turngate/domain/policy", "turngate/domain/digest.py", "turngate/domain/conversation/history.py"),
    *("turngate/activities/execution", "turngate/activities/planning", "turngate/store/requests"),
    *(f"turngate/approvals_api/requests/{name}.py" for name in ("decide", "apply", "eligibility", "answer_check")),
    *(f"turngate/store/runs/{name}.py" for name in ("calls", "executions", "steps")),
    "turngate/workflows/step_runner.py",
)
SUITE = [
    "tests/unit",
    "tests/api",
    "tests/workflow",
    "tests/bridges",
    "tests/replay",
    "-m",
    "not exhaustive and not alone",
]
"""The tests of `make test` that run the code in their own process. A browser or a program would need minutes for each mutant."""
LINES, RESULTS, UNSTEADY = (ROOT / ".mutants" / f"{name}.jsonl" for name in ("lines", "results", "unsteady"))
HANG_SECONDS, MOST_SECONDS = 60.0, 300.0
"""How long one test may take with a mutant, and all tests of a mutant together."""
TIME_OVER = "its time is over"
Codes = list[tuple[FunctionType, CodeType]]
Functions = dict[Path, list[FunctionType]]
CACHES: list[_lru_cache_wrapper[Any]] = []
"""Of these functions."""


def modules() -> dict[str, Path]:
    """Return the files that are changed: ``path@digest`` → file."""
    files = [file for path in PATHS for file in (sorted((ROOT / path).glob("*.py")) or [ROOT / path])]
    return {f"{file.relative_to(ROOT)}@{hashlib.sha256(file.read_bytes()).hexdigest()[:12]}": file for file in files}


def functions_of(files: Iterable[Path]) -> Functions:
    """Return every function that these files define, however it is wrapped. Empty their caches: what is cached isn't run."""
    for file in files:
        module = import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))
        for each in vars(module).values():
            if isinstance(each, _lru_cache_wrapper):
                CACHES.append(each)
                each.cache_clear()
    gc.unfreeze()  # what is frozen isn't listed
    functions: Functions = {file: [] for file in files}
    for each in gc.get_objects():
        if isinstance(each, FunctionType) and (file := Path(each.__code__.co_filename)) in functions:
            functions[file].append(each)
    gc.freeze()
    return functions


def new_codes(tree: ast.Module, file: Path, functions: Functions) -> Codes:
    """Return the functions of a file whose code this tree changes, with their new code."""
    parts = [compile(ast.fix_missing_locations(tree), str(file), "exec", dont_inherit=True)]
    for part in parts:
        parts += [each for each in part.co_consts if isinstance(each, CodeType) and each.co_name != "<lambda>"]
    new = {(each.co_qualname, each.co_firstlineno): each for each in parts}
    codes = [(each, new.get((each.__code__.co_qualname, each.__code__.co_firstlineno))) for each in functions[file]]
    return [(each, code) for each, code in codes if code not in (None, each.__code__)]


def read_lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def append_line(file: Path, record: dict[str, Any]) -> None:
    with file.open("a") as stream:
        stream.write(json.dumps(record) + "\n")


def read_results() -> list[dict[str, Any]]:
    """Return the results, without those of tests that fail without a mutant."""
    unsteady = {each["test"] for each in read_lines(UNSTEADY)}
    return [each for each in read_lines(RESULTS) if each["test"] not in unsteady]


def recorded() -> dict[str, dict[str, list[int]]]:
    """Return what each test ran, of tests that ran the modules as they are: test → ``path@digest`` → lines."""
    now = modules().keys()
    unsteady = {each["test"] for each in read_lines(UNSTEADY)}
    records = (each for each in read_lines(LINES) if each["test"] not in unsteady)
    return {each["test"]: each["lines"] for each in records if each["lines"].keys() <= now}


class Recorder:
    """Records which lines each test runs that has no record, if it passes."""

    def __init__(self) -> None:
        self.hits: set[str] = set()
        self.failed = False

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        known = recorded()
        items[:] = [item for item in items if item.nodeid not in known]

    def pytest_collection_finish(self) -> None:
        functions = functions_of(modules().values())
        for key, file in modules().items():
            for function, code in new_codes(probed(ast.parse(file.read_bytes()), key), file, functions):
                function.__globals__["__hit__"] = self.hits.add
                function.__code__ = code

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        for cache in CACHES:
            cache.cache_clear()
        self.hits.clear()
        self.failed = False
        result = yield
        lines = defaultdict(list)
        for key, _, line in (hit.rpartition(":") for hit in self.hits):
            lines[key].append(int(line))
        if not self.failed:
            append_line(LINES, {"test": item.nodeid, "lines": lines})
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed |= report.failed


class Trials:
    """Tries mutants, ``forks`` at a time. ``drawn``: ``path@digest:place`` → mutant, its file and its code."""

    def __init__(self, seed: str, count: int, forks: int) -> None:
        self.seed, self.count, self.forks = seed, count, forks
        self.drawn: dict[str, tuple[Mutant, Path, Codes]] = {}
        self.runs = 0

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        known, files = recorded(), modules()
        self.session, self.covering = session, defaultdict(list)
        for item in session.items:
            every = known.get(item.nodeid, {})
            for key, lines in every.items():
                # Those that run little else come first, and PostgreSQL, which takes seconds to start, last.
                order = "postgresql" in item.nodeid, -len(lines) / sum(map(len, every.values())), len(lines)
                for line in lines:
                    self.covering[key, line].append((order, item))
        self.draw(files, functions_of(files.values()))
        noticed = {each["key"] for each in read_results() if each["test"]}
        running = 0
        for key in (key for key in self.drawn if key not in noticed):
            if running == self.forks:
                os.wait()
                running -= 1
            self.fork(self.try_one, key)
            running += 1
        for _ in range(running):
            os.wait()
        self.fork(self.confirm)
        os.wait()
        return True

    def fork(self, work: Callable[..., None], *arguments: str) -> None:
        """Do this in a process of its own, in which no terminal reports."""
        if os.fork():
            return
        config, directory = self.session.config, Path(mkdtemp(prefix="mutant-"))
        try:
            config._tmp_path_factory._basetemp = directory
            config.pluginmanager.unregister(name="terminalreporter")
            config.pluginmanager.register(object(), "terminalreporter")  # a silent one, for the worker to unregister
            work(*arguments)
        except BaseException:  # noqa: BLE001 - this process ends here, and the summary names what was not tried
            append_line(RESULTS.with_name("errors.jsonl"), {"of": arguments, "error": traceback.format_exc()})
        finally:
            shutil.rmtree(directory, ignore_errors=True)
            os._exit(0)

    def draw(self, files: dict[str, Path], functions: Functions) -> None:
        places = [(key, each) for key, file in files.items() for each in mutants_of(ast.parse(file.read_bytes()))]
        random.Random(self.seed).shuffle(places)  # noqa: S311 - drawn again by its seed
        for key, mutant in places:
            if len(self.drawn) == self.count:
                return
            codes = new_codes(changed(ast.parse(files[key].read_bytes()), mutant.place), files[key], functions)
            # Without codes it computes the same. A function that uses other variables of an outer one can't be exchanged.
            if codes and all(function.__code__.co_freevars == code.co_freevars for function, code in codes):
                self.drawn[f"{key}:{mutant.place}"] = mutant, files[key], codes

    def try_one(self, key: str) -> None:
        """Write down which test notices a mutant."""
        mutant, file, codes = self.drawn[key]
        covering, began = self.covering[key.rpartition(":")[0], mutant.line], monotonic()
        items = [item for _order, item in sorted(covering, key=itemgetter(0))]
        test = self.run(items, codes)
        place = {"key": key, "file": str(file.relative_to(ROOT)), "line": mutant.line, "function": mutant.function}
        outcome = {"change": mutant.change, "test": test, "tried": self.tried, "tests": len(items)}
        append_line(RESULTS, place | outcome | {"seconds": round(monotonic() - began, 1)})
        with self.session.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            print(f"{file.name}:{mutant.line}: {mutant.change}\n    {test or 'SURVIVED'}", flush=True)

    def confirm(self) -> None:
        """Write down which of the tests that noticed a mutant fail without one, too: what they said counts no longer."""
        tests = {each["test"] for each in read_results() if each["key"] in self.drawn}
        items = [item for item in self.session.items if item.nodeid in tests]
        while test := self.run(items, [], seconds=HANG_SECONDS * len(items)):
            append_line(UNSTEADY, {"test": test})
            items = [item for item in items if item.nodeid != test]

    def run(self, items: list[pytest.Item], codes: Codes, seconds: float = MOST_SECONDS) -> str | None:
        """Return the first of these tests that fails or hangs while the functions have these codes."""
        self.session.items, self.session._shouldfail = items, False
        self.test, self.tried, self.until = None, 0, monotonic() + seconds
        for function, code in codes:
            function.__code__ = code
        self.runs += 1
        workers = ForkedWorkers(self.session.config, 1, bound=HANG_SECONDS, _forked=self.runs)
        self.session.config.pluginmanager.register(workers)
        workers._files.append(list(range(len(items))))
        try:
            workers._fork(self.session)
            workers._serve(self.session)
        except self.session.Failed:
            if self.session.shouldfail not in (self.test, TIME_OVER):
                raise
        finally:
            workers._stop()
        return self.test

    def pytest_runtest_logstart(self) -> None:
        self.tried += 1
        if monotonic() > self.until:
            self.session.shouldfail = TIME_OVER

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.session.shouldfail:
            self.session.shouldfail = self.test = report.nodeid


def summary(keys: Iterable[str]) -> bool:
    """Print the results by module, and what survived. Return whether each survivor is listed as equivalent."""
    listed = tomllib.loads((Path(__file__).parent / "equivalent.toml").read_text())["mutant"]
    equivalent = {(each["file"], each["function"], each["change"]) for each in listed}
    results = {each["key"]: each for each in read_results()}
    counts: dict[str, Counter[str]] = {path: Counter() for path in (*PATHS, "in all")}
    survivors = [f"not tried: {key}" for key in keys if key not in results]
    for each in (results[key] for key in keys if key in results):
        outcome = "noticed" if each["test"] else "survived"
        if outcome == "survived" and (each["file"], each["function"], each["change"]) in equivalent:
            outcome = "equivalent"
        for path in (next(path for path in PATHS if each["file"].startswith(path)), "in all"):
            counts[path].update([outcome, "drawn"])
        if outcome == "survived":
            where = f"{each['file']}:{each['line']} {each['function']}"
            survivors.append(f"{where} ({each['tried']} of {each['tests']} tests): {each['change']}")
    columns = ("drawn", "noticed", "equivalent", "survived")
    print(f"\n{'':44}", *(f"{column:>10}" for column in columns))
    for path, count in counts.items():
        print(f"{path:44}", *(f"{count[column]:10}" for column in columns))
    print("\nSurvived:" if survivors else "\nNone survived.", *sorted(survivors), sep="\n  ")
    return not survivors


def main() -> int:
    parser = argparse.ArgumentParser(description="Try mutants of the code that decides whether something runs.")
    parser.add_argument("--seed", default="1", help="which ones are drawn")
    parser.add_argument("--count", type=int, default=300, help="how many")
    parser.add_argument("--forks", type=int, default=os.cpu_count(), help="how many at a time")
    options = parser.parse_args()
    os.chdir(ROOT)
    LINES.parent.mkdir(exist_ok=True)
    if not os.fork():  # so that the probes are gone afterwards
        os._exit(int(pytest.main([*SUITE, "--forks", str(options.forks)], plugins=[Recorder()])))
    os.wait()
    trials = Trials(options.seed, options.count, options.forks)
    pytest.main(SUITE, plugins=[trials])
    return 0 if summary(trials.drawn) else 1


if __name__ == "__main__":
    sys.exit(main())
