"""What no schema can say of a request that should be accepted: values that mean something in the engine under test.

Loaded by schemathesis in its own process (``hooks`` in its configuration). Requests that should be refused stay as they are.
"""

from __future__ import annotations

import json
import os
from typing import Any

import schemathesis
from schemathesis import GenerationMode

KNOWN: dict[str, Any] = json.loads(os.environ["SCHEMATHESIS_KNOWN"])
"""``agent``, ``model``, ``workspace``, ``cursor``: of the engine under test. ``digests``: of its requests, by their ids."""

GO_ON = ("/fork", "/replay")


@schemathesis.hook
def before_call(_context: Any, case: Any, _kwargs: Any) -> None:
    """Swap what only the engine can judge; streams begin where there is something to send, and so end after one event."""
    if case.meta is None or case.meta.generation.mode is not GenerationMode.POSITIVE:
        return
    if "cursor" in (case.query or {}):
        case.query.pop("cursor")
        if case.path in {"/api/v1/runs", "/api/v1/requests"}:  # other lists count by other things
            case.query["cursor"] = KNOWN["cursor"]
    if isinstance(case.body, dict):
        swapped = {name: KNOWN[name] for name in ("agent", "model", "workspace") if case.body.get(name) is not None}
        whole = {
            name: int(value) for name, value in case.body.items() if isinstance(value, float) and value.is_integer()
        }
        case.body = {**case.body, **swapped, **whole}  # to JSON Schema 1.0 is an integer; ours are strict
        case.body.pop("step", None)
        given = {"tools": ["pay"], "policy": ""} if case.path.endswith(GO_ON) else {}
        case.body.update({name: value for name, value in given.items() if case.body.get(name) is not None})
        for name in ("input", "text", "instructions"):
            if isinstance(said := case.body.get(name), str) and not said.strip():
                case.body[name] = f"hello{said}"[:1_000]
        if digest := KNOWN["digests"].get((case.path_parameters or {}).get("request_id")):
            case.body["digest"] = digest
    if case.path.endswith(GO_ON) and case.query:
        case.query.pop("step", None)
        known = {"agent": KNOWN["agent"], "tools": "pay"}
        case.query.update({name: value for name, value in known.items() if name in case.query})
    if case.path.endswith("/events"):
        case.query = {**(case.query or {}), "after": 0}
        case.headers.pop("Last-Event-ID", None)
