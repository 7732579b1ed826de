"""``turngate up`` and its parts as separate processes: ``worker``, ``api``, ``temporal``, ``migrate``."""

from __future__ import annotations

from typing import Annotated

import typer

from turngate.cli.options import DEFAULT_APP, ApiPort, AppArgument, DataDir, TemporalPort, TemporalUi
from turngate.runtime.settings import Settings, load_settings
from turngate.runtime.telemetry import configure_logging

# The servers import Temporal, FastAPI and SQLAlchemy, which takes longer than most other commands take altogether;
# hence the imports inside the functions.


def up(
    app: AppArgument = DEFAULT_APP,
    port: ApiPort = None,
    data_dir: DataDir = None,
    temporal_port: TemporalPort = None,
    temporal_ui: TemporalUi = False,
) -> None:
    """Run everything here: Temporal, the store, a worker with APP, the API and the operators' pages.

    Prints a link that logs your browser in. Runs survive a stop: start again with the same data directory and they go
    on. Stop with Ctrl-C.
    """
    from turngate.cli import servers  # noqa: PLC0415 - slow to import

    servers.serve_stack(
        _settings(api_port=port, data_dir=data_dir, temporal_port=temporal_port), app, temporal_ui=temporal_ui
    )


def worker(
    app: AppArgument = DEFAULT_APP,
    build_id: Annotated[
        str | None,
        typer.Option(
            metavar="BUILD",
            help="The build this worker is of. A run stays with the build that began it, and new runs go to the current "
            "one: `turngate builds`.",
            show_default="$TURNGATE_BUILD_ID, else none: it takes every run",
        ),
    ] = None,
    tools: Annotated[
        int | None,
        typer.Option(
            "--tools-at-once",
            metavar="N",
            help="How many tool calls may run here at once; more wait in Temporal, oldest first.",
            show_default="$TURNGATE_TOOL_CALLS_AT_ONCE, else 100",
        ),
    ] = None,
    models: Annotated[
        int | None,
        typer.Option(
            "--models-at-once",
            metavar="N",
            help="How many model requests, in places apart, so that long tools hold up none.",
            show_default="$TURNGATE_MODEL_REQUESTS_AT_ONCE, else they share the tools' places",
        ),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Run a worker with APP: it calls models and runs tools. Start as many as you like.

    Finds Temporal by TEMPORAL_ADDRESS, or by the data directory that `turngate up` or `turngate temporal` uses.
    """
    from turngate.cli import servers  # noqa: PLC0415 - slow to import

    at_once = {"tool_calls_at_once": tools, "model_requests_at_once": models}
    servers.serve_worker(_settings(data_dir=data_dir, build_id=build_id, **at_once), app)


def api(
    app: Annotated[
        str | None,
        typer.Argument(
            metavar="APP", show_default=False, help="Publish this app's agents before any worker has come up."
        ),
    ] = None,
    port: ApiPort = None,
    data_dir: DataDir = None,
) -> None:
    """Serve the API and the operators' pages, without a worker.

    Finds Temporal like `turngate worker` does. TURNGATE_API_HOST says where to listen: loopback unless set.
    """
    from turngate.cli import servers  # noqa: PLC0415 - slow to import

    servers.serve_api(_settings(api_port=port, data_dir=data_dir), app)


def temporal(data_dir: DataDir = None, port: TemporalPort = None, ui: TemporalUi = False) -> None:
    """Run the embedded Temporal alone, for `turngate worker` and `turngate api` with the same data directory."""
    from turngate.cli import servers  # noqa: PLC0415 - slow to import

    servers.serve_temporal(_settings(data_dir=data_dir, temporal_port=port), ui=ui)


def migrate(data_dir: DataDir = None) -> None:
    """Bring the store's schema to this version. Safe to repeat; run it before new workers and APIs start."""
    from turngate.cli import servers  # noqa: PLC0415 - slow to import

    servers.migrate_store(_settings(data_dir=data_dir))


def _settings(**overrides: object) -> Settings:
    settings = load_settings(**overrides)
    configure_logging(settings.log_level, settings.log_format)
    return settings
