"""The terminal UI under test: an agent that follows its input, and a person at the keys."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, Field, JsonValue
from support.api.api_server import Api
from support.api.frontend_app import POLICY as DRIVEN_POLICY
from support.api.frontend_app import TOOLS as DRIVEN_TOOLS
from support.api.frontend_app import Talker as DrivenTalker
from support.engine.stack import call, says, until
from textual import events
from textual.pilot import Pilot
from textual.widget import Widget
from textual.widgets import Static, TextArea

from turngate.client import Retries, TurngateClient
from turngate.domain.conversation.messages import ModelResponse
from turngate.domain.policy.policy import Policy, Rule
from turngate.domain.tools.context import ToolContext
from turngate.domain.tools.declare import interaction_tool, tool
from turngate.frontends.tui.app import TurngateTui
from turngate.frontends.tui.widgets import Press, ScrolledText
from turngate.models.port import ModelRequest, OnDelta
from turngate.store.access import access, tokens

__all__ = ["DUG", "POLICY", "TOOLS", "Person", "Talker", "calling", "person_at"]


class Address(BaseModel):
    street: str
    floor: int | None = None


class Stay(BaseModel):
    """Of every kind that a form has a field for."""

    hotel: str
    nights: int = Field(ge=1, le=30, description="[b]at most[/b] 30\u202e")
    rate: float
    room: Literal["single", "double", "suite"]
    breakfast: bool
    guests: list[str] = []
    address: Address | None = None
    extras: dict[str, int] = {}
    note: str | None = None
    anything: JsonValue = None


class Choice(BaseModel):
    question: str
    choices: list[str]


class Picked(BaseModel):
    answer: str


@tool(effect="once", ask=True)
async def book(params: Stay) -> dict[str, JsonValue]:
    """Book a stay."""
    return params.model_dump()


@tool(effect="once", ask=True)
async def share(params: Address) -> dict[str, str]:
    """Share an address, which two people approve."""
    return {"shared": params.street}


@tool(effect="read", ask=False)
async def dig(params: Address, ctx: ToolContext) -> dict[str, bool]:
    """Dig, and report the depth until it may end."""
    for depth in range(3):
        ctx.emit({"depth": depth, "said": params.street})
    await asyncio.wait_for(DUG.wait(), 60)
    return {"dug": True}


LOOK_SECONDS = 0.03
DUG = asyncio.Event()
pick_one = interaction_tool(name="pick_one", description="Ask for one of these.", params=Choice, answer=Picked)
TOOLS = (*DRIVEN_TOOLS, book, share, dig, pick_one)
POLICY = DRIVEN_POLICY.joined_with(Policy(rule=[Rule(name="two-people", verdict="ask", tools=["share"], quorum=2)]))


def calling(tool: str, arguments: dict[str, Any], say: str = "I will.") -> str:
    """The input that makes the agent call a tool with exactly these arguments, with this text."""
    exact = json.dumps(arguments, ensure_ascii=False)
    return f"raw {json.dumps({'say': say, 'tool': tool, 'arguments': exact})}"


class Talker(DrivenTalker):
    """As for the drivers; ``raw {say, tool, arguments}`` calls with exactly these arguments, with a text that may deceive.

    ``more``: further calls of the same step, tool and arguments each.

    ``hold``: its words are streamed, but its response is complete only once this is set.
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
            order = json.loads(last.text[4:])
            more = (call(tool, arguments) for tool, arguments in order.get("more", []))
            return says(order["say"], call(order.get("tool", "write"), order["arguments"]), *more)
        return await super().generate(request)


