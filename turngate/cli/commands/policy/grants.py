"""``turngate grants``: calls that are approved in advance. List grants, or revoke one."""

from __future__ import annotations

import json
from typing import Annotated, Final

import typer

from turngate.cli import terminal
from turngate.cli.api_link import find_api
from turngate.cli.options import AsJson, DataDir, Url
from turngate.text.instants import second
from turngate.text.plain_text import Piece, plain_line
from turngate.wire.policy import GrantView

MOST_ROWS: Final = 50

app = typer.Typer(invoke_without_command=True, help="Calls that are approved in advance: list grants, revoke one.")


@app.callback()
def grants(
    context: typer.Context,
    every: Annotated[bool, typer.Option("--all", help="Include ended grants.")] = False,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """List the valid grants, newest first: which calls they approve, and until when."""
    if context.invoked_subcommand is not None:
        return
    with find_api(data_dir, url).client() as client:
        page = client.list_grants(status="all" if every else "standing", limit=MOST_ROWS)
    if as_json:
        terminal.raw(json.dumps([each.model_dump(mode="json") for each in page.items]))
        return
    terminal.table(("GRANT", "FOR", "USES", "UNTIL", "BY", "CALLS"), [_row(each) for each in page.items])
    if page.next_cursor:
        terminal.note(f"the newest {MOST_ROWS}")
    elif not page.items:
        terminal.note("there are no grants" if every else "no grant is valid now")


@app.command()
def revoke(
    grant_id: Annotated[str, typer.Argument(metavar="GRANT", help="The grant's id.")],
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Revoke a grant at once: it approves no call that has not started yet."""
    with find_api(data_dir, url).client() as client:
        revoked = client.revoke_grant(grant_id)
    terminal.line(("✓ ", "bold"), f"{revoked.id} is revoked; it approved {revoked.uses} call(s)")


def _row(grant: GrantView) -> tuple[Piece, ...]:
    whom = {"run": grant.run_id, "agent": grant.agent}.get(grant.scope) or "everyone"
    until = second(grant.expires_at) if grant.ended is None else grant.ended.replace("_", " ")
    total = "" if grant.total_used is None else f", total {grant.total_used}"
    return (
        grant.id,
        plain_line(whom, 60),
        f"{grant.uses}/{grant.max_uses}{total}",
        until,
        plain_line(grant.created_by, 60),
        plain_line(grant.says, 120),
    )
