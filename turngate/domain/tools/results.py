"""The result of a tool call: ``Ok`` or ``Failure``, and what the model reads of it.

Owns the failure kinds and the wire text. Must not know how results are stored or who produced them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter

from turngate.domain.person_ids import for_model
from turngate.domain.text.json_text import arguments_text
from turngate.domain.text.sentences import as_sentence, sentences
from turngate.domain.tools.failures import InputProblem

FailureKind = Literal[
    "unknown_tool",
    "unknown_secret",
    "non_local_tool",
    "input_validation_error",
    "execution_error",
    "nothing_happened",
    "tool_failure",
    "timeout",
    "denied",
    "rejected",
    "expired",
    "cancelled",
    "interrupted",
    "unknown",
    "diverged",
]
"""The engine's own kinds; a tool author's declared failures add theirs, so the field itself is a plain string."""

REFUSALS = frozenset({"denied", "rejected", "expired", "cancelled", "interrupted"})
"""The kinds that say who refused or stopped a call (I12). No tool may use them: a repeat of a refused call is closed."""


class Ok(BaseModel):
    """The call succeeded. ``value`` is always a JSON object; a bare value is wrapped as ``{"value": …}``."""

    model_config = ConfigDict(frozen=True)

    tag: Literal["ok"] = "ok"
    value: dict[str, JsonValue]


class Failure(BaseModel):
    """The call has no success to show. ``kind`` is a :data:`FailureKind` or the author's own; ``reason`` is for the model.

    ``fields`` holds the declared failure's own data, or what is known besides the reason (partial output, tool names).
    """

    model_config = ConfigDict(frozen=True)

    tag: Literal["failure"] = "failure"
    kind: str
    reason: str = ""
    fields: dict[str, JsonValue] = Field(default_factory=dict)


ToolResult = Annotated[Ok | Failure, Field(discriminator="tag")]
TOOL_RESULT: TypeAdapter[Ok | Failure] = TypeAdapter(ToolResult)


MOST_EFFECTS = 20
"""Calls of a sub-agent that are named to the agent above it."""

MAX_DEPTH = 100
"""Levels of arrays and objects in one result. Pydantic reads 200 levels and writes 255, counting those around the result in
a message or a response of the API. A result that can be written but not read again would break its conversation for good."""


def is_deeper(value: object, levels: int) -> bool:
    """Tell whether a JSON value nests deeper than so many levels of arrays and objects."""
    if not isinstance(value, dict | list | tuple):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(is_deeper(each, levels - 1) for each in inner)


def as_object(value: Any) -> dict[str, JsonValue]:
    """Wrap a JSON value that is not an object, so that results are always objects (providers require it)."""
    return value if isinstance(value, dict) else {"value": value}


def wire_text(result: Ok | Failure, *, edited_input: str | None = None) -> str:
    """Return what the model reads: the value, or ``{"error": {"kind", "message", …}}``.

    ``edited_input``: the raw JSON that ran when an operator edited the call. The model reads it here, because its own call
    stays in the history unchanged (I6).
    """
    if isinstance(result, Ok):
        body: dict[str, Any] = result.value
    else:
        body = {"error": {"kind": result.kind, "message": result.reason, **result.fields}}
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    if edited_input is None:
        return text
    note = json.dumps("An operator edited this call before it ran. `ran_with` is what ran, in place of your arguments.")
    # The very text that ran, never read and written again: a number may have more digits than a float keeps.
    return f'{{"note":{note},"ran_with":{arguments_text(edited_input)},"result":{text}}}'


def unknown_tool(name: str, known: list[str]) -> Failure:
    """A call to a name that no tool has; the model reads which names there are."""
    names = ", ".join(known) or "none"
    return Failure(kind="unknown_tool", reason=f"There is no tool named {name!r}. The tools are: {names}.")


def non_local(name: str, kind: str) -> Failure:
    """A call to a declared tool that nothing here can run: its handler is elsewhere, or it never has one."""
    why = "its provider runs it by itself" if kind == "provider" else "nothing here can run it"
    return Failure(kind="non_local_tool", reason=f"{name!r} is declared, but {why}. Do not call it.")


def invalid_input(reason: str, problem: InputProblem = "wrong_shape") -> Failure:
    """Arguments that are not JSON or do not fit the tool's parameters; ``reason`` points at each argument."""
    return Failure(kind="input_validation_error", reason=reason, fields={"problem": problem})


NOT_AGAIN = "Do not repeat this call as it is."


def denied(rule: str, reason: str) -> Failure:
    """Refused by a policy rule, before any person."""
    return Failure(
        kind="denied",
        reason=sentences(f"Denied by policy rule {rule!r}: {reason}", NOT_AGAIN),
        fields={"refused_by": "rule", "rule": rule},
    )


def rejected(by: str, message: str) -> Failure:
    """Refused by a person. A rejection is an answer, not an error (I12)."""
    reason = f"They said: {message}" if message else "They gave no reason."
    return Failure(
        kind="rejected",
        reason=sentences("An operator rejected this call.", reason, NOT_AGAIN),
        # Not "message": a field of that name would take the place of the reason in what the model reads.
        fields={"refused_by": "operator", "operator": for_model(by), "operator_message": message},
    )


