"""A toolkit: a named set of tools, immutable, composed before anything starts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from turngate.domain.errors import ConfigurationError, DuplicateToolNameError
from turngate.domain.tools.declare import with_handler
from turngate.domain.tools.declared_parts import Handler
from turngate.domain.tools.middleware import Middleware
from turngate.domain.tools.tool import Tool


@dataclass(frozen=True)
class Toolkit:
    """Tools by name, in declaration order (the order the model sees: stable, for its prompt cache)."""

    _tools: Mapping[str, Tool]

    def __post_init__(self) -> None:
        """Refuse what is no mapping of tools."""
        if not isinstance(self._tools, Mapping):
            raise ConfigurationError("a toolkit is made with Toolkit.of(tool, …), not with Toolkit(…)")

    @staticmethod
    def of(*tools: Tool) -> Toolkit:
        """Return a toolkit of these tools; raises DuplicateToolNameError naming both sources."""
        for tool in tools:
            _require_tool(tool)
        return Toolkit(_by_name((tool, tool.source + tool.where) for tool in tools))

    @staticmethod
    def from_list(tools: Sequence[Tool]) -> Toolkit:
        """Return a toolkit of a list that is only known when it runs, such as a server's; of one name the last counts."""
        return Toolkit({tool.name: tool for tool in tools})

    @staticmethod
    def compose(*kits: Toolkit) -> Toolkit:
        """Return one toolkit of several; raises DuplicateToolNameError naming both sources."""
        for kit in kits:
            if not isinstance(kit, Toolkit):
                raise ConfigurationError(
                    f"Toolkit.compose takes toolkits, not a {type(kit).__name__}: Toolkit.of(…) makes one of tools"
                )
        return Toolkit(
            _by_name(
                (tool, f"{tool.source}{tool.where} in toolkit {place}")
                for place, kit in enumerate(kits, 1)
                for tool in kit
            )
        )

    @staticmethod
    def namespace(prefix: str, kit: Toolkit) -> Toolkit:
        """Return the kit with every name under a prefix: ``search`` becomes ``github__search``."""
        return Toolkit({renamed.name: renamed for tool in kit for renamed in [tool.renamed(f"{prefix}__{tool.name}")]})

    def wrap(self, middleware: Middleware) -> Toolkit:
        """Return the kit with a function around every local tool's handler; the last one applied is the outermost.

        Tools of other kinds have no handler here and stay as they are. A handler that is swapped or supplied later is
        wrapped too.
        """
        return Toolkit(
            {
                tool.name: replace(tool, middleware=(*tool.middleware, middleware)) if tool.kind == "local" else tool
                for tool in self
            }
        )

    def override(self, name: str, tool: Tool | Handler) -> Toolkit:
        """Return the kit with the handler of ``name`` swapped for this function, or that of this tool.

        The descriptor, effect and ``ask`` stay: what the model sees and what people are asked does not change.
        """
        function = tool.handler.function if isinstance(tool, Tool) and tool.handler is not None else tool
        if isinstance(function, Tool):
            raise ConfigurationError(f"tool {function.name!r} has no handler to replace that of {name!r}")
        return self.handlers({name: function})

    def handlers(self, by_name: Mapping[str, Handler] | None = None, /, **named: Handler) -> Toolkit:
        """Return the kit with these handlers: tool name → async function, as a mapping, as keywords, or both.

        Raises:
            ConfigurationError: there is no local tool of that name, or the function takes other parameters.
        """
        tools = dict(self._tools)
        for name, function in {**(by_name or {}), **named}.items():
            current = tools.get(name)
            if current is None:
                known = ", ".join(self.names)
                raise ConfigurationError(f"there is no tool {name!r} to give a handler to; the tools are: {known}")
            if current.kind != "local":
                raise ConfigurationError(f"tool {name!r} is of kind {current.kind}, which has no handler")
            tools[name] = with_handler(current, function)
        return Toolkit(tools)

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


def _require_tool(tool: object) -> None:
    if isinstance(tool, Tool):
        return
    name = getattr(tool, "__name__", type(tool).__name__)
    if isinstance(tool, Toolkit):
        fix = "it takes tools; Toolkit.compose(kit, …) makes one toolkit of several"
    elif isinstance(tool, list | tuple):
        fix = "pass the tools one by one: Toolkit.of(first, second), or Toolkit.of(*tools)"
    elif callable(tool):
        fix = f'{name} is not declared as a tool: write @tool(effect="once") above it'
    else:
        fix = "a tool is what @tool or declare_tool returns"
    raise ConfigurationError(f"Toolkit.of was called with a {type(tool).__name__}: {fix}")


def _by_name(tools: Iterable[tuple[Tool, str]]) -> dict[str, Tool]:
    named: dict[str, Tool] = {}
    sources: dict[str, str] = {}
    for tool, source in tools:
        if tool.name in named:
            raise DuplicateToolNameError(tool.name, sources[tool.name], source)
        named[tool.name], sources[tool.name] = tool, source
    return named
