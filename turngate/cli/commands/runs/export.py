"""``turngate export``: an ended run as a fixture, which a test plays again (docs/howto/test-an-agent.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from turngate.cli import terminal
from turngate.cli.api_link import find_api
from turngate.cli.options import DataDir, Url
from turngate.domain.errors import ConfigurationError
from turngate.recording import record, request_ids


def export(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="The run's id, from `turngate runs`.")],
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FILE", help="Write to this file instead of stdout.", show_default=False),
    ] = None,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Print a run that has ended as a fixture, which a test plays again.

    It holds the input, the model's responses, the decisions and the results. A test plays it again with your app
    (`turngate_replay`, a pytest fixture). It contains the conversation, so read it before you commit it. People are called
    `starter` and `operator`, and nothing is about the machine.
    """
    with find_api(data_dir, url).client() as client:
        run = client.get_run(run_id)
        messages = client.list_messages(run.conversation_id)
        text = record(run, messages, {each: client.get_request(each) for each in request_ids(run)}).as_text()
    if out is None:
        terminal.raw(text.removesuffix("\n"))
        return
    try:
        out.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise ConfigurationError(f"--out {out}: the file cannot be written ({error.strerror})") from None
    terminal.note(f"{len(run.steps)} responses and {sum(len(step.calls) for step in run.steps)} calls written to {out}")
