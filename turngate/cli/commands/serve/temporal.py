"""``turngate temporal``: the embedded Temporal alone."""

from __future__ import annotations

from turngate.cli import terminal
from turngate.cli.commands.serve.settings import server_settings
from turngate.cli.options import DataDir, TemporalPort, TemporalUi
from turngate.cli.parts.temporal import embedded_temporal
from turngate.cli.posix_signals import run_server, stop_on_posix_signals
from turngate.runtime.settings import Settings


def temporal(data_dir: DataDir = None, port: TemporalPort = None, ui: TemporalUi = False) -> None:
    """Run the embedded Temporal alone, for a worker and an API on this machine."""
    serve_temporal(server_settings(data_dir=data_dir, temporal_port=port), ui=ui)


def serve_temporal(settings: Settings, *, ui: bool) -> None:
    """Run the embedded Temporal alone until SIGINT or SIGTERM."""

    async def serve() -> None:
        with stop_on_posix_signals() as stop:
            async with embedded_temporal(settings, settings.temporal_port, ui=ui) as server:
                web = f", its pages {server.ui_url}" if server.ui_url else ""
                terminal.line(f"Temporal serves {server.address}{web}")
                stop.running()
                await stop.requested.wait()
            terminal.note("Temporal stopped")

    run_server(serve())
