"""The locks of running, testing and everything: with hashes, without addresses, in agreement with pyproject.toml."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
RUN = ROOT / "requirements.lock"
DEV = ROOT / "requirements-dev.lock"
ALL = ROOT / "requirements-all.lock"
ENTRY = re.compile(
    r"(?P<name>[a-z0-9-]+)==(?P<version>[^\s;]+)( ; (?P<marker>[^\\]+))? \\\n(?P<hashes>(    --hash=.*\n)+)"
)
HASH = re.compile(r"    --hash=sha256:([0-9a-f]{64})(?: \\)?")


@dataclass(frozen=True)
class Pin:
    """One version, the files it may come as, and where it is needed (None: everywhere)."""

    version: str
    hashes: frozenset[str]
    marker: str | None


def entries(lock: Path) -> dict[str, Pin]:
    """Return the pins by name. Every line of the file belongs to one of them or is a comment."""
    text = "".join(line for line in lock.read_text().splitlines(keepends=True) if not line.lstrip().startswith("#"))
    pins = list(ENTRY.finditer(text))
    assert "".join(entry.group() for entry in pins) == text
    locked = {}
    for entry in pins:
        hashes = [HASH.fullmatch(line) for line in entry["hashes"].splitlines()]
        assert None not in hashes, entry["name"]
        sums = frozenset(match[1] for match in hashes if match)
        locked[entry["name"]] = Pin(entry["version"], sums, entry["marker"])
    assert len(locked) == len(pins)
    return locked


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def group(name: str) -> list[str]:
    wanted = pyproject()["dependency-groups"][name]
    included = [line for item in wanted if isinstance(item, dict) for line in group(item["include-group"])]
    return included + [item for item in wanted if isinstance(item, str)]


def wanted_by(lock: Path) -> list[Requirement]:
    project = pyproject()["project"]
    lines = list(project["dependencies"])
    if lock == RUN:
        lines += [each for name in ("embedded", "postgres") for each in project["optional-dependencies"][name]]
    else:
        lines += group("dev") + (group("deploy") if lock == ALL else [])
        lines += [line for extra in project["optional-dependencies"].values() for line in extra]
    return [Requirement(line) for line in lines]


def closure(roots: list[Requirement]) -> set[str]:
    """Return the names that the roots lead to on this platform, by the metadata of what is installed.

    Each installed version fits all that ask for it: set-up installs a lock as it is, and pip resolves nothing.
    """
    seen: set[tuple[str, str]] = set()
    waiting = list(roots)
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        assert requirement.specifier.contains(distribution(name).version, prereleases=True), requirement
        for extra in {"", *requirement.extras}:
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            needs = map(Requirement, distribution(name).requires or ())
            waiting += [need for need in needs if need.marker is None or need.marker.evaluate({"extra": extra})]
    return {name for name, _extra in seen}


@pytest.mark.parametrize("lock", [RUN, DEV, ALL], ids=lambda lock: lock.name)
def test_a_lock_has_hashes_and_no_address(lock: Path) -> None:
    """Each entry is a name, a version and SHA-256 sums; there is no option, no path and no URL beside them."""
    assert len(entries(lock)) > 50
    assert "://" not in lock.read_text()


def test_tests_run_on_the_versions_that_run() -> None:
    """Whatever a lock pins, the next larger one pins to the same version and the same files."""
    for small, large in ((entries(RUN), entries(DEV)), (entries(DEV), entries(ALL))):
        assert small.keys() <= large.keys()
        assert {name: (pin.version, pin.hashes) for name, pin in small.items()} == {
            name: (large[name].version, large[name].hashes) for name in small
        }


@pytest.mark.parametrize(
    "lock", [RUN, DEV, pytest.param(ALL, marks=pytest.mark.exhaustive)], ids=lambda lock: lock.name
)
def test_a_lock_is_what_pyproject_leads_to(lock: Path) -> None:
    """Nothing that pyproject.toml asks for is missing or of a version that does not fit, and nothing else is there."""
    locked, roots = entries(lock), wanted_by(lock)
    assert [str(root) for root in roots if locked[canonicalize_name(root.name)].version not in root.specifier] == []
    here = {name for name, pin in locked.items() if pin.marker is None or Marker(pin.marker).evaluate()}
    assert here == closure(roots)


def test_the_bill_of_materials_is_of_the_lock_that_runs() -> None:
    """`make sbom` writes the same bytes again: valid CycloneDX of every pin with its hashes, and without an index's address."""
    from cyclonedx.schema import SchemaVersion  # noqa: PLC0415 - slow, and not needed to collect the tests
    from cyclonedx.validation.json import JsonStrictValidator  # noqa: PLC0415 - the same

    bill = (ROOT / "sbom.cdx.json").read_text()
    (arguments,) = re.findall(r'/cyclonedx-py" (.*)', (ROOT / "Makefile").read_text())
    line = [Path(sys.executable).parent / "cyclonedx-py", *shlex.split(arguments.replace("sbom.cdx.json", "-"))]
    written = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert bill == written, "pyproject.toml or requirements.lock has changed: run make sbom"
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(bill) is None
    components = {each["name"]: each for each in json.loads(bill)["components"]}
    assert {name: each["version"] for name, each in components.items()} == {
        name: pin.version for name, pin in entries(RUN).items()
    }
    (references,) = zip(*(each["externalReferences"] for each in components.values()), strict=True)
    assert [each["url"] for each in references] == [f"/{name}/" for name in components]
    assert {name: len(each["hashes"]) for name, each in zip(components, references, strict=True)} == {
        name: len(pin.hashes) for name, pin in entries(RUN).items()
    }
