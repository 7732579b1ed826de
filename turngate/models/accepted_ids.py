"""Names and ids in the only form a provider takes back, the same for a call and its result. Pure.

Ids were written by whichever provider answered then, or minted by the engine; the one that answers now may take other
characters or another length. Declared tools have names that all take, so names matter for what a model made up, whose call
is closed as ``unknown_tool`` and would otherwise end the run at the next request (I9).
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
"""Anthropic's and Bedrock's pattern for ``tool_use_id`` (Bedrock bounds the length); the others take more."""
OPENAI: Final = "openai"
MISTRAL: Final = "mistral"
ID_OF_PROVIDER: Final = {MISTRAL: re.compile(r"[a-zA-Z0-9]{9}"), OPENAI: re.compile(r"[ -~]{1,40}")}
"""Mistral answers 422 to an id that is not nine letters and digits, OpenAI's chat completions 400 to more than 40 characters."""
ID_ALPHABET: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
HASHED_CHARS: Final = {MISTRAL: 9}
HASHED_CHARS_ELSEWHERE: Final = 24


def accepted_name(name: str) -> str:
    """Return the tool's name as every provider takes it; a name of a declared tool stays what it is."""
    accepted = NAME_IS_FREE_OF.sub("_", name)[:MAX_NAME_CHARS]
    return accepted if BEGINS_A_NAME.match(accepted) else f"_{accepted}"[:MAX_NAME_CHARS]


class AcceptedIds:
    """The call ids of one request. Ask in the order of the conversation: then a longer one gives the same ids.

    ``provider``: whose form it is; one that is not known takes what most take.
    """

    def __init__(self, provider: str) -> None:
        self._pattern = ID_OF_PROVIDER.get(provider, ANY_ID)
        self._chars = HASHED_CHARS.get(provider, HASHED_CHARS_ELSEWHERE)
        self._given: dict[str, str] = {}
        self._taken: set[str] = set()

    def of(self, tool_call_id: str) -> str:
        """Return the id as the provider takes it: the id itself if it does, else a hash of it."""
        if tool_call_id not in self._given:
            fits = self._pattern.fullmatch(tool_call_id) is not None
            accepted, attempt = tool_call_id if fits else self._hashed(tool_call_id), 0
            while accepted in self._taken:
                attempt += 1
                accepted = self._hashed(f"{tool_call_id}#{attempt}")
            self._given[tool_call_id] = accepted
            self._taken.add(accepted)
        return self._given[tool_call_id]

    def _hashed(self, text: str) -> str:
        number = int.from_bytes(hashlib.sha256(text.encode(errors="replace")).digest())
        digits = []
        for _ in range(self._chars):
            number, digit = divmod(number, len(ID_ALPHABET))
            digits.append(ID_ALPHABET[digit])
        return "".join(digits)
