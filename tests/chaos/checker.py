"""What must be true of a chaos run, whatever was killed and when. Pure: evidence in, violations out.

Each check is a function that yields violations; :func:`violations` runs them all. DESIGN §4 in short: nothing lost (I5),
no ``once`` effect twice (I3), no effect without a matching approval (I2, I6), one winner per request (I4), every
conversation reconciled (I1), and the workflows agree with the store.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from evidence import Answered, Evidence, Recorded, Start

from turngate.domain.conversation.history import is_reconciled, unanswered_calls
from turngate.domain.digest import call_digest
from turngate.domain.requests import STATUS_OF_VERB
from turngate.domain.tools.results import REFUSALS, Failure, Ok
from turngate.store.clock import from_text
from turngate.store.requests.requests import Request, again_id
from turngate.store.runs.calls import Call

Kind = Literal["lost", "twice", "unapproved", "decision", "forged", "conversation", "workflow", "record"]
"""``lost``: a run, a call or its result is missing. ``twice``: a ``once`` handler started again without a person's word.
``unapproved``: an effect without a matching approval. ``decision``: an answer that does not fit what is recorded.
``forged``: a message that someone forged counted.
``conversation``: not reconciled. ``workflow``: Temporal says otherwise than the store. ``record``: the store against itself."""
CLOSED: Final = {"completed": "COMPLETED", "interrupted": "COMPLETED", "failed": "FAILED"}
ONCE: Final = frozenset({"pay", "transfer", "wire", "debit", "post"})
NEVER_SAY: Final = frozenset({"wire", "debit"})
"""Tools whose handler never says whether it took effect: its time runs out, or it raises, after the effect."""
FORGED_NAMES: Final = ("the-ceo", "the-cfo")
"""In whose names :mod:`forger` sends decisions and orders to Temporal."""
FORGED_ID: Final = "forged-"
"""What the ids of its decisions begin with."""
CLOCK_SECONDS: Final = 0.1
"""Ledger and store read one machine's clock; the workflow's is that of its task's start."""


@dataclass(frozen=True)
class Violation:
    """One thing that must not happen. ``of``: the run, call, request or decision that it is about."""

    kind: Kind
    of: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.of}: {self.detail}"


def violations(evidence: Evidence) -> list[Violation]:
    """Return everything that is wrong; an empty list is a proven run."""
    return [violation for check in CHECKS for violation in check(evidence)]


def runs_ended(evidence: Evidence) -> Iterator[Violation]:
    """Every run that was accepted is there, reached an end that it may reach, and made the calls of its script."""
    may_be_interrupted = {plan.run_id for plan in evidence.planned if plan.may_be_interrupted}
    for plan in evidence.planned:
        recorded = evidence.runs.get(plan.run_id)
        if recorded is None:
            yield Violation("lost", plan.run_id, f"run {plan.name} is not in the store")
        elif recorded.run.status == "completed" and plan.calls not in {None, len(recorded.calls)}:
            yield Violation("lost", plan.run_id, f"{len(recorded.calls)} calls, and its script makes {plan.calls}")
    for run_id, recorded in evidence.runs.items():
        run = recorded.run
        top = run.parent_run_id or run_id
        allowed = {"completed", "interrupted"} if top in may_be_interrupted else {"completed"}
        if run.status not in allowed:
            yield Violation("lost", run_id, f"{run.task}: {run.status}, {run.reason}")
        ends = sum(event.type == "run.ended" for event in recorded.events)
        if ends != 1:
            yield Violation("record", run_id, f"its log has {ends} ends")
        if recorded.chain_broken:
            yield Violation("record", run_id, "its event chain is broken")


