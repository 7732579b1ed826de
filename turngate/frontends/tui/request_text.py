"""A request as text, in the order a person must see it: preview, the exact call, why, effect and risk, the agent's words.

Then what is around it: who may decide it, who has claimed it, comments, and the conversation before it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Final

from rich.text import Text

from turngate.domain.conversation.messages import Part, ReasoningPart, TextPart, ToolCallPart, ToolResultPart
from turngate.domain.policy.terms import same_person
from turngate.domain.tools.defaults import in_short
from turngate.domain.tools.results import Failure
from turngate.frontends.tui.session import Session
from turngate.frontends.tui.texts import (
    NOTHING,
    Folded,
    Line,
    Piece,
    ago,
    arguments_on_one_line,
    at,
    block,
    exact_arguments,
    fold_call,
    folded,
    joined,
    judgement_words,
    line,
    lines_of,
    plain_line,
    presentation_lines,
    preview_line,
    span,
    until,
)
from turngate.text.run_words import (
    consequence_lines,
    decision_lines,
    execution_piece,
    lead_lines,
    lost_start_lines,
    not_by,
    not_run_words,
    origin_lines,
    precedent_lines,
    sibling_lines,
    teller_words,
    unseen_words,
)
from turngate.wire.requests import CommentView, RequestDetail, RequestItem, Viewer
from turngate.wire.runs import MessageView

MARGIN: Final = "  "
BLANK: Final = at("")
AGENT_MARGIN: Final = "│ "
"""Before every line that the agent wrote."""
RISK_STYLE: Final = {"low": "green", "medium": "yellow", "high": "bold red"}
ASKS: Final = {"approval": "May this run?", "question": "The agent asks", "outcome": "Did this happen?"}
EFFECTS: Final = {
    "read": "reads only; free to repeat",
    "idempotent": "changes something; repeating it with the same key changes nothing more",
    "once": "changes something, once; Turngate never repeats it by itself",
}
ENDED: Final = {
    "expired": "no one answered in time, so the call did not run",
    "cancelled": "the run ended before anyone answered",
    "superseded": "a newer message or another request took its place",
}


def _besides(item: RequestItem) -> list[tuple[str, str, str]]:
    """Return in what a call's tool gets something else than is written, and which calls are the same: label, words, style."""
    changed = [(f"{label} ", words, "") for label, words in in_short(item.defaults).items()]
    return [*changed, *(("", f"{each.words}.", "yellow") for each in item.same_calls)]


def _on_one_line(item: RequestItem, room: int) -> str:
    """Return what a call does, or its arguments."""
    if item.summary is not None:
        return plain_line(item.summary, room)
    return arguments_on_one_line(item.input, room, item.input_more)


def item_text(item: RequestItem, *, me: str, picked: bool, width: int) -> Text:
    """Return a request in the inbox, as lines: the call, the task, doubts, the rest. ``picked``: chosen for many at once."""
    mark = "[x] " if picked else "    "
    name = plain_line(item.tool_name, 40)
    risk = "" if item.risk == "low" else f"{item.risk.upper()} "
    room = max(8, width - len(mark) - len(risk) - len(name) - 4)
    facts = [item.kind, plain_line(item.agents, 40), f"{ago(item.created_at)} ago", f"rule {plain_line(item.rule, 40)}"]
    if item.quorum > 1:
        facts.insert(0, f"{item.approvals} of {item.quorum} approvals")
    if item.claimed_by and item.claimed_until and until(item.claimed_until) != "now":
        own = same_person(item.claimed_by, me)
        facts.insert(0, "claimed by you" if own else f"claimed by {plain_line(item.claimed_by, 30)}")
    if item.parked_at:
        facts.append("parked")
    elif item.expires_at:
        facts.append(f"expires {until(item.expires_at)}")
    task = item.tasks[0].task if item.tasks else ""
    preview = preview_line(item, max(8, width - 16))
    about = [
        ("preview ", preview, "yellow" if item.preview_warns else ""),
        (f"task{teller_words(item.agent)} ", task, ""),
    ]
    about += _besides(item)
    about.append(("values ", item.doubts.words, "yellow"))
    return joined(
        [
            line(
                (mark, "bold"), (risk, RISK_STYLE.get(item.risk, "")), (name, "bold"),
                "  ", _on_one_line(item, room),
            ),
            *(
                line("      ", (label, "dim"), (plain_line(words, max(8, width - len(label) - 8)), style))
                for label, words, style in about
                if words
            ),
            line("      ", (plain_line(", ".join(facts), max(8, width - 8)), "dim")),
        ]
    )  # fmt: skip


