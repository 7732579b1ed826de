"""What stands around a request as text: who may decide it and who has it, what people said of it, what came before it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from turngate.domain.conversation.messages import Part, ReasoningPart, TextPart, ToolCallPart, ToolResultPart
from turngate.domain.tools.results import Failure
from turngate.frontends.tui.session import Session
from turngate.frontends.tui.texts import (
    NOTHING,
    Folded,
    Line,
    ago,
    at,
    block,
    exact_arguments,
    folded,
    lines_of,
    plain_line,
    until,
)
from turngate.wire.requests import CommentView, LookingView, RequestDetail, RequestItem
from turngate.wire.runs import MessageView

NAME_CHARS = 60
ROLES = {"user": "person", "assistant": "agent", "tool": "results", "system": "instructions"}


def holder_of(request: RequestItem) -> str | None:
    """Return whose claim stands; None: nobody's."""
    stands = request.claimed_by and request.claimed_until and until(request.claimed_until) != "now"
    return request.claimed_by if stands else None


def barred(request: RequestDetail, session: Session) -> str | None:
    """Return why the person may not decide it, so far as can be known here; None when they may. The API has the last word."""
    if not session.may_decide:
        return "your token may look, and not decide"
    if session.who is None:
        return None
    if request.not_by == session.me:
        return "you started this run, and its rule lets somebody else decide"
    if any(each.decided_by == session.me for each in request.given):
        return "you have approved it; somebody else has to, as well"
    return request.ask_terms.barred(name=session.me, role=session.who.role, machine=session.who.machine)


def state_text(request: RequestDetail, others: Sequence[LookingView], session: Session) -> Folded:
    """Return what a person has to know before they decide: shown above the call, a line each; nothing for most requests."""
    if request.status != "pending":
        return NOTHING
    lines = []
    if request.quorum > 1:
        given = ", ".join(plain_line(each.decided_by, NAME_CHARS) for each in request.given)
        lines.append(
            at("", (f"{request.approvals} of {request.quorum} approvals", "bold"), f": {given}" if given else "")
        )
    if (why := barred(request, session)) is not None:
        lines.append(at("", ("You cannot decide this: ", "bold yellow"), plain_line(why, 300)))
    holder = holder_of(request)
    if holder is not None and request.claimed_until:
        ends = f"; it ends {until(request.claimed_until)}"
        who = "You have claimed this" if holder == session.me else f"{plain_line(holder, NAME_CHARS)} has claimed this"
        keys = "c gives it back" if holder == session.me else "c c takes it over"
        lines.append(at("", (who, "bold"), f"{ends}  ", (keys, "dim")))
    if others:
        names = ", ".join(plain_line(each.name, NAME_CHARS) for each in others)
        lines.append(at("", ("also looking: ", "dim"), names))
    return folded(lines)


def comments_text(comments: Sequence[CommentView]) -> Folded:
    """Return what people said to each other about a request."""
    if not comments:
        return folded([at("", ("COMMENTS", "bold"), (" none; w writes one, which no agent reads", "dim"))])
    lines = [at("", ("COMMENTS", "bold"), (" (no agent reads them; w writes one)", "dim"))]
    for each in comments:
        lines.append(at("  ", (plain_line(each.author, NAME_CHARS), "bold"), (f"  {ago(each.created_at)} ago", "dim")))
        lines.extend(lines_of(each.text, "  ┊ "))
    return folded(lines)


def conversation_text(messages: Sequence[MessageView]) -> Folded:
    """Return the conversation up to the call."""
    lines: list[Line] = []
    for message in messages:
        lines.append(at("", (ROLES[message.role].upper(), "bold"), (f"  {ago(message.created_at)} ago", "dim")))
        for part in message.parts:
            lines.extend(_part(part))
        lines.append(at(""))
    return folded(lines)


def _part(part: Part) -> Iterator[Line]:
    match part:
        case TextPart():
            yield from lines_of(part.text, "│ ")
        case ReasoningPart():
            yield from lines_of(part.text, "┆ ", "dim")
        case ToolCallPart():
            yield at("  ", ("calls ", "dim"), (plain_line(part.tool_name, 64), "bold"))
            yield from block(exact_arguments(part.input), "    ")
        case ToolResultPart():
            yield at("  ", ("result of ", "dim"), (plain_line(part.tool_name, 64), "bold"))
            if part.edited_input is not None:
                yield at("    ", ("ran with edited arguments", "dim"))
                yield from block(exact_arguments(part.edited_input), "    ")
            if isinstance(part.result, Failure):
                yield at("    ", (plain_line(part.result.kind, 64), "red"), f": {plain_line(part.result.reason, 500)}")
            else:
                yield from block(exact_arguments(json.dumps(part.result.value, ensure_ascii=False)), "    ")
        case _:
            yield at(
                "  ", (f"{part.type}, {plain_line(part.media_type, 60)}", "dim"), f" {plain_line(part.url or '', 200)}"
            )
