"""``turngate result``: the whole result of a call, where pages, terminal and model show a part."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from turngate.approvals_api.pages.result_text import readable
from turngate.cli import terminal
from turngate.cli.api_link import find_api
from turngate.cli.options import AsJson, DataDir, Url
from turngate.domain.errors import ConfigurationError, UnavailableError
from turngate.domain.text import json_text
from turngate.text.plain_text import plain_line


def result(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="The run's id, from `turngate runs`.")],
    call_id: Annotated[
        str, typer.Argument(metavar="CALL", help="The call's id, from the note that only a part is shown.")
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write to this file instead of stdout.", show_default=False)
    ] = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Print the whole result of a call, also when the model got only a part of it.

    A text is printed as it is, anything else as indented JSON. --json prints `{"result": …}` as the API sends it. A terminal
    shows markers for hidden characters; a pipe and FILE get exactly what the tool wrote.
    """
    with find_api(data_dir, url).client() as client:
        document = client.get_result_text(run_id, call_id)
    text = document if as_json else _readable(document)
    if out is not None:
        _write(out, text)
        terminal.note(f"{len(text):,} characters written to {out}")
    elif as_json:
        terminal.document(text)
    else:
        terminal.raw(text)


def _readable(document: str) -> str:
    """Return the result for people, and print a note on stderr if the call failed."""
    parsed = json_text.parse(document)
    match None if parsed is None else parsed.tree:
        case {"result": {"tag": "ok", "value": value}}:
            return readable(json_text.dump(value))
        case {"result": {"tag": "failure", "kind": str(kind), "reason": str(reason), "fields": fields}}:
            terminal.note(("the call failed: ", "yellow"), f"{plain_line(kind, 64)}: {plain_line(reason, 1_000)}")
            return readable(json_text.dump(fields))
        case _:
            raise UnavailableError("the answer is not a result. The API may be of another version of Turngate")


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8", errors="replace", newline="")
    except OSError as error:
        raise ConfigurationError(f"--out {file}: the file cannot be written ({error.strerror})") from None