def heading(request: RequestDetail) -> Text:
    """Return what is asked, and its status."""
    waits = request.status == "pending"
    status = "waits" if waits else request.status.upper()
    clock = ""
    if waits and request.parked_at:
        clock = ", parked: it waits without a clock"
    elif waits and request.expires_at:
        clock = f", expires {until(request.expires_at)}"
    risk = "" if request.risk == "low" else f"  {request.risk.upper()} risk"
    return line(
        (ASKS[request.kind], "bold"), "  ", (plain_line(request.tool_name, 64), "bold"),
        f"  {status}", (risk, RISK_STYLE.get(request.risk, "")), (f"  asked {ago(request.created_at)} ago{clock}", "dim"),
    )  # fmt: skip


def call_text(request: RequestDetail, *, whole: bool = True) -> Folded:
    """Return the call: its tool's preview, then its exact arguments. ``whole``: nothing of it is folded."""
    call = fold_call(request, whole=whole)
    title = "THE QUESTION" if request.kind == "question" else "THE EXACT CALL"
    about = plain_line(request.manifest.description.partition("\n\n")[0], 200)
    return folded(
        [
            *(
                at("", (f"{label} ", "dim"), words)
                for label, words in lead_lines(request.tasks, request.latest_message)
            ),
            *([at("", (plain_line(request.summary), "bold"))] if request.summary else []),
            *(at("", (plain_line(f"{each.words}."), "bold yellow")) for each in request.same_calls),
            *_preview(request, call.preview.pieces),
            at("", (title, "bold")),
            at(
                MARGIN,
                ("tool ", "dim"),
                (plain_line(request.tool_name), "bold"),
                (f"  {about}" if about else "", "dim"),
            ),
            *block(call.arguments.pieces, MARGIN),
            *([at(MARGIN, (words, "bold red"))] if (words := unseen_words(request.unseen_secrets)) else []),
            *_origins(request),
        ]
    )


def reviewed_lines(request: RequestDetail, *, whole: bool) -> Iterator[Line]:
    """Return one of several calls that are decided together: what runs, and what its tool shows of it. ``whole``: not folded."""
    yield from call_text(request, whole=whole).lines
    yield from _confinement(request)


def _origins(request: RequestDetail) -> Iterator[Line]:
    lines = origin_lines(request.origins)
    if lines and request.origins is not None:
        yield at(MARGIN, (f"where the arguments come from ({request.origins.note})", "dim"))
    for words, doubt in lines:
        yield at(MARGIN * 2, (f"{doubt} " if doubt else "", "bold yellow"), (words, "" if doubt else "dim"))


def facts_text(request: RequestDetail) -> Folded:
    """Return everything beside the call: how it ended, why, effect and risk, the agent's own words."""
    return folded(
        [
            *_decided(request),
            *_lost_start(request),
            *_around(request),
            *_follows(request),
            *_why(request),
            BLANK,
            *_effect(request),
            BLANK,
            *_words(request),
        ]
    )


def _lost_start(request: RequestDetail) -> Iterator[Line]:
    """Yield how a lost call had started, and how to check whether it took effect."""
    if lines := lost_start_lines(request.lost_start):
        yield at("", ("THE LOST START", "bold"))
        for label, words in lines:
            first, *more = words.split("\n")
            yield _fact(label, first)
            yield from (at(MARGIN * 2, each) for each in more)
        yield BLANK


def _around(request: RequestDetail) -> Iterator[Line]:
    """Yield the other calls of the step, and what people decided about calls like this one."""
    if request.siblings:
        yield at("", ("THE SAME STEP", "bold"))
        yield from (at(MARGIN, words) for words in sibling_lines(request))
        yield BLANK
    if lines := precedent_lines(request.precedent):
        yield at("", ("CALLS LIKE THIS", "bold"), (" (found by comparing text)", "dim"))
        for at_line, (label, words) in enumerate(lines):
            yield at(MARGIN if label else MARGIN * 2, (f"{label} " if label and at_line else "", "dim"), words)
        yield BLANK


def _fact(label: str, *pieces: Piece) -> Line:
    return at(MARGIN, (f"{label} ", "dim"), *pieces)


def _follows(request: RequestDetail) -> Iterator[Line]:
    if lines := consequence_lines(request.leads_to, request.time_left):
        yield at("", ("WHAT FOLLOWS", "bold"))
        for label, words in lines:
            yield _fact(label, words)
        yield BLANK


