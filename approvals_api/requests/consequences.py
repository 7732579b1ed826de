"""What each answer to a pending request leads to, and what no answer does: short lines for the person who decides."""

from __future__ import annotations

from turngate.domain.runs.budgets import EXTEND_BUDGET
from turngate.domain.text.durations import exact_span
from turngate.domain.text.instants import in_utc
from turngate.domain.tools.external import is_external, source_of
from turngate.wire.requests import Consequences, RequestDetail

_UNDO = {
    "read": "It only reads: there is nothing to take back.",
    "idempotent": "Turngate can't take it back. To repeat it with the same key changes nothing more.",
    "once": "Turngate can't take it back, and never repeats it by itself.",
}


def consequences_of(request: RequestDetail) -> Consequences | None:
    """Return what each answer leads to; None: the request has ended."""
    if request.status != "pending":
        return None
    if request.tool_name == EXTEND_BUDGET and not is_external(request.agent):
        return _of_extension(request)
    yes = {"approval": _approval, "question": _question, "outcome": _outcome}[request.kind](request)
    return Consequences(yes=yes, no=_no(request), silence=_silence(request), undo=_undo(request))


def _of_extension(request: RequestDetail) -> Consequences:
    """Return what the answers to the engine's own call for more of a budget lead to: the agent reads nothing of it."""
    ends = "The run ends, because nothing is left of its budget. The agent reads nothing of this."
    until = request.expires_at
    waits = "The run waits until someone answers."
    if until is not None and request.parked_at is None:
        after = (
            "it is parked: it waits on, without a deadline" if request.ask_terms.on_expiry == "park" else "the run ends"
        )
        waits = f"The run waits. At {in_utc(until)} {after}."
    yes = "The run may use that much more, and continues. Edit the amount to grant another."
    return Consequences(
        yes=yes, no=ends, silence=waits, undo="What was granted stays; you can interrupt the run at any time."
    )


def _approval(request: RequestDetail) -> str:
    unseen = len(request.unseen_secrets)
    as_shown = "exactly as shown"
    if unseen:
        as_shown = f"as shown, with {'one value' if unseen == 1 else f'{unseen} values'} that you don't see"
    runs = f"Runs the call {as_shown}."
    if is_external(request.agent):
        runs = f"Lets {source_of(request.agent)} run the call {as_shown}."
    elif request.manifest.kind == "agent":
        runs = "Starts another agent's run with this task. Its own calls are judged one by one."
    elif request.manifest.kind == "signal":
        runs = "This run does what the call asks of it. No tool runs."
    if request.precondition is not None:
        runs = f"{runs} If what it depends on has changed, you are asked again."
    if request.ask_terms.grace_seconds:
        runs = f"{runs} It starts {exact_span(request.ask_terms.grace_seconds)} later; until then you can take the approval back."
    if request.quorum == 1:
        return runs
    missing = request.quorum - request.approvals - 1
    if missing < 1:
        return f"Yours is the last of {request.quorum} approvals. {runs}"
    return f"Yours is one of {request.quorum} approvals; {missing} more must follow before anything runs."


def _question(_request: RequestDetail) -> str:
    return "The agent gets your answer as the call's result. No tool runs."


def _outcome(request: RequestDetail) -> str:
    if request.outlives_its_run:
        return "Your answer records whether the call happened. Nothing runs: its run has ended."
    return "The agent gets the result that you enter. If it did not happen, the call runs again."


def _no(request: RequestDetail) -> str:
    reader = "That program" if is_external(request.agent) else "The agent"
    if request.kind == "question":
        return f"{reader} reads that a person declined to answer, and your reason."
    if request.outlives_its_run:
        return "It stays on record that no one knows whether the call happened."
    if request.kind == "outcome":
        return f"{reader} reads that the call may or may not have taken effect."
    ends = " One rejection ends the request." if request.quorum > 1 else ""
    return f"The call doesn't run. {reader} reads your reason, and that it must not repeat the call as it is.{ends}"


def _silence(request: RequestDetail) -> str:
    waits = "The run waits in this step; its other calls continue."
    if request.outlives_its_run:
        waits = "Its run has ended, and doesn't wait."
    elif is_external(request.agent):
        waits = "That program waits for its call."
    if request.parked_at is not None or request.expires_at is None:
        return f"It waits until someone answers. {waits}"
    until = in_utc(request.expires_at)
    if request.ask_terms.on_expiry == "park":
        return f"{waits} At {until} it is parked: it waits on, without a deadline."
    return f"{waits} At {until} the call is refused, and the agent reads that no one answered."


def _undo(request: RequestDetail) -> str:
    if request.kind == "question":
        return ""
    if is_external(request.agent):
        return "Whether it can be taken back is for that program to say."
    if request.manifest.kind == "agent":
        return "The other run can be stopped; what it has done by then stays."
    if request.manifest.kind == "signal":
        return "Nothing outside of this run changes."
    return _UNDO[request.manifest.effect]
