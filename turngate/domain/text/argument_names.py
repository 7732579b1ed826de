"""What the words of an argument's name say of its value: that it is an amount of money, or one in hundredths. Pure."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

MINOR_UNITS: Final = frozenset({"cent", "cents", "minor", "pence"})
"""Words in the name of an argument, or of a field, that holds an amount in hundredths."""
AMOUNTS: Final = frozenset({"amount", "price", "total", "sum", "fee", "refund", "cost", "payment", *MINOR_UNITS})
"""Words in the name of an argument that holds an amount of money."""

_CAMEL: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+")


@lru_cache(maxsize=512)
def name_words(name: str) -> frozenset[str]:
    """Return the words of an argument's name, in lower case: ``orderId`` and ``order_id`` have the same."""
    return frozenset(word.casefold() for word in _CAMEL.findall(name[:200]))
