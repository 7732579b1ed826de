"""Signs in a chat completion that the model tried to call a tool and the call could not be parsed. Pure.

Owns those signs and the words for the model. The words name what was wrong and quote nothing from the model, because they
also become part of the reason why a run failed, and that is stored where conversation content must not be.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from pydantic import JsonValue

from turngate.domain.conversation.messages import Message, ModelResponse, Part, TextPart, ToolCallPart

UNEXPECTED: Final = "unexpected_tool_call"
FINISH_SIGNS: Final = ("malformed_function_call", "malformed_tool_call", "malformed_response", UNEXPECTED)
"""Gemini's finish reasons for a call that it could not parse or for a tool that it was not offered, in lower case.

They come alone, after a prefix (``function_call_filter: MALFORMED_FUNCTION_CALL``), or as the ``native_finish_reason``
of a gateway (https://ai.google.dev/api/generate-content#FinishReason).
"""

ERROR_CODES: Final = frozenset({"tool_use_failed", "output_parse_failed"})
"""Groq answers 400 with these when the model's call does not parse (https://console.groq.com/docs/errors)."""
OLLAMA_SAYS: Final = "error parsing tool call"
"""How Ollama's status 500 begins when the model's call does not parse (ollama #11800, #12884)."""


def unread_finish(*reasons: JsonValue) -> str:
    """Return what is wrong if one of the finish reasons says that the call could not be parsed; else ""."""
    sign = _sign_in(reasons)
    return "" if sign is None else _unread(sign)


def is_unexpected(*reasons: JsonValue) -> bool:
    """Whether a finish reason says that the call is of a tool that was not offered.

    The call itself is whole. Planning closes it, and the model learns which tools it has.
    """
    return _sign_in(reasons) == UNEXPECTED


def _sign_in(reasons: Sequence[JsonValue]) -> str | None:
    texts = [reason.lower() for reason in reasons if isinstance(reason, str)]
    return next((sign for sign in FINISH_SIGNS if any(sign in text for text in texts)), None)


def unread_output(error: JsonValue, *, model: str, text: str = "") -> ModelResponse | None:
    """Return a response for a provider's error that says that the model's call could not be parsed; None for other errors.

    It is the model's mistake (I9): as an error it would end the run, or repeat the same request for minutes. ``error``: the
    body's ``error``. ``text``: what the model wrote before it. If the provider quotes a readable call, which only does not
    fit its tool, the response is that call: planning closes it with the reason.
    """
    if not isinstance(error, dict):
        return None
    code, message = error.get("code"), error.get("message")
    if isinstance(code, str) and code in ERROR_CODES:
        sign = code
    elif isinstance(message, str) and message.startswith(OLLAMA_SAYS):
        sign = OLLAMA_SAYS
    else:
        return None
    generated = error.get("failed_generation")
    call = _quoted_call(generated)
    if call is None and isinstance(generated, str):
        text = generated or text
    parts: list[Part] = [TextPart(text=text)] if text else []
    if call is None:
        answer = Message(role="assistant", parts=tuple(parts))
        return ModelResponse(message=answer, finish_reason="other", model=model, malformed=_unread(sign))
    answer = Message(role="assistant", parts=(*parts, call))
    return ModelResponse(message=answer, finish_reason="tool_calls", model=model)


def _quoted_call(generated: JsonValue) -> ToolCallPart | None:
    """Return the call that Groq quotes if it read one, and the call does not fit its tool; else None."""
    try:
        call = json.loads(generated) if isinstance(generated, str) else None
    except (ValueError, RecursionError):
        return None
    if (
        not isinstance(call, dict)
        or not isinstance(call.get("name"), str)
        or not isinstance(call.get("arguments"), dict)
    ):
        return None
    arguments = json.dumps(call["arguments"], ensure_ascii=False)
    return ToolCallPart(tool_call_id="", tool_name=call["name"], input=arguments)


def error_in(content: bytes) -> JsonValue:
    """Return ``error`` in the body of an unsuccessful answer, or None."""
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return body.get("error") if isinstance(body, dict) else None


def _unread(sign: str) -> str:
    return f"the provider could not read the tool call in it ({sign})"
