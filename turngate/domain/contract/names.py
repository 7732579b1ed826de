"""What workflows, activities, updates, signals, queries and error types are called on the wire."""

from __future__ import annotations

AGENT_TURN = "AgentTurn"
SCHEDULED_START = "ScheduledStart"

CALL_MODEL = "call_model"
RUN_TOOL = "run_tool"
RECORD_EXPIRY = "record_expiry"
CLOSE_STEP = "close_step"
SETTLE_CALL = "settle_call"
CLIMB_LADDER = "climb_ladder"
READ_CONTROL = "read_control"
INTERRUPT_BELOW = "interrupt_below"
OPEN_SCHEDULED = "open_scheduled"

DECIDED = "decided"
"""Signal: a request of the run has ended, or got one of its approvals. Carries the request's id; the store says the rest."""
CHANGED = "changed"
"""Signal: someone has interrupted, paused or resumed the run. Carries nothing; the store says which."""
EXTERNAL_CALL = "external_call"
"""Signal: there is news of a call from outside. Carries the call's id; the store says the rest."""

MAX_CALLS_PER_STEP = 128
"""Calls of one response beyond this are closed unexecuted, so that a plan stays far below 256 KiB (I8)."""

MODEL_REQUEST_SECONDS = 15 * 60
"""Of one attempt to take a step, whichever activity makes it: one long answer of a model, stored and planned."""

# Error types: the ``type`` of an ApplicationError, the same string where it is raised and where it is matched.
ERROR_MODEL = "model_error"
ERROR_TOOL_RAISED = "tool_raised"
ERROR_CONFIGURATION = "configuration"
ERROR_RUN_FAILED = "run_failed"
