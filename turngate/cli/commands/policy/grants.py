"""``turngate grants``: what is approved in advance, and taking it back; and the grant that goes with a decision."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from turngate.cli import terminal
from turngate.cli.api_link import find_api
from turngate.cli.options import AsJson, DataDir, Url, seconds_of
from turngate.domain.errors import ConfigurationError, InvalidInputError
from turngate.domain.policy.grants import MAX_GRANT_SECONDS, MAX_GRANT_USES, WantedGrant, exact_pattern
from turngate.domain.text.json_pointers import decode_arguments
from turngate.text.plain_text import Piece, plain_line

if TYPE_CHECKING:
    from turngate.client import SyncTurngateClient
    from turngate.wire.policy import GrantView
    from turngate.wire.requests import RequestDetail

SHOWN: Final = 50

app = typer.Typer(invoke_without_command=True, help="Calls that are approved in advance: list them, take them back.")


class ScopeChoice(StrEnum):
    """Whom a grant reaches (``turngate.domain.policy.grants.GrantScope``)."""

    RUN = "run"
    AGENT = "agent"
    EVERYONE = "everyone"


@app.callback()
def grants(
    context: typer.Context,
    every: Annotated[bool, typer.Option("--all", help="Ended ones too.")] = False,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """List the grants that stand, newest first: what runs without asking, and until when."""
    if context.invoked_subcommand is not None:
        return
    with find_api(data_dir, url).client() as client:
        page = client.list_grants(status="all" if every else "standing", limit=SHOWN)
    if as_json:
        terminal.raw(json.dumps([each.model_dump(mode="json") for each in page.items]))
        return
    terminal.table(("GRANT", "FOR", "USES", "UNTIL", "BY", "CALLS"), [_row(each) for each in page.items])
    if page.next_cursor:
        terminal.note(f"the newest {SHOWN}")
    elif not page.items:
        terminal.note("there are no grants" if every else "no grant stands")


@app.command()
def revoke(
    grant_id: Annotated[str, typer.Argument(metavar="GRANT", help="The grant's id.")],
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Take a grant back at once: no call that has not started by now passes on it."""
    with find_api(data_dir, url).client() as client:
        revoked = client.revoke_grant(grant_id)
    terminal.line(("✓ ", "bold"), f"{revoked.id} is revoked; it let {revoked.uses} call(s) through")


def wanted_grant(
    client: SyncTurngateClient,
    request: RequestDetail,
    *,
    scope: ScopeChoice,
    args: str | None,
    leave_open: list[str],
    uses: int,
    lasts: str,
    yes: bool,
) -> WantedGrant:
    """Return the grant for calls like this one, once the person has seen its exact pattern and said yes.

    ``args``: the edited arguments, where the call is edited. ``yes``: they said so with the command.

    Raises:
        InvalidInputError: no pattern can be made of the call.
        ConfigurationError: an option is out of bounds, or nobody is there to be asked.
        typer.Abort: they said no; nothing was decided.
    """
    from turngate.policies.explain import in_words  # noqa: PLC0415 - slow to import

    try:
        arguments = decode_arguments(request.input if args is None else args)
    except ValueError as error:
        raise InvalidInputError(f"the arguments are not plain JSON: {error}", code="invalid_grant") from None
    pattern = exact_pattern(request.tool_name, arguments, open_arguments=leave_open)
    seconds = seconds_of(lasts, "--for")
    if not 1 <= seconds <= MAX_GRANT_SECONDS:
        raise ConfigurationError("--for: from 1s to 90d")
    if not 1 <= uses <= MAX_GRANT_USES:
        raise ConfigurationError(f"--uses: from 1 to {MAX_GRANT_USES:,}")
    wanted = WantedGrant(pattern=pattern, scope=scope.value, expires_after_seconds=seconds, max_uses=uses)
    whom = {"run": f"in run {request.run_id}", "agent": f"by agent {request.agent}", "everyone": "by every agent"}
    terminal.note(("grant: ", "bold yellow"), plain_line(in_words(pattern)))
    terminal.note(f"       {whom[scope.value]}, up to {uses} time(s), for {lasts}, without asking anybody")
    terminal.note("       ", (plain_line(json.dumps(pattern.model_dump(mode="json"), ensure_ascii=False)), "dim"))
    if args is None:
        past = client.preview_grant(request.id, open_arguments=leave_open)
        covered = past.would_have_covered[scope.value]
        terminal.note(f"       it would have let through {covered} of the {past.looked_at} newest calls of this tool")
    if not yes:
        if not terminal.is_interactive():
            raise ConfigurationError("nobody is at the terminal to confirm the grant: look at it above, then add --yes")
        typer.confirm("Save it with this decision?", abort=True, err=True)
    return wanted


def _row(grant: GrantView) -> tuple[Piece, ...]:
    whom = {"run": grant.run_id, "agent": grant.agent}.get(grant.scope) or "everyone"
    until = grant.expires_at if grant.ended is None else grant.ended.replace("_", " ")
    return (
        grant.id,
        plain_line(whom, 60),
        f"{grant.uses}/{grant.max_uses}",
        until,
        plain_line(grant.created_by, 60),
        plain_line(grant.says, 120),
    )
