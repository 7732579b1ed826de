"""What can be known of a tool without the app that declares it: enough to say what policy answers, or that it depends.

Pure. Workers publish it, so that the API and the command line can explain rules without the builder's code.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter

from turngate.domain.tools.parameters import NoParameters
from turngate.domain.tools.tool import Effect, Tool, ToolKind

OwnAsk = Literal["always", "never", "computed", "unset", "unknown"]
"""A tool's own ``ask``: True, False, a function of the parameters, none; ``unknown``: no one has said."""

_ASKS: Final[dict[OwnAsk, bool | None]] = {"always": True, "never": False, "unset": None}


class KnownTool(BaseModel):
    """A tool as its worker published it. ``agents``: those that have it, sub-agents included."""

    model_config = ConfigDict(frozen=True)

    name: str
    kind: ToolKind = "local"
    effect: Effect = "once"
    own_ask: OwnAsk = "unknown"
    agents: tuple[str, ...] = ()

    def stand_in(self) -> Tool:
        """Return a tool that policy can be asked about. Of one whose own ``ask`` is not known here, see :func:`is_ask_unknown`.

        Raises ConfigurationError for a name that no tool can have.
        """
        return Tool(
            name=self.name,
            description="",
            kind=self.kind,
            parameters=NoParameters(),
            success=_ANYTHING,
            effect=self.effect,
            ask=_ASKS[self.own_ask] if self.own_ask in _ASKS else _Unknown(),
        )


_ANYTHING: Final[TypeAdapter[Any]] = TypeAdapter(Any)


class _Unknown:
    """An ``ask`` that is not known here: it raises, which policy takes as *ask*; see :func:`is_ask_unknown`."""

    def __call__(self, _params: Any) -> bool:
        raise LookupError("the tool's own ask is not known here")


def is_ask_unknown(tool: Tool, rule: str) -> bool:
    """Tell whether a verdict by ``rule`` depends on a tool's own ``ask`` that is not known here."""
    return isinstance(tool.ask, _Unknown) and rule == "tool:ask-error"


def known(tool: Tool) -> KnownTool:
    """Return what others may know of a declared tool."""
    asks: dict[bool | None, OwnAsk] = {True: "always", False: "never", None: "unset"}
    own_ask: OwnAsk = "computed" if callable(tool.ask) else asks[tool.ask]
    return KnownTool(name=tool.name, kind=tool.kind, effect=tool.effect, own_ask=own_ask)
