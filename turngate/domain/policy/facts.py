"""What a rule may look at in one call, and the three answers a matcher gives.

Pure: reading a command line and following symlinks are handed in as functions, so that rules can be judged anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from pydantic import JsonValue

from turngate.domain.policy.command_line import Commands, Unparsable

Match = Literal["yes", "no", "unclear"]
"""``unclear`` never helps a call: an allow rule does not match, a deny or ask rule asks."""


def all_of(answers: Iterable[Match]) -> Match:
    """Return the match of conditions that must all hold: one ``no`` settles it, else one ``unclear``."""
    distinct = set(answers)
    if "no" in distinct:
        return "no"
    return "unclear" if "unclear" in distinct else "yes"


def any_of(answers: Iterable[Match]) -> Match:
    """Return the match of conditions of which one must hold; for no conditions: ``no``."""
    distinct = set(answers)
    if "yes" in distinct:
        return "yes"
    return "unclear" if "unclear" in distinct else "no"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What a matcher found. ``reason``: why, for people who ask for an explanation; never shown to the model."""

    match: Match
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ResolvedPath:
    """Where a path leads. Both absolute, without ``.``, ``..``, doubled or trailing slashes; None: cannot be known.

    ``lexical``: by its text alone. ``real``: with every symlink followed; parts that do not exist are taken literally.
    """

    lexical: str | None
    real: str | None


CommandReader = Callable[[str], Commands | Unparsable]
PathResolver = Callable[[str, str | None], ResolvedPath]
"""(path as the tool gets it, the run's workspace or None) → where it leads. Must not raise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CallFacts:
    """One call, as rules see it. ``arguments``: decoded once by ``decode_arguments``; ``workspace``: the run's, or None."""

    arguments: JsonValue
    workspace: str | None
    read_command: CommandReader
    resolve_path: PathResolver
