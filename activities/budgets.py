"""Budgets: what a run may use besides steps, looked at before each model request."""

from __future__ import annotations

from temporalio.exceptions import ApplicationError

from turngate.domain import contract
from turngate.domain.agents import Limits
from turngate.store import calls, runs, steps
from turngate.store.clock import from_text, now
from turngate.store.database import Connection


async def require_budget(conn: Connection, run: runs.Run, limits: Limits) -> None:
    """Return while the run has something left of each of its budgets.

    Sub-agents' runs have budgets of their own. A response may go beyond a budget; there is no next one then.

    Raises:
        ApplicationError: ``run_failed``, not retryable; ``details[0]`` is ``tool_call_cap``, ``token_cap`` or ``time_cap``.
    """
    if limits.tool_calls is not None and (made := await calls.count(conn, run.id)) >= limits.tool_calls:
        raise _used_up(
            "tool_call_cap", f"The run made {made:,} of the {limits.tool_calls:,} tool calls that it may make."
        )
    if limits.tokens is not None and (used := await steps.tokens(conn, run.id)) >= limits.tokens:
        raise _used_up("token_cap", f"The run used {used:,} of the {limits.tokens:,} tokens that it may use.")
    if limits.wall_time is not None and now() - from_text(run.created_at) >= limits.wall_time:
        raise _used_up("time_cap", f"The run began more than {limits.wall_time} ago, which is all the time it has.")


def _used_up(error_class: str, reason: str) -> ApplicationError:
    return ApplicationError(reason, error_class, type=contract.ERROR_RUN_FAILED, non_retryable=True)
