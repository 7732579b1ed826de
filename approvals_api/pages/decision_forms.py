"""The decision forms of a request page: which fields they have, and what was decided when one comes back.

Pure. Every control of the page has a name of its own (``reject-message``, ``edit-3``), so that an error finds its
control and what was typed elsewhere on the page can be kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, get_args

from turngate.domain.requests import Resolution, Verb
from turngate.domain.text import json_text
from turngate.domain.text.hidden_text import escape_hidden
from turngate.forms import reader
from turngate.forms.fields import Control, Field, Group, drawn_texts
from turngate.forms.rows import grown, pressed
from turngate.forms.schema_fields import form_of
from turngate.forms.schema_kinds import ABSENT, Absent, Schema
from turngate.wire.orders import MAX_LOOKED_MS, DecisionOrder, Look
from turngate.wire.requests import RequestDetail

Action = Literal[
    "approve",
    "edit",
    "edit-json",
    "reject",
    "respond",
    "answer",
    "answer-json",
    "happened",
    "happened-json",
    "rerun",
    "tell",
]
NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
Edit = Literal["edit", "edit-json"]
LOOK: Final = "look"
"""The name of the buttons that show what an edit would change, and send nothing; their value is the action."""
AS: Final = "as"
"""The name of the buttons that let the call run: as it is ``shown``, or ``edited``, or as the ``raw`` JSON says.

