"""The part of the gateway that cuts a wait short: a model's next attempt is due now, not when its provider asked.

No workflow command and no history event (ADR 0027): the server only moves the attempt that it has scheduled
(https://docs.temporal.io/activity-operations, "Reset"; servers from 1.28 on).
"""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Final

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.workflowservice.v1 import ResetActivityRequest
from temporalio.client import Client, RPCError

from turngate.domain import contract

logger = logging.getLogger(__name__)

WAIT: Final = timedelta(seconds=2)


async def expedite_model(client: Client, run_id: str) -> bool:
    """Send a model request that waits for its next attempt now. True: it waited.

    One that is in flight is left alone. Never raises: a server that is away, or too old (before 1.28), leaves the wait as it
    is, and the attempt after it does the same.
    """
    handle = client.get_workflow_handle(run_id)
    try:
        async with asyncio.timeout(WAIT.total_seconds()):
            description = await handle.describe(rpc_timeout=WAIT)
            waiting = [
                each.activity_id
                for each in description.raw_description.pending_activities
                if each.activity_type.name == contract.CALL_MODEL
                and each.state == PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
                and each.attempt > 1
            ]
            for activity_id in waiting:
                # If it starts at this very moment, it is cancelled and started again; it already read the new model.
                request = ResetActivityRequest(
                    namespace=client.namespace,
                    execution=WorkflowExecution(workflow_id=run_id, run_id=description.run_id or ""),
                    identity=client.identity,
                    id=activity_id,
                )
                await client.workflow_service.reset_activity(request, timeout=WAIT)
    except (RPCError, RuntimeError, TimeoutError) as error:  # a lazy client that cannot connect raises RuntimeError
        logger.warning(
            "the model of run %s is called when its wait is over: %s", run_id, error, extra={"run_id": run_id}
        )
        return False
    return bool(waiting)
