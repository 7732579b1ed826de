"""What is asked of a person for each answer that takes words: its title, what is sent, and what cannot be sent."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from turngate.domain.requests import Outcome
from turngate.tui.texts import editable, json_object, json_problem, plain_line
from turngate.wire.requests import RequestDetail


class Content(TypedDict, total=False):
    """What goes with a decision."""

    args: str
    message: str
    outcome: Outcome


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One kind of answer. ``text``: what the field begins with; ``many``: of many lines; ``fault``: why it cannot be sent."""

    what: str
    verb: Literal["edit", "reject", "respond"]
    title: str
    lead: str
    content: Callable[[str], Content]
    text: str = ""
    many: bool = False
    is_json: bool = False
    fault: Callable[[str], str | None] = lambda _text: None


def answer_of(request: RequestDetail, what: str) -> Answer:
    """Return how this is answered. ``what``: ``edit``, ``reject``, ``respond`` or ``happened``."""
    name = plain_line(request.tool_name, 64)
    match what:
        case "edit":
            return Answer(
                what=what,
                verb="edit",
                title=f"Edit the arguments of {name}, then approve",
                lead="JSON. It is checked again, and passes policy again, as edited.",
                content=lambda text: Content(args=text),
                text=editable(request.input),
                many=True,
                is_json=True,
                fault=json_problem,
            )
        case "reject":
            lead = (
                "You do not answer. Why? The agent reads it."
                if request.kind == "question"
                else "Why? The agent reads it."
            )
            return Answer(
                what=what, verb="reject", title=f"Reject {name}", lead=lead, content=lambda text: Content(message=text)
            )
        case "happened":
            return _json(
                what,
                f"{name} happened: with which result?",
                request,
                lambda text: Content(args=text, outcome="happened"),
            )
        case _ if request.kind == "question":
            return _question(request)
        case _:
            return Answer(
                what="respond",
                verb="respond",
                title=f"Answer in place of {name}",
                lead="The agent reads it in place of a result; nothing runs.",
                content=lambda text: Content(message=text),
                many=True,
                fault=lambda text: None if text.strip() else "Say something, or leave with Escape.",
            )


def _question(request: RequestDetail) -> Answer:
    name = _only_text(request.manifest.success)
    choices = _choices(request.input)
    lead = f"Suggested: {'  /  '.join(choices)}" if choices else "The agent reads it."
    if name is None:
        return _json("respond", "Your answer", request, lambda text: Content(args=text))
    return Answer(
        what="respond",
        verb="respond",
        title="Your answer",
        lead=lead,
        content=lambda text: Content(args=json_object(name, text)),
        many=True,
    )


def _json(what: str, title: str, request: RequestDetail, content: Callable[[str], Content]) -> Answer:
    """Return an answer as JSON of the tool's own shape."""
    properties = request.manifest.success.get("properties")
    members = properties if isinstance(properties, dict) else {}
    return Answer(
        what=what,
        verb="respond",
        title=title,
        lead="JSON, as the tool would return it.",
        content=content,
        text=json.dumps(dict.fromkeys(members), indent=2) if members else "{}",
        many=True,
        is_json=True,
        fault=json_problem,
    )


def _only_text(schema: dict[str, Any]) -> str | None:
    """Return the name of the one text that is asked for; None when it is not one text."""
    properties = schema.get("properties")
    if not isinstance(properties, dict) or len(properties) != 1:
        return None
    name, shape = next(iter(properties.items()))
    return name if isinstance(shape, dict) and shape.get("type") == "string" else None


def _choices(raw_input: str) -> list[str]:
    try:
        given = json.loads(raw_input)
    except (ValueError, RecursionError):
        return []
    found = given.get("choices") if isinstance(given, dict) else None
    return [plain_line(each, 60) for each in found if isinstance(each, str)] if isinstance(found, list) else []
