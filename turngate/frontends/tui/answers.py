"""What is asked of a person for each answer that takes more than a key: its title, what is sent, what cannot be sent."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal

from rich.text import Text
from textual.app import App

from turngate.domain.errors import InvalidInputError, TurngateError
from turngate.domain.policy.grants import MAX_GRANT_USES, WantedGrant, with_left_out
from turngate.domain.policy.limits import LimitKind, ValueLimit, parse_limit, parse_total
from turngate.domain.requests import Resolution
from turngate.domain.text.json_pointers import decode_arguments
from turngate.domain.tools.defaults import constant_text
from turngate.frontends.tui.dialogs import AskDialog, ConfirmDialog
from turngate.frontends.tui.form_dialog import FormDialog, FormSpec
from turngate.frontends.tui.form_model import Control, Draft, Draw, Field, Group, choice_of, form_for, reading_of
from turngate.frontends.tui.problems import problem_words, problems_of
from turngate.frontends.tui.session import Sent, Session
from turngate.frontends.tui.texts import (
    Folded,
    Line,
    argument_values,
    at,
    cut_line,
    editable,
    folded,
    json_problem,
    line,
    plain_line,
    same_json,
    span,
)
from turngate.text.changes import change_lines, changes
from turngate.wire.orders import DecisionOrder
from turngate.wire.policy import GrantPreview
from turngate.wire.requests import RequestDetail

UNCHANGED = "Nothing was changed. Change something, or leave with Escape and approve the call as it is."


@dataclass(frozen=True, kw_only=True)
class WordsAnswer:
    """An answer in words. ``many``: of many lines; ``recent``: words to choose from; ``fault``: why it cannot be sent."""

    what: str
    verb: Literal["reject", "respond"]
    title: str
    lead: str
    many: bool = False
    recent: tuple[str, ...] = ()
    fault: Callable[[str], str | None] = lambda _text: None

    def order(self, request: RequestDetail, text: str) -> DecisionOrder:
        """Return the decision that this text makes."""
        return DecisionOrder(verb=self.verb, digest=request.digest, message=text)


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
    outcome: Resolution | None = None
    suggested: tuple[str, ...] = ()
    fault: Callable[[str], str | None] = lambda _args: None

    @property
    def draft(self) -> Draft:
        """What is in the form at first."""
        return Draft(source=self.source)

    def order(self, request: RequestDetail, args: str) -> DecisionOrder:
        """Return the decision that these arguments make."""
        return DecisionOrder(verb=self.verb, digest=request.digest, args=args, outcome=self.outcome)


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
            recent = tuple(request.reject_reasons)
            return WordsAnswer(what=what, verb="reject", title=f"Reject {name}", lead=lead, recent=recent)
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


def edit_key(request: RequestDetail) -> tuple[str, str]:
    """Return where the session keeps the form of an edit."""
    return request.id, "edit"


def kept_edit(session: Session, request: RequestDetail) -> str | None:
    """Return the JSON of an edit that was typed and not sent; None: there is none. What is no JSON is returned as typed."""
    draft = session.forms.get(edit_key(request))
    if draft is None or request.status != "pending":
        return None
    args = draft.raw
    if args is None:
        form = form_for(request.manifest.parameters, needs_object=True)(draft.source)
        args = None if form is None else reading_of(form, draft).args or ""
    return None if args is None or same_json(args, request.input) else args


def edit_words(request: RequestDetail, args: str) -> str:
    """Return what sends an edit."""
    return "finish the edit" if json_problem(args) is not None else changes(request.input, args).approve_words


def edit_lines(request: RequestDetail, args: str) -> Iterator[Line]:
    """Yield what an edit changes, which is not sent yet."""
    yield at("", ("YOUR EDIT, NOT SENT", "bold yellow"))
    if json_problem(args) is not None:
        yield at("  ", ("It can't be sent yet: press e to finish it.", "yellow"))
        return
    for words in change_lines(changes(request.input, args)):
        yield at("  ", (words, "yellow"))


def _question(request: RequestDetail) -> FormAnswer:
    question = _question_input(request.input)
    choices = question.get("choices")
    return FormAnswer(
        what="respond",
        verb="respond",
        title="Your answer",
        lead=line(_question_text(question) or "The agent reads it."),
        draw=form_for(request.manifest.success, needs_object=False),
        raw=_outline(request.manifest.success),
        suggested=tuple(each for each in choices if isinstance(each, str)) if isinstance(choices, list) else (),
    )


def _question_text(question: dict[str, Any]) -> str:
    """Return the question while its answer is typed: the one text of it, where there is only one."""
    texts = [each for each in question.values() if isinstance(each, str)]
    return texts[0] if len(texts) == 1 else ""


def _outline(schema: dict[str, Any]) -> str:
    """Return what an editor of the whole JSON begins with: the members that are asked for."""
    properties = schema.get("properties")
    return json.dumps(dict.fromkeys(properties), indent=2) if isinstance(properties, dict) and properties else "{}"


def _question_input(raw_input: str) -> dict[str, Any]:
    try:
        parsed = json.loads(raw_input)
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


LASTS: Final = (
    ("900", "15 minutes"),
    ("3600", "an hour"),
    ("28800", "8 hours"),
    ("86400", "a day"),
    ("604800", "a week"),
)
SCOPES: Final = (("run", "this run"), ("agent", "this agent"))
FOR_ADMINS: Final = (("everyone", "every agent"),)
REACH: Final = {
    "run": "in this run",
    "agent": "in every run of this agent, in any directory",
    "everyone": "in every run of every agent, in any directory",
}
VALUE_CHARS: Final = 60
OPEN: Final = "anything"
LIMITS: Final = (
    ("range", "a range: see limits"),
    ("one_of", "one of a list: see limits"),
    ("prefix", "a beginning: see limits"),
)
WAITING: Final = "what waits already"
LIMIT_HELP: Final = "FROM..TO, or a list A,B, or a beginning"


def grant_form(session: Session, request: RequestDetail, send: Callable[[str], Awaitable[Sent]]) -> FormSpec:
    """Return the form that asks which calls. ``send``: takes what it says."""
    fields = tuple(_fields(session, request))

    def draw(_source: str) -> Field:
        return Group(name="grant", fields=fields)

    return FormSpec(
        title=f"Approve this call of {plain_line(request.tool_name, 64)}, and calls like it",
        lead=line("Ctrl+S shows exactly what would run without asking; only then can it be saved."),
        draw=draw,
        send=send,
        pointer="",
    )


def _fields(session: Session, request: RequestDetail) -> Iterator[Field]:
    values = argument_values(constant_text(request.input_for_readers, request.defaults))
    arguments = tuple(
        replace(
            choice_of(
                name, [("fixed", f"exactly {cut_line(plain_line(value), VALUE_CHARS)}"), ("open", OPEN), *LIMITS]
            ),
            name=f"grant-0-{place}",
        )
        for place, (name, value) in enumerate(values)
    )
    if arguments:
        yield Group(name="grant-0", key="arguments", fields=arguments)
    is_admin = session.who is not None and session.who.role == "admin"
    scopes = [*SCOPES, *(FOR_ADMINS if is_admin else ())]
    own = (
        choice_of("for", scopes, chosen="run"),
        choice_of("as long as", LASTS, chosen="3600"),
        Control(
            name="",
            key="uses",
            kind="integer",
            item="integer",
            text="10",
            description=f"at most so many times, 1 to {MAX_GRANT_USES:,}",
        ),
        Control(
            name="", key="note", kind="line", text="", required=False, description="for people who look at the grants"
        ),
    )
    yield from (replace(each, name=f"grant-{place}") for place, each in enumerate(own, 1))
    yield replace(choice_of(WAITING, [("left", "is left as it is"), ("answered", "is answered, too")]), name="grant-7")
    if arguments:
        limits = tuple(
            _optional_line(f"grant-5-{place}", name, LIMIT_HELP) for place, (name, _value) in enumerate(values)
        )
        yield Group(name="grant-5", key="limits", fields=limits)
        yield _optional_line(
            "grant-6", "total", "ARGUMENT=MOST/day (or hour, or week): beyond it, the grant doesn't apply"
        )


def _optional_line(name: str, key: str, description: str) -> Control:
    return Control(name=name, key=key, kind="line", text="", required=False, description=description)


async def confirm_grant(app: App[object], session: Session, request: RequestDetail, args: str) -> Sent:
    """Show exactly what the form would allow, and approve with it once the person has seen all of it and says so."""
    form: dict[str, Any] = json.loads(args)
    chosen = form.get("arguments", {})
    answers = form.get(WAITING) == "answered"
    free = [name for name, how in chosen.items() if how == "open"]
    try:
        total = parse_total(form["total"]) if form.get("total") else None
        within = _within(request, chosen, form.get("limits", {}))
        preview = await session.client.preview_grant(request.id, open_arguments=free, within=within, total=total)
        if preview.pattern is None or preview.ungrantable is not None:
            return Sent(taken=False, words=f"No grant can answer calls like this: {preview.ungrantable}.")
        wanted = _wanted(form, preview)
    except TurngateError as error:
        return Sent(taken=False, words=f"Not saved. {problem_words(error)}", problems=problems_of(error))

    async def decide() -> Sent:
        at_once = answers and wanted.pattern.is_exact
        order = DecisionOrder(verb="approve", digest=request.digest, grant=wanted, answer_waiting=at_once)
        sent = await session.decide(request, order)
        return replace(sent, reviews=answers and not at_once)

    text = pattern_text(wanted, preview, answers=answers)
    dialog = ConfirmDialog("approve, and allow exactly this", text, decide)
    return await app.push_screen_wait(dialog) or Sent(taken=False, words="Not confirmed; nothing was sent.")


def _within(request: RequestDetail, chosen: dict[str, str], limits: dict[str, str]) -> dict[str, ValueLimit]:
    """Return argument → the limit that the form says. Raises InvalidInputError."""
    decoded = with_left_out(decode_arguments(request.input_for_readers), request.defaults)
    values = decoded if isinstance(decoded, dict) else {}
    kinds: dict[str, LimitKind] = {"range": "range", "one_of": "one_of", "prefix": "prefix"}
    return {
        name: parse_limit(kinds[how], values.get(name), limits.get(name, ""))
        for name, how in chosen.items()
        if how in kinds
    }


def _wanted(form: dict[str, Any], preview: GrantPreview) -> WantedGrant:
    uses = form["uses"]
    if not 1 <= uses <= MAX_GRANT_USES:
        message = f"A number from 1 to {MAX_GRANT_USES:,}."
        raise InvalidInputError(message, errors=[{"pointer": "/uses", "message": message}])
    return WantedGrant.model_validate(
        {
            "pattern": preview.pattern,
            "scope": form["for"],
            "expires_after_seconds": int(form["as long as"]),
            "max_uses": uses,
            "note": form.get("note", "").strip(),
        }
    )


def pattern_text(wanted: WantedGrant, preview: GrantPreview, *, answers: bool = False) -> Folded:
    """Return exactly what a grant would let through, and what it would have."""
    pattern = wanted.pattern
    lines: list[Line] = [
        at("", ("This is what would run without asking:", "bold")),
        at("  ", ("calls of ", "dim"), (plain_line(pattern.tool), "bold")),
    ]
    for name, words in pattern.conditions:
        if words:
            lines.append(at("  ", ("with ", "dim"), plain_line(name), " ", plain_line(words)))
        else:
            lines.append(at("  ", ("with ", "dim"), plain_line(name), (" anything at all", "bold yellow")))
    times = "once" if wanted.max_uses == 1 else f"{wanted.max_uses:,} times"
    lines.append(at("  ", "and no other argument,"))
    if pattern.total is not None:
        lines.append(at("  ", "up to ", plain_line(pattern.total.words), ","))
    lines.append(
        at("  ", (REACH[wanted.scope], "bold"), f", at most {times}, for {span(wanted.expires_after_seconds)}.")
    )
    lines.append(at(""))
    lines.append(at("", "A deny rule or an ask rule still wins over it. `3` lists grants, and revokes them."))
    if answers and pattern.is_exact:
        lines.append(at("", "What waits with exactly these arguments is approved, too, each under its own decision."))
    elif answers:
        lines.append(at("", "Then you review what waits and this covers."))
    would = preview.would_have_covered.get(wanted.scope)
    if would is not None:
        newest = f"{preview.looked_at:,} newest calls of this tool"
        lines.append(at("", ("Of the ", "dim"), newest, (" it would have let through ", "dim"), f"{would:,}."))
    return folded(lines)


@dataclass(frozen=True)
class AnswerDialogs:
    """Makes the dialogs that ask for what a decision carries. The session keeps what was typed until it was taken."""

    app: App[object]
    session: Session

    def typed_name(
        self, request: RequestDetail, what: str, send: Callable[[], Awaitable[Sent]], *, title: str = "High risk"
    ) -> AskDialog:
        """Return the dialog that asks for the tool's name, typed, before ``send``."""
        name = plain_line(request.tool_name, 64)

        async def deliver(_typed: str) -> Sent:
            return await send()

        return AskDialog(
            title,
            f"Type the tool's name to {what} it: {name}",
            deliver,
            check=lambda typed: None if typed == request.tool_name else f"Not its name, {name}: nothing was sent.",
            pasteable=False,
        )

    def answer(self, request: RequestDetail, answer: WordsAnswer | FormAnswer) -> AskDialog | FormDialog:
        """Return the dialog that asks for a text or a form, and decides with it."""
        key = (request.id, answer.what)

        async def send(text: str) -> Sent:
            sent = await self._decide(request, answer.order(request, text))
            if sent.taken:
                self.session.drafts.pop(key, None)
                self.session.forms.pop(key, None)
            return sent

        if isinstance(answer, WordsAnswer):
            return self._words(key, answer, send)
        form = FormSpec(
            title=answer.title,
            lead=answer.lead,
            draw=answer.draw,
            raw=answer.raw,
            send=send,
            fault=answer.fault,
            suggested=answer.suggested,
        )
        return self._form(key, form, answer.draft)

    def grant(self, request: RequestDetail) -> FormDialog:
        """Return the dialog that asks which calls to allow, shows exactly those, and approves with the grant."""
        key = (request.id, "grant")

        async def send(args: str) -> Sent:
            sent = await confirm_grant(self.app, self.session, request, args)
            if sent.taken:
                self.session.forms.pop(key, None)
            return sent

        return self._form(key, grant_form(self.session, request, send), Draft())

    async def _decide(self, request: RequestDetail, order: DecisionOrder) -> Sent:
        decide = partial(self.session.decide, request, order)
        if order.verb != "edit" or request.risk != "high":
            return await decide()
        confirmed = await self.app.push_screen_wait(self.typed_name(request, "run", decide))
        return confirmed or Sent(taken=False, words="Not confirmed; nothing was sent.")

    def _form(self, key: tuple[str, str], form: FormSpec, empty: Draft) -> FormDialog:
        forms = self.session.forms
        draft = forms.get(key) or empty
        return FormDialog(form, draft.copy(), partial(forms.__setitem__, key))

    def _words(self, key: tuple[str, str], answer: WordsAnswer, send: Callable[[str], Awaitable[Sent]]) -> AskDialog:
        drafts = self.session.drafts

        def fault(text: str) -> str | None:
            drafts[key] = text
            return answer.fault(text)

        return AskDialog(
            answer.title,
            answer.lead,
            send,
            text=drafts.get(key, ""),
            many=answer.many,
            check=fault,
            recent=answer.recent,
            on_leave=partial(drafts.__setitem__, key),
        )
