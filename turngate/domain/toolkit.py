"""A toolkit: a named set of tools, immutable, composed before anything starts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from turngate.domain.errors import ConfigurationError, DuplicateToolNameError
from turngate.domain.tools import Tool


@dataclass(frozen=True)
class Toolkit:
    """Tools by name, in declaration order (the order the model sees: stable, for its prompt cache)."""

    _tools: Mapping[str, Tool]

    @staticmethod
    def of(*tools: Tool) -> Toolkit:
        """Return a toolkit of these tools; raises DuplicateToolNameError naming both sources."""
        return Toolkit(_by_name(tools))

    @staticmethod
    def compose(*kits: Toolkit) -> Toolkit:
        """Return one toolkit of several; raises DuplicateToolNameError naming both sources."""
        return Toolkit(_by_name(tool for kit in kits for tool in kit))

    @staticmethod
    def namespace(prefix: str, kit: Toolkit) -> Toolkit:
        """Return the kit with every name under a prefix: ``search`` becomes ``github__search``."""
        return Toolkit(_by_name(tool.renamed(f"{prefix}__{tool.name}") for tool in kit))

    def override(self, name: str, tool: Tool) -> Toolkit:
        """Return the kit with the handler of ``name`` swapped for that of ``tool``; the descriptor stays."""
        current = self.find(name)
        if current is None:
            raise ConfigurationError(f"there is no tool {name!r} to override; the tools are: {', '.join(self.names)}")
        swapped = replace(
            current,
            handler=tool.handler,
            params_name=tool.params_name,
            ctx_name=tool.ctx_name,
            services=tool.services,
            source=tool.source,
        )
        return Toolkit({**self._tools, name: swapped})

    def find(self, name: str) -> Tool | None:
        """Return the tool declared under exactly this name, or None (``__class__`` is an ordinary unknown name)."""
        return self._tools.get(name)

    @property
    def names(self) -> list[str]:
        """The declared names, in order."""
        return list(self._tools)

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)


def _by_name(tools: Iterable[Tool]) -> dict[str, Tool]:
    named: dict[str, Tool] = {}
    for tool in tools:
        if tool.name in named:
            raise DuplicateToolNameError(tool.name, named[tool.name].source, tool.source)
        named[tool.name] = tool
    return named
