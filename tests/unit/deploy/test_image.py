"""The image's Dockerfile and its bill of materials, as far as they can be checked without Docker."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from importlib.metadata import distributions, version
from pathlib import Path

import pytest
from support.project.chart import render, worker_security

ROOT = Path(__file__).parents[3]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
INSTRUCTION = re.compile(r"^([A-Z]+) (.*)$", re.MULTILINE)


def stages() -> list[list[tuple[str, str]]]:
    """Return the instructions of each stage, continued lines joined."""
    text = "\n".join(line for line in DOCKERFILE.read_text().splitlines() if not line.startswith("#"))
    instructions = INSTRUCTION.findall(re.sub(r"\\\n\s*", "", text))
    begins = [place for place, (name, _rest) in enumerate(instructions) if name == "FROM"]
    return [instructions[begin:end] for begin, end in zip(begins, [*begins[1:], None], strict=True)]


@pytest.mark.exhaustive
def test_hadolint_has_no_complaint() -> None:
    """The linter reads the shell of RUN lines, too."""
    hadolint = Path(sys.executable).parent / "hadolint"
    result = subprocess.run([hadolint, "--no-color", DOCKERFILE], capture_output=True, text=True, check=False)
    assert (result.stdout, result.returncode) == ("", 0)


def test_the_base_is_pinned_and_the_same_for_each_stage() -> None:
    """An exact version by its digest, which no one can move."""
    bases = {rest.partition(" AS ")[0] for stage in stages() for name, rest in stage if name == "FROM"}
    assert bases == {"${BASE}"}
    (base,) = re.findall(r"^ARG BASE=(.*)$", DOCKERFILE.read_text(), re.MULTILINE)
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-[a-z]+@sha256:[0-9a-f]{64}", base)


@pytest.mark.exhaustive
def test_the_last_stage_builds_nothing_and_is_not_root() -> None:
    """No installer is used or left, the user is a number other than root's, and it is the chart's."""
    last = stages()[-1]
    runs = " ".join(rest for name, rest in last if name == "RUN")
    assert "pip uninstall --yes --quiet setuptools wheel pip" in runs
    assert not re.search(r"pip (install|download|wheel)|apt-get|curl|wget|git ", runs)
    users = [rest for name, rest in last if name == "USER"]
    assert users == [str(worker_security(render())["runAsUser"])]
    assert {rest for name, rest in last if name == "COPY"} == {"--from=built /opt/turngate /opt/turngate"}


def test_what_is_copied_is_there_and_sent_to_the_build() -> None:
    """A renamed directory fails here, not in the next build; the ignore file lets through no more than what is copied."""
    copied = {
        source
        for name, rest in stages()[0]
        if name == "COPY"
        for source in shlex.split(rest)[:-1]
        if not source.startswith("--")
    }
    assert all((ROOT / source).exists() for source in copied)
    ignore = (ROOT / "deploy" / "Dockerfile.dockerignore").read_text().splitlines()
    assert {line[1:] for line in ignore if line.startswith("!")} == copied


def test_the_bill_of_an_image_has_what_is_installed_in_it(tmp_path: Path) -> None:
    """Here, by the same command: everything in the environment that runs this, with licences, and Turngate at its root."""
    (command,) = re.findall(r"/bill/bin/(cyclonedx-py .*) --output-file", DOCKERFILE.read_text())
    program, *arguments = shlex.split(command)
    bill = tmp_path / "sbom.json"
    line = [Path(sys.executable).parent / program, *arguments, "--output-file", bill, sys.executable]
    subprocess.run(line, cwd=ROOT, capture_output=True, check=True)
    written = json.loads(bill.read_text())
    listed = {each["name"]: each for each in written["components"]}
    assert listed["temporalio"]["version"] == version("temporalio")
    assert listed["temporalio"]["licenses"]
    assert written["metadata"]["component"]["name"] == "turngate"
    assert {each.name.lower() for each in distributions()} - {"turngate"} == {name.lower() for name in listed}
