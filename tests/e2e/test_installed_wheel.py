"""The wheel: what is in it, and that it works where nothing else is installed than what requirements.lock names."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from email.parser import HeaderParser
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from support.terminal_process import DEADLINE_SECONDS, Background, clean_environment

from turngate.runtime import embedded_temporal

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Built:
    """What `make dist` left."""

    wheel: Path
    archive: Path

    def files(self) -> set[str]:
        with zipfile.ZipFile(self.wheel) as wheel:
            return {name for name in wheel.namelist() if ".dist-info/" not in name}

    def metadata(self, field: str) -> list[str]:
        with zipfile.ZipFile(self.wheel) as wheel:
            name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
            return HeaderParser().parsestr(wheel.read(name).decode()).get_all(field, [])


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    into = tmp_path_factory.mktemp("dist")
    subprocess.run([ROOT / "scripts" / "dist", into], env={**os.environ, "VENV": sys.prefix}, check=True)
    (wheel,), (archive,) = into.glob("*.whl"), into.glob("*.tar.gz")
    return Built(wheel, archive)


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel, what requirements.lock names, and pytest: no extra, nothing of this checkout."""

    prefix: Path

    def run(self, *command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment to its end."""
        programs = self.prefix / "bin"
        # The system's programs stay; those of the environment that runs the tests must not help.
        path = [entry for entry in os.environ["PATH"].split(":") if not Path(entry).is_relative_to(sys.prefix)]
        return subprocess.run(
            [programs / command[0], *command[1:]],
            cwd=cwd,
            env=clean_environment(PATH=":".join([str(programs), *path])),
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=DEADLINE_SECONDS,
            check=False,
        )


@pytest.fixture(scope="module")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    prefix = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", prefix], check=True)
    locked = re.findall(r"^([a-z0-9-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    for file in files_of(*dict.fromkeys((*locked, "pytest", "pluggy", "iniconfig", "packaging"))):
        link = prefix / os.path.relpath(file, sys.prefix)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(file)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", str(prefix)]
    subprocess.run([*pip, "install", "--no-index", built.wheel], check=True)
    return Installed(prefix)


def files_of(*names: str) -> Iterator[Path]:
    """Find the files of these packages in the environment that runs this; scripts, which name it, left out."""
    for name in names:
        try:
            package = distribution(name)
        except PackageNotFoundError:
            continue  # for another platform, as its marker says
        for file in package.files or ():
            path = Path(os.path.normpath(package.locate_file(file)))
            if path.parent != Path(sys.prefix, "bin") or path.read_bytes()[:2] != b"#!":
                yield path


def test_the_wheel_holds_every_file_of_the_package(built: Built) -> None:
    """Templates, static files, migrations, the demo's project, the scaffold, py.typed; and nothing of the tests or docs.

    The folders at the repository's top are below ``turngate``, as its links say: no other package's ``worker`` is replaced.
    """
    paths = [
        Path(folder, file)
        for folder, _, files in os.walk(ROOT / "turngate", followlinks=True)
        for file in files
        if "__pycache__" not in folder
    ]
    tree = {str(path.relative_to(ROOT)) for path in paths}
    assert {"turngate/worker.py", "turngate/workflows/agent_turn.py", "turngate/py.typed"} <= tree
    assert built.files() == tree


def test_the_archive_and_the_checkout_build_the_same_wheel(built: Built, tmp_path: Path) -> None:
    """`make dist` builds from the archive; the checkout gives the same bytes."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path]
    subprocess.run(command, cwd=ROOT, check=True)
    assert (tmp_path / built.wheel.name).read_bytes() == built.wheel.read_bytes()


def test_the_archive_holds_what_the_wheel_is_made_of(built: Built) -> None:
    """Each module once, and no stray file of someone's checkout."""
    with tarfile.open(built.archive) as archive:
        top = {member.name.split("/")[1] for member in archive}
    assert top == {
        "turngate",
        "worker.py",
        "pyproject.toml",
        "README.md",
        "CHANGELOG.md",
        "SECURITY.md",
        "LICENSE",
        "PKG-INFO",
        ".gitignore",
    }


def test_the_wheel_is_well_formed(built: Built) -> None:
    """By the linter of wheels: one name at its top, and no stray file.

    W002 and W004 are off: the demo's project is a start of `turngate init`, too, and Alembic's files begin with a number.
    """
    linter = Path(sys.executable).parent / "check-wheel-contents"
    done = subprocess.run(
        [linter, "--toplevel", "turngate", "--ignore", "W002,W004", built.wheel],
        cwd=built.wheel.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_the_wheel_says_what_it_may_be_used_for(built: Built) -> None:
    """The licence is named by its SPDX identifier, and its text is inside."""
    assert (built.metadata("License-Expression"), built.metadata("License-File")) == (["MIT"], ["LICENSE"])
    with zipfile.ZipFile(built.wheel) as wheel:
        (text,) = (wheel.read(name) for name in wheel.namelist() if name.endswith(".dist-info/licenses/LICENSE"))
    assert text == (ROOT / "LICENSE").read_bytes()


def test_the_wheel_asks_for_packages_by_name(built: Built) -> None:
    """It has no URL requirement, which a lock could not pin, and no extra for developers only."""
    assert [need for need in built.metadata("Requires-Dist") if "@" in need] == []
    extras = {
        "acp",
        "embedded",
        "langchain",
        "mcp",
        "openai-agents",
        "postgres",
        "providers",
        "pydantic-ai",
        "telemetry",
        "tui",
    }
    assert set(built.metadata("Provides-Extra")) == extras


@pytest.mark.exhaustive
@pytest.mark.parametrize("arguments", [("--help",), ("demo", "--help")])
def test_the_command_explains_itself(installed: Installed, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """The entry point is there, and help needs neither an extra nor this checkout."""
    done = installed.run("turngate", *arguments, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage: turngate" in done.stdout


@pytest.mark.exhaustive
def test_the_code_that_runs_is_the_wheels(installed: Installed, tmp_path: Path) -> None:
    """No module comes from the checkout."""
    code = "import turngate; from turngate import worker, workflows; print(*(m.__file__ for m in (turngate, worker, workflows)))"
    done = installed.run("python", "-c", code, cwd=tmp_path)
    assert [path for path in done.stdout.split() if not Path(path).is_relative_to(installed.prefix)] == []


OWN_NAMES = ("worker.py", "workflows.py", "activities/__init__.py", "approvals_api.py")
OWN_APP = """
import activities, approvals_api, worker, workflows
assert {each.MINE for each in (activities, approvals_api, worker, workflows)} == {True}
"""


def test_an_app_has_modules_of_these_names(installed: Installed, tmp_path: Path) -> None:
    """Its own ``worker``, ``workflows``, ``activities`` and ``approvals_api``, under pytest, ``up`` and ``dev``."""
    assert installed.run("turngate", "init", "app", cwd=tmp_path).returncode == 0
    directory = tmp_path / "app"
    for name in OWN_NAMES:
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text("MINE = True\n")
    app = directory / "my_app.py"
    app.write_text(app.read_text() + OWN_APP)
    tested = installed.run("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=directory)
    assert (tested.returncode, tested.stderr) == (0, ""), tested.stdout
    turngate = installed.prefix / "bin" / "turngate"
    for command in ("up", "dev"):
        port = str(embedded_temporal.choose_port())
        program = Background(command, "my_app:app", "--port", port, cwd=directory, program=turngate)
        program.wait_for(rf"http://127\.0\.0\.1:{port}")
        program.stop()


def test_a_store_is_migrated(installed: Installed, tmp_path: Path) -> None:
    """The migrations are files of the package."""
    done = installed.run("turngate", "migrate", "--data-dir", "data", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "data" / "turngate.db").exists()


@pytest.mark.parametrize(("command", "extra"), [("tui", "tui"), ("acp", "acp"), ("mcp-gateway", "mcp")])
def test_an_extra_that_is_missing_is_named(installed: Installed, tmp_path: Path, command: str, extra: str) -> None:
    """With the exit code of a wrong configuration."""
    done = installed.run("turngate", command, *(["true"] if command == "mcp-gateway" else []), cwd=tmp_path)
    assert done.returncode == 2
    assert f"the extra '{extra}' is not installed" in " ".join(done.stderr.split())


def test_the_demo_approved_fixes_the_project(installed: Installed, tmp_path: Path) -> None:
    """With every gate approved by someone other than the starter, the tests pass and there is a commit; both are checked."""
    played = installed.run(
        "turngate", "demo", "--decide", "approve", "--port", str(embedded_temporal.choose_port()), cwd=tmp_path
    )
    assert played.returncode == 0, played.stdout + played.stderr
    assert "approved by demo-operator" in played.stdout
    assert "verified: the tests pass, and there is a commit" in played.stdout
    assert "scripted:" in played.stdout
    assert "Traceback" not in played.stderr
    assert "Warning" not in played.stderr
