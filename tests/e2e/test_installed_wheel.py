"""The wheels: what is in them, and that they work where nothing else is installed than what they ask for."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from support.programs.terminal_process import DEADLINE_SECONDS, Background, clean_environment

from turngate.runtime import embedded_temporal

ROOT = Path(__file__).parents[2]
UV = Path(sys.prefix, "bin", "uv")


@dataclass(frozen=True)
class Built:
    """What `make dist` left."""

    wheel: Path
    client: Path
    archive: Path

    def files(self) -> set[str]:
        return set(contents(self.wheel))

    def metadata(self, field: str) -> list[str]:
        return metadata(self.wheel).get_all(field, [])


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    into = tmp_path_factory.mktemp("dist")
    # Built by the locked hatchling that is here, without a network.
    offline = {**os.environ, "VENV": sys.prefix, "UV_NO_BUILD_ISOLATION": "1", "UV_OFFLINE": "1"}
    subprocess.run([ROOT / "scripts" / "dist", into], env=offline, check=True)
    (wheel,), (client,), (archive,) = map(into.glob, ("turngate-*.whl", "turngate_client-*.whl", "*.tar.gz"))
    return Built(wheel, client, archive)


def metadata(wheel: Path) -> Message:
    """Return what an index shows of a wheel: fields, and a page as the payload."""
    with zipfile.ZipFile(wheel) as opened:
        name = next(name for name in opened.namelist() if name.endswith(".dist-info/METADATA"))
        return HeaderParser().parsestr(opened.read(name).decode())


def contents(wheel: Path) -> dict[str, bytes]:
    """Return what a wheel puts into an environment beside its metadata."""
    with zipfile.ZipFile(wheel) as opened:
        return {name: opened.read(name) for name in opened.namelist() if ".dist-info/" not in name}


@dataclass(frozen=True)
class Installed:
    """An environment with a wheel and the packages that it needs: no extra, nothing of this checkout."""

    prefix: Path

    def run(self, *command: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment to its end."""
        programs = self.prefix / "bin"
        # The system's programs stay; those of the environment that runs the tests must not help.
        path = [entry for entry in os.environ["PATH"].split(":") if not Path(entry).is_relative_to(sys.prefix)]
        return subprocess.run(
            [programs / command[0], *command[1:]],
            cwd=cwd,
            env=clean_environment(PATH=":".join([str(programs), *path]), **environment),
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=DEADLINE_SECONDS,
            check=False,
        )

    def uv(self, verb: str, *arguments: str | Path) -> str:
        """Change or list the environment's packages, without an index."""
        command = [UV, "--offline", "--no-config", "pip", verb, "--python", self.prefix, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def environment(prefix: Path, packages: Iterable[str], wheel: Path) -> Installed:
    """Make an environment with these packages, each linked to what runs this test, and install the wheel into it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", prefix], check=True)
    for part in parts_of(*packages):
        link = prefix / part.relative_to(sys.prefix)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(part)
    installed = Installed(prefix)
    installed.uv("install", "--no-index", wheel)
    return installed


@pytest.fixture(scope="module")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """With what requirements.lock names, and pytest."""
    locked = re.findall(r"^([a-z0-9-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    packages = dict.fromkeys((*locked, "pytest", "pluggy", "iniconfig", "packaging"))
    return environment(tmp_path_factory.mktemp("installed"), packages, built.wheel)


CLIENT_NEEDS = {
    "annotated-types",
    "anyio",
    "certifi",
    "h11",
    "httpcore",
    "httpx",
    "httpx-sse",
    "idna",
    "pydantic",
    "pydantic-core",
    "typing-extensions",
    "typing-inspection",
}
"""httpx and pydantic, with what they need, and httpx-sse."""


@pytest.fixture(scope="module")
def client_only(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The client, and nothing that it doesn't ask for."""
    return environment(tmp_path_factory.mktemp("client"), CLIENT_NEEDS, built.client)


def parts_of(*names: str) -> set[Path]:
    """Find the packages, modules and programs of these, where they are installed; scripts, which name that place, left out."""
    site = Path(sysconfig.get_path("purelib"))
    parts = set()
    for name in names:
        try:
            files = distribution(name).files or ()
        except PackageNotFoundError:
            continue  # for another platform, as its marker says
        tops = {file.parts[0] for file in files}
        parts |= {site / top for top in tops if top != ".." and (site / top / "__init__.py").exists()}
        parts |= {site / file for file in files if ".." not in file.parts and site / file.parts[0] not in parts}
        programs = {Path(sys.prefix, "bin", file.name) for file in files if file.parent.name == "bin"}
        parts |= {each for each in programs if each.exists() and each.read_bytes()[:2] != b"#!"}
    return parts


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
    """`make dist` builds Turngate's from the archive, and the client's from the checkout; the other way gives the same bytes."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path]
    subprocess.run(build, cwd=ROOT, check=True)
    with tarfile.open(built.archive) as archive:
        archive.extractall(tmp_path, filter="data")
    subprocess.run(build, cwd=tmp_path / built.archive.name.removesuffix(".tar.gz") / "turngate-client", check=True)
    for wheel in (built.wheel, built.client):
        assert (tmp_path / wheel.name).read_bytes() == wheel.read_bytes()


def test_the_archive_holds_what_the_wheel_is_made_of(built: Built) -> None:
    """Each module once, what the client's wheel is made of, and no stray file of someone's checkout."""
    with tarfile.open(built.archive) as archive:
        top = {member.name.split("/")[1] for member in archive}
    assert top == {
        "turngate",
        "turngate-client",
        "worker.py",
        "pyproject.toml",
        "sbom.cdx.json",
        "docs",
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


def test_the_wheel_says_what_it_may_be_used_for_and_what_it_needs(built: Built) -> None:
    """The licence is named by its SPDX identifier, and its text is inside; so is the bill of materials (PEP 770).

    Packages are asked for by name: no URL requirement, which a lock could not pin, and no extra for developers only.
    """
    assert (built.metadata("License-Expression"), built.metadata("License-File")) == (["MIT"], ["LICENSE"])
    with zipfile.ZipFile(built.wheel) as wheel:
        for folder, file in (("licenses", "LICENSE"), ("sboms", "sbom.cdx.json")):
            (name,) = (name for name in wheel.namelist() if f".dist-info/{folder}/" in name)
            assert name.endswith(f"/{file}")
            assert wheel.read(name) == (ROOT / file).read_bytes()
    assert [need for need in built.metadata("Requires-Dist") if "@" in need] == []
    extras = {
        "acp",
        "embedded",
        "langchain",
        "mcp",
        "oidc",
        "openai-agents",
        "postgres",
        "providers",
        "pydantic-ai",
        "telemetry",
        "tui",
    }
    assert set(built.metadata("Provides-Extra")) == extras


LINK = re.compile(r"(?:\]\(|\]:|src=|href=)\s*[\"'<]?([^\s\"'>)]+)")


def test_an_index_page_has_no_link_into_the_repository(built: Built) -> None:
    """A relative link or image would lead nowhere there, and no field names an address that isn't known."""
    for wheel in (built.wheel, built.client):
        page = metadata(wheel)
        assert page["Description-Content-Type"] == "text/markdown"
        assert [link for link in LINK.findall(page.get_payload()) if not link.startswith("https://")] == []
        assert page.get_all("Project-URL") is None
    assert LINK.findall((ROOT / "README.md").read_text())[1:3] == [
        "docs/img/request.png",
        "docs/howto/use-a-real-model.md",
    ]


OWN_NAMES = ("worker.py", "workflows.py", "activities/__init__.py", "approvals_api.py")
OWN_APP = """
import activities, approvals_api, worker, workflows
assert {each.MINE for each in (activities, approvals_api, worker, workflows)} == {True}
"""


@pytest.fixture(scope="module")
def own_app(installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An app with a ``worker``, ``workflows``, ``activities`` and ``approvals_api`` of its own."""
    directory = tmp_path_factory.mktemp("own") / "app"
    assert installed.run("turngate", "init", "app", cwd=directory.parent).returncode == 0
    for name in OWN_NAMES:
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text("MINE = True\n")
    app = directory / "my_app.py"
    app.write_text(app.read_text() + OWN_APP)
    return directory


@contextmanager
def serving(command: str, app: Path, installed: Installed) -> Iterator[Background]:
    """Run the app with `turngate up` or `dev`, and yield the program once it serves."""
    port = str(embedded_temporal.choose_port())
    turngate = installed.prefix / "bin" / "turngate"
    program = Background(command, "my_app:app", "--port", port, cwd=app, program=turngate)
    try:
        yield program
    finally:
        program.stop()


@pytest.mark.exhaustive
def test_an_app_has_modules_of_these_names(installed: Installed, own_app: Path) -> None:
    """Its own ``worker``, ``workflows``, ``activities`` and ``approvals_api``, under pytest and ``dev``; ``up`` is below."""
    tested = installed.run("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=own_app)
    assert (tested.returncode, tested.stderr) == (0, ""), tested.stdout
    with serving("dev", own_app, installed) as program:
        program.wait_for("http://127")


DECIDE = """
import sys
from turngate.client import SyncTurngateClient
from turngate.wire.orders import DecisionOrder

url, token = sys.argv[1:]
with SyncTurngateClient(url, token=token) as program:
    decider = program.issue_token("decider", ["requests:read", "requests:decide"]).secret
    run = program.start_run(agent="support", text="The lamp of order A-100 arrived broken.")
    for event in program.follow_events(run.id):
        if event.type == "request.opened":
            with SyncTurngateClient(url, token=decider) as person:
                request = person.get_request(str(event.payload["request_id"]))
                person.decide(request.id, DecisionOrder(verb="approve", digest=request.digest))
    print(request.tool_name, program.get_run(run.id).status)
"""


def test_the_client_alone_decides(installed: Installed, client_only: Installed, own_app: Path) -> None:
    """The client starts a run of ``up``, approves its call as someone else and sees it completed.

    The app has modules of its own by the names of Turngate's, and the migrations of its store are files of the wheel.
    """
    with serving("up", own_app, installed) as program:
        url = program.wait_for(r"http://127\.0\.0\.1:\d+").group()
        data_dir = Path(program.wait_for(r"Data +(/\S+)").group(1))
        program.wait_for("Start a run")
        token = (data_dir / "token").read_text().strip()
        decided = client_only.run("python", "-W", "error", "-c", DECIDE, url, token, cwd=own_app.parent)
    assert (decided.stdout, decided.stderr) == ("refund completed\n", "")


def test_the_client_brings_httpx_and_pydantic_only(client_only: Installed) -> None:
    """By pip's list, what they need and httpx-sse beside it; with Turngate's own bounds."""
    listed = {each["name"].replace("_", "-") for each in json.loads(client_only.uv("list", "--format", "json"))}
    assert listed == {*CLIENT_NEEDS, "turngate-client"}
    ours, clients = (
        tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"] for folder in ("", "turngate-client")
    )
    assert set(clients["dependencies"]) < set(ours["dependencies"])


def test_the_client_is_turngates_own_modules(built: Built) -> None:
    """Byte for byte, of three packages, with their types; and where they are, they overwrite no file of Turngate's."""
    whole = contents(built.wheel)
    parts = ("turngate/__init__.py", "turngate/py.typed", "turngate/client/", "turngate/domain/", "turngate/wire/")
    files = contents(built.client)
    assert files.pop("turngate_client.pth") == b"_turngate_client\n"
    assert files == {f"_turngate_client/{name}": whole[name] for name in whole if name.startswith(parts)}


IMPORT_ALL = """
import importlib, pkgutil, turngate
for module in pkgutil.walk_packages(turngate.__path__, "turngate."):
    importlib.import_module(module.name)
from turngate import client, wire, __version__, Tool
"""


def test_each_module_of_the_client_is_imported_without_the_rest(client_only: Installed, tmp_path: Path) -> None:
    """No module of it imports a package that only Turngate asks for. A name for tool authors says what to install."""
    done = client_only.run("python", "-c", IMPORT_ALL, cwd=tmp_path)
    assert done.stderr.splitlines()[-1] == (
        "ImportError: turngate.Tool is for programs that declare agents and tools. Only turngate-client is installed here, "
        "which has turngate.client, turngate.wire and turngate.domain. Install the distribution turngate, too."
    )


@pytest.mark.exhaustive
def test_type_checkers_find_the_clients_types(client_only: Installed, tmp_path: Path) -> None:
    """They follow the path file, too: a wrong argument is an error."""
    program = tmp_path / "program.py"
    program.write_text(
        "from turngate.client import SyncTurngateClient\nSyncTurngateClient('', token='').get_request(1)\n"
    )
    mypy = [sys.executable, "-m", "mypy", "--python-executable", client_only.prefix / "bin" / "python", program.name]
    done = subprocess.run(mypy, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert 'incompatible type "int"; expected "str"' in done.stdout
    assert "Found 1 error" in done.stdout


def test_both_may_be_installed_and_either_may_go(built: Built, tmp_path: Path) -> None:
    """Turngate's modules are used while it is there; what remains works, and nothing remains of what went."""
    both = environment(tmp_path / "both", CLIENT_NEEDS, built.client)
    (site,) = (both.prefix / "lib").glob("python3*/site-packages")
    (version,) = built.metadata("Version")

    def used() -> Path:
        code = "import turngate.client as client, turngate; print(client.__file__, turngate.__version__)"
        file, of_version = both.run("python", "-c", code, cwd=tmp_path).stdout.split()
        assert of_version == version
        return Path(file).parents[2].relative_to(site)

    both.uv("install", "--no-deps", built.wheel)
    assert used() == Path()
    both.uv("uninstall", "turngate-client")
    assert (used(), [*site.glob("_turngate_client/**/*.*")]) == (Path(), [])
    both.uv("install", "--no-deps", built.client)
    assert used() == Path()
    both.uv("uninstall", "turngate")
    assert (used(), [*site.glob("turngate/**/*.*")]) == (Path("_turngate_client"), [])


COMMANDS = """
import json, sys
from typer.testing import CliRunner
from turngate import worker, workflows
from turngate.cli.main import app

ended = [CliRunner().invoke(app, words) for words in json.loads(sys.argv[1])]
print(json.dumps([[worker.__file__, workflows.__file__], [[each.exit_code, each.output] for each in ended]]))
"""


def test_what_no_extra_is_installed_for_is_refused(installed: Installed, tmp_path: Path) -> None:
    """Each command names its extra; an OpenID provider is refused before a port is taken or a store is made. Help needs none."""
    oidc = {"ISSUER": "https://login.example", "CLIENT_ID": "turngate", "CLIENT_SECRET": "s3cret"}
    variables = {f"TURNGATE_OIDC_{name}": value for name, value in oidc.items()}
    cases = (
        (["--help"], 0, "Turngate runs AI agents"),
        (["tui"], 2, "the extra 'tui' is not installed"),
        (["acp"], 2, "the extra 'acp' is not installed"),
        (["mcp-gateway", "true"], 2, "the extra 'mcp' is not installed"),
        (["api", "--data-dir", "data"], 2, "the extra 'oidc' is not installed"),
        (["doctor", "--data-dir", "data"], 1, "the extra 'oidc' is not installed"),
    )
    words = json.dumps([words for words, _code, _text in cases])
    done = installed.run("python", "-c", COMMANDS, words, cwd=tmp_path, **variables)
    modules, ended = json.loads(done.stdout)
    assert [path for path in modules if not Path(path).is_relative_to(installed.prefix)] == []
    for (words, code, text), (exit_code, output) in zip(cases, ended, strict=True):
        assert (exit_code, text in " ".join(output.split())) == (code, True), (words, output)
    assert not (tmp_path / "data").exists()


@pytest.mark.exhaustive
@pytest.mark.parametrize("versions", ["locked", "lowest"])
def test_the_wheels_demo_fixes_the_project(versions: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Without an extra; and with the oldest version of each package that pyproject.toml allows, from an index."""
    where: Installed = request.getfixturevalue("installed" if versions == "locked" else "lowest")
    played = where.run(
        "turngate", "demo", "--decide", "approve", "--port", str(embedded_temporal.choose_port()), cwd=tmp_path
    )
    assert "verified: the tests pass, and there is a commit" in played.stdout, played.stdout + played.stderr
    assert ("Traceback" in played.stderr, "Warning" in played.stderr) == (False, False), played.stderr


@pytest.fixture
def lowest(built: Built, tmp_path: Path) -> Installed:
    lowest = Installed(tmp_path / "lowest")
    subprocess.run([UV, "venv", "--python", sys.executable, lowest.prefix], check=True)
    install = [UV, "pip", "install", "--python", lowest.prefix]
    oldest = ["--resolution", "lowest-direct", "-r", ROOT / "pyproject.toml", "--extra", "embedded"]
    subprocess.run([*install, *oldest], check=True)
    subprocess.run([*install, "--no-deps", built.wheel], check=True)
    return lowest