Enter in a field presses the one that is ``entered``: the name of the tool, typed out, says which of the others is meant.
"""
MOST_TWICE: Final = 200_000
"""Characters of arguments that can be edited in a form and as JSON; longer ones as JSON only."""
_AS: Final[Mapping[str, Action]] = MappingProxyType({"shown": "approve", "edited": "edit", "raw": "edit-json"})
ACTIONS: Final[tuple[Action, ...]] = get_args(Action)
_RUN: Final[tuple[Action, ...]] = ("edit", "edit-json", "approve", "rerun")
"""Those that let the call run. An edit comes first: a name that was typed above it must not approve the call without it."""
_UNCHANGED: Final = "Nothing was changed. Change something, or approve the call as it is."
BOTH_REASONS: Final = "You typed a reason and chose another one. Clear the text, or choose “(none)”."
NOT_SENT: Final = "You changed the call and pressed a button that approves it as it is: nothing was sent."
ENTER_SENDS_NOTHING: Final = "Enter sends nothing here. Press the button that you mean."
_TWO_EDITS: Final = "You changed the form and the raw JSON, too. Undo one of them: only one can be sent."
_BOTH: Final = "You pressed a suggested answer and typed another one. Clear the text, or press “Send the answer”."


@dataclass(frozen=True, kw_only=True)
class DecisionForms:
    """What the page needs to draw its forms. ``choices``: answers that a question suggests.

    ``edit``, ``answer`` and ``result``: those forms, None where the request has no such form, or has it as JSON only.
    ``raw``: the arguments as the text of the raw editor, hidden characters escaped.
    """

    edit: Field | None = None
    answer: Field | None = None
    result: Field | None = None
    choices: Sequence[str] = ()
    raw: str = ""
    high_risk: bool = False
    tool_name: str = ""

    def of(self, action: str) -> Field | None:
        """Return the form that an action submits; None for one that has no fields."""
        return {"edit": self.edit, "answer": self.answer, "happened": self.result}.get(action)


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """A decision as the page sent it. ``errors``: control name → what is wrong; then nothing may be decided."""

    action: Action
    verb: Verb
    args: str | None
    message: str
    outcome: Resolution | None
    errors: Mapping[str, str]
    look: Look
    confirm: str = ""

    def order(self, digest: str) -> DecisionOrder:
        """Return the decision about the call that was shown under this digest. Raises InvalidInputError."""
        return DecisionOrder(
            verb=self.verb,
            digest=digest,
            args=self.args,
            message=self.message,
            outcome=self.outcome,
            confirm=self.confirm,
            looked_ms=self.look.looked_ms,
            seen_percent=self.look.seen_percent,
        )


def look_of(typed: Mapping[str, str], *, seen: str = "seen_percent") -> Look:
    """Return how the sender looked at what they decide, as the page's script filled it in. ``seen``: the control of the share.

    What is no number in its bounds counts as not known: it must not stop a decision.
    """
    return Look(
        looked_ms=_whole(typed.get("looked_ms", ""), MAX_LOOKED_MS), seen_percent=_whole(typed.get(seen, ""), 100)
    )


def _whole(text: str, most: int) -> int | None:
    if not (text.isascii() and text.isdecimal()) or len(text) > len(str(most)) or int(text) > most:
        return None
    return int(text)


def forms_of(request: RequestDetail, typed: Mapping[str, str] = NOTHING) -> DecisionForms:
    """Return the forms that fit the request, with the rows that ``typed`` says they have; none when it has ended."""
    high = request.risk == "high"
    if request.status != "pending":
        return DecisionForms()
    parsed = json_text.parse(json_text.arguments_text(request.input))
    tree = None if parsed is None else parsed.tree
    if request.kind == "question":
        suggestions = tree.get("choices") if isinstance(tree, dict) else None
        choices = [choice for choice in suggestions if isinstance(choice, str)] if isinstance(suggestions, list) else []
        return DecisionForms(answer=_form(request.manifest.success, ABSENT, "answer", typed), choices=choices)
    if request.kind == "outcome":
        result = _form(request.manifest.success, ABSENT, "happened", typed)
        return DecisionForms(result=result, high_risk=high, tool_name=request.tool_name)
    edit = _edit_form(request, parsed, typed)
    return DecisionForms(edit=edit, raw=escape_hidden(request.input), high_risk=high, tool_name=request.tool_name)


def _edit_form(request: RequestDetail, parsed: json_text.Parsed | None, typed: Mapping[str, str]) -> Field | None:
    """Return the form that edits a call; None: it is edited as raw JSON."""
    if parsed is None or parsed.doubled or not isinstance(parsed.tree, dict) or len(request.input) > MOST_TWICE:
        return None  # a form can only be filled from an object without repeated names, and a browser sends both editors
    edit = _form(request.manifest.parameters, parsed.tree, "edit", typed)
    has_nothing = isinstance(edit, Group) and not edit.fields and edit.more is None
    return None if has_nothing else edit


def _form(schema: Schema, value: json_text.JsonTree | Absent, prefix: str, typed: Mapping[str, str]) -> Field | None:
    form = form_of(schema, value, prefix=prefix)
    return None if form is None else grown(form, typed)


def pressed_action(typed: Mapping[str, str]) -> Mapping[str, str]:
    """Return the typed fields with the action of the button that was pressed, in a form that has several."""
    if typed.get(AS) == "entered":
        named = (each for each in _RUN if typed.get(f"{each}-confirm", "").strip())
        return {**typed, "action": next(named, "")}
    action = _AS.get(typed.get(AS, "")) or _action(typed.get(LOOK, ""))
    return typed if action is None else {**typed, "action": action}


def edit_typed(request: RequestDetail, typed: Mapping[str, str]) -> Edit | None:
    """Return which edit of the call was typed, whichever button was pressed; None: the call is as it was.

    The page's script sends along what was changed in other forms, so a form may arrive in part.
    """
    if request.status != "pending" or not any(name.startswith("edit-") for name in typed):
        return None
    drawn = forms_of(request)
    if drawn.edit is not None:
        texts = drawn_texts(drawn.edit)
        whole = {**texts, **typed}
        before = reader.read(drawn.edit, texts, original=request.input)
        if reader.read(grown(drawn.edit, whole), whole, original=request.input) != before:
            return "edit"
    raw = typed.get("edit-json", drawn.raw)
    return None if _lines(raw) == _lines(drawn.raw) else "edit-json"


def _lines(text: str) -> str:
    """Return a text with the line ends that a browser may have changed."""
    return text.replace("\r\n", "\n")


def press_row(drawn: DecisionForms, typed: Mapping[str, str]) -> Mapping[str, str] | None:
    """Return the typed fields after a button that adds or removes a row; None when another button was pressed."""
    form = drawn.of(typed.get("action", ""))
    return None if form is None else pressed(form, typed)


def args_of_edit(request: RequestDetail, drawn: DecisionForms, typed: Mapping[str, str]) -> str | None:
    """Return the arguments that an edit form would send now; None when it has errors, or another form was sent."""
    reading = _read_edit(request, drawn, typed)
    if reading is None:
        return None
    _verb, args, _message, _outcome, errors = reading
    return args if not errors or _UNCHANGED in errors.values() else None


def look_at_edit(request: RequestDetail, drawn: DecisionForms, typed: Mapping[str, str]) -> Mapping[str, str] | None:
    """Return the errors of an edit that is to be looked at, not sent; None when another button was pressed."""
    reading = _read_edit(request, drawn, typed) if LOOK in typed else None
    return None if reading is None else reading[-1]


def _read_edit(request: RequestDetail, drawn: DecisionForms, typed: Mapping[str, str]) -> _Read | None:
    match _action(typed.get("action", "")):
        case "edit" | "edit-json" as action:
            return _edit(action, request, drawn, typed)
        case _:
            return None


def suggested_field(drawn: DecisionForms) -> Control | None:
    """Return the one text field that a question's suggested answers fill; None when there is no such field."""
    match drawn.answer:
        case Group(fields=(Control() as only,), more=None) | (Control() as only) if only.kind in {"line", "text"}:
            return only
        case _:
            return None


