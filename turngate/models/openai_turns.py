"""The order of messages that strict servers insist on. Pure.

The chat templates of many open models raise unless user and assistant take turns, which vLLM, llama.cpp and others hand on
as a 400 (vllm #6862): two messages of one side become one. Mistral's models also refuse a user's message directly behind a
result ("Unexpected role 'user' after role 'tool'"): there the model is let say a word. The conversation keeps such an order
for good, so either refusal would end every later request, too. What is stored stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

OF_MISTRAL: Final = re.compile(r"(?:m|min|mag)istral|(?:dev|code|math|lean)stral|(?:mi|pi|vo)xtral", re.IGNORECASE)
"""In the name of a model: one of Mistral's, whoever serves it (``mistralai/Devstral-Small``), under its own rules."""
BETWEEN_RESULT_AND_USER: Final = "OK"
"""What Mistral's models are said to have answered; their API refuses an assistant's message that says nothing."""
PLAIN: Final = frozenset({"role", "content"})
"""The keys of a message that holds nothing for its provider alone; two of which one does stay two."""


def in_turns(sent: Iterable[dict[str, Any]], *, model: str) -> list[dict[str, Any]]:
    """Return the messages of a request in an order that every server takes; nothing said is lost."""
    bridges = OF_MISTRAL.search(model) is not None
    turns: list[dict[str, Any]] = []
    for message in sent:
        last = turns[-1] if turns else None
        if last is not None and _are_one(last, message):
            turns[-1] = {**message, "content": _joined(last["content"], message["content"])}
            continue
        if bridges and last is not None and (last["role"], message["role"]) == ("tool", "user"):
            turns.append({"role": "assistant", "content": BETWEEN_RESULT_AND_USER})
        turns.append(message)
    return turns


def _are_one(message: dict[str, Any], following: dict[str, Any]) -> bool:
    role = message["role"]
    if role != following["role"] or role not in {"user", "assistant"} or set(message) != PLAIN:
        return False
    return set(following) <= {*PLAIN, "tool_calls"}


def _joined(content: Any, more: Any) -> Any:
    """Return two contents as one: text as paragraphs; blocks where one of them has blocks."""
    if not content or not more:
        return content or more
    if isinstance(content, str) and isinstance(more, str):
        return f"{content}\n\n{more}"
    return [*_blocks(content), *_blocks(more)]


def _blocks(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