def repeated(earlier: Failure) -> Failure:
    """The same call again after a refusal: closed without asking anyone a second time (I12)."""
    return Failure(
        kind=earlier.kind,
        reason=sentences("This is the same call that was already refused, so no one was asked again.", earlier.reason),
        fields={**earlier.fields, "repeat": True},
    )


def unknown_secret(tool: str, name: str, known: Sequence[str]) -> Failure:
    """A reference to a secret that there isn't, or that the tool may not use; nothing ran."""
    names = ", ".join(f'secret("{each}")' for each in known)
    return Failure(
        kind="unknown_secret",
        reason=f'There is no secret "{name}" for {tool!r}, so it did not run. It may refer to: {names}.',
        fields={"name": name},
    )


def forbidden_by_hook(reason: str) -> Failure:
    """Stopped by a hook of the agent's builder, after policy and people, just before it would have run."""
    return Failure(
        kind="denied",
        reason=sentences(f"Denied by the agent's own hook: {reason}", NOT_AGAIN),
        fields={"refused_by": "hook"},
    )


def agent_failed(agent: str, run_id: str, reason: str, error_class: str, effects: Sequence[str] = ()) -> Failure:
    """A sub-agent's run failed. ``effects``: its calls that may have changed something."""
    return Failure(
        kind="agent_failed",
        reason=f"The agent {agent!r} failed: {as_sentence(reason)}{_effects(effects)}",
        fields={"run_id": run_id, "error_class": error_class},
    )


def agent_interrupted(agent: str, run_id: str, reason: str, effects: Sequence[str] = ()) -> Failure:
    """A sub-agent's run was interrupted by itself; this run continues. ``effects``: as of a failed one."""
    why = f" Reason: {as_sentence(reason)}" if reason else ""
    return Failure(
        kind="interrupted",
        reason=f"The agent {agent!r} was interrupted before it had an answer.{why}{_effects(effects)}",
        fields={"run_id": run_id, "started": True},
    )


def _effects(effects: Sequence[str]) -> str:
    """Return what a sub-agent did before it ended without an answer, as a sentence after others."""
    if not effects:
        return " None of its calls has changed anything."
    more = f", and {len(effects) - MOST_EFFECTS} more" if len(effects) > MOST_EFFECTS else ""
    did = ", ".join(effects[:MOST_EFFECTS])
    return f" What it did until then is not undone: {did}{more}. Do not give it the same task again before you have checked."


def expired() -> Failure:
    """No one answered in time; expiry never approves."""
    return Failure(
        kind="expired",
        reason="No one answered the approval request in time, so the call did not run.",
        fields={"refused_by": "expiry"},
    )


def superseded(by: str) -> Failure:
    """Return the closure of a call whose request ended because a newer message came."""
    return Failure(
        kind="cancelled",
        reason=f"{for_model(by)} sent a newer message before anyone answered this request, so the call did not run. Read that "
        "message first; ask again only if the call still fits it.",
        fields={"by": for_model(by), "refused_by": "newer message"},
    )


def interrupted(by: str, reason: str, *, started: bool, unknown: bool = False, partial: str = "") -> Failure:
    """The run was interrupted while the call was open. ``started``: its handler had begun; effects may exist.

    ``unknown``: it must not be repeated, and no one knows whether it took effect.
    """
    ran = "It had started and was stopped; effects may be partial." if started else "It did not run."
    if unknown:
        ran = f"The call had started. {MAY_HAVE_HAPPENED}"
    why = f" Reason: {as_sentence(reason)}" if reason else ""
    fields: dict[str, JsonValue] = {"interrupted_by": for_model(by), "started": started}
    if partial:
        fields["partial_output"] = partial
    return Failure(kind="interrupted", reason=f"{for_model(by)} interrupted the run. {ran}{why}", fields=fields)


MAY_HAVE_HAPPENED = "It may have taken effect: do not repeat it before you have checked."
"""What the model reads of a call that must not be repeated, and of which no one knows whether it happened."""
WORKER_LOST = "The worker was lost while it ran."


def outcome_unknown(tool_name: str, why: str | None = None, *, partial: str = "") -> Failure:
    """A ``once`` call that started and has no known end, handed to the model as it is: no one knows.

    ``why``: how it ended, in a sentence; None: its worker was lost. ``partial``: what it had reported until then.
    """
    return Failure(
        kind="unknown",
        reason=f"It is not known whether {tool_name!r} took effect. {why or WORKER_LOST} {MAY_HAVE_HAPPENED}",
        fields={"partial_output": partial} if partial else {},
    )


def diverged(tool_name: str) -> Failure:
    """A call of a dry run that the record has no answer for: it was not executed, and no one was asked."""
    return Failure(
        kind="diverged",
        reason=f"This is a dry run of a recorded run, and that one made no such call of {tool_name!r} here. It was not "
        "executed, and no one was asked.",
    )
