"""References: a call names a secret of the app in place of the value, which no one writes down. Pure.

``secret("stripe-key")`` at a secret place of a tool that takes references is resolved by the worker, right
before the handler starts. The model, people, digests, rules and the store see the reference alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from turngate.domain.text.json_text import quote
from turngate.domain.tools.secrets import Secret

SecretResolver = Callable[[str], str | Awaitable[str | None] | None]
"""The name of a secret → its value; None: there is none of that name."""

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./-]{0,99}")
_REFERENCE: Final = re.compile(r"secret\(\"(?P<name>[A-Za-z0-9][A-Za-z0-9_./-]{0,99})\"\)")


def referred_name(raw: str) -> str | None:
    """Return the name in the JSON text of a reference; None: it is something else."""
    try:
        text = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    match = _REFERENCE.fullmatch(text) if isinstance(text, str) else None
    return None if match is None else match["name"]


def names_in(places: Sequence[Secret]) -> tuple[str, ...]:
    """Return the names that these places refer to, each once."""
    names = (referred_name(each.raw) for each in places)
    return tuple(dict.fromkeys(name for name in names if name is not None))


def with_values(raw: str, places: Sequence[Secret], values: Mapping[str, str]) -> str:
    """Return the arguments with the values in place of the references. ``places``: all secret places, in order."""
    pieces: list[str] = []
    last = 0
    for each in places:
        name = referred_name(each.raw)
        if name is not None and name in values:
            pieces += [raw[last : each.start], quote(values[name])]
            last = each.start + len(each.raw)
    return "".join([*pieces, raw[last:]])