def calls_have_results(evidence: Evidence) -> Iterator[Violation]:
    """Every planned call has its one result, nothing waits or runs any more, and the result fits what happened."""
    starts = Counter(line.of for line in evidence.ledger)
    for run_id, recorded in evidence.runs.items():
        executed = {each.tool_call_id: each for each in recorded.executions}
        for call in recorded.calls:
            of, result = f"{run_id}/{call.tool_call_id}", call.settled_result
            if result is None:
                yield Violation("lost", of, "it has no result")
                continue
            started = starts[run_id, call.tool_call_id]
            if (
                isinstance(result, Ok)
                and call.child_run_id is None
                and not started
                and not _resolved_as(recorded, call, "happened")
            ):
                yield Violation("lost", of, "it succeeded, and its handler was never started")
            refused = isinstance(result, Failure) and result.kind in REFUSALS - {"interrupted"}
            if refused and started:
                yield Violation("unapproved", of, f"it was {result.kind}, and its handler was started")
            state = executed[call.tool_call_id].state if call.tool_call_id in executed else None
            if state == "executing":
                yield Violation("lost", of, "its execution is still running")
            if started and state is None:
                yield Violation("unapproved", of, "its handler was started, and no execution is on record")
        for request in recorded.requests:
            waits_on = request.kind == "outcome" and recorded.run.status == "interrupted"  # its answer still counts
            if request.status == "pending" and not waits_on:
                yield Violation("lost", request.id, "it still waits, and its run is over")


def once_started_once(evidence: Evidence) -> Iterator[Violation]:
    """A ``once`` handler starts at most once, plus once for each time that a person said it had not happened (I3)."""
    for of, lines in _by_call(evidence.ledger).items():
        recorded = evidence.runs.get(of[0])
        if lines[0].tool not in ONCE or recorded is None:
            continue
        allowed = 1 + sum(
            request.tool_call_id == of[1] and _outcome(recorded, request) == "did_not_happen"
            for request in recorded.requests
        )
        if len(lines) > allowed:
            yield Violation("twice", "/".join(of), f"started {len(lines)} times, allowed {allowed}")


def open_ends_are_no_failures(evidence: Evidence) -> Iterator[Violation]:
    """A handler that took effect and never said so has not failed: a person says what happened, or no one knows (I3)."""
    for (run_id, call_id), lines in _by_call(evidence.ledger).items():
        recorded, of = evidence.runs.get(run_id), f"{run_id}/{call_id}"
        if lines[0].tool not in NEVER_SAY or recorded is None:
            continue
        answers = [_outcome(recorded, each) for each in recorded.requests if each.tool_call_id == call_id]
        result = next((each.settled_result for each in recorded.calls if each.tool_call_id == call_id), None)
        if isinstance(result, Failure) and result.kind not in {"unknown", "interrupted"}:
            yield Violation("twice", of, f"it took effect, and the model reads that it failed: {result.kind}")
        state = next((each.state for each in recorded.executions if each.tool_call_id == call_id), None)
        if state == "failed" and "did_not_happen" not in answers:
            yield Violation("twice", of, "it took effect, and counts as failed")
        if not any(each.kind == "outcome" and each.tool_call_id == call_id for each in recorded.requests):
            yield Violation("lost", of, "no one was asked what happened to it")


def effects_are_approved(evidence: Evidence) -> Iterator[Violation]:
    """What a handler got is what was allowed or approved, to the byte, and not before it was (I2, I6)."""
    for (run_id, call_id), lines in _by_call(evidence.ledger).items():
        of, recorded = f"{run_id}/{call_id}", evidence.runs.get(run_id)
        call = None if recorded is None else next((c for c in recorded.calls if c.tool_call_id == call_id), None)
        if recorded is None or call is None:
            yield Violation("unapproved", of, "the store knows of no such call")
            continue
        if len({line.key for line in lines}) > 1:
            yield Violation("record", of, "its starts had different idempotency keys")
        noted = sum(e.type == "execution.started" and e.payload["tool_call_id"] == call_id for e in recorded.events)
        if len(lines) > noted:
            yield Violation("unapproved", of, f"{len(lines)} starts, and the log has {noted}")
        executed = next((each.digest for each in recorded.executions if each.tool_call_id == call_id), None)
        approvals = [
            request
            for request in recorded.requests
            if (request.tool_call_id, request.kind, request.status) == (call_id, "approval", "approved")
            and not _is_taken_back(recorded, request)
        ]
        if call.disposition == "run":
            yield from _matches(of, lines, call, allowed=call.digest, executed=executed, manifests=evidence.manifests)
        elif len(approvals) != 1:
            yield Violation("unapproved", of, f"it was asked for, and has {len(approvals)} approvals")
        else:
            approved = approvals[0]
            edit = recorded.decisions.get(approved.decision_id or "") if approved.verb == "edit" else None
            allowed = approved.digest if edit is None else edit.digest
            if approved.verb == "edit" and edit is None:
                yield Violation("unapproved", of, "it was edited, and the edit's content is gone")
            yield from _matches(of, lines, call, allowed=allowed, executed=executed, manifests=evidence.manifests)
            decided_at = from_text(approved.decided_at or "").timestamp()
            if min(line.at for line in lines) < decided_at - CLOCK_SECONDS:
                yield Violation("unapproved", of, "its handler was started before it was approved")


