"""Words for what only some runs and calls have: a past of another run, a signal, a wait, a result shown in part."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from turngate.domain.conversation.summaries import not_summarised
from turngate.domain.policy.judge import Judgement
from turngate.domain.tools.control_calls import WaitUntil
from turngate.text.plain_text import plain_line
from turngate.wire.calls import CallView, ResultInPart


def handed_off(said: Mapping[str, Any]) -> str:
    """Return what the event ``run.handed_off`` says."""
    return f"handed over from {_plain(said['from'])} to {_plain(said['to'])}, who continues"


def model_switched(said: Mapping[str, Any]) -> str:
    """Return what the event ``run.model_switched`` says; of one that a call asked for no one is named."""
    by = f", as {_plain(said['by'])} says" if "by" in said else ""
    return f"the model {_plain(said['to'])} continues, in place of {_plain(said['from'])}{by}"


def model_fell_back(said: Mapping[str, Any]) -> str:
    """Return what the event ``run.model_fell_back`` says."""
    why = f"{_plain(said['error_class'])}: {_plain(said['message'])}"
    return f"the model {_plain(said['to'])} stands in for {_plain(said['from'])}, which cannot be used ({why})"


def forked_from(said: Mapping[str, Any]) -> str:
    """Return where the run of the event ``run.started`` was forked from."""
    afresh = ", to begin afresh with a summary of it" if said.get("summarise") else ""
    return f"forked from run {_plain(said['run_id'])} after step {_plain(said['step'])}{afresh}"


def scheduled(said: Mapping[str, Any]) -> str:
    """Return which schedule opened the run of the event ``run.started``, and that no one attends it."""
    return f"opened by schedule {_plain(said['schedule_id'])}: no one attends it"


def replay_of(said: Mapping[str, Any]) -> str:
    """Return what the run of the event ``run.started`` is a dry run of."""
    behind = f" behind step {_plain(said['step'])}" if said["step"] else ""
    return f"dry run of run {_plain(said['run_id'])}{behind}: nothing runs, no one is asked"


def own_world(own: Mapping[str, Any]) -> str:
    """Return what the run of the event ``run.started`` has of its own."""
    told = ["instructions"] if "instructions" in own else []
    if "tools" in own:
        told.append(f"tools ({', '.join(own['tools']) or 'none'})")
    if "policy" in own:
        told.append(f"policy ({own['policy'][:12]}; no grant counts beside it)")
    return _plain(f"has its own {', '.join(told)}")


def steered(kind: str, said: Mapping[str, Any]) -> str:
    """Return what an event says of someone who held the run, let it continue, or spoke to it; or of a budget it used up."""
    who = _plain(said.get("by", said.get("sent_by", "somebody")))
    match kind:
        case "run.paused":
            why = f": {_plain(said['reason'])}" if said["reason"] else ""
            return f"{who} holds the run{why}"
        case "run.resumed":
            return f"{who} lets the run continue"
        case "message.queued":
            when = "in the next run" if said["while_running"] == "queue" else "before the next step"
            return f"{who} sent a message, to be read {when}"
        case "budget.used_up":
            return (
                f"{_plain(said['budget']).replace('_', ' ')} used up: {_plain(said['used'])} of {_plain(said['limit'])}"
            )
        case _:
            return f"the agent reads the message of {who}"


def judged_said(judged: Judgement) -> str:
    """Return what the judge said of a call, its words marked as a model's."""
    words = plain_line(judged.reason, 400)
    words = words if judged.problem is not None else f"“{words}” (a model's words)"
    return f"(model {plain_line(judged.model, 80)}) {judged.said}: {words}"


def nudged(said: Mapping[str, Any]) -> str:
    """Return what the event ``run.nudged`` says."""
    steps = int(said["in_a_row"])
    return f"no progress for {steps} step{'' if steps == 1 else 's'}: the same calls, the same results; the model is told so"


def wait_said(call: CallView) -> str | None:
    """Return how long a call that waits will wait; None for every other call."""
    if not isinstance(call.signal, WaitUntil):
        return None
    if call.waits_until is None:
        return "waits"
    until = datetime.fromisoformat(call.waits_until)
    return f"waits until {until:%Y-%m-%d %H:%M:%S} UTC; it costs nothing, and outlives restarts"


def in_part_said(part: ResultInPart, run_id: str, tool_call_id: str) -> str:
    """Return how much of a result is shown, and the command that prints all of it."""
    return (
        f"shown in part ({part.shown_chars:,} of {part.total_chars:,} characters); all of it: "
        f"turngate result {run_id} {_plain(shlex.quote(tool_call_id))}"
    )


def _plain(value: object) -> str:
    return plain_line(str(value), 200)


# Words for what happened to a long conversation: summarised, cut short, carried over; and why it was not.


def context_said(kind: str, said: Mapping[str, Any]) -> str:
    """Return what an event ``context.*`` says."""
    match kind:
        case "context.compacted":
            return f"{_messages(said)} summarised by {_plain_text(said['model'])} ({_tokens(said)})"
        case "context.trimmed":
            return f"{_messages(said)} left out ({_tokens(said)})"
        case "context.carried_over":
            of = f"run {_plain_text(said['from_run_id'])} up to step {_plain_text(said['step'])}"
            return f"begins with a summary of {of}, written by {_plain_text(said['model'])}"
        case _:
            why = not_summarised(str(said["reason"]), error_class=_plain_text(said["error_class"] or ""))
            return f"the conversation is not summarised: {why}"


def _messages(said: Mapping[str, Any]) -> str:
    count = int(said["messages"])
    of_provider = "the provider refused the conversation as too long: " if said["forced"] else ""
    return f"{of_provider}{count} earlier message{'' if count == 1 else 's'}"


def _tokens(said: Mapping[str, Any]) -> str:
    return f"about {int(said['tokens_before']):,} tokens before, {int(said['tokens_after']):,} now"


def _plain_text(value: object) -> str:
    return plain_line(str(value), 200)
