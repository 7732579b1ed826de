"""What a run may have changed: by the time of the change, in a new worker of ``turngate dev`` and for what it imports later."""

from __future__ import annotations

import json
import os
import py_compile
import shutil
import socket
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from turngate.runtime import import_guard
from turngate.runtime.import_guard import ImportGuard

IMPORTS = """\
import importlib.util, json, sys
from turngate.runtime.import_guard import ImportGuard
guard = ImportGuard(**json.loads(sys.argv[1]))
guard.watch_imports()
sys.path.insert(0, sys.argv[2])
def module(name):
    if not name.endswith(".py"):
        return __import__(name)
    spec = importlib.util.spec_from_file_location("located", name)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found
for name in sys.argv[3:]:
    try:
        print(module(name).NAME)
    except ImportError as error:
        print("refused", error)
print(sorted(path for path, _state in guard.refused.values()))
"""


def imports(guard: ImportGuard, place: Path, *modules: str) -> list[str]:
    """Import modules in a process of their own, and return what happened to each, and which files were refused."""
    argv = [sys.executable, "-c", IMPORTS, guard.as_json, str(place), *modules]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()


def changed(path: Path) -> float:
    return path.stat().st_ctime_ns / 1e9


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "pkg").mkdir()
    for name in ("first", "pkg/__init__", "pkg/second"):
        (tmp_path / f"{name}.py").write_text("NAME = 'source'\n")
    return tmp_path


def test_a_module_that_changed_while_a_call_ran_is_not_imported(place: Path) -> None:
    """Whatever it is: a module, a package, one in a package, compiled or machine code, one that another finder has found."""
    py_compile.compile(str(place / "first.py"), cfile=str(place / "bare.pyc"))
    machine_code = place / f"machine{sysconfig.get_config_var('EXT_SUFFIX')}"
    machine_code.write_bytes(b"\x7fELF")
    at = changed(machine_code)
    guard = ImportGuard(places=(place,), spans=((at - 60, at + 60),))
    lines = imports(guard, place, "first", "pkg.second", "bare", "machine")
    files = [place / "first.py", place / "pkg/__init__.py", place / "bare.pyc", machine_code]
    assert lines[:-1] == [
        f"refused {file} may have been changed by a run, and no one has accepted that: look at it, and restart the worker"
        for file in files
    ]
    assert lines[-1] == str(sorted(map(str, files)))
    located = imports(guard, place, str(place / "pkg/second.py"))
    assert located[-1] == str([str(place / "pkg/second.py")]), "editable installs find modules by a finder of their own"
    with (place / "first.py").open() as opened:
        assert guard.refuses("first", place / "first.py", opened.fileno())
    accepted = ImportGuard(places=guard.places, spans=guard.spans, accepted=guard.refused)
    assert imports(accepted, place, "first") == ["source", "[]"]
    os.utime(place / "first.py", (0, 0))  # no program sets the time of the change itself
    assert imports(accepted, place, "first")[0].startswith("refused")


def test_a_module_that_changed_at_another_time_or_elsewhere_is_imported(place: Path) -> None:
    """Nothing asks about what people wrote between calls, or where no run works."""
    at = changed(place / "first.py")
    for guard in (
        ImportGuard(places=(place,), spans=((at - 60, at - 1), (at + 1, at + 60)), since=at + 1),
        ImportGuard(places=(place / "pkg",), spans=((at - 60, at + 60),), since=at - 1),
        ImportGuard(places=(place,), of_servers=(place,), servers_since=at + 1),
    ):
        assert imports(guard, place, "first") == ["source", "[]"]


def test_what_changes_after_a_worker_has_loaded_its_app_is_refused(place: Path) -> None:
    """So is what an MCP server may have changed at any time since it was started; by a link to it, too."""
    at = changed(place / "first.py")
    elsewhere = place.parent / f"{place.name}-links"
    elsewhere.mkdir()
    (elsewhere / "first.py").symlink_to(place / "first.py")
    for guard in (
        ImportGuard(places=(place,), since=at - 1),
        ImportGuard(of_servers=(place,), servers_since=at - 1),
    ):
        for directory in (place, elsewhere):
            assert imports(guard, directory, "first")[1] == str([str(directory / "first.py")])
    shutil.rmtree(elsewhere)


def test_an_older_file_under_the_name_of_a_module_is_refused(place: Path) -> None:
    """By a link or a directory that took the name since; a directory of which a module was loaded may get other files."""
    (place / "older").mkdir()
    (place / "older/__init__.py").write_text("NAME = 'forged'\n")
    before = changed(place / "older")
    while (since := changed(place)) <= before:  # a tick of the kernel's clock
        place.chmod(0o755)
    (place / "older").rename(place / "later")
    (place / "linked.py").symlink_to("first.py")
    (place / "led").symlink_to("pkg")
    refused = ["later/__init__.py", "led/__init__.py", "linked.py"]
    for guard in (
        ImportGuard(places=(place,), since=since),
        ImportGuard(places=(place,), spans=((since, since + 600),)),
    ):
        assert imports(guard, place, "later", "linked", "led")[-1] == str([str(place / each) for each in refused])
        assert imports(guard, place, "first", "pkg.second") == ["source", "source", "[]"]
    (place / "pkg/third.py").touch()
    assert imports(guard, place, "pkg.second")[-1] == str([str(place / "pkg/__init__.py")])


