"""Gates in an editor: each open request of a run is a question there, and the answer is sent as that person's decision.

What is decided is what was shown: the decision bears the digest of the request that the question was made from.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from typing import Any, Final

from acp.schema import ElicitationSchema, ToolCallUpdate
from pydantic import ValidationError

from turngate.client import TurngateClient
from turngate.domain.errors import TurngateError
from turngate.frontends.acp import render as show
from turngate.frontends.acp.calls import Calls
from turngate.frontends.acp.choices import Choice, choices_of, filled_in, question
from turngate.frontends.acp.editor import Editor
from turngate.wire.access import MeView
from turngate.wire.orders import DecisionOrder
from turngate.wire.requests import RequestDetail

# Forms in an editor: the few words that an answer takes, asked for where the editor has said that it can ask.
#
# Source: https://agentclientprotocol.com/protocol/elicitation


_MEMBERS: Final[Mapping[str, frozenset[str]]] = {
    "string": frozenset({"minLength", "maxLength", "enum", "default"}),
    "number": frozenset({"minimum", "maximum", "default"}),
    "integer": frozenset({"minimum", "maximum", "default"}),
    "boolean": frozenset({"default"}),
}
"""What a form's fields may be, and what of their JSON Schema an editor understands; the API checks the whole of it."""
_WORDS: Final = ("title", "description")


def form_of(schema: Mapping[str, Any]) -> ElicitationSchema | None:
    """Return the form for an answer of this JSON Schema; None: it takes more than plain fields."""
    properties = schema.get("properties")
    if not isinstance(properties, dict) or not properties:
        return None
    fields: dict[str, Any] = {}
    for name, declared in properties.items():
        members = _MEMBERS.get(str(declared.get("type"))) if isinstance(declared, dict) else None
        if members is None:
            return None
        words = {word: show.marked(str(declared[word])) for word in _WORDS if word in declared}
        fields[name] = {"type": declared["type"], **words, **{key: declared[key] for key in members & declared.keys()}}
    try:
        return ElicitationSchema.model_validate(
            {"type": "object", "properties": fields, "required": list(schema.get("required", []))}
        )
    except ValidationError:
        return None


def one_line(name: str, title: str) -> ElicitationSchema:
    """Return a form that asks for one text, which may not be empty."""
    return ElicitationSchema.model_validate(
        {
            "type": "object",
            "properties": {name: {"type": "string", "title": title, "minLength": 1}},
            "required": [name],
        }
    )


_log = logging.getLogger("turngate.acp")


