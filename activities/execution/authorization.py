"""May these bytes run? The authority on record for a call, and whether what is about to run is what it was given for."""

from __future__ import annotations

from activities.engine.rules import RulesInForce
from turngate.domain.contract import RunToolInput
from turngate.domain.digest import call_digest
from turngate.domain.policy.policy import Verdict
from turngate.domain.tools import results
from turngate.domain.tools.failures import MAX_REASON_CHARS, InvalidToolInput
from turngate.domain.tools.results import Failure, Ok
from turngate.domain.tools.tool import Tool
from turngate.store.database import Connection
from turngate.store.requests import requests
from turngate.store.runs import calls, runs


async def authority(
    conn: Connection, call: calls.Call, order: RunToolInput
) -> tuple[str, requests.Request | None, Failure | None]:
    """Return the digest that was allowed or approved, with the request it was approved in; or why there is none."""
    if call.disposition == "run" and order.decision_id is None:
        return call.digest, None, None
    if call.disposition == "ask" and order.decision_id is not None:
        request = await requests.by_decision(conn, order.decision_id)
        its_own = request is not None and (request.run_id, request.tool_call_id) == (call.run_id, call.tool_call_id)
        if request is not None and its_own and request.kind == "approval" and request.status == "approved":
            if request.verb != "edit":
                return request.digest, request, None
            decision = await requests.decision(conn, order.decision_id)
            if decision is not None:
                return decision.digest, request, None
    return "", None, not_run("no approval or allowing rule for it is on record")


def judged(
    rules: RulesInForce, run: runs.Run, call: calls.Call, tool: Tool | None, expected: str, *, decided: bool
) -> Verdict | Failure:
    """Return what policy says now of the bytes about to run, or why they may not: not what was shown, or denied by now.

    An approval stands when policy has changed since, unless a rule denies the call now (ADR 0014). ``decided``: it has
    one, or its handler was let through before; that nobody attends the run then refuses nothing.
    """
    if tool is None:
        return not_run("the tool is no longer there")
    raw_input = call.running_input
    if digest_of(call, tool, raw_input) != expected:
        return not_run("the call or its tool is not what was shown when it was allowed; send it again")
    try:
        params = tool.decode(raw_input)
    except InvalidToolInput as problem:
        return results.invalid_input(str(problem), problem.problem)
    verdict = rules.verdict(tool, params, run, raw_input, agent=run.agent, decided=decided)
    return results.denied(verdict.rule, verdict.reason) if verdict.answer == "deny" else verdict


def digest_of(call: calls.Call, tool: Tool, raw_input: str) -> str:
    """Return the digest of this input for this call: the tool as it is in this process, the policy it was judged by."""
    return call_digest(
        tool_name=tool.name,
        manifest_digest=tool.manifest.digest,
        raw_input=raw_input,
        run_id=call.run_id,
        tool_call_id=call.tool_call_id,
        policy_version=call.policy_version,
    )


def not_run(why: str) -> Failure:
    """Return the failure of a call that was stopped before it started."""
    return Failure(kind="execution_error", reason=f"The call did not run: {why}.")


def raises(tool: Tool | None, result: Ok | Failure | None) -> str:
    """Return why a call that has this result fails its run, in words for people; "" when the run goes on."""
    if tool is None or not isinstance(result, Failure) or not tool.fails_run(result):
        return ""
    return f"tool {tool.name!r} failed: {result.kind}: {result.reason}"[:MAX_REASON_CHARS]
