"""What the terminal UI is tried on: an agent that does what it is told, and a person at the keys."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from api_server import Api
from driven import POLICY, TOOLS
from driven import Talker as DrivenTalker
from harness import call, says, until
from textual import events
from textual.pilot import Pilot
from textual.widget import Widget
from textual.widgets import Static, TextArea

from turngate.client import Retries, TurngateClient
from turngate.domain.messages import ModelResponse
from turngate.models.port import ModelRequest, OnDelta
from turngate.store import tokens
from turngate.tui.app import TurngateTui

__all__ = ["POLICY", "TOOLS", "Person", "Talker", "person_at"]


class Talker(DrivenTalker):
    """As for the drivers; ``raw {say, arguments}`` writes with exactly these arguments, and says what would deceive.

    ``hold``: its words are told, and its response is not given before this is set.
    """

    hold: asyncio.Event | None = None

    async def stream(self, request: ModelRequest, on_delta: OnDelta) -> ModelResponse:
        response = await super().stream(request, on_delta)
        if self.hold is not None:
            await self.hold.wait()
        return response

    async def generate(self, request: ModelRequest) -> ModelResponse:
        last = request.messages[-1]
        if last.role == "user" and last.text.startswith("raw "):
            return says(json.loads(last.text[4:])["say"], call("write", json.loads(last.text[4:])["arguments"]))
        return await super().generate(request)


@dataclass
class Asked:
    """The field of the dialog that is open, or about to be."""

    person: Person
    kind: type[Widget]

    async def field(self) -> Widget:
        app = self.person.app
        await self.person.until(lambda: app.screen.query(self.kind), "field to type into")
        return app.screen.query_one(self.kind)

    async def text(self) -> str:
        field = await self.field()
        return field.text if isinstance(field, TextArea) else field.value

    async def fill(self, text: str) -> None:
        """Put a text into the field, as if it had been typed."""
        field = await self.field()
        if isinstance(field, TextArea):
            field.text = text
        else:
            field.value = text
            field.cursor_position = len(text)
        await self.person.settled()


@dataclass
class Person:
    """Somebody at the keys."""

    app: TurngateTui
    pilot: Pilot[None]
    api: Api

    async def sees(self, words: str, seconds: float = 10.0) -> str:
        """Wait until these words are on the screen; returns all of it."""
        try:
            await until(lambda: asyncio.sleep(0, words in self.screen), f"{words!r} on the screen", seconds)
        except AssertionError:
            print(self.screen)
            raise
        return self.screen

    async def until(self, look: Callable[[], Any], what: str) -> None:
        await until(lambda: asyncio.sleep(0, look()), what)

    @property
    def screen(self) -> str:
        """The cells of the terminal, line by line."""
        return "\n".join(
            "".join(segment.text for segment in strip) for strip in self.app.screen._compositor.render_strips()
        )

    @property
    def notice(self) -> str:
        return str(self.app.screen.query_one("#notice", Static).render())

    async def press(self, *keys: str) -> None:
        """Press keys as the terminal tells them. Not by the pilot, which waits for the whole process, engine and all, to idle."""
        for key in keys:
            pressed = events.Key(key, key if len(key) == 1 else {"space": " "}.get(key))
            pressed.set_sender(self.app)
            self.app._driver.send_message(pressed)
            await self.settled()

    async def settled(self) -> None:
        """Wait until every widget has handled what it was told."""
        for _ in range(2):
            await self.pilot._wait_for_screen()
            await asyncio.sleep(0.005)

    async def twice(self, key: str) -> None:
        """Press a key, and again once the screen says what that would do."""
        await self.press(key)
        await self.sees(f"ress {key} again")
        await asyncio.sleep(0.2)  # a person's pause, which no paste and no held key leaves
        await self.press(key)

    def asked(self, kind: type[Widget]) -> Asked:
        return Asked(self, kind)

    async def opens(self, words: str = "THE EXACT CALL") -> None:
        """Open the marked request, and look at it for a moment."""
        await self.press("enter")
        await self.shown(words)

    async def shown(self, words: str) -> str:
        """Wait until these words are on the screen, and keys count again."""
        screen = await self.sees(words)
        await self.until(lambda: not self.app.screen.is_inert, "time to look")
        return screen

    async def request(self, shown: dict[str, Any]) -> dict[str, Any]:
        return (await self.api.operator.get(f"/api/v1/requests/{shown['id']}")).json()

    async def decided(self, shown: dict[str, Any]) -> dict[str, Any]:
        async def look() -> dict[str, Any] | None:
            found = await self.request(shown)
            return found if found["status"] != "pending" else None

        return await until(look, "decision")


@contextlib.asynccontextmanager
async def person_at(
    api: Api, *, size: tuple[int, int] = (80, 24), url: str | None = None, name: str = "ada"
) -> AsyncIterator[Person]:
    async with api.stack.database.write() as conn:
        secret = await tokens.issue(conn, name=name, scopes=["requests:read", "requests:decide", "admin"])
    async with TurngateClient(url or api.url, token=secret, retries=Retries(attempts=1)) as client:
        app = TurngateTui(client)
        async with app.run_test(size=size) as pilot:
            yield Person(app, pilot, api)
