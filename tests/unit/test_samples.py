"""Each Python sample of the documents runs unchanged: its imports are in it, and what it names exists."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.project.samples import EXAMPLES, PAGES, ROOT, run_sample, samples_of, write_scaffold

from turngate import ConfigurationError
from turngate.domain.retention import read_retention
from turngate.evals.cases import parse_cases
from turngate.models.profiles import load_profiles
from turngate.models.scripted import ScriptedModel
from turngate.notifications.configuration import read_tables
from turngate.runtime.policy_files import read_policy

SAMPLES = [
    pytest.param(page, number, id=f"{page.stem}-{number}") for page in PAGES for number in range(len(samples_of(page)))
]
OTHER_PORT = re.compile(r"(?:127\.0\.0\.1|localhost):(?!8321\b)(\d{4,5})")
NOT_OURS = {
    "9000": "the reader's own program that gets webhooks",
    "11434": "Ollama",
    "8000": "vLLM",
    "4318": "a collector",
    "8233": "the pages of Temporal's own server",
}
BESIDE = {
    "8322": "a second API on the same host",
    "9464": "metrics, off by default",
    "9466": "those of another process",
}


@pytest.fixture
def beside_the_examples(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Import what samples import from the examples and the scaffold, and forget it."""
    before = set(sys.modules)
    write_scaffold(tmp_path)
    for directory in (tmp_path, *(ROOT / "examples" / each for each in EXAMPLES)):
        monkeypatch.syspath_prepend(directory)
    monkeypatch.setenv("TURNGATE_TOKEN", "tg_sample")
    monkeypatch.delenv("TURNGATE_MODEL", raising=False)
    monkeypatch.chdir(tmp_path)
    yield
    for name in set(sys.modules) - before:
        if name.endswith("_app"):
            del sys.modules[name]


FILES = [
    pytest.param(language, sample, id=f"{page.stem}-{language}-{number}")
    for page in PAGES
    for language in ("toml", "yaml", "json")
    for number, sample in enumerate(samples_of(page, language))
]


@pytest.mark.parametrize(("language", "sample"), FILES)
def test_a_sample_of_a_file_is_one(language: str, sample: str, tmp_path: Path) -> None:
    """Turngate reads it: a policy, channels, retention, profiles of models, cases, a script; or it is another's JSON."""
    file = tmp_path / f"sample.{language}"
    file.write_text(sample, encoding="utf-8")
    if language == "json":
        assert json.loads(sample)
    elif language == "yaml":
        assert parse_cases(sample, "a page") if "cases:\n  - name" in sample else ScriptedModel.from_file(file)
    elif "[[channel]]" in sample:
        assert read_tables(file)
    elif 'keep = "' in sample:
        assert read_retention(sample)
    elif "[profile." in sample:
        assert load_profiles(file)
    else:
        assert read_policy(file).rule


@pytest.mark.parametrize(("page", "number"), SAMPLES)
@pytest.mark.usefixtures("beside_the_examples")
def test_a_sample_runs(page: Path, number: int) -> None:
    """It needs nothing from before it on its page."""
    run_sample(page, number)


@pytest.mark.usefixtures("beside_the_examples")
async def test_the_sample_test_passes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The test that the page on tests shows is one."""
    monkeypatch.chdir(ROOT / "examples" / "refunds")
    sample = run_sample(ROOT / "docs" / "howto" / "test-an-agent.md", 0)
    await sample["test_a_refund_waits_for_a_person_and_runs_once"](tmp_path)


@pytest.mark.usefixtures("beside_the_examples")
async def test_the_sample_evaluation_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cases that the page on evaluation shows pass."""
    monkeypatch.chdir(ROOT / "examples" / "evals")
    sample = run_sample(ROOT / "docs" / "howto" / "evaluate-an-agent.md", 0)
    await sample["test_small_credits_are_given"]()


@pytest.mark.usefixtures("beside_the_examples")
def test_the_sample_of_mcp_servers_starts_its_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets as far as the program that the reader has to install."""
    monkeypatch.setenv("PATH", "")
    sample = run_sample(ROOT / "docs" / "howto" / "bring-an-mcp-server.md", 0)
    with pytest.raises(ConfigurationError, match="no program 'mcp-server-git'"):
        sample["kit_of_servers"]()


def test_no_document_has_another_port() -> None:
    """A reader who copies an address from a document reaches the server that the document started."""
    pages = [*PAGES, *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").rglob("*.md")]
    ports = {(page.name, port) for page in pages for port in OTHER_PORT.findall(page.read_text(encoding="utf-8"))}
    assert {each for each in ports if each[1] not in {**NOT_OURS, **BESIDE}} == set()
