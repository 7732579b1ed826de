import socket

import pytest

from turngate.cli.api_server import listen
from turngate.cli.temporal_link import connect_when_there, find_address
from turngate.domain.errors import ConfigurationError, UnavailableError
from turngate.runtime import embedded_temporal
from turngate.runtime.locations import RunningStack
from turngate.runtime.settings import load_settings


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    monkeypatch.delenv("TEMPORAL_ADDRESS", raising=False)


def test_a_taken_port_is_named_with_the_option_that_changes_it():
    """The person learns which port and what to type."""
    with listen("127.0.0.1", embedded_temporal.choose_port()) as first:
        port = first.getsockname()[1]
        with pytest.raises(ConfigurationError, match=rf"port {port} on 127\.0\.0\.1 is taken.*--port PORT"):
            listen("127.0.0.1", port)


def test_the_port_is_ours_from_the_first_moment():
    """Between taking the port and serving on it no other program can take it."""
    with listen("127.0.0.1", embedded_temporal.choose_port()) as ours, socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with pytest.raises(OSError, match="in use"):
            other.bind(ours.getsockname())


def test_an_address_of_another_machine_is_refused():
    """A wrong TURNGATE_API_HOST is named."""
    with pytest.raises(ConfigurationError, match="TURNGATE_API_HOST"):
        listen("192.0.2.1", embedded_temporal.choose_port())


def test_temporal_is_found_where_it_runs_or_ran(tmp_path, monkeypatch):
    """TEMPORAL_ADDRESS comes first, then the running stack, then the port it used last."""
    assert find_address(load_settings(data_dir=tmp_path)) is None
    (tmp_path / "temporal.port").write_text("20001\n")
    assert find_address(load_settings(data_dir=tmp_path)) == "127.0.0.1:20001"
    RunningStack(temporal_address="127.0.0.1:20002", api_url="http://127.0.0.1:1").write(tmp_path)
    assert find_address(load_settings(data_dir=tmp_path)) == "127.0.0.1:20002"
    monkeypatch.setenv("TEMPORAL_ADDRESS", "temporal.example:7233")
    assert find_address(load_settings(data_dir=tmp_path)) == "temporal.example:7233"


async def test_waiting_for_temporal_prints_one_note_and_ends(tmp_path, monkeypatch):
    """A worker that starts before Temporal waits visibly, and gives up with the reason."""
    monkeypatch.setenv("TEMPORAL_ADDRESS", f"127.0.0.1:{embedded_temporal.choose_port()}")
    notes: list[str] = []
    with pytest.raises(UnavailableError, match=r"waited 0\.5 s for Temporal: Temporal does not answer"):
        await connect_when_there(load_settings(data_dir=tmp_path), notes.append, wait_seconds=0.5)
    assert len(notes) == 1
    assert "waiting up to" in notes[0]


async def test_an_unknown_temporal_says_how_to_name_one(tmp_path):
    """Nothing ran here and nothing is named: the message gives both ways out."""
    with pytest.raises(UnavailableError, match=r"turngate temporal.*TEMPORAL_ADDRESS"):
        await connect_when_there(load_settings(data_dir=tmp_path), lambda _text: None, wait_seconds=0)
