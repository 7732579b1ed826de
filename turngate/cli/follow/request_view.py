"""A request as an operator must see it before deciding: the exact call, then why it needs a decision, then the preview."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Final

from approvals_api.pages.result_text import depends_on, what_changed
from turngate.cli import terminal
from turngate.cli.follow.lines import AGENT_MARGIN
from turngate.domain.tools.preview import command_words
from turngate.domain.tools.results import Failure
from turngate.store.clock import from_text, now
from turngate.text.plain_text import Piece, plain, plain_line
from turngate.text.presentation import diff_lines, exact_arguments, presentation_lines
from turngate.text.run_words import judgement_words, part_words
from turngate.wire.requests import RequestDetail

MARGIN: Final = "    "
RISK_STYLE: Final = {"low": "green", "medium": "yellow", "high": "bold red"}


def show_request(request: RequestDetail, *, with_words: bool = True) -> None:
    """Print everything that a decision needs. Nothing in it can move the cursor or hide a character.

    ``with_words``: also print what the agent said with the call; False where its step was printed just before.
    """
    risk = request.risk
    terminal.line("")
    terminal.line((request.tool_name, "bold"), f"  {request.kind} {request.id}, agent {request.agents}")
    for line in exact_arguments(request.input):
        terminal.line(MARGIN, line)
    terminal.line(
        ("  risk ", "dim"), (risk, RISK_STYLE.get(risk, "")), ("  effect ", "dim"), request.manifest.effect,
        ("  asked by ", "dim"), plain_line(request.rule, 100), ("  ", ""), plain_line(request.reason, 300),
    )  # fmt: skip
    for label, text in _more_facts(request):
        terminal.line((f"  {label} ", "dim"), text)
    earlier = None if request.earlier is None else request.earlier.precondition
    if (changed := what_changed(earlier, request.precondition)) is not None:
        terminal.line(("  what changed since that approval", "dim"))
        for piece in diff_lines(changed):
            terminal.line(MARGIN, piece)
    _show_preview(request)
    _show_result(request)
    if with_words and request.agent_words.strip():
        terminal.line(("  the agent says", "dim"))
        terminal.line(("\n".join(AGENT_MARGIN + line for line in plain(request.agent_words).split("\n")), "cyan"))


def _show_preview(request: RequestDetail) -> None:
    if not request.preview:
        return
    terminal.line(("  preview", "dim"))
    is_command = request.preview_kind == "command"
    text = shlex.join(command_words(request.preview)) if is_command else request.preview
    for piece in preview_lines(text, is_diff=request.preview_kind == "diff"):
        terminal.line(MARGIN, piece)


def _show_result(request: RequestDetail) -> None:
    if request.result is None or request.presentation is None:
        return
    kind = request.result.kind if isinstance(request.result, Failure) else "result"
    terminal.line(("  ", ""), (plain_line(kind, 64), "dim"))
    for piece in presentation_lines(request.presentation):
        terminal.line(MARGIN, piece)


def _more_facts(request: RequestDetail) -> Iterator[tuple[str, str]]:
    """Yield the facts that only some requests have, each as a label and a line."""
    if request.manifest.kind == "agent":
        yield "runs", "another agent; its own calls are judged one by one"
    if request.manifest.origin:
        origin = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in request.manifest.origin.items())
        yield "comes from", plain_line(origin, 300)
    if request.judged is not None:
        yield "the judge", judgement_words(request.judged)
    yield from _deciding(request)
    if request.precondition is not None:
        yield "depends on", plain_line(depends_on(request.precondition, indented=False), 300)
    if request.instead_of:
        yield "instead of", f"the approval {request.instead_of}{_by_whom(request)}, which no longer counts"
    if request.replaced_by:
        yield "asked again", f"as {request.replaced_by}; this answer no longer counts"
    if request.in_part is not None:
        yield "the result", part_words(request.in_part, request.run_id, request.tool_call_id)


def _by_whom(request: RequestDetail) -> str:
    earlier = request.earlier
    return "" if earlier is None else f" by {plain_line(earlier.decided_by, 100)} at {earlier.decided_at}"


def _deciding(request: RequestDetail) -> Iterator[tuple[str, str]]:
    """Yield who may decide and what is still missing, where that is out of the ordinary."""
    terms = request.ask_terms
    if request.quorum > 1:
        who = ", ".join(plain_line(each.decided_by, 100) for each in request.given)
        yield "approvals", f"{request.approvals} of {request.quorum}{f' ({who})' if who else ''}; one rejection ends it"
    if terms.roles or terms.people:
        yield "decided by", plain_line(", ".join([*(f"role {role}" for role in terms.roles), *terms.people]), 300)
    if request.not_by:
        yield "not by", f"{plain_line(request.not_by, 100)}, who started the run"
    if request.claimed_by and request.claimed_until and from_text(request.claimed_until) > now():
        yield "claimed by", f"{plain_line(request.claimed_by, 100)} until {request.claimed_until}"
    if request.parked_at and request.status == "pending":
        yield "parked", f"since {request.parked_at}: it does not expire"


def preview_lines(preview: str, *, is_diff: bool) -> Iterator[Piece]:
    """Yield the preview's lines, those of a diff in its colours."""
    if is_diff:
        yield from diff_lines(preview)
        return
    yield from ((line, "") for line in plain(preview.rstrip("\n")).split("\n"))