def read_decision(request: RequestDetail, drawn: DecisionForms, typed: Mapping[str, str]) -> Submitted | None:
    """Return the decision that was sent; None: the form names no known action."""
    action = _action(typed.get("action", ""))
    if action is None:
        return None
    verb, args, message, outcome, errors = _read(action, request, drawn, typed)
    control = f"{action}-confirm"
    confirm = typed.get(control, "").strip()
    if action in _RUN and drawn.high_risk and confirm != request.tool_name:
        errors = {**errors, control: "This call is of high risk: type the tool's name exactly as it is shown."}
    return Submitted(
        action=action,
        verb=verb,
        args=args,
        message=message,
        outcome=outcome,
        errors=errors,
        confirm=confirm,
        look=look_of(typed),
    )


_Read = tuple[Verb, str | None, str, Resolution | None, Mapping[str, str]]
"""Verb, args, message, outcome, and errors by control name."""


def _read(action: Action, request: RequestDetail, drawn: DecisionForms, typed: Mapping[str, str]) -> _Read:
    match action:
        case "approve":
            return "approve", None, "", None, {}
        case "reject" | "respond":
            return _words(action, typed)
        case "edit" | "edit-json":
            return _edit(action, request, drawn, typed)
        case "rerun":
            return "respond", None, "", "did_not_happen", {}
        case "tell":
            return "respond", None, "", "tell_model", {}
        case _:
            return _answer(action, drawn, typed)


def _words(action: Literal["reject", "respond"], typed: Mapping[str, str]) -> _Read:
    control = f"{action}-message"
    message = typed.get(control, "").replace("\r\n", "\n").strip()
    recent = typed.get("reject-recent", "").strip() if action == "reject" else ""
    if recent and message:
        return action, None, message, None, {control: BOTH_REASONS}
    message = message or recent
    missing = action == "respond" and not message
    return (
        action,
        None,
        message,
        None,
        {control: "Write what the agent should read instead of a result."} if missing else {},
    )


def _edit(
    action: Literal["edit", "edit-json"], request: RequestDetail, drawn: DecisionForms, typed: Mapping[str, str]
) -> _Read:
    args: str | None
    errors: Mapping[str, str] = {}
    if action == "edit":
        reading_of_form = _read_form(drawn, action, typed, original=request.input)
        args, errors = reading_of_form.args, reading_of_form.errors
        unchanged = args == request.input
    else:
        args = typed.get(action, "").replace("\r\n", "\n")
        unchanged = args == drawn.raw
    if unchanged and not errors:
        return "edit", args, "", None, {action: _UNCHANGED}
    # Of one edit, what the other form holds must not be dropped in silence.
    other = (
        {**typed, "edit-json": drawn.raw} if action == "edit-json" else {"edit-json": typed.get("edit-json", drawn.raw)}
    )
    return "edit", args, "", None, errors if edit_typed(request, other) is None else {action: _TWO_EDITS, **errors}


def _answer(
    action: Literal["answer", "answer-json", "happened", "happened-json"],
    drawn: DecisionForms,
    typed: Mapping[str, str],
) -> _Read:
    """Read the answer to a question, or the result of a call that happened."""
    outcome: Resolution | None = "happened" if action in {"happened", "happened-json"} else None
    if action in {"answer-json", "happened-json"}:
        text = typed.get(action, "").strip()
        return "respond", text, "", outcome, {} if text else {action: "Type a JSON value."}
    answer = _suggested(drawn, typed) if action == "answer" else None
    answer = answer or _read_form(drawn, action, typed)
    return "respond", answer.args, "", outcome, answer.errors


def _read_form(drawn: DecisionForms, action: str, typed: Mapping[str, str], *, original: str = "") -> reader.FormValue:
    form = drawn.of(action)
    if form is None:
        return reader.FormValue(args=None, errors={action: reader.DID_NOT_ARRIVE})
    return reader.read(form, typed, original=original)


def _suggested(drawn: DecisionForms, typed: Mapping[str, str]) -> reader.FormValue | None:
    """Return the suggested answer that was picked; None when none was, and the fields speak."""
    field, picked = suggested_field(drawn), typed.get("answer-choice", "")
    if field is None or not drawn.choices or not picked:
        return None
    if picked not in {str(index) for index in range(len(drawn.choices))}:
        return reader.FormValue(args=None, errors={"answer-choice": "Choose one of the answers."})
    if typed.get(field.name, "").strip():
        return reader.FormValue(args=None, errors={field.name: _BOTH})
    answer = drawn.choices[int(picked)]
    return reader.FormValue(args=json_text.dump(answer if field.key is None else {field.key: answer}))


def _action(text: str) -> Action | None:
    return next((action for action in ACTIONS if action == text), None)
