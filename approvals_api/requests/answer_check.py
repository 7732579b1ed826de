"""Does a decision's content fit its request? Pure; the same rules for the JSON API and the pages."""

from __future__ import annotations

from typing import Any

from turngate.approvals_api.validation.errors import invalid, member_of
from turngate.approvals_api.validation.exact_json import parse_exact
from turngate.approvals_api.validation.json_schema import problems_of
from turngate.approvals_api.validation.text import require_storable
from turngate.domain.errors import InvalidInputError
from turngate.domain.requests import ALLOWED_VERBS
from turngate.store.requests.requests import Request
from turngate.wire.orders import DecisionOrder

MAX_MESSAGE_CHARS = 10_000
MAX_ARGS_CHARS = 1_000_000


def check_content(request: Request, order: DecisionOrder) -> None:
    """Raise InvalidInputError, saying what does not fit and where, unless the decision's content fits the request.

    =========  ===================  =====================================================================
    kind       verb                 content
    =========  ===================  =====================================================================
    approval   approve, reject      message optional
    approval   edit                 ``args`` an object that fits the tool's parameters; message optional
    approval   respond              message required (the model reads it instead of a result)
    question   respond              ``args`` fits the answer's schema
    question   reject               message optional
    outcome    respond              ``outcome`` required; ``happened`` may bring the tool's result as ``args``
    =========  ===================  =====================================================================
    """
    verb, args, message = order.verb, order.args, order.message
    if verb not in ALLOWED_VERBS[request.kind]:
        allowed = ", ".join(ALLOWED_VERBS[request.kind])
        raise invalid("/decision", f"a request of kind {request.kind} takes: {allowed}", code="verb_not_allowed")
    if len(message) > MAX_MESSAGE_CHARS:
        raise invalid("/message", f"at most {MAX_MESSAGE_CHARS:,} characters, not {len(message):,}")
    require_storable(message, "/message")
    if args is not None and len(args) > MAX_ARGS_CHARS:
        raise invalid("/args", f"at most {MAX_ARGS_CHARS:,} characters, not {len(args):,}", code="invalid_edit")
    if request.kind == "outcome":
        _check_resolution(request, order)
    elif order.outcome is not None:
        raise invalid("/outcome", f"a request of kind {request.kind} takes no outcome")
    elif verb == "edit":
        _check_value(args, request.tool.parameters, must_be_object=True)
    elif request.kind == "question" and verb == "respond":
        _check_value(args, request.tool.success, must_be_object=False)
    elif args is not None:
        raise invalid("/args", f"{verb} takes no args; to change the call, use edit")
    elif verb == "respond" and not message.strip():
        raise invalid("/message", "write what the agent should read instead of the call's result")


def _check_resolution(request: Request, order: DecisionOrder) -> None:
    if order.outcome is None:
        raise invalid("/outcome", "it is missing: say happened, did_not_happen or tell_model")
    if order.outcome == "happened":
        if order.args is not None:
            _check_value(order.args, request.tool.success, must_be_object=False)
    elif order.args is not None:
        raise invalid("/args", f"{order.outcome} takes no args; only happened has a result")


def _check_value(args: str | None, schema: dict[str, Any], *, must_be_object: bool) -> None:
    if args is None:
        what = "the call's whole arguments as a JSON object" if must_be_object else "the answer as JSON"
        raise invalid("/args", f"it is missing: send {what}", code="invalid_edit")
    value = parse_exact(args, pointer="/args", code="invalid_edit")
    if must_be_object and not isinstance(value, dict):
        raise invalid("/args", "arguments are a JSON object", code="invalid_edit")
    problems = problems_of(value, schema, under="/args")
    if problems:
        reasons = " ".join(f"{member_of(problem['pointer'])}: {problem['message']}" for problem in problems)
        raise InvalidInputError(f"args doesn't fit the tool's schema: {reasons}", code="invalid_edit", errors=problems)
