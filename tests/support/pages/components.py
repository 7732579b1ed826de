"""All components of the pages on one page, drawn by the pages' own macros: what a change of the stylesheet is looked at on."""

from __future__ import annotations

from pathlib import Path

from jinja2 import ChoiceLoader, FileSystemLoader

from turngate.approvals_api.pages.call_view import Room, ShownCall, show_call
from turngate.approvals_api.pages.templating import Frame, _environment
from turngate.text.changes import changes

STATES = (
    *("pending", "approved", "rejected", "responded", "expired", "cancelled", "superseded"),
    *("running", "completed", "failed", "interrupted", "executing", "succeeded", "unknown", "failure"),
)
DIFF = "--- a/invoice.py\n+++ b/invoice.py\n@@ -1,3 +1,3 @@\n keep this line\n-was\n+is\n and this one\n"

ARGUMENTS = '{"order": "A-102", "cents": 10000, "notify": true, "note": null}'


def call_with(kind: str, preview: str) -> ShownCall:
    return show_call(ARGUMENTS, (kind, preview), None, risk="high", room=Room())


def component_page(*, compact: bool = False) -> str:
    """Return the page's HTML in one of the two densities."""
    pages = _environment()
    assert pages.loader is not None
    loader = ChoiceLoader([pages.loader, FileSystemLoader(Path(__file__).parent)])
    return (
        pages.overlay(loader=loader)
        .get_template("components.html")
        .render(
            frame=Frame(operator="ada", form_token="token", pending=3, grants=1, compact=compact),
            states=STATES,
            change=call_with("diff", DIFF),
            command=call_with("command", '["rm", "-rf", "my dir"]'),
            edits=changes('{"cents": 10000}', '{"cents": 1000}'),
            errors={"cents": "This is not a number."},
        )
    )