def grace_is_kept(evidence: Evidence) -> Iterator[Violation]:
    """No call starts before the grace of its approval ends, and an approval that was taken back starts nothing (ADR 0041)."""
    by_call = _by_call(evidence.ledger)
    for run_id, recorded in evidence.runs.items():
        redeemed = {each.decision_id for each in recorded.executions}
        for request in recorded.requests:
            of, starts_at = f"{run_id}/{request.tool_call_id}", request.starts_at
            if starts_at is None:
                continue
            if _is_taken_back(recorded, request) and request.decision_id in redeemed:
                yield Violation("unapproved", of, "its approval was taken back, and redeemed")
            earliest = from_text(starts_at).timestamp() - CLOCK_SECONDS
            early = [line for line in by_call.get((run_id, request.tool_call_id), []) if line.at < earliest]
            if early:
                yield Violation("unapproved", of, "its handler was started before the grace of its approval ended")


def regrets_match(evidence: Evidence) -> Iterator[Violation]:
    """What operators were answered when they took an approval back matches the record."""
    by_id = {each.id: (recorded, each) for recorded in evidence.runs.values() for each in recorded.requests}
    for sent in evidence.taken_back:
        recorded, request = by_id.get(sent.request_id, (None, None))
        if sent.http not in {200, 409, 410}:
            yield Violation("decision", sent.request_id, f"taking its approval back was answered {sent.http}")
        elif recorded is None or request is None:
            yield Violation("decision", sent.request_id, "its approval was taken back, and it is gone")
        elif sent.http == 200 and not _is_taken_back(recorded, request):
            yield Violation(
                "decision", sent.request_id, "its approval was taken back, and nothing asks about the call again"
            )
        elif sent.code == "already_started" and _is_taken_back(recorded, request):
            yield Violation(
                "decision", sent.request_id, "it was too late to take its approval back, and it is taken back"
            )


def answers_match_decisions(evidence: Evidence) -> Iterator[Violation]:
    """The operators' answers match the record: one winner, the same answer each time, losers learn the winner (I4, I5)."""
    by_id = {request.id: request for recorded in evidence.runs.values() for request in recorded.requests}
    by_decision: dict[str, list[Answered]] = defaultdict(list)
    for answer in evidence.answers:
        by_decision[answer.decision_id].append(answer)
    for name, answers in by_decision.items():
        request = by_id.get(answers[0].request_id)
        if request is None:
            yield Violation("decision", name, f"its request {answers[0].request_id} is gone")
        else:
            yield from _codes_match(name, {answer.http for answer in answers}, request)
            for answer in answers:
                yield from _answer_matches(answer, request)
    for request in by_id.values():
        if request.decision_id is not None and request.decision_id not in by_decision:
            yield Violation("decision", request.id, f"decided by {request.decision_id}, which no one sent")
        if request.verb is not None and request.status != STATUS_OF_VERB[request.verb]:
            yield Violation("record", request.id, f"{request.verb} made it {request.status}")


def _codes_match(name: str, codes: set[int], request: Request) -> Iterator[Violation]:
    """Compare the status codes that one decision got with who decided."""
    won = request.decision_id == name
    if codes - {200, 409, 410}:
        yield Violation("decision", name, f"it was answered {sorted(codes)}")
    if 200 in codes and not won:
        yield Violation("decision", name, f"its answer says that it decided, and {request.decision_id} is recorded")
    if won and codes & {409, 410}:
        yield Violation("decision", name, f"it decided, and was answered {sorted(codes & {409, 410})}")


def _answer_matches(answer: Answered, request: Request) -> Iterator[Violation]:
    """Compare one answer with the record."""
    if answer.http == 200 and answer.status != request.status:
        yield Violation(
            "decision", answer.decision_id, f"it was answered {answer.status}, {request.status} is recorded"
        )
    if answer.http == 409 and answer.code != "already_decided":
        yield Violation(
            "decision", answer.decision_id, f"it was answered {answer.code}, and {request.status} is recorded"
        )
    if answer.http == 409 and answer.winner not in {None, request.decision_id}:
        yield Violation(
            "decision", answer.decision_id, f"its answer names {answer.winner} as the winner, not {request.decision_id}"
        )


