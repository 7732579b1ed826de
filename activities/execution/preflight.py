"""Preflight: author's code that is called before a call may start, outside any transaction.

These are the agent's before-hooks, the tool's precondition (is everything as it was when a person approved?) and its probe
(did a lost call take effect?). They only return findings; :mod:`turngate.activities.execution.checks` decides.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, replace
from inspect import isawaitable, iscoroutinefunction
from typing import Any, Final, Literal

from turngate.activities.engine import author_code
from turngate.activities.engine.author_code import (
    MOST_HANDLERS_OVERDUE,
    MOST_VIEWS_OVERDUE,
    await_author,
    call_injected,
    in_own_thread,
    what_failed,
)
from turngate.activities.engine.engine import Engine
from turngate.activities.engine.error_log import Where, keeping_crashes, report
from turngate.activities.engine.preconditions import look, precondition
from turngate.activities.execution.executor import encode_success
from turngate.activities.planning.requests import take_summary
from turngate.domain.agents.app import Agent
from turngate.domain.agents.hooks import Deny, HookedCall, RunScope
from turngate.domain.digest import idempotency_key
from turngate.domain.tools import results
from turngate.domain.tools.preview import Preview
from turngate.domain.tools.probes import DidNotHappen, Happened, ProbeAnswer
from turngate.domain.tools.references import SecretResolver
from turngate.domain.tools.results import Failure
from turngate.domain.tools.secrets import MIN_CHARS
from turngate.domain.tools.summary import clean_check
from turngate.domain.tools.tool import Tool
from turngate.runtime.services import svcs
from turngate.store.runs import calls, runs

CHECK_SECONDS: Final = 5.0
"""Of a tool's function that says how to check a lost call; a person waits for it."""
Purpose = Literal["start", "question", "lost"]


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """Author's code has to be called before redemption can decide: call it, and redeem again with the findings.

    ``purpose``: before a ``start``, hooks and precondition are asked; for a ``question`` to a person, also what they will be
    shown; of a ``lost`` start, its probe. ``approved_with``: the precondition that the approval was given with, as JSON;
    None when its tool has none, or no one was asked. ``approved_input``: the arguments that it was taken of, if a person has
    edited them since.
    """

    agent: Agent
    run: runs.Run
    call: calls.Call
    tool: Tool
    purpose: Purpose
    approved_with: str | None = None
    approved_input: str | None = None


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What author's code answered. ``refusal``: why the call must not run.

    ``precondition``: its value now, as JSON; None: the tool has none. ``preview``, ``summary``: what a person would be shown now;
    taken where they have to be asked. ``for_question``: both were taken for a question. ``probed``: the probe's answer; None when
    it has none to give. ``probe_failed``: what kept it from answering, if anything did. ``changed``: the precondition is not what
    the approval was given with.
    ``secrets``: the values that its secret arguments refer to, by name; None: they were not resolved. ``check_with``: how to
    check whether a lost call took effect, where a function of its tool says so.
    """

    refusal: Failure | None = None
    precondition: str | None = None
    preview: Preview | None = None
    summary: str | None = None
    for_question: bool = False
    probed: ProbeAnswer = None
    probe_failed: str = ""
    changed: bool = False
    secrets: Mapping[str, str] | None = None
    check_with: str | None = None


async def inspect(engine: Engine, inspection: Inspection) -> Findings:
    """Ask hooks and precondition of a call that is about to start, or the probe of one that was lost, and resolve its secrets."""
    async with keeping_crashes(engine, _place_of(inspection)):
        findings = await _inspect(engine, inspection)
    if findings.refusal is not None:
        return findings
    values = await _resolve(engine, inspection)
    return replace(findings, refusal=values) if isinstance(values, Failure) else replace(findings, secrets=values)


async def _resolve(engine: Engine, inspection: Inspection) -> dict[str, str] | Failure:
    """Return the values that the call's secret arguments refer to, by name; a Failure: one can't be had, so nothing may run."""
    tool, values = inspection.tool, dict[str, str]()
    for name in tool.manifest.references_in(inspection.call.running_input):
        value = None
        if name in tool.references and engine.secrets is not None:
            try:
                value = await await_author(_value_of(engine.secrets, name), seconds=author_code.AUTHOR_SECONDS)
            except Exception as error:  # noqa: BLE001 - reported, with its traceback
                names = {"tool": tool.name, "secret_name": name}
                await report(engine, "a secret could not be resolved", error, _place_of(inspection), **names)
                return _not_run(f'the secret "{name}" could not be read. This was logged.')
        if not isinstance(value, str):
            return results.unknown_secret(tool.name, name, tool.references)
        if len(value) < MIN_CHARS:
            return _not_run(
                f'the secret "{name}" is too short to be kept out of results: use one of {MIN_CHARS} characters or more.'
            )
        values[name] = value
    return values


async def _value_of(resolver: SecretResolver, name: str) -> str | None:
    answer: str | Awaitable[str | None] | None
    if iscoroutinefunction(resolver):
        answer = resolver(name)
    else:
        answer = await in_own_thread(lambda: resolver(name), of=resolver, most_overdue=MOST_HANDLERS_OVERDUE)
    return await answer if isawaitable(answer) else answer


async def _inspect(engine: Engine, inspection: Inspection) -> Findings:
    if inspection.purpose == "lost":
        return replace(await _probe(engine, inspection), check_with=await _check_with(engine, inspection))
    run, call, tool = inspection.run, inspection.call, inspection.tool
    params = call.decoded_by(tool)  # redemption has decoded it before: it fits
    refusal = await _ask_hooks(engine, inspection, params)
    if refusal is not None:
        return Findings(refusal=refusal, precondition=inspection.approved_with)
    if inspection.purpose == "question":
        findings = await _for_question(engine, inspection, params)
        return replace(findings, for_question=True, changed=findings.precondition != inspection.approved_with)
    if inspection.approved_with is None:
        return Findings()
    try:
        approved = params if inspection.approved_input is None else tool.decode(inspection.approved_input)
        current = await precondition(engine, tool, approved, run, call.tool_call_id)
        changed = current != inspection.approved_with
        if inspection.approved_input is not None and not changed:
            current = await precondition(engine, tool, params, run, call.tool_call_id)
            # No one has been shown the files that only the edited call names.
            changed = tool.precondition == "preview" and current != inspection.approved_with
    except Exception as error:  # noqa: BLE001 - reported, with its traceback
        await report(engine, "precondition failed", error, _place_of(inspection), tool=tool.name)
        return Findings(refusal=_not_run(f"its precondition could not be checked again ({what_failed(error)})."))
    if not changed:
        return Findings(precondition=current)
    known = current if inspection.approved_input is None else None
    return replace(await _for_question(engine, inspection, params, known), changed=True)


async def _for_question(engine: Engine, inspection: Inspection, params: Any, known: str | None = None) -> Findings:
    """Return what a person who has to be asked is shown. ``known``: as of :func:`look`."""
    run, call, tool = inspection.run, inspection.call, inspection.tool
    taken = await look(engine, tool, params, run, call.tool_call_id, known=known)
    summary = await take_summary(tool, params, call.running_input, call.left_out)
    return Findings(precondition=taken.precondition, preview=taken.preview, summary=summary)


async def _ask_hooks(engine: Engine, inspection: Inspection, params: Any) -> Failure | None:
    """Ask the before-hooks in order. The first refusal counts, and a hook that fails refuses (I2)."""
    run, call = inspection.run, inspection.call
    scope = RunScope(run_id=run.id, agent=inspection.agent.name, step=call.step)
    hooked = HookedCall(
        tool_name=call.tool_name, tool_call_id=call.tool_call_id, raw_input=call.running_input, params=params
    )
    for hook in inspection.agent.hooks:
        name = f"{type(hook).__name__}.before_tool"
        try:
            answer = await await_author(hook.before_tool(scope, hooked), seconds=author_code.AUTHOR_SECONDS)
        except Exception as error:  # noqa: BLE001 - reported, with its traceback
            names = {"hook": type(hook).__name__, "tool": call.tool_name}
            await report(engine, "before_tool hook failed", error, _place_of(inspection), **names)
            return _not_run(f"{name} failed ({type(error).__name__}). This was logged.")
        if isinstance(answer, Deny):
            return results.forbidden_by_hook(answer.reason)
        if answer is not None:
            return _not_run(f"{name} answered {type(answer).__name__} in place of Deny or None.")
    return None


async def _probe(engine: Engine, inspection: Inspection) -> Findings:
    """Ask the tool whether a lost call took effect; it has no answer when it does not know, fails, or says anything else.

    The result of a call that did is JSON already, by the tool's success type; a result that does not fit is no answer.
    """
    run, call, tool = inspection.run, inspection.call, inspection.tool
    if tool.probe is None:
        return Findings()
    try:
        async with svcs.Container(engine.services) as container:
            answering = call_injected(tool.probe, container, key=idempotency_key(run.id, call.tool_call_id))
            answer = await await_author(answering, seconds=author_code.AUTHOR_SECONDS)
        if isinstance(answer, Happened):
            return Findings(probed=Happened(encode_success(tool, answer.result)))
    except Exception as error:  # noqa: BLE001 - reported, with its traceback
        await report(engine, "probe failed", error, _place_of(inspection), tool=tool.name)
        return Findings(probe_failed=what_failed(error))
    return Findings(probed=answer if isinstance(answer, DidNotHappen) else None)


async def _check_with(engine: Engine, inspection: Inspection) -> str | None:
    """Return what the tool's function says about how to check a lost call; None: it has none, fails, or hangs."""
    checker = inspection.tool.check_with
    if not callable(checker):
        return None
    try:
        params = inspection.call.decoded_by(inspection.tool)
        words = in_own_thread(lambda: clean_check(checker(params)), of=checker, most_overdue=MOST_VIEWS_OVERDUE)
        return await await_author(words, seconds=CHECK_SECONDS) or None
    except Exception as error:  # noqa: BLE001 - reported, with its traceback
        await report(engine, "check_with failed", error, _place_of(inspection), tool=inspection.tool.name)
        return None


def _place_of(inspection: Inspection) -> Where:
    call = inspection.call
    return Where(run_id=call.run_id, step=call.step, tool_call_id=call.tool_call_id)


def _not_run(why: str) -> Failure:
    return Failure(kind="execution_error", reason=f"The call did not run: {why}")
