"""An edit is judged before it is taken, as far as the API can: by the rules of the app's file and the stored ones.

The tool's own code is only in the worker, whose door judges the edited call again, in full (I6). What this refuses, it would
refuse, too; here the person who edits learns of it at once.
"""

from __future__ import annotations

from approvals_api.policy.reports import known_call
from approvals_api.services import Services
from approvals_api.validation.errors import invalid
from turngate.domain.policy.policy import Verdict
from turngate.domain.policy.terms import PLAIN_TERMS
from turngate.policies.explain import AskedCall, explain
from turngate.store.requests.requests import Request
from turngate.store.runs import calls, runs


async def judge_edit(services: Services, request: Request, args: str) -> str | None:
    """Return in what policy is stricter with the edited call, in words for people; None: in nothing that is known here.

    Raises InvalidInputError (code ``invalid_edit``) when a rule denies it.
    """
    async with services.database.read() as conn:
        run = await runs.get(conn, request.run_id)
        call = await calls.get(conn, request.run_id, request.tool_call_id)
        if run is None or call is None or run.world is not None:
            return None  # its own overrides may bring other rules, which the door reads
        known = await known_call(conn, request.tool_name, request.agent, run.workspace, None)
    edited_call = AskedCall(
        tool=known.tool.stand_in(),
        raw_input=args,
        agent=request.agent,
        workspace=run.workspace,
        run_id=run.id,
        starter=run.started_by,
    )
    explanation = explain(known.rules, edited_call, grants=known.grants)
    if explanation.answer == "deny":
        why = f"the edited call is denied by policy rule {explanation.rule!r}: {explanation.reason}"
        raise invalid("/args", why, code="invalid_edit")
    if explanation.answer == "allow":
        return None
    # Where only the tool's own ask decides, it asks on plain terms, or allows.
    terms = explanation.terms or PLAIN_TERMS
    edited = Verdict(answer="ask", rule=explanation.rule, reason="", risk=explanation.risk, terms=terms)
    return edited.stricter_than(Verdict.model_validate_json(call.verdict), request.ask_terms)
