"""``turngate runs --stuck``: the live runs that stand still, each with its reason."""

from __future__ import annotations

import json

from turngate.cli import terminal
from turngate.cli.api_link import ApiLink
from turngate.text.plain_text import plain_line


def show_stuck(link: ApiLink, *, as_json: bool) -> None:
    """Print every live run that stands still, newest first; of all of them, however many there are."""
    with link.client() as client:
        found = list(client.iter_stuck_runs())
    if as_json:
        terminal.raw(json.dumps([each.model_dump(mode="json") for each in found]))
        return
    rows = [
        (
            each.run.id,
            (each.waits_for.kind.replace("_", " "), "yellow"),
            each.run.agents,
            (each.waits_for.since or "")[:19].replace("T", " "),
            plain_line(each.waits_for.says, 200),
        )
        for each in found
    ]
    terminal.table(("RUN", "WAITS FOR", "AGENT", "SINCE", "WHY"), rows)
    if found:
        terminal.note(f"what to do about one: turngate explain{link.options} RUN")
    else:
        terminal.note("no run stands still")
