"""Responses that nothing can be made of, and what the model is told so that it can do better (I9)."""

from __future__ import annotations

from collections.abc import Sequence

from turngate.domain.messages import ModelResponse

MAX_NAMES = 100
EMPTY_RESPONSE = "Your last response was empty."


def corrective(response: ModelResponse, tool_names: Sequence[str]) -> str | None:
    """Return the message that answers a response without a call or a readable answer; None when it has either.

    Without a word about it the model would be asked the same thing again.
    """
    if response.malformed:
        what = f"Your last response could not be parsed: {response.malformed}."
    elif not response.message.calls and not response.message.text.strip():
        what = EMPTY_RESPONSE
    else:
        return None
    names = ", ".join(tool_names[:MAX_NAMES]) or "none"
    return (
        f"{what} Call one of your tools, with its arguments as one JSON object, or give your final answer as plain text. "
        f"The tools are: {names}."
    )
