"""Which API a command uses, and which token it sends there."""

from __future__ import annotations

from pathlib import Path

import pytest

from turngate.cli.api_link import find_api
from turngate.cli.parts import confinement
from turngate.domain.errors import ConfigurationError
from turngate.runtime.locations import RunningStack, default_data_dir, linked_from_here, own_state, stack_links
from turngate.runtime.settings import load_settings
from turngate.toolkits.private_files import PRIVATE_FILES


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("TURNGATE_DATA_DIR", "TURNGATE_API_URL", "TURNGATE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    return project


def test_i13_a_stacks_token_goes_to_that_stack_alone(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What listens on the usual port may be another project's, or an agent's: the token of a stack that is down stays here."""
    data_dir = default_data_dir()
    data_dir.mkdir(parents=True)
    (data_dir / "token").write_text("tg_owner")
    with pytest.raises(ConfigurationError, match="start it again with `turngate up`"):
        find_api()
    link = find_api(url="http://127.0.0.1:9")
    assert (link.url, link.token) == ("http://127.0.0.1:9", "tg_owner")
    monkeypatch.setenv("TURNGATE_TOKEN", "tg_named")
    assert (find_api().url, find_api().token) == ("http://127.0.0.1:8321", "tg_named")
    RunningStack(temporal_address="", api_url="http://127.0.0.1:8400").write(data_dir)
    monkeypatch.delenv("TURNGATE_TOKEN")
    assert (find_api().url, find_api().token) == ("http://127.0.0.1:8400", "tg_owner")


def test_a_stack_on_another_port_and_with_other_data_is_found(here: Path, tmp_path: Path) -> None:
    """The command needs no option in the directory where the stack was started."""
    data_dir = tmp_path / "elsewhere"
    data_dir.mkdir()
    (data_dir / "token").write_text("tg_owner")
    RunningStack(temporal_address="", api_url="http://127.0.0.1:8400").write(data_dir)
    with pytest.raises(ConfigurationError, match="no Turngate has run from"):
        find_api()
    with linked_from_here(data_dir):
        link = find_api()
    assert (link.url, link.token, link.data_dir, link.options) == ("http://127.0.0.1:8400", "tg_owner", data_dir, "")


def test_links_for_people_lead_to_the_public_address(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests go to the API's own address. An API that an option names is another one, whose public address isn't known."""
    monkeypatch.setenv("TURNGATE_TOKEN", "tg_named")
    monkeypatch.setenv("TURNGATE_API_URL", "http://127.0.0.1:8400")
    assert find_api().pages == "http://127.0.0.1:8400"
    monkeypatch.setenv("TURNGATE_PUBLIC_URL", "https://approvals.example.com/")
    assert (find_api().url, find_api().pages) == ("http://127.0.0.1:8400", "https://approvals.example.com")
    assert find_api(url="http://127.0.0.1:9").pages == "http://127.0.0.1:9"


def test_the_public_address_is_learnt_from_the_running_stack(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a shell without the variable. It isn't the address of another API, which the environment names."""
    data_dir = tmp_path / "stack"
    data_dir.mkdir()
    note = RunningStack(temporal_address="", api_url="http://127.0.0.1:8400", public_url="https://h.example/turngate")
    note.write(data_dir)
    monkeypatch.setenv("TURNGATE_TOKEN", "tg_named")
    assert find_api(data_dir).pages == "https://h.example/turngate"
    monkeypatch.setenv("TURNGATE_API_URL", "http://127.0.0.1:9")
    assert find_api(data_dir).pages == "http://127.0.0.1:9"


def test_i13_no_tool_reaches_the_links_to_stacks(here: Path, tmp_path: Path) -> None:
    """Else an agent could lead people's commands to a stack of its own. Its processes don't see the directory either."""
    settings = load_settings(data_dir=tmp_path / "elsewhere", workspaces=(tmp_path,))
    settings.ensure_data_dir()
    try:
        workspaces = confinement.workspaces_of(settings)
        assert workspaces.refusal(str(here)) is None
        for place in (stack_links(), stack_links().parent, tmp_path / "state"):
            refusal = workspaces.refusal(str(place))
            assert refusal is not None
            assert "Turngate's data directory" in refusal
    finally:
        PRIVATE_FILES.clear()
    assert own_state().resolve() in confinement.tool_confinement(settings).hidden
