"""Revealing the secrets of a call to a person who may decide about it. That they looked is in the log; what they saw is not."""

from __future__ import annotations

from typing import Final

from turngate.approvals_api.lookups import existing_request, existing_run
from turngate.approvals_api.principal import Principal
from turngate.approvals_api.requests.eligibility import require_eligible, starters_or_newer
from turngate.approvals_api.services import Services
from turngate.domain.errors import ForbiddenError
from turngate.domain.policy.terms import same_person
from turngate.domain.text.json_text import quote
from turngate.domain.tools.results import Failure, ToolResult
from turngate.domain.tools.secrets import credentials_of, mask_text
from turngate.domain.tools.tool import ToolManifest
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.requests.requests import Request
from turngate.store.runs import calls, executions, messages, steps
from turngate.wire.requests import RevealedSecret, SecretPlace

MOST_NAMED: Final = 100
MOST_REVEALS: Final = 500
"""Of a run that are looked through. A person of whom none is found counts as one who saw nothing."""


async def reveal(services: Services, principal: Principal, request_id: str) -> list[RevealedSecret]:
    """Return the secrets in a request's arguments, in the order of their marks, then others; none: it has none.

    The others are in the run's task, in what the agent said with the call, and in the call's result.

    Args:
        services: the process's services.
        principal: a person who may decide the request, or an admin; a token that belongs to no person may not.
        request_id: the request, pending or ended.

    Raises:
        NotFoundError: no such request.
        ForbiddenError: ``missing_scope``, ``not_eligible`` or ``not_a_person``.
        UnavailableError: the store is away; without the log nothing is revealed.
    """
    principal.require("requests:decide")
    if principal.machine:
        raise ForbiddenError(
            "only a person can have secrets revealed: log in, or use your own token", code="not_a_person"
        )
    async with services.database.read() as conn:
        request = await existing_request(conn, request_id)
        others = await starters_or_newer(conn, request)
        run = await existing_run(conn, request.run_id)
        task = await messages.get(conn, run.input_message_id)
        call = await calls.get(conn, request.run_id, request.tool_call_id)
        step = None if call is None else await steps.get(conn, request.run_id, call.step)
        message = None if step is None else await messages.get(conn, step.assistant_message_id)
        execution = await executions.get(conn, request.run_id, request.tool_call_id)
    if principal.role != "admin":
        require_eligible(request, principal, others)
    secrets = [
        RevealedSecret(pointer=each.pointer, value=each.raw)
        for each in request.tool.masked_input(request.input).secrets  # the declared ones first, as their marks count
    ]
    output = "" if execution is None else execution.partial_output
    texts: dict[SecretPlace, frozenset[str]] = {
        "task": credentials_of(task.text),
        "words": frozenset() if message is None else credentials_of(message.text),
        "result": credentials_of(output) | _in_result(request.tool, None if call is None else call.settled_result),
    }
    known = {each.value for each in secrets}
    for place, values in texts.items():
        new = {quote(each) for each in values} - known
        secrets += [RevealedSecret(pointer="", value=each, place=place) for each in sorted(new)]
        known |= new
    if secrets:
        payload = {"request_id": request.id, "by": principal.name, "secrets": len(secrets)}
        async with services.database.write() as conn:
            await events.append(conn, request.run_id, [("request.revealed", payload)])
    return secrets


async def unseen_secrets(
    conn: Connection, request: Request, by: str, *, edited: str | None = None, until: str | None = None
) -> list[str]:
    """Return where a call has declared secrets that a person did not have revealed (JSON pointers), at most 100.

    ``edited``: the arguments that run in place of the request's; what the person typed there, they saw. ``until``: what was
    revealed after this instant doesn't count.
    """
    if request.masked_input is None:
        return []
    tool = request.tool
    secrets = tool.masked_input(request.input, "decider").declared
    if edited is not None:
        unchanged = {(each.pointer, each.raw) for each in tool.masked_input(edited, "decider").declared}
        secrets = [each for each in secrets if (each.pointer, each.raw) in unchanged]
    if not secrets:
        return []
    for event in await events.newest(conn, request.run_id, "request.revealed", limit=MOST_REVEALS):
        is_in_time = until is None or event.created_at <= until
        if is_in_time and event.payload["request_id"] == request.id and same_person(event.payload["by"], by):
            return []
    return [mask_text(each.pointer, ()) for each in secrets[:MOST_NAMED]]


def _in_result(tool: ToolManifest, result: ToolResult | None) -> frozenset[str]:
    """Return the secrets in a call's result."""
    if result is None:
        return frozenset()
    _masked, secrets = tool.masked_result(result, frozenset())
    return secrets | credentials_of(result.reason) if isinstance(result, Failure) else secrets
