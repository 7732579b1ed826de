"""Names and ids in the form that a provider accepts, the same for a call and its result. Pure.

An id comes from the provider that answered at the time, or from the engine; the current provider may accept other characters
or another length. Every provider accepts the names of declared tools. Names matter for tools that a model made up: their call
is closed as ``unknown_tool``, and its name would otherwise end the run at the next request (I9).
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

MAX_NAME_CHARS: Final = 64
NAME_IS_FREE_OF: Final = re.compile(r"[^a-zA-Z0-9_-]")
BEGINS_A_NAME: Final = re.compile(r"[a-zA-Z_]")
"""Gemini refuses a function name that begins with anything else (https://ai.google.dev/api/caching#FunctionDeclaration)."""

ANY_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""Anthropic's and Bedrock's pattern for ``tool_use_id`` (Bedrock limits the length); the others accept more."""
OPENAI: Final = "openai"
MISTRAL: Final = "mistral"
ID_OF_PROVIDER: Final = {MISTRAL: re.compile(r"[a-zA-Z0-9]{9}"), OPENAI: re.compile(r"[ -~]{1,40}")}
"""Mistral answers 422 to an id that is not nine letters and digits, OpenAI's chat completions 400 to more than 40 characters."""
ID_ALPHABET: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
HASHED_CHARS: Final = {MISTRAL: 9}
HASHED_CHARS_ELSEWHERE: Final = 24


def accepted_name(name: str) -> str:
    """Return the tool's name in a form that every provider accepts; a declared tool's name does not change."""
    accepted = NAME_IS_FREE_OF.sub("_", name)[:MAX_NAME_CHARS]
    return accepted if BEGINS_A_NAME.match(accepted) else f"_{accepted}"[:MAX_NAME_CHARS]


class AcceptedIds:
    """The call ids of one request. Ask in the conversation's order, so that a longer conversation gets the same ids.

    ``provider``: whose form it is; for an unknown one, the form that most accept.
    """

    def __init__(self, provider: str) -> None:
        self._pattern = ID_OF_PROVIDER.get(provider, ANY_ID)
        self._chars = HASHED_CHARS.get(provider, HASHED_CHARS_ELSEWHERE)
        self._accepted: dict[str, str] = {}
        self._taken: set[str] = set()

    def of(self, tool_call_id: str) -> str:
        """Return the id if the provider accepts it, else a hash of it."""
        if tool_call_id not in self._accepted:
            fits = self._pattern.fullmatch(tool_call_id) is not None
            accepted, attempt = tool_call_id if fits else self._hashed(tool_call_id), 0
            while accepted in self._taken:
                attempt += 1
                accepted = self._hashed(f"{tool_call_id}#{attempt}")
            self._accepted[tool_call_id] = accepted
            self._taken.add(accepted)
        return self._accepted[tool_call_id]

    def _hashed(self, text: str) -> str:
        number = int.from_bytes(hashlib.sha256(text.encode(errors="replace")).digest())
        digits = []
        for _ in range(self._chars):
            number, digit = divmod(number, len(ID_ALPHABET))
            digits.append(ID_ALPHABET[digit])
        return "".join(digits)