@dataclass
class DialogField:
    """The field of the dialog that is open, or about to be."""

    person: Person
    kind: type[Widget]

    async def field(self) -> Widget:
        app = self.person.app
        try:
            await self.person.until(lambda: app.screen.query(self.kind), "field to type into")
        except AssertionError:
            print(self.person.screen)
            raise
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
    """A person at the keys."""

    app: TurngateTui
    pilot: Pilot[None]
    api: Api

    async def sees(self, words: str, seconds: float = 60.0) -> str:
        """Wait until these words are on the screen; returns all of it."""
        try:
            # Not as often as it could be: to read a screen takes as long as to draw it.
            await until(lambda: asyncio.sleep(LOOK_SECONDS, words in self.screen), f"{words!r} on the screen", seconds)
        except AssertionError:
            print(self.screen)
            raise
        return self.screen

    async def until(self, look: Callable[[], Any], what: str) -> None:
        await until(lambda: asyncio.sleep(0, look()), what)

    @property
    def screen(self) -> str:
        """The cells of the terminal, line by line; empty while a widget is being added or removed."""
        try:
            strips = self.app.screen._compositor.render_strips()
        except KeyError:  # a widget has no styles yet: we look between two of the app's own steps
            return ""
        return "\n".join("".join(segment.text for segment in strip) for strip in strips)

    @property
    def notice(self) -> str:
        return str(self.app.screen.query_one("#notice", Static).render())

    async def press(self, *keys: str) -> None:
        """Press keys as the terminal reports them. Not by the pilot, which waits until the process and its engine are idle."""
        for key in keys:
            pressed = events.Key(key, key if len(key) == 1 else {"space": " "}.get(key))
            pressed.set_sender(self.app)
            self.app._driver.send_message(pressed)
            await self.settled()

    async def types(self, text: str) -> None:
        """Type a text, key by key."""
        await self.press(*text)

    async def at(self, control: str) -> Widget:
        """Focus a control of the open form, by its name."""

        def look() -> list[Widget]:
            return [each for each in self.app.screen.query(".control") if each.control_name == control]

        await self.until(look, f"control {control}")
        await self.settled()
        look()[0].focus()
        await self.settled()
        return look()[0]

    async def put(self, control: str, text: str) -> None:
        """Put a text into a control of the open form."""
        (await self.at(control)).put(text)
        await self.settled()

    async def presses(self, does: str) -> None:
        """Press the form's button that does this."""
        buttons = [each for each in self.app.screen.query(Press) if each.does == does]
        buttons[0].focus()
        before = {id(each) for each in self.app.screen.query(Press)}
        await self.press("enter")
        await self.until(lambda: before.isdisjoint(map(id, self.app.screen.query(Press))), "form drawn again")

    def beside(self, control: str) -> str:
        """The error shown next to a field, or an empty string."""
        errors = [each for each in self.app.screen.query(".wrong") if each.name == control and each.display]
        return str(errors[0].render()) if errors else ""

    async def settled(self) -> None:
        """Wait until every widget has handled its messages."""
        for _ in range(2):
            await self.pilot._wait_for_screen()
            await asyncio.sleep(0.005)

    async def twice(self, key: str) -> None:
        """Press a key, and again once the screen says what that would do."""
        await self.press(key)
        await self.sees(f"ress {key} again")
        await asyncio.sleep(0.4)  # a person's pause, which no paste and no held key leaves
        await self.press(key)

    async def reads_to_the_end(self) -> None:
        """Scroll through a text, page by page."""
        reading = self.app.screen.query_one(ScrolledText)
        while not reading.was_read:
            before = reading.scroll_y
            await self.press("space")
            await self.until(lambda before=before: reading.scroll_y > before or reading.was_read, "the next page")

    def dialog_field(self, kind: type[Widget]) -> DialogField:
        return DialogField(self, kind)

    async def opens(self, words: str = "THE EXACT CALL") -> None:
        """Open the marked request, and look at it for a moment."""
        await self.press("enter")
        await self.sees_ready(words)

    async def sees_ready(self, words: str) -> str:
        """Wait until these words are on the screen, and keys count again."""
        screen = await self.sees(words)
        await self.until(lambda: not self.app.screen.is_inert, "time to look")
        return screen

    async def request(self, request: dict[str, Any]) -> dict[str, Any]:
        return (await self.api.operator.get(f"/api/v1/requests/{request['id']}")).json()

    async def decided(self, request: dict[str, Any]) -> dict[str, Any]:
        async def look() -> dict[str, Any] | None:
            current = await self.request(request)
            return current if current["status"] != "pending" else None

        return await until(look, "decision")


@contextlib.asynccontextmanager
async def person_at(
    api: Api,
    *,
    size: tuple[int, int] = (80, 24),
    url: str | None = None,
    name: str = "ada",
    owner: str | None = None,
    scopes: Sequence[access.Scope] = ("requests:read", "requests:decide", "admin"),
    **options: Any,
) -> AsyncIterator[Person]:
    """A person at the keys. ``owner``: the user whose token it is; None: without one. ``options``: of the UI's client."""
    async with api.stack.database.write() as conn:
        secret = await tokens.issue(conn, tokens.NewToken(name=name, scopes=scopes, owner=owner))
    async with TurngateClient(url or api.url, token=secret, retries=Retries(attempts=1), **options) as client:
        app = TurngateTui(client)
        async with app.run_test(size=size) as pilot:
            yield Person(app, pilot, api)
