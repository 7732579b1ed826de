"""What no schema can say about a request that should be accepted: values that mean something to the engine under test.

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

CONTINUED = ("/fork", "/replay")


@schemathesis.hook
def before_call(_context: Any, case: Any, _kwargs: Any) -> None:
    """Replace what only the engine can judge. A stream starts where there is an event to send, and so ends after it."""
    if case.meta is None or case.meta.generation.mode is not GenerationMode.POSITIVE:
        return
    if "cursor" in (case.query or {}):
        case.query.pop("cursor")
        if case.path in {"/api/v1/runs", "/api/v1/requests"}:  # other lists count something else
            case.query["cursor"] = KNOWN["cursor"]
    if isinstance(case.body, dict):
        swapped = {name: KNOWN[name] for name in ("agent", "model", "workspace") if case.body.get(name) is not None}
        whole = {
            name: int(value) for name, value in case.body.items() if isinstance(value, float) and value.is_integer()
        }
        case.body = {**case.body, **swapped, **whole}  # an integer to JSON Schema; the API's integers are strict
        case.body.pop("step", None)
        overrides = {"tools": ["pay"], "policy": ""} if case.path.endswith(CONTINUED) else {}
        case.body.update({name: value for name, value in overrides.items() if case.body.get(name) is not None})
        for name in ("input", "text", "instructions"):
            if isinstance(text := case.body.get(name), str) and not text.strip():
                case.body[name] = f"hello{text}"[:1_000]
        if digest := KNOWN["digests"].get((case.path_parameters or {}).get("request_id")):
            case.body["digest"] = digest
    if case.path.endswith(CONTINUED) and case.query:
        case.query.pop("step", None)
        known = {"agent": KNOWN["agent"], "tools": "pay"}
        case.query.update({name: value for name, value in known.items() if name in case.query})
    if case.path.endswith("/events"):
        case.query = {**(case.query or {}), "after": 0}
        case.headers.pop("Last-Event-ID", None)
