"""Events as sentences for people: who did what to which call, in which run, and how long after it was asked.

A sentence is pieces, because names and summaries in it come from outside: a page isolates and escapes each, a file joins them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from string import Formatter
from typing import Final, Literal

from turngate.domain.text.durations import span
from turngate.store.clock import from_text
from turngate.store.database import Connection
from turngate.store.events import audit
from turngate.store.events.audit import RequestOfEvent, RunOfEvent
from turngate.store.events.events import SYSTEM
from turngate.text.run_words import REFUSED_MESSAGE
from turngate.wire.agents import agents_path
from turngate.wire.events import AuditItem
from turngate.wire.people import display_name

PieceKind = Literal["words", "person", "name", "request"]
TASK_CHARS: Final = 120

_SENTENCES: Final = {
    "run.started": "{by} started a run of {agent}",
    "run.ended": "The run ended: {status}",
    "run.interrupted": "{by} interrupted the run",
    "run.paused": "{by} paused the run",
    "run.resumed": "{by} resumed the run",
    "run.model_switched": "{by} switched the model from {from} to {to}",
    "run.model_fell_back": "{from} could not be used, so {to} answers",
    "run.handed_off": "{from} handed over to {to}",
    "run.nudged": "The agent made no progress, so Turngate told it so",
    "run.start_repeated": "The run was started again",
    "step.responded": "The model answered",
    "step.closed": "The step was closed",
    "model.retrying": "A request to the model failed: {error_class}",
    "model.broke_off": "The model broke off in the middle of an answer",
    "context.compacted": "{model} wrote a summary of earlier messages",
    "context.trimmed": "Earlier messages were left out",
    "message.queued": "{by} sent the run a message",
    "message.refused": REFUSED_MESSAGE,
    "message.taken": "The run read a message from {sent_by}",
    "budget.used_up": "A budget was used up: {budget}",
    "request.opened": "The agent asked for {call}, under the rule {rule}",
    "request.viewed": "{by} looked at {call}",
    "request.decided": "{by} {verb} {call}{after}",
    "request.approved_once": "{by} approved {call}{after}, and others have to",
    "request.approval_withdrawn": "{by} took back the approval of {call}",
    "request.claimed": "{by} claimed {call}",
    "request.claim_taken_over": "{by} took over the claim of {call} from {from}",
    "request.released": "{by} released the claim of {call}",
    "request.commented": "{by} commented on {call}",
    "request.revealed": "{by} revealed the secrets of {call}",
    "request.expired": "No one answered {call} in time",
    "request.cancelled": "{call} was cancelled",
    "request.superseded": "{call} was replaced",
    "request.parked": "{call} waits without a deadline",
    "request.reminded": "People were reminded of {call}",
    "request.escalated": "{call} was escalated",
    "request.delegated": "{call} was delegated",
    "execution.started": "{tool} started",
    "execution.finished": "{tool} {ok}",
    "execution.unknown": "{tool} may or may not have run",
    "execution.late": "{tool} reported its end late",
    "call.closed": "{tool} did not run: {kind}",
    "grant.created": "{by} granted calls of {tool}",
    "grant.revoked": "{by} revoked a grant for {tool}",
    "grant.used": "A grant let {tool} run",
    "conversation.erased": "{by} erased content of the run's conversation",
    "hold.added": "{by} put a legal hold on {target}",
    "hold.removed": "{by} removed the legal hold on {target}",
    "person.erased": "{by} erased what is stored of a person",
    "retention.applied": "The retention rule {rule} removed {rows} row(s)",
    "drill.finished": "{by} recorded a {kind} drill: {result}",
    "store.restored": "{by} restored the store from a backup of {backup_at}",
    "store.reconciled": "{by} reconciled the restored store",
    "policy.proposed": "{by} proposed rules that may loosen",
    "policy.confirmed": "{by} confirmed the rules that {proposed_by} proposed",
    "policy.refused": "{by} refused the rules that {proposed_by} proposed",
    "login.failed": "A login as {name} failed",
    "session.opened": "{by} logged in",
    "schedule.created": "{by} created the schedule {name}",
    "schedule.changed": "{by} changed the schedule {name}",
    "schedule.paused": "{by} paused the schedule {name}",
    "schedule.resumed": "{by} resumed the schedule {name}",
    "schedule.deleted": "{by} deleted the schedule {name}",
    "token.issued": "{by} issued the token {name}",
    "token.revoked": "{by} revoked the token {name}",
}
RETRY_STARTED: Final = "{by} retried a run of {agent}"
"""What each type of event says. An event of another type, or without one of the names in braces, says its type."""
_VERBS: Final[dict[object, str]] = {
    "approve": "approved",
    "edit": "approved, with changes,",
    "reject": "rejected",
    "respond": "answered",
}


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A part of a sentence. ``words``: ours; everything else comes from outside. ``request_id``: what it leads to."""

    text: str
    kind: PieceKind = "words"
    request_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class Sentence:
    """What one event says. ``tool``: of its call, where that is known. ``request_id``: the request that it is about."""

    item: AuditItem
    pieces: Sequence[Piece]
    request_id: str | None
    tool: str

    @property
    def text(self) -> str:
        """All of it as one text."""
        return "".join(each.text for each in self.pieces)


