"""Another program at Turngate's real gate: its client, and the people who decide."""

from __future__ import annotations

import importlib.util
import secrets
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from support.api.api_server import Api, token_for
from support.engine.stack import until

from turngate.client import TurngateClient
from turngate.domain.identity import TokenBounds
from turngate.domain.tools.external import agent_of_source
from turngate.wire.external_calls import ExternalCallView


@dataclass
class Sender:
    """One program that sends calls, under its own source. ``client``: has no scope that decides."""

    api: Api
    source: str
    client: TurngateClient

    async def pending(self, count: int = 1) -> list[dict[str, Any]]:
        """Wait for this many pending requests for the program's calls; oldest first."""

        async def look() -> list[dict[str, Any]] | None:
            items = await self._requests()
            return items if len(items) == count else None

        items = await until(look, f"{count} pending requests of {self.source}")
        return [(await self.api.operator.get(f"/api/v1/requests/{each['id']}")).json() for each in items]

    async def none_pending(self) -> bool:
        return not await self._requests()

    async def _requests(self) -> list[dict[str, Any]]:
        answer = await self.api.operator.get("/api/v1/requests", params={"agent": agent_of_source(self.source)})
        return answer.json()["items"]

    async def decide(self, verb: str = "approve", **body: Any) -> dict[str, Any]:
        """Decide the one pending request and return it as the API showed it."""
        (request,) = await self.pending()
        answer = await self.api.decide(request, verb, **body)
        assert answer.status_code == 200, answer.text
        return request

    async def call(self, request: dict[str, Any]) -> ExternalCallView:
        return await self.client.get_external_call(request["run_id"])


async def sender_on(api: Api) -> Sender:
    name = secrets.token_hex(3)
    scopes, bounds = ("runs:write", "requests:read"), TokenBounds(sources=["*"])
    header = (await token_for(api.stack.database, f"shop-{name}", *scopes, bounds=bounds))["Authorization"]
    client = TurngateClient(api.url, token=header.removeprefix("Bearer "))
    return Sender(api, f"shop-{name}", client)


def example(name: str, module: str = "refund_clerk") -> ModuleType:
    """Load an example's module as its reader would run it, under a name that no other example has."""
    file = Path(__file__).parents[3] / "examples" / name / f"{module}.py"
    spec = importlib.util.spec_from_file_location(f"{name}_{module}", file)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded
