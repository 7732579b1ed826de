"""A probe's answers: what happened to a ``once`` call of which no one knows whether it took effect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Happened:
    """The call took effect; ``result`` is the success the handler would have returned."""

    result: Any


@dataclass(frozen=True)
class DidNotHappen:
    """The call did not take effect **and never will** under this key: the engine starts it again.

    Not the same as "not seen yet": a worker that was thought lost may still be at it. When in doubt, answer None, and a
    person is asked.
    """


ProbeAnswer = Happened | DidNotHappen | None
