"""``rpc.discover``: every method and notification with JSON Schemas, as an OpenRPC document.

Source: https://spec.open-rpc.org (1.3.2)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from pydantic import TypeAdapter

from turngate import __version__
from turngate.frontends.rpc.methods import Method
from turngate.frontends.rpc.watch import DELTA, ENDED, EVENT, PROGRESS
from turngate.wire.events import DeltaView, EventView, ProgressView

PROTOCOL_VERSION: Final = 1
"""Of this protocol: grows when a method or member that was there changes or goes."""
_Schema = tuple[str, Literal["validation", "serialization"], TypeAdapter[Any]]
_REFERENCES: Final = "#/components/schemas/{model}"
_NOTIFIED: Final[Mapping[str, tuple[str, type[Any] | None]]] = {
    EVENT: ("event", EventView),
    PROGRESS: ("progress", ProgressView),
    DELTA: ("delta", DeltaView),
    ENDED: ("error", None),
}


def describe(methods: Mapping[str, Method]) -> dict[str, Any]:
    """Return the document that describes these methods."""
    schemas: list[_Schema] = []
    for name, method in methods.items():
        schemas.append((f"{name} params", "validation", TypeAdapter(method.params)))
        schemas.append((f"{name} result", "serialization", method.result))
    for name, (_member, kind) in _NOTIFIED.items():
        if kind is not None:
            schemas.append((f"{name} told", "serialization", TypeAdapter(kind)))
    described_schemas, shared = TypeAdapter.json_schemas(schemas, ref_template=_REFERENCES)
    components: dict[str, Any] = shared.get("$defs", {})
    described = [
        _described(
            name,
            method,
            _whole(described_schemas[f"{name} params", "validation"], components),
            described_schemas[f"{name} result", "serialization"],
        )
        for name, method in methods.items()
    ]
    return {
        "openrpc": "1.3.2",
        "info": {
            "title": "Turngate",
            "version": __version__,
            "description": "JSON-RPC 2.0 on stdio, one message a line, or a batch of them; params by name.",
            "x-protocol-version": PROTOCOL_VERSION,
        },
        "methods": described,
        "components": {"schemas": components},
        "x-notifications": [
            {
                "name": name,
                "params": ["watch_id", *(["run_id"] if kind is None else []), member],
                "schema": {} if kind is None else described_schemas[f"{name} told", "serialization"],
            }
            for name, (member, kind) in _NOTIFIED.items()
        ],
    }


def _whole(schema: Mapping[str, Any], components: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = schema.get("$ref")
    return schema if reference is None else components[str(reference).rpartition("/")[2]]


def _described(name: str, method: Method, params: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
    required = params.get("required", [])
    return {
        "name": name,
        "summary": method.summary,
        "paramStructure": "by-name",
        "params": [
            {"name": each, "required": each in required, "schema": schema}
            for each, schema in params.get("properties", {}).items()
        ],
        "result": {"name": "result", "schema": result},
    }
