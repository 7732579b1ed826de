"""`scripts/cluster` and the configuration of its services: what is refused, and that pins and files agree. Nothing is built."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "scripts" / "cluster"
ROOMY = "MemAvailable: 99999999 kB\n"


def _loaded(name: str, path: Path) -> ModuleType:
    """Import a file, whatever its name ends with."""
    loader = importlib.machinery.SourceFileLoader(name, str(path))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    writes_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    loader.exec_module(module)
    sys.dont_write_bytecode = writes_bytecode
    return module


@pytest.fixture(scope="module")
def cluster() -> ModuleType:
    return _loaded("cluster_script", PROGRAM)


@pytest.fixture(scope="module")
def services() -> ModuleType:
    chaos = str(ROOT / "tests" / "chaos")
    sys.path.insert(0, chaos)
    try:
        return _loaded("temporal_services", ROOT / "tests" / "cluster" / "temporal_services.py")
    finally:
        sys.path.remove(chaos)


class Checkout:
    """A copy of the program in a checkout of its own, with a PATH and a memory of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._bin = directory / "bin"
        self._meminfo = directory / "meminfo"
        self._cgroups = directory / "cgroups"
        self._bin.mkdir()
        self._cgroups.mkdir()
        (directory / "scripts").mkdir()
        shutil.copy(PROGRAM, directory / "scripts" / "cluster")
        self.memory(ROOMY)

    def memory(self, text: str) -> None:
        self._meminfo.write_text(text)

    def cgroup(self, files: dict[str, str], *, under: str) -> None:
        (self._cgroups / under).mkdir(exist_ok=True)
        for name, text in files.items():
            (self._cgroups / under / name).write_text(text)

    def program(self, name: str, script: str) -> None:
        (self._bin / name).write_text(f"#!/bin/sh\n{script}\n")
        (self._bin / name).chmod(0o755)

    def run(self, *arguments: str) -> tuple[int, str]:
        """Run it; returns the exit code and what it printed."""
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(self.directory / "scripts" / "cluster"), *arguments],
            env={
                "PATH": str(self._bin),
                "CLUSTER_MEMINFO": str(self._meminfo),
                "CLUSTER_CGROUPS": str(self._cgroups),
                "HOME": os.environ["HOME"],
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def go(download: object) -> str:
    """A `go` that is new enough and answers a download so."""
    return (
        f'[ "$1" = version ] && echo go version go1.99.0 linux/amd64 && exit\necho {json.dumps(json.dumps(download))}'
    )


def test_help_says_what_it_does(checkout: Checkout) -> None:
    """`--help` ends with 0 and names every command; an unknown one is refused."""
    code, text = checkout.run("--help")
    assert code == 0
    assert all(f"scripts/cluster {command}" in text for command in ("build", "up", "run"))
    assert checkout.run("destroy")[0] == 2


@pytest.mark.parametrize("command", ["build", "up", "run"])
def test_without_go_nothing_is_green(checkout: Checkout, command: str) -> None:
    """Where Go is missing every command says what to install, and ends with 1."""
    python = checkout.directory / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    checkout.program("initdb", "exit 0")
    code, text = checkout.run(command)
    assert (code, "no `go` on PATH" in text, "install Go 1.26.8 or newer" in text) == (1, True, True), text


def test_without_an_environment_it_says_which_command_makes_one(checkout: Checkout) -> None:
    """`run` needs this checkout's Python."""
    code, text = checkout.run("run")
    assert (code, "make setup-dev" in text) == (1, True), text


@pytest.mark.parametrize("says", ["go version go1.26.7 linux/amd64", "go version go1.9 linux/amd64", "nonsense"])
def test_an_old_go_is_refused(checkout: Checkout, says: str) -> None:
    """Go would fetch another toolchain by itself; here it is refused."""
    checkout.program("go", f"echo {says}")
    code, text = checkout.run("build")
    assert (code, "Go 1.26.8 or newer is needed" in text, says in text) == (1, True, True), text


def test_too_little_memory_is_refused(checkout: Checkout) -> None:
    """A build that the kernel would kill is not begun."""
    checkout.program("go", go({}))
    checkout.memory("MemTotal: 9 kB\nMemAvailable: 1048576 kB\n")
    code, text = checkout.run("build")
    assert (code, "3 GiB of memory are needed to build Temporal's server, and 1.0 are free" in text) == (1, True), text


@pytest.mark.parametrize(
    ("under", "limit", "usage", "droppable"),
    [
        (".", "memory.max", "memory.current", "inactive_file"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ],
)
def test_a_containers_limit_counts(checkout: Checkout, under: str, limit: str, usage: str, droppable: str) -> None:
    """With 4 GiB, 3.5 of them used and half a GiB of that a cache, one is left; without a limit it is the machine's."""
    checkout.program("go", go({}))
    gib = 2**30
    files = {limit: f"{4 * gib}\n", usage: f"{7 * gib // 2}\n", "memory.stat": f"anon 7\n{droppable} {gib // 2}\n"}
    checkout.cgroup(files, under=under)
    code, text = checkout.run("build")
    assert (code, "and 1.0 are free" in text) == (1, True), text
    checkout.cgroup({limit: "max\n"}, under=under)
    assert "are free" not in checkout.run("build")[1]


def test_too_little_disk_is_refused(cluster: ModuleType, tmp_path: Path) -> None:
    """No disk has a thousand times more than all of it."""
    with pytest.raises(cluster.CannotRunError, match="GiB of disk are needed for it"):
        cluster.require_disk(tmp_path, shutil.disk_usage(tmp_path).total * 1000, "for it")


def test_a_module_with_another_hash_is_refused(cluster: ModuleType, checkout: Checkout) -> None:
    """The pinned hash decides, whatever the module's proxy or a checksum database says; nothing is built."""
    checkout.program("go", go({"Sum": "h1:other=", "GoModSum": cluster.GO_MOD_HASH, "Dir": str(checkout.directory)}))
    code, text = checkout.run("build")
    assert (code, "has the hash h1:other=" in text, "nothing was built" in text) == (1, True, True), text
    assert not (checkout.directory / ".cluster").exists()


def test_a_download_that_fails_is_explained(checkout: Checkout) -> None:
    """Without a module proxy there is no server, and no success."""
    checkout.program("go", go({"Error": "dial tcp: no route"}))
    code, text = checkout.run("build")
    assert (code, "can't download" in text, "no route" in text) == (1, True, True), text


def test_a_build_that_fails_leaves_nothing_that_counts(cluster: ModuleType, checkout: Checkout) -> None:
    """The next call builds again: what was built is noted at the end."""
    good = {"Sum": cluster.MODULE_HASH, "GoModSum": cluster.GO_MOD_HASH, "Dir": str(checkout.directory)}
    checkout.program("go", f'[ "$1" = build ] && exit 7\n{go(good)}')
    code, text = checkout.run("build")
    assert (code, "failed with exit code 7" in text) == (1, True), text
    assert not list((checkout.directory / ".cluster").rglob("built.json"))


def test_what_is_built_is_used_again(cluster: ModuleType, checkout: Checkout) -> None:
    """A second call needs no Go."""
    place = checkout.directory / ".cluster" / f"temporal-{cluster.VERSION}"
    (place / "bin").mkdir(parents=True)
    for name in cluster.PROGRAMS:
        (place / "bin" / name).touch(mode=0o755)
    noted = {"module": cluster.MODULE, "version": cluster.VERSION, "hash": cluster.MODULE_HASH}
    (place / "built.json").write_text(json.dumps(noted))
    assert checkout.run("build") == (0, f"{place}\n")
    (place / "built.json").write_text(json.dumps({**noted, "hash": "h1:older="}))
    assert checkout.run("build")[0] == 1


def test_the_pins_agree(cluster: ModuleType) -> None:
    """One version, its hashes as go.sum writes them; the page that documents it names the same; nothing tracked is built into."""
    assert re.fullmatch(r"v1\.32\.\d+", cluster.VERSION)
    for pinned in (cluster.MODULE_HASH, cluster.GO_MOD_HASH):
        assert re.fullmatch(r"h1:[A-Za-z0-9+/]{43}=", pinned)
    page = (ROOT / "docs" / "howto" / "run-on-a-temporal-cluster.md").read_text()
    assert cluster.VERSION.removeprefix("v") in page
    assert f"{cluster.CACHE.name}/" in (ROOT / ".gitignore").read_text().splitlines()


def test_the_services_configuration_is_whole(services: ModuleType) -> None:
    """Four services, each with ports of its own on loopback, over four history shards and two databases, as YAML."""
    ports = services.Ports.free()
    wanted = services.configuration(ports, 5432, services.DYNAMIC)
    read = yaml.safe_load(yaml.safe_dump(wanted))
    assert read == wanted
    assert sorted(read["services"]) == ["frontend", "history", "matching", "worker"]
    rpcs = [each["rpc"] for each in read["services"].values()]
    assert {each["bindOnIP"] for each in rpcs} == {"127.0.0.1"}
    assert len({port for each in rpcs for port in (each["grpcPort"], each["membershipPort"])}) == 2 * len(rpcs)
    persistence = read["persistence"]
    assert persistence["numHistoryShards"] >= 4
    stores = [persistence["datastores"][persistence[each]]["sql"] for each in ("defaultStore", "visibilityStore")]
    assert [each["databaseName"] for each in stores] == ["temporal", "temporal_visibility"]


def test_the_dynamic_configuration_has_what_the_embedded_server_has(services: ModuleType) -> None:
    """What Turngate's own server is tuned with is what the file for a cluster sets, queue by queue where it has to."""
    from turngate.runtime.embedded_temporal import TUNING  # noqa: PLC0415 - only this test needs it
    from turngate.runtime.settings import Settings  # noqa: PLC0415
    from turngate.workflows import lanes  # noqa: PLC0415

    read = yaml.safe_load(services.DYNAMIC.read_text())
    tuned = {name: json.loads(value) for name, _, value in (each.partition("=") for each in TUNING)}
    assert {name: values[0]["value"] for name, values in read.items()} == tuned
    queue = Settings.model_fields["task_queue"].default
    for name, values in read.items():
        if "constraints" in values[0]:
            queues = {each["constraints"]["taskQueueName"] for each in values}
            assert (name, queues) == (name, {queue, f"{queue}{lanes.MODELS}", f"{queue}{lanes.RECORDS}"})