def _why(request: RequestDetail) -> Iterator[Line]:
    yield at("", ("WHY IT WAITS" if request.status == "pending" else "WHY IT WAITED", "bold"))
    yield _fact("rule", plain_line(request.rule, 200))
    if request.reason:
        yield _fact("reason", plain_line(request.reason, 500))
    yield from _confinement(request)
    if request.judged is not None:
        follows = "nothing follows from it" if request.judged.mode == "shadow" else "a person decides"
        yield _fact("the judge", judgement_words(request.judged), (f"; {follows}", "dim"))
    if request.precondition is not None:
        yield _fact("depends on", plain_line(request.precondition, 300))
    if request.instead_of:
        yield _fact("instead of", f"the approval {request.instead_of}, which does not count any more")
    if request.replaced_by:
        yield _fact("asked again", f"as {request.replaced_by}. {request.void_words or 'This answer no longer counts.'}")
    yield from _terms(request)


def _confinement(request: RequestDetail) -> Iterator[Line]:
    if request.confinement is not None:
        style = "dim" if request.confinement.confined else "bold red"
        yield _fact("confinement", (plain_line(request.confinement.text, 300), style))


def _terms(request: RequestDetail) -> Iterator[Line]:
    terms = request.ask_terms
    if terms.fresh_for_seconds and request.kind == "approval":
        yield _fact("an approval counts", f"for {span(terms.fresh_for_seconds)}; later than that you are asked again")
    if request.quorum > 1:
        yield _fact("approvals", f"{request.approvals} of {request.quorum}, by different people; one rejection ends it")
        for each in request.given:
            message = f": {plain_line(each.message, 300)}" if each.message else ""
            yield at(MARGIN * 2, f"{plain_line(each.decided_by, 100)} {ago(each.created_at)} ago{message}")
    if terms.roles or terms.people:
        who = ", ".join([*(f"role {role}" for role in terms.roles), *terms.people])
        yield _fact("decided by", plain_line(who, 300))
    if request.not_by:
        yield _fact("not by", not_by(request))
    if request.status == "pending":
        yield from _ladder(request)


def _ladder(request: RequestDetail) -> Iterator[Line]:
    for at_rung, rung in enumerate(request.ask_terms.ladder, 1):
        whom = plain_line(" ".join([*rung.roles, *rung.people]), 200)
        does = {"remind": "they are reminded", "escalate": f"also {whom}", "delegate": f"only {whom}"}[rung.do]
        done = " (done)" if at_rung <= request.rungs_climbed else ""
        yield _fact("if no one does", f"after {span(rung.after_seconds)}: {does}{done}")


def _effect(request: RequestDetail) -> Iterator[Line]:
    yield at("", ("EFFECT AND RISK", "bold"))
    manifest = request.manifest
    effect = "another agent's run" if manifest.kind == "agent" else EFFECTS[manifest.effect]
    yield _fact("effect", effect if request.kind != "question" else "nothing runs: your answer is the result")
    yield _fact("risk", (request.risk.upper(), RISK_STYLE.get(request.risk, "")))
    yield _fact("agent", f"{plain_line(request.agents, 200)}, {plain_line(request.run.model, 100)}")
    yield _fact("run", f"{request.run_id}, started by {plain_line(request.run.started_by, 100)}")
    if request.run.workspace:
        yield _fact("workspace", plain_line(request.run.workspace, 300))
    if manifest.origin:
        origin = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in manifest.origin.items())
        yield _fact("comes from", plain_line(origin, 300))
    yield _fact("digest", plain_line(request.digest, 80))
    if request.partial_output:
        yield at(MARGIN, ("output until it ended", "dim"))
        yield from lines_of(request.partial_output, MARGIN * 2)


def _preview(request: RequestDetail, pieces: Sequence[Piece]) -> Iterator[Line]:
    if not pieces:
        return
    title = {"diff": "WHAT WILL CHANGE", "command": "THE COMMAND"}.get(request.preview_kind or "", "PREVIEW")
    yield at("", (title, "bold"), (" (the tool's own preview)", "dim"))
    yield from block(pieces, MARGIN)
    yield BLANK


def _words(request: RequestDetail) -> Iterator[Line]:
    yield at("", ("THE AGENT'S OWN WORDS", "bold"), (" (they may be wrong, or written to persuade)", "dim"))
    yield from lines_of(request.agent_words.strip() or "It said nothing with this call.", AGENT_MARGIN, "cyan")


