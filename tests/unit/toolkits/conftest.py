"""How these tests call a tool: from the model's JSON to the result's JSON, as the executor does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from turngate import Failure, Ok, Presentation, Tool, ToolContext, ToolFailure


@dataclass
class Caller:
    """Calls tools in one workspace, as ``approved``, and records their partial output and what they emitted."""

    workspace: Path
    partial: list[str] = field(default_factory=list)
    emitted: list[Any] = field(default_factory=list)
    approved: Any = None

    async def __call__(self, tool: Tool, **tool_input: Any) -> dict[str, Any]:
        params, handler = tool.decode(json.dumps(tool_input)), tool.handler
        result = await handler.function(**{handler.params_name: params, handler.ctx_name: self._context()})
        return json.loads(tool.success.dump_json(result))

    def depends_on(self, tool: Tool, **tool_input: Any) -> Any:
        """Return what the tool's preview depends on, as a request keeps it."""
        assert tool.precondition == "preview"
        return json.loads(json.dumps(self.preview(tool, **tool_input).depends_on))

    async def presented(self, tool: Tool, **tool_input: Any) -> Presentation:
        """Call the tool and return its result or declared failure as the engine does."""
        params = tool.decode(json.dumps(tool_input))
        try:
            result: Ok | Failure = Ok(value=await self(tool, **tool_input))
        except ToolFailure as failure:
            result = Failure(kind=failure.kind, reason=str(failure.fields["reason"]), fields=failure.fields)
        return tool.presentation_of(params, result)

    def _context(self) -> ToolContext:
        return ToolContext(
            run_id="run_1",
            tool_call_id="call_1",
            idempotency_key="key_1",
            workspace=self.workspace,
            deadline=datetime.now(UTC) + timedelta(hours=2),
            precondition=None if self.approved is None else json.dumps(self.approved),
            partial=self.partial.append,
            emit=self.emitted.append,
        )

    def preview(self, tool: Tool, **tool_input: Any) -> Any:
        return tool.preview(tool.decode(json.dumps(tool_input)), self.workspace)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory next to the workspace, with a secret in it."""
    directory = tmp_path / "outside"
    directory.mkdir()
    (directory / "secret.txt").write_text("secret\n")
    return directory


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    directory = tmp_path / "work"
    directory.mkdir()
    return directory


@pytest.fixture
def call(workspace: Path) -> Caller:
    return Caller(workspace)


@pytest.fixture
def until() -> Callable[..., Awaitable[Any]]:
    """Wait for a condition with a deadline, and return its value."""

    async def wait(condition: Callable[[], Any], seconds: float = 120.0) -> Any:
        async with asyncio.timeout(seconds):
            while not (value := condition()):  # noqa: ASYNC110 - the kernel sets no asyncio.Event
                await asyncio.sleep(0.002)
        return value

    return wait


@pytest.fixture
def descriptors() -> Callable[[], int]:
    """Count this process's open file descriptors."""
    return lambda: sum(1 for _ in Path("/proc/self/fd").iterdir())
