"""``turngate demo``: the whole story on a small project, with a scripted model unless a real one is named."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Annotated

import typer

from turngate.cli.options import ApiPort, DataDir
from turngate.runtime.settings import load_settings
from turngate.runtime.telemetry import configure_logging


class DecideChoice(StrEnum):
    """How the demo answers its own gates."""

    APPROVE = "approve"
    REJECT = "reject"


def demo(
    decide: Annotated[
        DecideChoice | None,
        typer.Option(help="Answer every gate by itself, check what came of it and exit.", show_default=False),
    ] = None,
    data_dir: DataDir = None,
    port: ApiPort = None,
) -> None:
    """Watch an agent mend a failing test in a small project, and decide what it may do.

    Everything runs on this machine, in fresh directories. The model is a script unless TURNGATE_MODEL names a real one.
    """
    from turngate.cli import demo_stage  # noqa: PLC0415 - slow to import

    settings = load_settings(data_dir=data_dir, api_port=port)
    # The story is what this prints; a log beside it would only hide it.
    configure_logging(settings.log_level if "TURNGATE_LOG_LEVEL" in os.environ else "warning", settings.log_format)
    raise typer.Exit(
        demo_stage.play(
            settings,
            decide=None if decide is None else decide.value,
            data_dir_given=data_dir is not None,
            port_given=port is not None,
        )
    )