def nothing_forged_counts(evidence: Evidence) -> Iterator[Violation]:
    """No row and no event has what only a forged message said, and the person of a decision is the one who sent it (I13)."""
    sender = {answer.decision_id: answer.by for answer in evidence.answers}
    for run_id, recorded in evidence.runs.items():
        stored = [json.dumps(event.payload) for event in recorded.events]
        stored += [repr(each) for each in (recorded.run, *recorded.requests, *recorded.decisions.values())]
        for text in stored:
            if any(forged in text for forged in (*FORGED_NAMES, FORGED_ID)):
                yield Violation("forged", run_id, f"a forged message is on record: {text[:200]}")
        for request in recorded.requests:
            if request.decision_id is not None and request.decided_by != sender.get(request.decision_id):
                yield Violation(
                    "forged", request.id, f"{request.decided_by} decided it, who did not send that decision"
                )


def redeemed_once(evidence: Evidence) -> Iterator[Violation]:
    """Each execution redeemed a decision of its own call, and no decision was redeemed twice (I3)."""
    redeemed = Counter(
        each.decision_id for recorded in evidence.runs.values() for each in recorded.executions if each.decision_id
    )
    for decision_id, times in redeemed.items():
        if times > 1:
            yield Violation("twice", decision_id, f"redeemed {times} times")
    for run_id, recorded in evidence.runs.items():
        for each in recorded.executions:
            by_call = {r.decision_id for r in recorded.requests if r.tool_call_id == each.tool_call_id}
            if each.decision_id is not None and each.decision_id not in by_call:
                yield Violation("unapproved", f"{run_id}/{each.tool_call_id}", "it redeemed another call's decision")


def conversations_reconciled(evidence: Evidence) -> Iterator[Violation]:
    """In the stored path each call has exactly one result, in the model's order (I1), and it is the recorded one."""
    for run_id, recorded in evidence.runs.items():
        unanswered = [call.tool_call_id for call in unanswered_calls(recorded.head)]
        if unanswered or not is_reconciled(recorded.head):
            yield Violation("conversation", run_id, f"not reconciled; unanswered: {unanswered}")
        in_path = [call.tool_call_id for message in recorded.head for call in message.calls]
        planned = in_path[: len(in_path) - _closed_unplanned(recorded)]
        if planned != [call.tool_call_id for call in recorded.calls]:
            yield Violation("conversation", run_id, "its path and its calls differ")
        results = {part.tool_call_id: part.result for message in recorded.head for part in message.results}
        for call in recorded.calls:
            if call.tool_call_id in results and results[call.tool_call_id] != call.settled_result:
                yield Violation("conversation", f"{run_id}/{call.tool_call_id}", "the model read another result")


def workflows_agree(evidence: Evidence) -> Iterator[Violation]:
    """Each workflow ended as its run did, got a signal of each decision that counts, replays, and recovered from failed tasks."""
    for run_id, recorded in evidence.runs.items():
        workflow = evidence.workflows.get(run_id)
        if workflow is None:
            if not _ended_unstarted(recorded):
                yield Violation("workflow", run_id, "Temporal knows of no such workflow")
            continue
        if workflow.status != CLOSED.get(recorded.run.status):
            yield Violation("workflow", run_id, f"{recorded.run.status} in the store, {workflow.status} in Temporal")
        if workflow.unresolved:
            yield Violation("workflow", run_id, f"a workflow task failed and never succeeded: {workflow.unresolved}")
        yield from (
            Violation("workflow", run_id, failure)
            for failure in workflow.task_failures
            if "NON_DETERMINISTIC" in failure
        )
        if workflow.replay_error:
            yield Violation("workflow", run_id, f"its history does not replay: {workflow.replay_error}")
        # The end of a grace leads to the door, which sees what was decided since: no signal has to come any more.
        regretted = {each.tool_call_id for each in recorded.requests if _is_taken_back(recorded, each)}
        # Of an interrupted run's decisions some may never have had to arrive; a run may learn of one by an expiry's timer, too.
        decided = {
            each.id
            for each in recorded.requests
            if each.decision_id is not None
            and each.expires_at is None
            and not _seen_without_signal(recorded, each)
            and each.tool_call_id not in regretted
        }
        for missing in decided - workflow.received if recorded.run.status == "completed" else ():
            yield Violation("workflow", missing, "it is decided, and its run never got a signal")


