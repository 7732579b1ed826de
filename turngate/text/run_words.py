"""Events of a run in words, and what only some calls have: a judge's answer, a wait, a result shown in part."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Final

from turngate.domain.conversation.summaries import not_summarised
from turngate.domain.origins.origin import Origins
from turngate.domain.policy.judge import Judgement
from turngate.domain.requests import LostStart
from turngate.domain.runs.groups import Group, Grouping, label
from turngate.domain.text.durations import span
from turngate.domain.text.sentences import counted
from turngate.domain.tools.control_calls import WaitUntil
from turngate.domain.tools.external import is_external, source_of
from turngate.text.instants import second
from turngate.text.plain_text import Piece, plain, plain_line
from turngate.wire.calls import CallView, ResultInPart
from turngate.wire.decisions import DecisionView
from turngate.wire.explanation import StuckRun, WaitKind
from turngate.wire.precedents import DifferenceView, PrecedentCase, PrecedentView
from turngate.wire.requests import Consequences, LatestMessage, RequestDetail, RequestItem, RevealedSecret, TaskView

TASK_CHARS: Final = 300
MOST_ORIGINS: Final = 40
"""In a terminal; the doubtful ones come first."""
SIBLING_CHARS: Final = 100
_NAMES: Final = {"untrusted": "UNTRUSTED", "contradicts": "CONTRADICTS", "nowhere": "NOWHERE"}

Payload = Mapping[str, Any]
"""An event's payload."""


WAITS_FOR: Final[Mapping[WaitKind, str]] = {
    "workflow_gone": "workflow gone",
    "workflow_fails": "workflow fails",
    "no_worker": "no worker",
    "temporal_away": "Temporal away",
    "model_retrying": "model retrying",
    "paused": "paused",
    "model": "model",
    "tool": "tool",
    "timer": "timer",
    "sub_agent": "sub-agent",
    "person": "person",
}
"""What a stalled run waits for, in few words: first what needs an engineer, last what needs a person's decision."""


def execution_piece(call: CallView | RequestDetail) -> Piece:
    """Return how far an execution is. A warning of its result takes the place of "succeeded"."""
    if call.execution == "succeeded" and call.warning:
        return (plain_line(call.warning, 100), "yellow")
    return call.execution.replace("_", " ")


def by_cause(stalled: Sequence[StuckRun]) -> list[tuple[WaitKind, list[StuckRun]]]:
    """Return stalled runs by what they wait for, in the order of :data:`WAITS_FOR`: people's waits come last."""
    groups = [(kind, [each for each in stalled if each.waits_for.kind == kind]) for kind in WAITS_FOR]
    return [(kind, members) for kind, members in groups if members]


REFUSED_MESSAGE: Final = "Turngate refused a message that no one sent like this: {problem}"
SENDERS_WORDS: Final = ", as {source} tells it"
"""Whose words a task or a message of a person is that a program sent with its call."""


def teller_words(agent: str) -> str:
    """Return whose words a task or a message of a person is: of a program's call, that program's; else nothing."""
    return SENDERS_WORDS.format(source=_plain(source_of(agent))) if is_external(agent) else ""


def lead_lines(tasks: Sequence[TaskView], latest: LatestMessage | None) -> list[tuple[str, str]]:
    """Return what leads to a request, a label and a line each: what a person asked for, what agents asked of the next.

    ``latest``: a person's newest message to the run, if that isn't the task.
    """
    teller = teller_words(tasks[0].agent) if tasks else ""
    labels = [
        f"the task{teller}",
        *(f"{_plain(above.agent)} asked {_plain(below.agent)}" for above, below in pairwise(tasks)),
    ]
    lines = [(label, plain_line(each.task, TASK_CHARS)) for label, each in zip(labels, tasks, strict=False)]
    return lines if latest is None else [*lines, (f"a person last said{teller}", plain_line(latest.text, TASK_CHARS))]


def group_words(group: Group[RequestItem], by: Grouping) -> str:
    """Return what a group of requests has in common, in one line."""
    first = group.items[0]
    if by == "alike":
        return plain_line(group.words if group.is_rest else f"{first.tool_name}: {group.words}", 120)
    step = f"step {first.step} of " if by == "step" and first.step is not None else ""
    task = f", {first.tasks[0].task}" if first.tasks else ""
    return plain_line(f"{step}{first.run_id}: {counted(len(group.items), 'request')}{task}", 120)