def _decided(request: RequestDetail) -> Iterator[Line]:
    if request.status == "pending":
        return
    yield at("", ("THE DECISION", "bold"))
    yield at(MARGIN, ended_words(request))
    decision = request.decision
    yield from (at(MARGIN, each) for each in decision_lines(decision))
    if decision is not None and decision.args is not None:
        yield at(MARGIN, ("with", "dim"))
        yield from block(exact_arguments(decision.args), MARGIN * 2)
    yield _fact("execution", execution_piece(request))
    if request.result is not None and request.presentation is not None:
        kind = request.result.kind if isinstance(request.result, Failure) else "result"
        yield at(MARGIN, (plain_line(kind, 64), "dim"))
        yield from block(presentation_lines(request.presentation), MARGIN * 2)
    if request.in_part is not None:
        part = request.in_part
        yield _fact("result", f"shown in part, {part.shown_chars:,} of {part.total_chars:,} characters")
    yield BLANK


def ended_words(request: RequestDetail) -> str:
    """Return how a request ended, with who ended it; empty while it waits."""
    decision = request.decision
    if request.status == "pending":
        return ""
    if decision is None:
        return f"{request.status}: {ENDED.get(request.status, '')}".rstrip(": ")
    outcome = f" ({decision.outcome.replace('_', ' ')})" if decision.outcome else ""
    verb = {"approve": "approved", "edit": "approved with edited arguments", "reject": "rejected"}.get(
        decision.verb, "answered"
    )
    message = f": {plain_line(decision.message, 500)}" if decision.message else ""
    not_run = "" if request.not_run is None else f"; {not_run_words(request.not_run)}"
    return f"{verb}{outcome} by {plain_line(decision.decided_by, 100)} {ago(decision.decided_at)} ago{message}{not_run}"


NAME_CHARS = 60
ROLES = {"user": "person", "assistant": "agent", "tool": "results", "system": "instructions"}


def holder_of(request: RequestItem) -> str | None:
    """Return who has claimed it; None: no one."""
    is_claimed = request.claimed_by and request.claimed_until and until(request.claimed_until) != "now"
    return request.claimed_by if is_claimed else None


def barred(request: RequestDetail, session: Session) -> str | None:
    """Return why the person may not decide it, so far as can be known here; None when they may. The API has the last word."""
    if not session.may_decide:
        return "your token may look, and not decide"
    if session.who is None:
        return None
    if request.not_by == session.me:
        return "you started this run, and its rule lets someone else decide"
    if session.me in request.starters:
        return "what you sent or changed led to this call, and its rule lets someone else decide"
    return request.ask_terms.barred(name=session.me, role=session.who.role, machine=session.who.machine)


def has_approved(request: RequestDetail, session: Session) -> bool:
    """Tell whether the person has approved a request that needs more approvals."""
    return request.status == "pending" and any(each.decided_by == session.me for each in request.given)


def state_text(request: RequestDetail, others: Sequence[Viewer], session: Session) -> Folded:
    """Return what a person has to know before they decide: shown above the call, a line each; nothing for most requests."""
    if request.status != "pending":
        return _start_text(request, session)
    lines = []
    if request.quorum > 1:
        approvers = ", ".join(plain_line(each.decided_by, NAME_CHARS) for each in request.given)
        lines.append(
            at(
                "",
                (f"{request.approvals} of {request.quorum} approvals", "bold"),
                f": {approvers}" if approvers else "",
            )
        )
    if has_approved(request, session):
        lines.append(
            at("", ("You approved it. ", "bold"), "More people must. z z takes your approval back, r rejects the call.")
        )
    if (why := barred(request, session)) is not None:
        lines.append(at("", ("You cannot decide this: ", "bold yellow"), plain_line(why, 300)))
    holder = holder_of(request)
    if holder is not None and request.claimed_until:
        ends = f"; it ends {until(request.claimed_until)}"
        own = same_person(holder, session.me)
        who = "You have claimed this" if own else f"{plain_line(holder, NAME_CHARS)} has claimed this"
        keys = "c gives it back" if own else "c c takes it over"
        lines.append(at("", (who, "bold"), f"{ends}  ", (keys, "dim")))
    if others:
        names = ", ".join(plain_line(each.name, NAME_CHARS) for each in others)
        lines.append(at("", ("also looking: ", "dim"), names))
    return folded(lines)


def _start_text(request: RequestDetail, session: Session) -> Folded:
    """Return when an approved call starts, and how its approval is taken back until then; or that it was."""
    if request.void_words:
        return folded([at("", (request.void_words, "bold yellow"))])
    if not request.waits_to_start or request.starts_at is None:
        return NOTHING
    how = "z z takes your approval back." if request.can_be_taken_back(session.me) else ""
    return folded([at("", (f"The call starts {until(request.starts_at)}. ", "bold"), how)])


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
