"""Approving a call and calls like it: what is asked for, and the exact pattern that a person sees before it is saved."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any, Final

from textual.app import App

from turngate.domain.errors import InvalidInputError, TurngateError
from turngate.domain.policy.grants import MAX_GRANT_USES, WantedGrant
from turngate.frontends.tui.confirm_dialog import ConfirmDialog
from turngate.frontends.tui.form_dialog import Asking
from turngate.frontends.tui.form_model import Control, Field, Group, choice_of
from turngate.frontends.tui.problems import problem_words, problems_of
from turngate.frontends.tui.session import Sent, Session
from turngate.frontends.tui.texts import Folded, Line, argument_values, at, clipped, folded, line, plain_line, span
from turngate.wire.policy import GrantPreview
from turngate.wire.requests import RequestDetail

LASTS: Final = (
    ("900", "15 minutes"),
    ("3600", "an hour"),
    ("28800", "8 hours"),
    ("86400", "a day"),
    ("604800", "a week"),
)
SCOPES: Final = (("run", "this run"), ("agent", "this agent"))
FOR_ADMINS: Final = (("everyone", "every agent"),)
REACH: Final = {"run": "in this run", "agent": "in every run of this agent", "everyone": "in every run of every agent"}
VALUE_CHARS: Final = 60
OPEN: Final = "anything"


def asking_for_grant(session: Session, request: RequestDetail, send: Callable[[str], Awaitable[Sent]]) -> Asking:
    """Return the form that asks which calls. ``send``: takes what it says."""
    fields = tuple(_fields(session, request))

    def draw(_source: str) -> Field:
        return Group(name="grant", fields=fields)

    return Asking(
        title=f"Approve this call of {plain_line(request.tool_name, 64)}, and calls like it",
        lead=line("Ctrl+S shows exactly what would run without asking; only then can it be saved."),
        draw=draw,
        send=send,
        pointer="",
    )


def _fields(session: Session, request: RequestDetail) -> Iterator[Field]:
    arguments = tuple(
        replace(
            choice_of(name, [("fixed", f"exactly {clipped(plain_line(value), VALUE_CHARS)}"), ("open", OPEN)]),
            name=f"grant-0-{place}",
        )
        for place, (name, value) in enumerate(argument_values(request.input))
    )
    if arguments:
        yield Group(name="grant-0", key="arguments", fields=arguments)
    is_admin = session.who is not None and session.who.role == "admin"
    scopes = [*SCOPES, *(FOR_ADMINS if is_admin else ())]
    own = (
        choice_of("for", scopes, chosen="run"),
        choice_of("as long as", LASTS, chosen="3600"),
        Control(
            name="",
            key="uses",
            kind="integer",
            item="integer",
            text="10",
            description=f"at most so many times, 1 to {MAX_GRANT_USES:,}",
        ),
        Control(
            name="", key="note", kind="line", text="", required=False, description="for whoever looks at the grants"
        ),
    )
    yield from (replace(each, name=f"grant-{place}") for place, each in enumerate(own, 1))


async def wanted_and_shown(app: App[None], session: Session, request: RequestDetail, args: str) -> Sent:
    """Show exactly what the form would allow, and approve with it once the person has seen all of it and says so."""
    said: dict[str, Any] = json.loads(args)
    free = [name for name, how in said.get("arguments", {}).items() if how == "open"]
    try:
        preview = await session.client.preview_grant(request.id, open_arguments=free)
        if preview.pattern is None:
            return Sent(taken=False, words=f"No grant can answer calls like this: {preview.ungrantable}.")
        wanted = _wanted(said, preview)
    except TurngateError as error:
        return Sent(taken=False, words=f"Not saved. {problem_words(error)}", problems=problems_of(error))

    async def decide() -> Sent:
        return await session.decide(request, "approve", grant=wanted)

    shown = ConfirmDialog("approve, and allow exactly this", pattern_text(wanted, preview), decide)
    return await app.push_screen_wait(shown) or Sent(taken=False, words="Not confirmed; nothing was sent.")


def _wanted(said: dict[str, Any], preview: GrantPreview) -> WantedGrant:
    uses = said["uses"]
    if not 1 <= uses <= MAX_GRANT_USES:
        message = f"A number from 1 to {MAX_GRANT_USES:,}."
        raise InvalidInputError(message, errors=[{"pointer": "/uses", "message": message}])
    return WantedGrant.model_validate(
        {
            "pattern": preview.pattern,
            "scope": said["for"],
            "expires_after_seconds": int(said["as long as"]),
            "max_uses": uses,
            "note": said.get("note", "").strip(),
        }
    )


def pattern_text(wanted: WantedGrant, preview: GrantPreview) -> Folded:
    """Return exactly what a grant would let through, and what it would have."""
    pattern = wanted.pattern
    lines: list[Line] = [
        at("", ("This is what would run without asking:", "bold")),
        at("  ", ("calls of ", "dim"), (plain_line(pattern.tool), "bold")),
    ]
    for name, value in pattern.fixed.items():
        exactly = json.dumps(value, ensure_ascii=False)
        lines.append(at("  ", ("with ", "dim"), plain_line(name), (" exactly ", "dim"), plain_line(exactly)))
    lines.extend(
        at("  ", ("with ", "dim"), plain_line(name), (" anything at all", "bold yellow")) for name in pattern.open
    )
    times = "once" if wanted.max_uses == 1 else f"{wanted.max_uses:,} times"
    lines.append(at("  ", "and no other argument,"))
    lines.append(
        at("  ", (REACH[wanted.scope], "bold"), f", at most {times}, for {span(wanted.expires_after_seconds)}.")
    )
    lines.append(at(""))
    lines.append(at("", "A deny rule or an ask rule still stands above it. `3` lists grants, and revokes them."))
    would = preview.would_have_covered.get(wanted.scope)
    if would is not None:
        newest = f"{preview.looked_at:,} newest calls of this tool"
        lines.append(at("", ("Of the ", "dim"), newest, (" it would have let through ", "dim"), f"{would:,}."))
    return folded(lines)