class Gates:
    """The open requests of one turn, each asked about at once; the first who answers, here or elsewhere, has decided."""

    def __init__(self, client: TurngateClient, editor: Editor, calls: Calls, me: MeView) -> None:
        self._client = client
        self._editor = editor
        self._calls = calls
        self._me = me
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._deciding: set[str] = set()
        self._is_cancelled = False

    def open(self, request_id: str) -> None:
        """Ask about a request."""
        if request_id not in self._asking:
            self._asking[request_id] = asyncio.create_task(self._ask(request_id))

    def ended(self, request_id: str) -> None:
        """Take the question about a request back: it was decided elsewhere, or has ended. An answer on its way is not stopped."""
        task = self._asking.get(request_id)
        if task is not None and request_id not in self._deciding:
            task.cancel()

    def cancel(self) -> None:
        """Take note that the turn was cancelled: its open requests end with it, and no one needs to learn where else."""
        self._is_cancelled = True

    async def close(self) -> None:
        """Take every question back, and wait for answers that are being sent."""
        tasks = list(self._asking.values())
        for request_id in list(self._asking):
            self.ended(request_id)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, request_id: str) -> None:
        try:
            request = await self._client.get_request(request_id)
            if request.status != "pending":
                return
            known = self._calls.id_of(request.run_id, request.tool_call_id)
            choices = await choices_of(self._client, request, self._me, forms=self._editor.has_forms)
            call = await self._call_update(request, known, choices)
            if not choices:
                return
            order = await self._answer(request, call, choices)
            if order is not None:
                await self._decide(request, known, order)
            elif not self._is_cancelled:
                await self._calls.note(known, f"Left open: it can be decided at {self._page(request)}.")
        except TurngateError as error:
            _log.warning("request %s: %s", request_id, error)
        except ConnectionError:  # the editor has gone; the request waits on
            return
        except Exception:  # noqa: BLE001 - a question that fails is left to the page, and the turn continues
            _log.exception("request %s could not be asked about", request_id)

    async def _call_update(self, request: RequestDetail, known: str, choices: list[Choice]) -> ToolCallUpdate:
        """Show the request at its call, and return that call as a question shows it."""
        directory = self._calls.directory
        is_diff = request.preview_kind == "diff"
        locations = show.locations(request.preview, directory=directory) if is_diff else []
        content = await self._calls.ask(
            known,
            kind=_kind(request),
            arguments=show.arguments(request.input, request.defaults),
            preview=show.preview(request.preview_kind, request.preview, directory=directory),
            question=question(request, self._page(request), choices, forms=self._editor.has_forms),
            locations=locations,
        )
        return ToolCallUpdate(
            tool_call_id=known,
            title=show.title(request.tool_name, request.agents if "/" in request.path else ""),
            kind=_kind(request),
            status="pending",
            content=content,
            locations=locations or None,
            raw_input=show.as_json(request.input),
        )

    async def _answer(
        self, request: RequestDetail, call: ToolCallUpdate, choices: list[Choice]
    ) -> DecisionOrder | None:
        """Ask, and return what the person decided; None: nothing."""
        try:
            form = form_of(request.manifest.success) if request.kind == "question" and self._editor.has_forms else None
            if form is not None:
                words = (
                    f"{show.title(request.tool_name, request.agents)} asks:\n{show.fenced(show.read(request.input))}"
                )
                action, content = await self._editor.fill(call.tool_call_id, words, form)
                if action == "accept":
                    args = json.dumps(content, ensure_ascii=False)
                    return DecisionOrder(verb="respond", digest=request.digest, args=args)
                if action == "cancel":
                    return None
                # Who declines to answer may still want to reject it.
            chosen = await self._editor.ask(call, [choice.option for choice in choices])
            choice = next((each for each in choices if each.option.option_id == chosen), None)
            if choice is None:
                return None
            if choice.form is None:
                return choice.order
            return await self._in_words(choice, request, call.tool_call_id)
        except asyncio.CancelledError:
            await self._editor.withdraw(call.tool_call_id)
            raise

    async def _in_words(self, choice: Choice, request: RequestDetail, known: str) -> DecisionOrder | None:
        """Ask for the words that a choice takes: the tool's name typed out, or why it is rejected."""
        tool = show.title(request.tool_name)
        if choice.form == "name":
            message, form = (
                f"This call is of high risk. Type {tool} to approve it.",
                one_line("name", "The tool's name"),
            )
        else:
            message, form = f"Why is {tool} rejected? The agent reads it.", one_line("reason", "Reason")
        action, content = await self._editor.fill(known, message, form)
        order = filled_in(choice, request, content) if action == "accept" else None
        if action == "accept" and order is None:
            await self._calls.note(known, "That is not the tool's name: nothing was decided.")
        return order

    async def _decide(self, request: RequestDetail, known: str, order: DecisionOrder) -> None:
        self._deciding.add(request.id)
        try:
            result = await self._client.decide(request.id, order)
        except TurngateError as error:
            await self._calls.note(known, "Your answer does not count:", show.value(error.message))
        else:
            if result.status == "pending":
                await self._calls.note(known, "Your approval counts; one more person must approve this call.")
        finally:
            self._deciding.discard(request.id)

    def _page(self, request: RequestDetail) -> str:
        return f"{self._client.pages_url}/requests/{request.id}"


def _kind(request: RequestDetail) -> show.Kind:
    if request.preview_kind == "diff":
        return "edit"
    return "execute" if request.preview_kind == "command" else show.kind_of(request.manifest.effect)