def differs_words(group: Group[RequestItem], item: RequestItem) -> str:
    """Return in what a call differs from those that it is in a group with; empty: in nothing."""
    odd = group.differs.get(item.id, ())
    return plain_line(f"differs in {', '.join(map(label, odd))}", 120) if odd else ""


def consequence_lines(leads_to: Consequences | None, time_left: str | None) -> list[tuple[str, str]]:
    """Return what each answer leads to, and what the run has left of its time, a label and a line each; empty: it has ended."""
    if leads_to is None:
        return []
    lines = [("yes", leads_to.yes), ("no", leads_to.no), ("no answer", leads_to.silence), ("afterwards", leads_to.undo)]
    lines.append(("the run's time", time_left or ""))
    return [(label, plain_line(words)) for label, words in lines if words]


def lost_start_lines(start: LostStart | None) -> list[tuple[str, str]]:
    """Return how a lost call started and how to check whether it took effect, a label and a text each, which may have lines."""
    if start is None:
        return []
    where = " on worker ".join(filter(None, (f"at {second(start.started_at)}", start.worker)))
    build = f", build {start.build}" if start.build else ""
    lines = [("how to check", plain(start.check_with))] if start.check_with else []
    lines.append(("idempotency key", plain_line(start.idempotency_key)))
    lines.append(("started", f"{plain_line(where + build)}, attempt {start.attempt}"))
    if start.progress is not None:
        lines.append(("last progress", f"{plain_line(start.progress)} at {second(start.progress_at)}"))
    return lines


def not_run_words(why: str | None) -> str:
    """Return that an approved call did not run, and why; empty: it did, or still may."""
    return "" if why is None else f"it did not run: {plain_line(why, 500)}"


def start_words(request_id: str, starts_at: str) -> str:
    """Return when an approved call starts, and how its approval is taken back until then."""
    return f"the call starts at {second(starts_at)}; until then `turngate decide {request_id} withdraw` takes your approval back"


def origin_lines(origins: Origins | None) -> list[tuple[str, str]]:
    """Return where arguments come from, a line each with its doubt (empty: none), the doubtful ones first."""
    if origins is None or not origins.items:
        return []
    ordered = sorted((each for each in origins.items if each.words), key=lambda each: each.doubt is None)
    lines = [
        (f"{_plain(each.label)}: {_plain(each.words)}", "" if each.doubt is None else _NAMES[each.doubt])
        for each in ordered[:MOST_ORIGINS]
    ]
    if len(ordered) > MOST_ORIGINS:
        lines.append((f"and {len(ordered) - MOST_ORIGINS} more", ""))
    return lines


def sibling_lines(request: RequestDetail) -> list[str]:
    """Return the other calls of a request's step, a line each: the call, its state, and its request."""
    return [
        f"{_plain(each.tool_name)} {plain_line(each.input, SIBLING_CHARS)}: {each.words}"
        + (f" ({_plain(each.request_id)})" if each.request_id else "")
        for each in request.siblings
    ]


def precedent_lines(precedent: PrecedentView | None) -> list[tuple[str, str]]:
    """Return what people decided about calls like this one, a label and a line each; none where nothing is known."""
    if precedent is None:
        return []
    last = precedent.last_rejection
    rejection = (
        "" if last is None else f" Last rejection: {_ago(last.decided_at)}{_reason(last) or ', without a reason'}."
    )
    lines = [("calls like this", f"{precedent.decisions}{rejection} {precedent.record}".rstrip())]
    if precedent.waiting:
        lines.append(("waiting", precedent.waiting))
    for case in precedent.nearest:
        became = f"; it {case.outcome}" if case.outcome else ""
        who = f"{case.decided} by {_plain(case.decided_by)} {_ago(case.decided_at)}{_reason(case)}{became}"
        lines.append((case.likeness, f"{who} ({case.request_id})"))
        lines.extend(("", _difference(each)) for each in case.differences)
        if case.more_differences:
            lines.append(("", f"and {case.more_differences} more"))
    return lines


def _reason(case: PrecedentCase) -> str:
    return f": “{_plain(case.message)}”" if case.message else ""


def _difference(difference: DifferenceView) -> str:
    was, is_now = ("nothing" if value is None else plain_line(value, 100) for value in (difference.was, difference.now))
    return f"{_plain(difference.at)} was {was}, is {is_now}"


def _ago(instant: str) -> str:
    return f"{span((datetime.now(UTC) - datetime.fromisoformat(instant)).total_seconds())} ago"


def handed_off(payload: Payload) -> str:
    """Return the event ``run.handed_off`` in words."""
    return f"handed over from {_plain(payload['from'])} to {_plain(payload['to'])}, who continues"


