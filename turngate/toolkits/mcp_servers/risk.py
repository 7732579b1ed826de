"""What a server says of a tool's risk, against what the builder says: a hint may raise it, never lower it. Pure.

The hints are a server's own claims, and the specification says not to decide by those of a server that is not trusted
(https://modelcontextprotocol.io/specification, "Tool annotations"). A warning can be believed from anybody.
"""

from __future__ import annotations

from mcp.types import ToolAnnotations

from turngate.domain.tools.tool import Ask, Effect


def raised(effect: Effect, ask: Ask, hints: ToolAnnotations | None) -> tuple[Effect, Ask]:
    """Return effect and ``ask``, stricter where the server warns. Hints that are left out or reassure change nothing."""
    if hints is None:
        return effect, ask
    destroys = hints.destructive_hint is True
    adds_up = hints.idempotent_hint is False and hints.read_only_hint is not True
    writes = hints.read_only_hint is False and effect == "read"
    stricter: Effect = "once" if destroys or adds_up or writes else effect
    return stricter, True if destroys or hints.open_world_hint is True else ask
