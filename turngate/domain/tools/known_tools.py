"""What can be known of a tool without the app that declares it: enough to say what policy answers, or that it depends.

Pure. Workers publish it, so that the API and the command line can explain rules without the builder's code.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, JsonValue, TypeAdapter, ValidationError

from turngate.domain.text.json_text import arguments_text
from turngate.domain.tools.defaults import Defaults, of_schema
from turngate.domain.tools.parameters import ModelParameters, NoParameters
from turngate.domain.tools.tool import Effect, ProcessConfinement, Tool, ToolKind

OwnAsk = Literal["always", "never", "computed", "unset", "unknown"]
"""A tool's own ``ask``: True, False, a function of the parameters, none; ``unknown``: no one has said."""

_ASKS: Final[dict[OwnAsk, bool | None]] = {"always": True, "never": False, "unset": None}


class KnownConfinement(BaseModel):
    """How a tool's processes are confined on its worker's machine: those of a call that asks for the network, and of others."""

    model_config = ConfigDict(frozen=True)

    plain: ProcessConfinement
    network: ProcessConfinement

    def of_call(self, arguments: Any) -> ProcessConfinement:
        """Return it for arguments that are only known as JSON. What can't be read counts as asking for the network."""
        network = arguments.get("network", False) if isinstance(arguments, dict) else False
        try:
            return self.network if _BOOLEAN.validate_python(network) else self.plain
        except ValidationError:
            return self.network


_BOOLEAN: Final = TypeAdapter(bool)
_ONLY_APP: Final = "its app has them, and they may change what rules see. `turngate policy explain --app` applies them."


class KnownTool(BaseModel):
    """A tool as its worker published it. ``agents``: those that have it, sub-agents included.

    ``confinement``: None: it starts no processes, or no one has said. ``parameters``: the JSON Schema of its arguments, as text;
    empty: not known. ``is_claimed``: a server says what the schema does, and no code here checks it. ``has_validators``: code of
    the tool's may read arguments otherwise than they are written.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    kind: ToolKind = "local"
    effect: Effect = "once"
    own_ask: OwnAsk = "unknown"
    agents: tuple[str, ...] = ()
    confinement: KnownConfinement | None = None
    parameters: str = ""
    is_claimed: bool = False
    has_validators: bool = True

    def defaults_of(self, raw_input: str) -> Defaults:
        """Return what a call leaves out, as far as the schema tells. ``raw_input``: arguments that can be read."""
        arguments = json.loads(arguments_text(raw_input))
        source: Literal["server", "default"] = "server" if self.is_claimed else "default"
        manifest = self.stand_in().manifest
        return manifest.masked_defaults(arguments, of_schema(arguments, manifest.parameters, source))

    def unread(self, raw_input: str) -> list[str]:
        """Return what isn't known here of what the tool makes of a call. ``raw_input``: as for :meth:`defaults_of`."""
        schema, arguments = json.loads(self.parameters or "{}"), json.loads(arguments_text(raw_input))
        notes = [f"The validators of {self.name} were not applied: {_ONLY_APP}"] if self.has_validators else []
        if self.is_claimed or not isinstance(arguments, dict):
            return notes
        known = {*arguments, *schema.get("required", ()), *(each.label for each in self.defaults_of(raw_input))}
        if names := [name for name in schema.get("properties", ()) if name not in known]:
            notes.append(f"Only the app knows what the tool takes for {', '.join(names)}, which the call leaves out.")
        return notes

    def stand_in(self) -> Tool:
        """Return a tool that policy can be asked about. Of one whose own ``ask`` is not known here, see :func:`is_ask_unknown`.

        Its confinement takes arguments that are only known as JSON.

        Raises ConfigurationError for a name that no tool can have.
        """
        return Tool(
            name=self.name,
            description="",
            kind=self.kind,
            parameters=_AsPublished(json.loads(self.parameters)) if self.parameters else NoParameters(),
            success=_ANYTHING,
            effect=self.effect,
            ask=_ASKS[self.own_ask] if self.own_ask in _ASKS else _Unknown(),
            confinement=None if self.confinement is None else self.confinement.of_call,
        )


_ANYTHING: Final[TypeAdapter[Any]] = TypeAdapter(Any)


@dataclass(frozen=True)
class _AsPublished(NoParameters):
    """Parameters of which only the schema is known: nothing can be decoded for a handler."""

    schema: dict[str, JsonValue]

    def json_schema(self) -> dict[str, JsonValue]:
        """Return the schema, as its worker published it."""
        return self.schema


class UnknownAskError(LookupError):
    """The tool's own ``ask`` is not known in this process: no crash of it."""


class _Unknown:
    """An ``ask`` that is not known here: it raises, which policy takes as *ask*; see :func:`is_ask_unknown`."""

    def __call__(self, _params: Any) -> bool:
        raise UnknownAskError("the tool's own ask is not known here")


def is_ask_unknown(tool: Tool, rule: str) -> bool:
    """Tell whether a verdict by ``rule`` depends on a tool's own ``ask`` that is not known here."""
    return isinstance(tool.ask, _Unknown) and rule == "tool:ask-error"


def known(tool: Tool) -> KnownTool:
    """Return what others may know of a declared tool."""
    asks: dict[bool | None, OwnAsk] = {True: "always", False: "never", None: "unset"}
    own_ask: OwnAsk = "computed" if callable(tool.ask) else asks[tool.ask]
    return KnownTool(
        name=tool.name,
        kind=tool.kind,
        effect=tool.effect,
        own_ask=own_ask,
        confinement=_confinement_of(tool),
        parameters=json.dumps(tool.manifest.parameters, ensure_ascii=False),
        is_claimed=not isinstance(tool.parameters, ModelParameters | NoParameters),
        has_validators=isinstance(tool.parameters, ModelParameters) and tool.parameters.calls_python,
    )


def _confinement_of(tool: Tool) -> KnownConfinement | None:
    """Return what a tool says of its processes, by the parameter ``network``; None where that takes more."""
    if tool.confinement is None:
        return None
    try:
        plain, with_network = (tool.confinement(SimpleNamespace(network=network)) for network in (False, True))
    except Exception:  # noqa: BLE001 - the tool author's code, on parameters that it didn't declare
        return None
    return KnownConfinement(plain=plain, network=with_network)
