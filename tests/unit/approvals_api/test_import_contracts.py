"""Which parts of the API load a web framework, and which may call Temporal: the contracts cover every part."""

from __future__ import annotations

import configparser
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
WITHOUT_WEB_FRAMEWORK = """
import importlib, importlib.abc, sys

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"fastapi", "starlette"}:
            raise ModuleNotFoundError(f"no module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own, from the checkout's root."""
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def modules_of(contract: str) -> set[str]:
    parser = configparser.ConfigParser()
    parser.read(ROOT / ".importlinter")
    return set(parser[f"importlinter:contract:{contract}"]["source_modules"].split())


def parts() -> set[str]:
    """Every module and package directly below approvals_api."""
    entries = (ROOT / "approvals_api").iterdir()
    names = {each.stem for each in entries if each.suffix == ".py" or (each / "__init__.py").exists()}
    return {f"turngate.approvals_api.{name}" for name in names - {"__init__"}}


def test_only_the_gateway_is_free_of_the_contract_about_temporal() -> None:
    """Every part of approvals_api but the gateway is a source of the contract that forbids temporalio."""
    assert modules_of("one-temporal-gateway") == parts() - {"turngate.approvals_api.gateway"}


def test_only_the_faces_of_the_api_are_free_of_the_contract_about_http() -> None:
    """Every part of approvals_api but the app, HTTP, the JSON API and the pages must not reach a web framework."""
    faces = {f"turngate.approvals_api.{name}" for name in ("app", "http", "v1", "pages")}
    assert modules_of("operations-know-no-http") == (parts() - faces) | {"turngate.evals", "turngate.testing"}


@pytest.mark.exhaustive
@pytest.mark.parametrize("module", ["turngate.approvals_api.runs.start", "turngate.approvals_api.requests.decide"])
def test_operations_load_no_web_framework(module: str) -> None:
    """A process that imports an operation has loaded neither FastAPI nor Starlette."""
    done = python(f"import sys, {module}; print([name for name in ('fastapi', 'starlette') if name in sys.modules])")
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr


@pytest.mark.exhaustive
@pytest.mark.parametrize("module", ["turngate.testing", "turngate.evals"])
def test_what_builders_try_agents_with_needs_no_web_framework(module: str) -> None:
    """turngate.testing and turngate.evals can be imported where no web framework is installed."""
    done = python(f"{WITHOUT_WEB_FRAMEWORK}\nimport {module}")
    assert done.returncode == 0, done.stderr


@pytest.mark.exhaustive
def test_recovery_needs_no_web_framework(tmp_path: Path) -> None:
    """`turngate recover` gets as far as Temporal, which is away here, where no web framework is installed."""
    code = f"{WITHOUT_WEB_FRAMEWORK}\nimport sys\nfrom turngate.cli.main import main\nsys.argv = ['turngate', 'recover']\nmain()"
    done = python(code, TURNGATE_DATA_DIR=str(tmp_path), TURNGATE_TEMPORAL_ADDRESS="127.0.0.1:1")
    assert done.returncode != 0
    assert "Temporal does not answer" in done.stderr
    assert "no module named" not in done.stderr
