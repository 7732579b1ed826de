"""What the words of an argument's name say of it: an amount of money, one in hundredths, or why the call is right. Pure."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

MINOR_UNITS: Final = frozenset({"cent", "cents", "minor", "pence"})
"""Words in the name of an argument, or of a field, that holds an amount in hundredths."""
AMOUNTS: Final = frozenset({"amount", "price", "total", "sum", "fee", "refund", "cost", "payment", *MINOR_UNITS})
"""Words in the name of an argument that holds an amount of money."""
REASONS: Final = frozenset(
    {
        "why",
        "reason",
        "reasons",
        "reasoning",
        "rationale",
        "justification",
        "explanation",
        "motivation",
        "purpose",
        "intent",
    }
)
"""Words in the name of an argument in which a model says why its call is right: they change nothing of what the call does."""

_CAMEL: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+")


@lru_cache(maxsize=512)
def name_words(name: str) -> frozenset[str]:
    """Return the words of an argument's name, in lower case: ``orderId`` and ``order_id`` have the same."""
    return frozenset(word.casefold() for word in _CAMEL.findall(name[:200]))
