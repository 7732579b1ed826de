"""Where everything can't run in one process."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from turngate.cli.main import app
from turngate.cli.options import DEFAULT_APP


@pytest.mark.parametrize("command", ["up", "dev"])
def test_a_deployment_with_tenants_is_not_run_in_one_process(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tenants would share a process with Temporal's server, which has no namespaces for them."""
    (tmp_path / "tenants.toml").write_text('[acme]\nhosts = ["acme.test"]\n')
    monkeypatch.setenv("TURNGATE_TENANTS", str(tmp_path / "tenants.toml"))
    monkeypatch.setenv("TURNGATE_TENANT", "acme")
    monkeypatch.setenv("TURNGATE_DATA_DIR", str(tmp_path / "data"))
    outcome = CliRunner().invoke(app, [command, DEFAULT_APP])
    assert outcome.exit_code == 2
    assert "runs in parts" in " ".join(outcome.stderr.split())
    assert list((tmp_path / "data").glob("**/temporal*")) == []