def test_a_name_that_leads_to_another_file_than_before_is_refused(place: Path) -> None:
    """A package before a module, other directories in their places; whatever their times are, unless someone wrote the file."""
    for name in ("package", "other"):
        (place / name).mkdir()
        (place / name / "__init__.py").write_text("NAME = 'forged'\n")
        shutil.copy(place / "pkg/second.py", place / name)
    names = {"first": place / "first.py", "pkg": place / "pkg/__init__.py", "second": place / "pkg/second.py"}
    former = ImportGuard(places=(place,))
    for name, path in names.items():
        former.read(name, path)
    (place / "began").touch()
    guard = ImportGuard(places=(place,), accepted=former.loaded, accepted_at=changed(place / "began"))
    assert imports(guard, place, "first", "pkg", "other") == ["source", "source", "forged", "[]"]
    (place / "pkg").rename(place / "moved")
    (place / "other").rename(place / "pkg")
    assert imports(guard, place, "pkg")[-1] == str([str(place / "pkg/__init__.py")])
    (place / "package").rename(place / "first")
    assert imports(guard, place, "first")[-1] == str([str(place / "first/__init__.py")])
    shutil.rmtree(place / "first")
    while changed(place / "first.py") <= guard.accepted_at:  # a tick of the kernel's clock
        (place / "first.py").write_text("NAME = 'written'\n")
    assert imports(guard, place, "first") == ["written", "[]"]


BEGUN = """\
import json, site
site.addsitedir("src")
def main(guard, channel):
    channel.sendall(json.dumps({"refused": guard.refused}).encode())
"""


def test_i13_nothing_that_a_run_wrote_runs_before_the_guard_is_there(place: Path) -> None:
    """I13: what Python runs by itself, on the PYTHONPATH and from .pth files, and what shadows the worker's own modules."""
    for name in ("own", "src"):
        (place / name).mkdir()
    (place / "own/begun.py").write_text(BEGUN)
    wrote = f"import sys; open({str(place / 'ran')!r}, 'w')\n"
    names = ("forged.pth", "sitecustomize.py", "structlog.py")
    pth, customize, library = forged = [place / "src" / name for name in names]
    while (at := changed(_written(pth, wrote))) <= changed(place / "own/begun.py"):  # a tick of the kernel's clock
        continue
    for file in forged:
        _written(file, wrote)
    guard = ImportGuard(places=(place,), since=at)
    assert _begin("begun", guard, place) == {str(pth), str(customize)}
    assert _begin("turngate.cli.dev.worker_process", guard, place) == {str(customize), str(library)}
    assert not (place / "ran").exists()


def _written(file: Path, text: str) -> Path:
    file.write_text(text)
    return file


def _begin(module: str, guard: ImportGuard, place: Path) -> set[str]:
    """Begin a process as `turngate dev` begins a worker, with PYTHONPATH=own:src; return the files that it refused."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(guard.as_json.encode() + b"\n")
        argv = [sys.executable, "-P", "-S", "-", module, str(theirs.fileno()), "own:src"]
        source = Path(import_guard.__file__).read_bytes()
        ended = subprocess.run(
            argv, input=source, pass_fds=[theirs.fileno()], capture_output=True, check=False, cwd=place
        )
        theirs.close()
        with ours.makefile("rb") as lines:
            answer = json.loads(lines.readline() or b"{}")
    assert answer, ended.stderr.decode()
    return {path for path, _state in answer["refused"].values()}


SERVES = """\
import sys
from pathlib import Path
from turngate.cli.parts.confinement import load_to_serve
from turngate.runtime.settings import load_settings
load_to_serve(load_settings(data_dir=Path("../data"), workspaces=(Path.cwd(),)), "served_app:app")
print(__import__("first").NAME)
Path("pkg/second.py").write_text("NAME = 'forged'")
import pkg.second
"""


def test_i13_a_worker_imports_nothing_later_that_a_run_may_have_changed(place: Path) -> None:
    """I13: `up` and `worker` refuse a module of a workspace that changed after the app was loaded, and load the others."""
    agent = 'Agent(name="a", instructions="", toolkit=Toolkit.of(), model="scripted:x.yaml")'
    (place / "served_app.py").write_text(f"from turngate import Agent, App, Toolkit\napp = App(agents=[{agent}])\n")
    ended = subprocess.run([sys.executable, "-c", SERVES], capture_output=True, text=True, check=False, cwd=place)
    assert ended.stdout == "source\n"
    assert f"{place}/pkg/second.py may have been changed by a run" in ended.stderr


def test_compiled_code_that_changed_while_a_call_ran_is_not_used(place: Path) -> None:
    """Python runs it instead of the source, which is older and may be loaded."""
    source = place / "first.py"
    forged = place / "forged.py"
    forged.write_text("NAME = 'forged'\n")
    os.utime(forged, ns=(source.stat().st_atime_ns, source.stat().st_mtime_ns))
    compiled = place / f"__pycache__/first.{sys.implementation.cache_tag}.pyc"
    py_compile.compile(str(forged), cfile=str(compiled))
    while changed(compiled) == changed(source):  # a tick of the kernel's clock
        compiled.touch()
    guard = ImportGuard(places=(place,), since=changed(compiled))
    assert imports(ImportGuard(), place, "first") == ["forged", "[]"]
    assert imports(guard, place, "first") == ["source", str([str(compiled)])]