def model_switched(payload: Payload) -> str:
    """Return the event ``run.model_switched`` in words. A switch that a call asked for names no person."""
    by = f", switched by {_plain(payload['by'])}" if "by" in payload else ""
    return f"model {_plain(payload['to'])} continues instead of {_plain(payload['from'])}{by}"


def model_fell_back(payload: Payload) -> str:
    """Return the event ``run.model_fell_back`` in words."""
    why = f"{_plain(payload['error_class'])}: {_plain(payload['message'])}"
    return f"model {_plain(payload['to'])} stands in for {_plain(payload['from'])}, which cannot be used ({why})"


def forked_from(fork: Payload) -> str:
    """Return where a run was forked from, or which run it retries. ``fork``: of the event ``run.started``."""
    if fork.get("retry"):
        return f"retries run {_plain(fork['run_id'])}, which ended at step {_plain(fork['step'])}"
    summary = ", and begins with a summary of it" if fork.get("summarise") else ""
    return f"forked from run {_plain(fork['run_id'])} after step {_plain(fork['step'])}{summary}"


def scheduled(payload: Payload) -> str:
    """Return which schedule opened the run of the event ``run.started``."""
    return f"opened by schedule {_plain(payload['schedule_id'])}: no one attends it"


def dry_run_of(source: Payload) -> str:
    """Return which run a dry run repeats. ``source``: of the event ``run.started``."""
    after = f" after step {_plain(source['step'])}" if source["step"] else ""
    return f"dry run of run {_plain(source['run_id'])}{after}: no tool runs, no one is asked"


def overrides(own: Payload) -> str:
    """Return what a run has in place of its agent's and its app's. ``own``: of the event ``run.started``."""
    parts = ["instructions"] if "instructions" in own else []
    if "tools" in own:
        parts.append(f"tools ({', '.join(own['tools']) or 'none'})")
    if "policy" in own:
        parts.append(f"policy ({own['policy'][:12]}; grants do not count)")
    return _plain(f"has its own {', '.join(parts)}")


STEERING: Final = frozenset(
    {
        "run.interrupted",
        "run.paused",
        "run.resumed",
        "message.queued",
        "message.taken",
        "message.refused",
        "budget.used_up",
    }
)
"""Events that :func:`steered` has words for."""


def steered(kind: str, payload: Payload) -> str:
    """Return in words who held or resumed the run or sent a message, or which budget it used up."""
    who = _plain(payload.get("by", payload.get("sent_by", "someone")))
    match kind:
        case "run.interrupted":
            why = f": {_plain(payload['reason'])}" if payload["reason"] else ""
            return f"{who} stops the run{why}"
        case "run.paused":
            why = f": {_plain(payload['reason'])}" if payload["reason"] else ""
            return f"{who} holds the run{why}"
        case "run.resumed":
            return f"{who} resumes the run"
        case "message.queued":
            when = "in the next run" if payload["while_running"] == "queue" else "before the next step"
            return f"{who} sent a message; the agent reads it {when}"
        case "message.refused":
            return REFUSED_MESSAGE.format(problem=_plain(payload["problem"]))
        case "budget.used_up":
            budget = _plain(payload["budget"]).replace("_", " ")
            return f"{budget} used up: {_plain(payload['used'])} of {_plain(payload['limit'])}"
        case _:
            return f"the agent reads the message of {who}"


def approval_words(kind: str, payload: Payload) -> str:
    """Return in words whose approval of a request was counted, or was taken back."""
    who = _plain(payload["by"])
    count = f" ({payload['approvals']} of {payload['quorum']})" if "quorum" in payload else ""
    if kind == "request.approved_once":
        return f"approved by {who}{count}; it waits for more approvals"
    return f"{who} took the approval back{count}; the call did not run"


def nudged(payload: Payload) -> str:
    """Return the event ``run.nudged`` in words."""
    if "repeats" in payload:
        times = int(payload["repeats"]) + 1
        return f"no progress: the same call {times} times with the same result; the model gets a hint about it"
    count = counted(int(payload["in_a_row"]), "step")
    return f"no progress for {count}: the same calls with the same results; the model gets a hint about it"


