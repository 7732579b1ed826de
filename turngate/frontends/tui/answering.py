"""What is asked of a person for each answer that takes more than a key: its title, what is sent, what cannot be sent."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from rich.text import Text

from turngate.domain.requests import Outcome
from turngate.frontends.tui.form_model import Draft, Draw, form_for
from turngate.frontends.tui.texts import editable, line, plain_line, same_json
from turngate.wire.requests import RequestDetail

UNCHANGED = "Nothing was changed. Change something, or leave with Escape and approve the call as it is."


class Content(TypedDict, total=False):
    """What goes with a decision."""

    args: str
    message: str
    outcome: Outcome


@dataclass(frozen=True, kw_only=True)
class WordsAnswer:
    """An answer in words. ``many``: of many lines; ``fault``: why it cannot be sent."""

    what: str
    verb: Literal["reject", "respond"]
    title: str
    lead: str
    many: bool = False
    fault: Callable[[str], str | None] = lambda _text: None

    def content(self, text: str) -> Content:
        """Return what goes with the decision."""
        return Content(message=text)


@dataclass(frozen=True, kw_only=True)
class FormAnswer:
    """An answer by a form. ``raw``: what the editor of the whole JSON begins with; ``suggested``: answers to pick from."""

    what: str
    verb: Literal["edit", "respond"]
    title: str
    lead: Text
    draw: Draw
    raw: str
    source: str = ""
    outcome: Outcome | None = None
    suggested: tuple[str, ...] = ()
    fault: Callable[[str], str | None] = lambda _args: None

    @property
    def draft(self) -> Draft:
        """What stands in the form at first."""
        return Draft(source=self.source)

    def content(self, args: str) -> Content:
        """Return what goes with the decision."""
        return Content(args=args) if self.outcome is None else Content(args=args, outcome=self.outcome)


def answer_of(request: RequestDetail, what: str) -> WordsAnswer | FormAnswer:
    """Return how this is answered. ``what``: ``edit``, ``reject``, ``respond`` or ``happened``."""
    name = plain_line(request.tool_name, 64)
    match what:
        case "edit":
            return _edit(request, name)
        case "reject":
            lead = "Why? The agent reads it."
            if request.kind == "question":
                lead = f"You do not answer. {lead}"
            return WordsAnswer(what=what, verb="reject", title=f"Reject {name}", lead=lead)
        case "happened":
            return FormAnswer(
                what=what,
                verb="respond",
                title=f"{name} happened: with which result?",
                lead=line("As the tool would have returned it."),
                draw=form_for(request.manifest.success, needs_object=False),
                raw=_outline(request.manifest.success),
                outcome="happened",
            )
        case _ if request.kind == "question":
            return _question(request)
        case _:
            return WordsAnswer(
                what="respond",
                verb="respond",
                title=f"Answer in place of {name}",
                lead="The agent reads it in place of a result; nothing runs.",
                many=True,
                fault=lambda text: None if text.strip() else "Say something, or leave with Escape.",
            )


def _edit(request: RequestDetail, name: str) -> FormAnswer:
    return FormAnswer(
        what="edit",
        verb="edit",
        title=f"Edit the arguments of {name}, then approve",
        lead=line("Checked again, and passes policy again, as edited."),
        draw=form_for(request.manifest.parameters, needs_object=True),
        raw=editable(request.input),
        source=request.input,
        fault=lambda args: UNCHANGED if same_json(args, request.input) else None,
    )


def _question(request: RequestDetail) -> FormAnswer:
    asked = _asked(request.input)
    choices = asked.get("choices")
    return FormAnswer(
        what="respond",
        verb="respond",
        title="Your answer",
        lead=line(_question_text(asked) or "The agent reads it."),
        draw=form_for(request.manifest.success, needs_object=False),
        raw=_outline(request.manifest.success),
        suggested=tuple(each for each in choices if isinstance(each, str)) if isinstance(choices, list) else (),
    )


def _question_text(asked: dict[str, Any]) -> str:
    """Return the question while its answer is typed: the one text of it, where there is only one."""
    texts = [each for each in asked.values() if isinstance(each, str)]
    return texts[0] if len(texts) == 1 else ""


def _outline(schema: dict[str, Any]) -> str:
    """Return what an editor of the whole JSON begins with: the members that are asked for."""
    properties = schema.get("properties")
    return json.dumps(dict.fromkeys(properties), indent=2) if isinstance(properties, dict) and properties else "{}"


def _asked(raw_input: str) -> dict[str, Any]:
    try:
        given = json.loads(raw_input)
    except (ValueError, RecursionError):
        return {}
    return given if isinstance(given, dict) else {}
