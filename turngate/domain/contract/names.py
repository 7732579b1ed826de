"""What workflows, activities, updates, signals, queries and error types are called on the wire."""

from __future__ import annotations

AGENT_TURN = "AgentTurn"
SCHEDULED_START = "ScheduledStart"

CALL_MODEL = "call_model"
RUN_TOOL = "run_tool"
RECORD_DECISION = "record_decision"
RECORD_EXPIRY = "record_expiry"
CLOSE_STEP = "close_step"
SETTLE_CALL = "settle_call"
CLIMB_LADDER = "climb_ladder"
NOTE_PAUSE = "note_pause"
SUPERSEDE_REQUESTS = "supersede_requests"
OPEN_SCHEDULED = "open_scheduled"

DECIDE = "decide"
"""Update and Signal of this name carry the same DecideInput; the Signal is for when no worker answers."""
INTERRUPT = "interrupt"
PAUSE = "pause"
RESUME = "resume"
SUPERSEDE = "supersede"
EXTERNAL_CALL = "external_call"
"""Signal: the program that runs a call from outside is there to start it, or has reported its result."""
GATES = "gates"
"""Query: the run's gates of the step at hand, request id → Gate."""

MAX_CALLS_PER_STEP = 128
"""Calls of one response beyond this are closed unexecuted, so that a plan stays far below 256 KiB (I8)."""

# Error types: the ``type`` of an ApplicationError, the same string where it is raised and where it is matched. Those of
# a refused decision are the literals of turngate.domain.requests.RefusalType.
ERROR_INVALID_EDIT = "invalid_edit"
ERROR_STORE_UNAVAILABLE = "store_unavailable"
ERROR_MODEL = "model_error"
ERROR_TOOL_RAISED = "tool_raised"
ERROR_CONFIGURATION = "configuration"
ERROR_RUN_FAILED = "run_failed"