@dataclass(frozen=True, kw_only=True)
class Chapter:
    """Events that follow each other, of one run and one day (UTC). ``run_id`` None: they belong to no run."""

    day: str
    begins_day: bool
    run_id: str | None
    agents: str = ""
    task: str = ""
    sentences: list[Sentence] = field(default_factory=list)

    @property
    def day_in_words(self) -> str:
        """The day as people write it, such as ``Monday, 2 November 2026``."""
        day = datetime.fromisoformat(self.day)
        return f"{day:%A}, {day.day} {day:%B %Y}"


async def sentences_of(conn: Connection, items: Sequence[AuditItem]) -> list[Sentence]:
    """Return what events say, by one statement for all of them."""
    requests = await audit.requests_of(conn, [each for each in map(_request_id, items) if each is not None])
    return [_sentence(each, requests) for each in items]


def runs_in(items: Sequence[AuditItem]) -> list[str]:
    """Return the ids of the runs that events are of."""
    return sorted({each.run_id for each in items} - {SYSTEM})


async def chapters_of(conn: Connection, items: Sequence[AuditItem], mask: Callable[[str], str]) -> list[Chapter]:
    """Return events in chapters, in their order, by two statements for all of them. ``mask``: what people see of a text."""
    runs = await audit.runs_of(conn, runs_in(items))
    chapters: list[Chapter] = []
    for sentence in await sentences_of(conn, items):
        day = sentence.item.created_at[:10]
        run_id = None if sentence.item.run_id == SYSTEM else sentence.item.run_id
        last = chapters[-1] if chapters else None
        if last is None or (last.day, last.run_id) != (day, run_id):
            begins_day = last is None or last.day != day
            chapters.append(_chapter(day, run_id, runs, mask, begins_day=begins_day))
        chapters[-1].sentences.append(sentence)
    return chapters


def _chapter(
    day: str, run_id: str | None, runs: Mapping[str, RunOfEvent], mask: Callable[[str], str], *, begins_day: bool
) -> Chapter:
    run = None if run_id is None else runs.get(run_id)
    if run is None:
        return Chapter(day=day, begins_day=begins_day, run_id=run_id)
    agents = agents_path(run.path, run.agent)
    task = mask(run.task)[:TASK_CHARS]
    return Chapter(day=day, begins_day=begins_day, run_id=run_id, agents=agents, task=task)


def _sentence(item: AuditItem, requests: Mapping[str, RequestOfEvent]) -> Sentence:
    request_id = _request_id(item)
    request = None if request_id is None else requests.get(request_id)
    tool = item.payload.get("tool")
    if not isinstance(tool, str):
        tool = "" if request is None else request.tool_name
    template = RETRY_STARTED if _is_retry(item) else _SENTENCES.get(item.type)
    pieces = None if template is None else _filled(template, item, request, request_id)
    return Sentence(item=item, pieces=pieces or _by_type(item), request_id=request_id, tool=tool)


def _is_retry(item: AuditItem) -> bool:
    fork = item.payload.get("forked_from")
    return item.type == "run.started" and isinstance(fork, dict) and fork.get("retry") is True


def _filled(
    template: str, item: AuditItem, request: RequestOfEvent | None, request_id: str | None
) -> list[Piece] | None:
    """Return the pieces of a template; None: the event does not have all that it names."""
    pieces = list(_pieces(template, item, request, request_id))
    return [each for each in pieces if each is not None] if None not in pieces else None


def _pieces(
    template: str, item: AuditItem, request: RequestOfEvent | None, request_id: str | None
) -> Iterator[Piece | None]:
    for words, name, _spec, _conversion in Formatter().parse(template):
        if words:
            yield Piece(text=words)
        if name is not None:
            yield _piece(name, item, request, request_id)


def _piece(name: str, item: AuditItem, request: RequestOfEvent | None, request_id: str | None) -> Piece | None:
    match name:
        case "by":
            return Piece(text=display_name(item.actor), kind="person") if item.actor else Piece(text="Turngate")
        case "call":
            what = "a request" if request is None else request.summary or request.tool_name
            return Piece(text=what, kind="request", request_id=request_id)
        case "after":
            return Piece(text="" if request is None else _after(request.created_at, item.created_at))
        case "ok":
            return Piece(text=_end_words(item.payload))
        case _:
            return _of_payload(name, item.payload.get(name))


def _of_payload(name: str, value: object) -> Piece | None:
    """Return what a member of the payload says; None: it says nothing."""
    if not isinstance(value, str | int) or value == "":
        return None
    if name == "verb":
        return Piece(text=_VERBS[value]) if value in _VERBS else None
    return Piece(text=display_name(str(value)), kind="name")


def _end_words(payload: Mapping[str, object]) -> str:
    if payload.get("ok") is not True:
        return "failed"
    return "ended with a warning" if payload.get("warned") is True else "succeeded"


def _after(asked_at: str, at: str) -> str:
    return f" {span((from_text(at) - from_text(asked_at)).total_seconds())} after it was asked"


def _by_type(item: AuditItem) -> list[Piece]:
    """Return what an event says by its type alone: ``noun.past_participle``."""
    noun, _, verb = item.type.replace("_", " ").partition(".")
    if item.actor:
        return [Piece(text=display_name(item.actor), kind="person"), Piece(text=f" {verb} the {noun}")]
    return [Piece(text=f"{noun.capitalize()} {verb}")]


def _request_id(item: AuditItem) -> str | None:
    request_id = item.payload.get("request_id")
    return request_id if isinstance(request_id, str) else None