CHECKS: Final[tuple[Callable[[Evidence], Iterator[Violation]], ...]] = (
    runs_ended,
    calls_have_results,
    once_started_once,
    open_ends_are_no_failures,
    effects_are_approved,
    grace_is_kept,
    regrets_match,
    answers_match_decisions,
    nothing_forged_counts,
    redeemed_once,
    conversations_reconciled,
    workflows_agree,
)


def _by_call(ledger: list[Start]) -> dict[tuple[str, str], list[Start]]:
    by_call: dict[tuple[str, str], list[Start]] = defaultdict(list)
    for line in ledger:
        by_call[line.of].append(line)
    return by_call


def _is_taken_back(recorded: Recorded, request: Request) -> bool:
    """Tell whether an approval no longer counts because another request asks about its call."""
    return request.status == "approved" and any(each.id == again_id(request) for each in recorded.requests)


def _outcome(recorded: Recorded, request: Request) -> str | None:
    content = recorded.decisions.get(request.decision_id or "")
    return content.outcome if request.kind == "outcome" and content is not None else None


def _ended_unstarted(recorded: Recorded) -> bool:
    """Tell whether this is a sub-agent's run that its parent's interrupt ended before its workflow was started."""
    run = recorded.run
    return run.parent_run_id is not None and run.status == "interrupted" and run.step == 0 and not recorded.calls


def _seen_without_signal(recorded: Recorded, request: Request) -> bool:
    """Tell whether the run may have learned of a decision without a signal.

    The activity that asks about a lost call may be repeated, because its own worker was lost before it could report that
    it asks; the repeat acts on the answer. And a decision that gave its call a result may be followed by the activity that
    closes the step, after which the workflow looks at what waits in it, and no signal is sent any more (docs/adr/0033).
    """
    if request.kind == "outcome":
        return True
    if request.verb not in {"reject", "respond"}:
        return False
    step_of = {call.tool_call_id: call.step for call in recorded.calls}
    started = {each.tool_call_id for each in recorded.executions} - {request.tool_call_id}
    return step_of.get(request.tool_call_id) in {step_of.get(call_id) for call_id in started}


def _closed_unplanned(recorded: Recorded) -> int:
    """Return how many calls of a last response an interrupt closed before they were planned: no row is made for those."""
    last = next((message for message in reversed(recorded.head) if message.calls), None)
    if recorded.run.status != "interrupted" or last is None:
        return 0
    known = {call.tool_call_id for call in recorded.calls}
    results = {part.tool_call_id: part.result for message in recorded.head for part in message.results}
    for call in last.calls:
        result = results.get(call.tool_call_id)
        closed = isinstance(result, Failure) and result.kind == "interrupted" and result.fields.get("started") is False
        if call.tool_call_id in known or not closed:
            return 0
    return len(last.calls)


def _resolved_as(recorded: Recorded, call: Call, outcome: str) -> bool:
    """Tell whether a person resolved a lost call this way."""
    return any(
        request.tool_call_id == call.tool_call_id and _outcome(recorded, request) == outcome
        for request in recorded.requests
    )


def _matches(
    of: str, lines: list[Start], call: Call, *, allowed: str, executed: str | None, manifests: Mapping[str, str]
) -> Iterator[Violation]:
    """Compare the bytes that the handler got, and the execution's digest, with what was allowed."""
    if executed is not None and executed != allowed:
        yield Violation("unapproved", of, "its execution's digest is not the one that was allowed")
    for line in lines:
        saw = call_digest(
            tool_name=line.tool,
            manifest_digest=manifests.get(line.tool, ""),
            raw_input=line.input,
            run_id=line.run,
            tool_call_id=line.call,
            policy_version=call.policy_version,
            nonce=call.nonce,
            defaults=None,
        )
        if saw != allowed:
            yield Violation("unapproved", of, f"its handler got input that was not allowed: {line.input}")
