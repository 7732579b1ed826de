"""What the agents of a chaos run do: scripts made from a seed, mostly gated ``once`` calls, several a step and several steps."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from scene import order

Fate = Literal["complete", "interrupt", "pause"]
GATED: Final = frozenset({"pay", "transfer", "wire", "debit", "reserve", "helper"})
"""Tools whose call waits for a person; the helper's run makes one such call."""
TOOLS: Final = {"pay": 52, "transfer": 10, "wire": 4, "debit": 4, "reserve": 12, "post": 8, "look": 6, "helper": 4}
FATES: Final[Mapping[Fate, int]] = {"complete": 84, "interrupt": 10, "pause": 6}
HASTY_SHARE: Final = 0.12
MOST_STEPS: Final = 5
MOST_CALLS: Final = 4
MOST_MILLISECONDS: Final = 400
SLOW_SHARE: Final = 0.05
SLOW_MILLISECONDS: Final = 2_500


@dataclass(frozen=True, kw_only=True)
class Script:
    """One run. ``agent``: ``hasty`` has requests that expire. ``fate``: what is done to it on its way."""

    name: str
    agent: str
    steps: Sequence[Sequence[Mapping[str, Any]]]
    fate: Fate

    @property
    def gated(self) -> int:
        """Calls that wait for a person."""
        return sum(call["tool"] in GATED for step in self.steps for call in step)


def scripts(seed: str, gated: int) -> list[Script]:
    """Return scripts with at least so many gated calls together; the same for the same seed."""
    fate = random.Random(seed)  # noqa: S311 - chance, not secrecy
    drawn: list[Script] = []
    while sum(script.gated for script in drawn) < gated:
        drawn.append(_script(fate, f"run{len(drawn)}"))
    return drawn


def _script(fate: random.Random, name: str) -> Script:
    hasty = fate.random() < HASTY_SHARE
    steps = [
        [_call(fate, f"{name}-{step}-{place}", hasty=hasty) for place in range(fate.randint(1, MOST_CALLS))]
        for step in range(fate.randint(1, MOST_STEPS))
    ]
    chosen = fate.choices(list(FATES), list(FATES.values()))[0]
    return Script(name=name, agent="hasty" if hasty else "clerk", steps=steps, fate=chosen)


def _call(fate: random.Random, name: str, *, hasty: bool) -> dict[str, Any]:
    tool = fate.choices(list(TOOLS), list(TOOLS.values()))[0]
    if tool == "helper" and not hasty:
        return {"tool": "helper", "input": {"task": f"Help with {name}."}}
    slow = fate.random() < SLOW_SHARE
    milliseconds = SLOW_MILLISECONDS if slow else fate.randint(0, MOST_MILLISECONDS)
    return order("pay" if tool == "helper" else tool, name, amount=fate.randint(1, 500), milliseconds=milliseconds)
