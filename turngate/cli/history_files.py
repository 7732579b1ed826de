"""Histories in files: Temporal's own JSON, as ``temporal workflow show --output json`` and its pages give it.

A run's history holds ids, digests, names and reasons, no conversation content (I8).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from google.protobuf.json_format import ParseError
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHistory

from turngate.domain.errors import InvalidInputError


def read_histories(paths: list[Path]) -> Iterator[WorkflowHistory]:
    """Yield the history in each file; of a directory, those of its ``*.json``.

    Raises InvalidInputError when a path holds none.
    """
    for path in paths:
        files = sorted(path.glob("*.json")) if path.is_dir() else [path]
        if not files:
            raise InvalidInputError(f"{path} holds no *.json: give the directory that `--save` wrote, or a file")
        yield from map(_read, files)


def _read(path: Path) -> WorkflowHistory:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise InvalidInputError(f"{path} is no JSON ({error})") from None
    wrapped = content.get("history") if isinstance(content, dict) else None
    try:
        history = WorkflowHistory.from_json("", content if wrapped is None else wrapped)
    except (ParseError, AttributeError, TypeError, ValueError) as error:
        raise _no_history(path, str(error)) from None
    if not history.events or history.events[0].event_type != EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
        raise _no_history(path, "it does not begin with the start of a workflow")
    # An older server's start does not name the workflow.
    name = history.events[0].workflow_execution_started_event_attributes.workflow_id or path.stem
    return WorkflowHistory(name, history.events)


def save_history(history: WorkflowHistory, directory: Path) -> None:
    """Write a history into the directory, which is made if need be.

    Raises InvalidInputError when it cannot be written.
    """
    # Anything may be a workflow's id in a namespace that others use, too.
    name = re.sub(r"[^\w-]", "_", f"{history.workflow_id}-{history.run_id}")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"{name}.json").write_text(history.to_json() + "\n", encoding="utf-8")
    except OSError as error:
        raise InvalidInputError(f"{directory} cannot be written ({error.strerror}): give another --save DIR") from None


def _no_history(path: Path, problem: str) -> InvalidInputError:
    return InvalidInputError(
        f"{path} holds no workflow's history: {problem}. `temporal workflow show --output json` writes one, and so does --save"
    )
