"""A model that plays scenes: what a run asks for names the lines that it gets."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from turngate.domain.conversation.messages import ModelResponse
from turngate.models.port import ModelRequest


class Scenes:
    """Plays the scene that the newest message with a scene names; its last line stays.

    ``deaf``: what a scene without lines waits for.
    """

    name = "scripted:test"

    def __init__(
        self, scenes: Mapping[str, Sequence[ModelResponse | Exception]], deaf: asyncio.Event | None = None
    ) -> None:
        self._scenes = scenes
        self._deaf = deaf

    async def generate(self, request: ModelRequest) -> ModelResponse:
        at = max(place for place, message in enumerate(request.messages) if message.text in self._scenes)
        lines = self._scenes[request.messages[at].text]
        if not lines and self._deaf is not None:
            await self._deaf.wait()
        taken = sum(message.role == "assistant" for message in request.messages[at:])
        line = lines[min(taken, len(lines) - 1)]
        if isinstance(line, Exception):
            raise line
        return line

    async def aclose(self) -> None:
        return None
