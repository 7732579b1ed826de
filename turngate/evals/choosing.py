"""Which model each agent has in a case: read from words such as ``support=openai:gpt-5``, and put into the app. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from turngate.domain.agents.app import App
from turngate.domain.errors import ConfigurationError

EVERY: Final = "*"


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Models to run cases under. ``own``: of a case's own agent, None: not said; ``named``: agent → its model."""

    words: str
    own: str | None
    named: Mapping[str, str]

    @property
    def specs(self) -> list[str]:
        """The models that it names."""
        return [*([] if self.own is None else [self.own]), *self.named.values()]


def chosen(words: str, app: App) -> Choice:
    """Read ``MODEL``, or ``AGENT=MODEL`` and more of them with commas between; ``*`` stands for every agent.

    Raises ConfigurationError: the app has no such agent, or one is named twice.
    """
    if "=" not in words.partition(":")[0]:  # a model's own name may hold one
        return Choice(words=words, own=words, named={})
    named: dict[str, str] = {}
    for pair in words.split(","):
        agent, _, spec = pair.partition("=")
        if not spec or agent in named:
            raise ConfigurationError(f"{words!r}: write AGENT=MODEL, each agent once, with commas between")
        named[agent] = spec
    return Choice(words=words, own=None, named=agents_named(named, app, place=repr(words)))


def agents_named(named: Mapping[str, str], app: App, *, place: str) -> dict[str, str]:
    """Return the same by the agents' names, every one of them where ``*`` stands. Raises ConfigurationError as above."""
    known = [agent.name for agent in app.all_agents]
    for name in named:
        if name not in {*known, EVERY}:
            raise ConfigurationError(f"{place}: there is no agent {name!r}; the agents are: {', '.join(known)}")
    found = dict.fromkeys(known, named[EVERY]) if EVERY in named else {}
    return found | {name: spec for name, spec in named.items() if name != EVERY}


def with_models(app: App, named: Mapping[str, str]) -> App:
    """Return the app with these models in place of the agents' own, sub-agents included."""
    return app.with_agents(lambda agent: replace(agent, model=named.get(agent.name, agent.model)))
