"""Lanes: the task queues on which a run's activities wait for a place, by kind of work.

Tools wait on the run's own queue (or the one that the tool names), the store's short writes on a queue beside it, and
model requests on a third where a worker has places of their own for them. So a hundred tools that take an hour hold up
neither the writing of what a run decided nor, with such places, any model. What waits, waits in Temporal: no timeout runs
until there is a place. Who is first there is a matter of priorities (docs/adr/0058), which a run without any doesn't have.

Where model requests share the tools' places they start without a way through the server (the SDK's eager execution,
which only the workflow's own queue has), and most are sent by the activity of the call before (docs/adr/0033).
"""

from __future__ import annotations

from typing import Any, Final

from temporalio import workflow
from temporalio.common import Priority
from temporalio.worker import (
    Interceptor,
    StartActivityInput,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
)

with workflow.unsafe.imports_passed_through():
    from turngate.domain import contract
    from turngate.workflows.labels import is_ordered

MODELS: Final = ".models"
RECORDS: Final = ".records"
"""What is added to the name of a run's own task queue."""


def lane_of(activity: str, *, models_apart: bool) -> str:
    """Return the suffix of the queue that this activity waits on; what is no model request, tool or note is a record."""
    if activity == contract.CALL_MODEL:
        return MODELS if models_apart else ""
    return "" if activity == contract.RUN_TOOL else RECORDS


class Lanes(Interceptor):
    """Puts each activity that names no task queue on its lane. A replay looks at neither an activity's queue nor its priority."""

    def __init__(self, *, models_apart: bool) -> None:
        self._models_apart = models_apart

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:  # noqa: A002 - the SDK's name
        """Return the layer between our workflows and Temporal."""
        del input
        models_apart = self._models_apart

        class Inbound(WorkflowInboundInterceptor):
            def init(self, outbound: WorkflowOutboundInterceptor) -> None:
                super().init(_Outbound(outbound, models_apart=models_apart))

        return Inbound


class _Outbound(WorkflowOutboundInterceptor):
    def __init__(self, next_one: WorkflowOutboundInterceptor, *, models_apart: bool) -> None:
        super().__init__(next_one)
        self._models_apart = models_apart

    def start_activity(self, input: StartActivityInput) -> workflow.ActivityHandle[Any]:  # noqa: A002 - the SDK's name
        if input.task_queue is None:
            lane = lane_of(input.activity, models_apart=self._models_apart)
            input.task_queue = f"{workflow.info().task_queue}{lane}" if lane else None
        if not is_ordered():
            input.priority = Priority.default
        return super().start_activity(input)
