"""Malformed responses, which can't be used, and the corrective message that tells the model why (I9)."""

from __future__ import annotations

from collections.abc import Sequence

from turngate.domain.conversation.messages import Message, ModelResponse, ToolCallPart

MAX_NAMES = 100
MAX_PROBLEM_CHARS = 300
EMPTY_RESPONSE = "Your last response was empty."
ENDED_EARLY = {
    "length": " It reached the limit of its length before it said anything.",
    "content_filter": " A filter of its provider withheld it.",
    "refusal": " A filter of its provider withheld it.",
}
"""Why a response of this finish reason is empty."""
UNREADABLE = "Your last response could not be parsed: "
ADVICE = " Call one of your tools, with its arguments as one JSON object, or give your final answer as plain text."
ADVICE_JSON = (
    " Call one of your tools, with its arguments as one JSON object, or give your final answer as one JSON object that fits "
    "its schema, and nothing else."
)


def without_calls(response: ModelResponse) -> ModelResponse:
    """Return a malformed response without whatever calls were made out of it: they never run. Others stay as they are."""
    if not response.malformed:
        return response
    readable = tuple(part for part in response.message.parts if not isinstance(part, ToolCallPart))
    return response.model_copy(update={"message": response.message.model_copy(update={"parts": readable})})


def corrective(response: ModelResponse, tool_names: Sequence[str], *, as_json: bool = False) -> str | None:
    """Return the message that answers a response without a call or a readable answer; None when it has either.

    Without a word about it the model would be asked the same thing again. ``tool_names``: those it was offered.
    ``as_json``: its final answer has to be an object of a schema.
    """
    if response.malformed:
        what = f"{UNREADABLE}{_one_line(response.malformed)}."
    elif not response.message.calls and not response.message.text.strip():
        what = EMPTY_RESPONSE + ENDED_EARLY.get(response.finish_reason, "")
    else:
        return None
    names = ", ".join(tool_names[:MAX_NAMES]) or "none"
    return f"{what}{ADVICE_JSON if as_json else ADVICE} The tools are: {names}."


def is_corrective(message: Message) -> bool:
    """Tell whether a user message is one that :func:`corrective` wrote, and no person."""
    advised = ADVICE in message.text or ADVICE_JSON in message.text
    return message.role == "user" and advised and message.text.startswith((EMPTY_RESPONSE, UNREADABLE))


def problem_in(corrective_text: str) -> str:
    """Return what was wrong with a response, for the reason of its run, from the message that answers it."""
    what = corrective_text.partition(ADVICE)[0].partition(ADVICE_JSON)[0]
    if what.startswith(UNREADABLE):
        return f"it could not be parsed: {what.removeprefix(UNREADABLE).removesuffix('.')}"
    why = what.removeprefix(EMPTY_RESPONSE).strip().removesuffix(".")
    return f"it was empty: {why[0].lower()}{why[1:]}" if why else "it was empty"


def _one_line(problem: str) -> str:
    """Return an adapter's words as part of a sentence: bounded, because they are also part of the run's reason."""
    line = " ".join(problem.split()).removesuffix(".")
    return line if len(line) <= MAX_PROBLEM_CHARS else f"{line[:MAX_PROBLEM_CHARS]}…"