def context_words(kind: str, payload: Payload) -> str:
    """Return an event ``context.*`` in words: a long conversation was summarised, cut, carried over, or was not."""
    match kind:
        case "context.compacted":
            return f"{_messages(payload)} summarised by {_plain(payload['model'])} ({_tokens(payload)})"
        case "context.trimmed":
            return f"{_messages(payload)} left out ({_tokens(payload)})"
        case "context.carried_over":
            of = f"run {_plain(payload['from_run_id'])} up to step {_plain(payload['step'])}"
            return f"begins with a summary of {of}, written by {_plain(payload['model'])}"
        case _:
            why = not_summarised(str(payload["reason"]), error_class=_plain(payload["error_class"] or ""))
            return f"the conversation is not summarised: {why}"


def _messages(payload: Payload) -> str:
    of_provider = "the provider refused the conversation as too long: " if payload["forced"] else ""
    return f"{of_provider}{counted(int(payload['messages']), 'earlier message')}"


def _tokens(payload: Payload) -> str:
    return f"about {int(payload['tokens_before']):,} tokens before, {int(payload['tokens_after']):,} now"


def judgement_words(judgement: Judgement) -> str:
    """Return the judge's answer about a call. What the model wrote is marked as a model's words."""
    words = plain_line(judgement.reason, 400)
    words = words if judgement.problem is not None else f"“{words}” (a model's words)"
    return f"(model {plain_line(judgement.model, 80)}) {judgement.summary}: {words}"


def wait_words(call: CallView) -> str | None:
    """Return until when a call waits; None for a call that does not wait."""
    if not isinstance(call.signal, WaitUntil):
        return None
    if call.waits_until is None:
        return "waits"
    return f"waits until {second(call.waits_until)}; this costs nothing and survives restarts"


def part_words(part: ResultInPart, run_id: str, tool_call_id: str) -> str:
    """Return how much of a result is shown, and the command that prints all of it."""
    return (
        f"shown in part ({part.shown_chars:,} of {part.total_chars:,} characters); all of it: "
        f"turngate result {run_id} {_plain(shlex.quote(tool_call_id))}"
    )


def _plain(value: object) -> str:
    return plain_line(str(value), 200)


def not_by(request: RequestDetail) -> str:
    """Return who may not decide a request whose rule wants other eyes, and why."""
    starter = f"{plain_line(request.not_by or '', 100)}, who started the run"
    others = [plain_line(each, 100) for each in request.starters if each != request.not_by]
    return f"{starter}; {', '.join(others)}, whose order led to this call" if others else starter


def revealed_lines(secrets: Sequence[RevealedSecret]) -> list[tuple[str, str]]:
    """Return each revealed secret as its place and its exact JSON text."""
    lines: list[tuple[str, str]] = []
    for number, each in enumerate(secrets, 1):
        where = plain_line(each.pointer, 100) if each.place == "arguments" else _SECRET_PLACES[each.place]
        lines.append((f"secret {number}  {where}", plain(each.value)))
    return lines


_SECRET_PLACES: Final = {"task": "in the task", "words": "in the agent's own words", "result": "in the result"}


def unseen_words(pointers: Sequence[str]) -> str:
    """Return what a person who is about to decide doesn't see of a call; empty: they see all of it."""
    if not pointers:
        return ""
    return (
        f"You don't see what is secret here: {_places(pointers)}. It runs as the agent wrote it. Reveal it to read it; else the "
        "log says that you decided without."
    )


def decision_lines(decision: DecisionView | None) -> list[tuple[str, str]]:
    """Return how a request was looked at before it was decided, and what was not seen of it, each with its style."""
    lines = [(look_words(decision), "dim"), (decided_unseen_words(decision), "red")]
    return [each for each in lines if each[0]]


def decided_unseen_words(decision: DecisionView | None) -> str:
    """Return what of a call was secret, and not revealed to the person who let it run; empty: nothing was."""
    if decision is None or not decision.unseen_secrets:
        return ""
    return f"Decided without seeing what is secret: {_places(decision.unseen_secrets)}"


def _places(pointers: Sequence[str]) -> str:
    more = f" and {len(pointers) - MOST_PLACES} more" if len(pointers) > MOST_PLACES else ""
    return ", ".join(plain_line(each or "all arguments", 100) for each in pointers[:MOST_PLACES]) + more


MOST_PLACES: Final = 8


def look_words(decision: DecisionView | None) -> str:
    """Return how long a request was looked at before it was decided, and how much of it was seen; empty: not known."""
    if decision is None or decision.looked_ms is None:
        return ""
    seen = "" if decision.seen_percent is None else f", with {decision.seen_percent} % of the call on the screen"
    return f"looked at for {span(decision.looked_ms / 1000)}{seen}, as their browser or terminal says"
