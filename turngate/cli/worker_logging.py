"""A worker's log for people: a failure that was meant is one line, and only a bug shows its traceback.

Temporal's SDK logs every failed attempt of an activity with a traceback and all it knows about the activity. A model
that is down for a minute would fill the terminal with them.
"""

from __future__ import annotations

import logging

from temporalio import activity, workflow
from temporalio.exceptions import ApplicationError


def shorten_failures(*, details: bool) -> None:
    """Shorten what the SDK says about failed activities, in this process. Safe to repeat.

    ``details``: keep the SDK's structured fields on each line (for logs that programs read).
    """
    activity.logger.activity_info_on_message = False
    activity.logger.activity_info_on_extra = details
    workflow.logger.workflow_info_on_message = False
    workflow.logger.workflow_info_on_extra = details
    sdk = activity.logger.base_logger
    if not any(isinstance(present, _MeantFailures) for present in sdk.filters):
        sdk.addFilter(_MeantFailures())


class _MeantFailures(logging.Filter):
    """Says which activity failed and why; drops the traceback of an ApplicationError, which is how ours fail on purpose."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is None or not activity.in_activity():
            return True
        told = activity.info()
        record.msg = "%s of %s failed, attempt %s: %s"
        record.args = (told.activity_type, told.workflow_id, told.attempt, error)
        if isinstance(error, ApplicationError):
            record.exc_info = None
        return True
