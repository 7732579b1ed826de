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
from support.terminal_process import DEADLINE_SECONDS, clean_environment

from turngate.runtime import embedded_temporal

ROOT = Path(__file__).parents[2]
PACKAGES = ("turngate", "workflows", "activities", "approvals_api")


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
    """An environment with the wheel and what requirements.lock names: no extra, no test tool, nothing of this checkout."""

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
    for file in locked_files():
        link = prefix / os.path.relpath(file, sys.prefix)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(file)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", str(prefix)]
    subprocess.run([*pip, "install", "--no-index", built.wheel], check=True)
    return Installed(prefix)


def locked_files() -> Iterator[Path]:
    """Find the files of the locked packages in the environment that runs this; scripts, which name it, left out."""
    for name in re.findall(r"^([a-z0-9-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE):
        try:
            package = distribution(name)
        except PackageNotFoundError:
            continue  # for another platform, as its marker says
        for file in package.files or ():
            path = Path(os.path.normpath(package.locate_file(file)))
            if path.parent != Path(sys.prefix, "bin") or path.read_bytes()[:2] != b"#!":
                yield path


def test_the_wheel_holds_every_file_of_the_packages(built: Built) -> None:
    """Templates, static files, migrations, the demo's project, the scaffold, py.typed; and nothing of the tests or docs."""
    tree = {"worker.py"}
    for package in PACKAGES:
        files = (path for path in (ROOT / package).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        tree |= {str(path.relative_to(ROOT)) for path in files}
    assert {f"{package}/py.typed" for package in PACKAGES} <= tree
    assert built.files() == tree


def test_the_archive_and_the_checkout_build_the_same_wheel(built: Built, tmp_path: Path) -> None:
    """`make dist` builds from the archive; the checkout gives the same bytes."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path]
    subprocess.run(command, cwd=ROOT, check=True)
    assert (tmp_path / built.wheel.name).read_bytes() == built.wheel.read_bytes()


def test_the_archive_is_a_checkout(built: Built) -> None:
    """It has what `make demo` and `make test` read, and no stray file of someone's checkout."""
    with tarfile.open(built.archive) as archive:
        top = {member.name.split("/")[1] for member in archive}
        scripts = [member for member in archive if "/scripts/" in member.name]
    assert top == {
        *PACKAGES,
        "worker.py",
        *("tests", "docs", "examples", "deploy", "scripts"),
        *("Makefile", "pyproject.toml", "requirements.lock", "requirements-dev.lock", ".importlinter", ".gitignore"),
        *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "AGENTS.md"),
        *("LICENSE", "PKG-INFO"),
    }
    assert [script.name for script in scripts if not script.mode & 0o100] == []


def test_the_wheel_says_what_it_may_be_used_for(built: Built) -> None:
    """The licence is named by its SPDX identifier, and its text is inside."""
    assert (built.metadata("License-Expression"), built.metadata("License-File")) == (["MIT"], ["LICENSE"])
    with zipfile.ZipFile(built.wheel) as wheel:
        (text,) = (wheel.read(name) for name in wheel.namelist() if name.endswith(".dist-info/licenses/LICENSE"))
    assert text == (ROOT / "LICENSE").read_bytes()


def test_the_wheel_asks_for_packages_by_name(built: Built) -> None:
    """It has no URL requirement, which a lock could not pin, and no extra for developers only."""
    assert [need for need in built.metadata("Requires-Dist") if "@" in need] == []
    extras = {"acp", "langchain", "mcp", "openai-agents", "providers", "pydantic-ai", "telemetry", "tui", "vault"}
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
    code = f"import {', '.join(PACKAGES)}, worker; print(*(m.__file__ for m in ({', '.join(PACKAGES)}, worker)))"
    done = installed.run("python", "-c", code, cwd=tmp_path)
    assert [path for path in done.stdout.split() if not Path(path).is_relative_to(installed.prefix)] == []


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
