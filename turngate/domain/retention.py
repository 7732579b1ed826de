"""The retention file: what is kept for how long, by kind, agent and tool. Pure.

The chain of events is no kind: it is never removed. What people said in events goes with its conversation.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal, get_args

from turngate.domain.errors import ConfigurationError

Kind = Literal[
    "conversations",
    "results",
    "previews",
    "errors",
    "notifications",
    "progress",
    "answers",
    "schedules",
    "grants",
    "policy",
]
"""``conversations``: all content, after the end of their last run. ``results``: what tools returned, after the run's end.
``previews``: what people saw of a call besides its arguments. ``errors``: what ``turngate logs`` shows. ``notifications``: what
was sent, and each attempt. ``progress``: of tools, and parts of answers. ``answers``: of the API, kept for a repeat.
``schedules``: those that were deleted. ``grants``: those that ended and belong to no conversation. ``policy``: texts of stored
rules that a later version replaced."""
KINDS: Final = get_args(Kind)
OF_CONVERSATIONS: Final[frozenset[Kind]] = frozenset({"conversations", "results", "previews"})
"""What goes by conversation; of the other kinds, rows go by their own age."""
OF_AGENTS: Final[frozenset[Kind]] = OF_CONVERSATIONS | {"errors"}
"""What can be kept differently for one agent."""
KEYS: Final = ("name", "kind", "keep", "agent", "tools")
_DURATION: Final = re.compile(r"([1-9][0-9]{0,5})([hdwy])")
_HOURS: Final = {"h": 1, "d": 24, "w": 24 * 7, "y": 24 * 365}


@dataclass(frozen=True, kw_only=True)
class RetentionRule:
    """One rule. ``agent`` None: of every agent. ``tools``: of results; None: of every tool."""

    name: str
    kind: Kind
    keep: timedelta
    agent: str | None = None
    tools: tuple[str, ...] | None = None


def read_retention(text: str, *, file: str = "retention.toml") -> list[RetentionRule]:
    """Return the rules of a file. Raises ConfigurationError, which names the line and the key that is wrong."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{file}: {error}") from None
    for key in document:
        if key != "rule":
            raise _wrong(text, file, key, 0, f"{key!r} is no key of this file: it has [[rule]] tables")
    tables = document.get("rule", [])
    if not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
        raise ConfigurationError(f"{file}: write each rule as a [[rule]] table")
    rules = [_rule(text, file, place, each) for place, each in enumerate(tables)]
    names = [each.name for each in rules]
    twice = next((place for place, name in enumerate(names) if name in names[:place]), None)
    if twice is not None:
        raise _wrong(text, file, "name", twice, f"two rules are named {names[twice]!r}")
    return rules


def _rule(text: str, file: str, place: int, table: dict[str, Any]) -> RetentionRule:
    for key, value in table.items():
        if key not in KEYS:
            raise _wrong(text, file, key, place, f"{key!r} is no key of a rule: {', '.join(KEYS)}")
        if key != "tools" and not (isinstance(value, str) and value):
            raise _wrong(text, file, key, place, f"{key} is a text")
    missing = [key for key in ("name", "kind", "keep") if key not in table]
    if missing:
        raise _wrong(text, file, "[[rule]]", place, f"the rule has no {missing[0]}")
    if table["kind"] not in KINDS:
        raise _wrong(text, file, "kind", place, f"kind is one of {', '.join(KINDS)}, not {table['kind']!r}")
    keep = _DURATION.fullmatch(table["keep"])
    if keep is None:
        raise _wrong(
            text, file, "keep", place, f'keep is a number and h, d, w or y, such as "90d", not {table["keep"]!r}'
        )
    tools, problem = table.get("tools"), _problem_of_tools(table)
    if problem is not None:
        raise _wrong(text, file, "tools", place, problem)
    if table["kind"] not in OF_AGENTS and "agent" in table:
        raise _wrong(text, file, "agent", place, f"only {', '.join(sorted(OF_AGENTS))} can name an agent")
    return RetentionRule(
        name=table["name"],
        kind=table["kind"],
        keep=timedelta(hours=int(keep[1]) * _HOURS[keep[2]]),
        agent=table.get("agent"),
        tools=None if tools is None else tuple(tools),
    )


def _problem_of_tools(table: dict[str, Any]) -> str | None:
    tools = table.get("tools", [""])
    if not (isinstance(tools, list) and tools and all(isinstance(each, str) for each in tools)):
        return 'tools is a list of names, such as ["search"]'
    return "only a rule for results can name tools" if "tools" in table and table["kind"] != "results" else None


def _wrong(text: str, file: str, key: str, place: int, problem: str) -> ConfigurationError:
    """Return the error with the line of a key in the rule of this place."""
    rules_seen = -1
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        rules_seen += stripped.startswith("[[rule]]")
        is_key = stripped.partition("=")[0].strip() == key or (key == "[[rule]]" and stripped.startswith(key))
        if is_key and rules_seen in {place, -1}:
            return ConfigurationError(f"{file}, line {number}: {problem}")
    return ConfigurationError(f"{file}: {problem}")
