"""Which model answers, and how: a spec (``provider:name`` or a profile's name), and what to do when it cannot. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from turngate.domain.errors import ConfigurationError, ModelError, ModelErrorClass
from turngate.domain.runs.budgets import FREE, Price, is_free

ReasoningEffort = Literal["minimal", "low", "medium", "high"]
ToolChoice = Literal["auto", "required", "none"]
"""Whether the model decides by itself to call a tool, has to call one, or may call none."""
ToolName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$")]
"""What a tool may be called."""

PROFILE_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
"""No colon, so a spec is either a profile's name or ``provider:name``."""
MAX_SPEC_CHARS: Final = 200

FALLS_BACK: Final[Mapping[ModelErrorClass, bool]] = {
    "authentication": True,  # a key that was withdrawn
    "permission": True,  # a key that may not use this model, an account without credit, a quota that is used up
    "not_found": True,  # a model that was withdrawn
    "configuration": True,  # no key, no package, a wrong address
    "rate_limited": True,  # these three are only asked about where they don't pass within model_retry
    "unreachable": True,
    "server_error": True,
    "bad_response": False,
    "invalid_request": False,  # another model is sent the same request
    "context_length": False,  # as above; a smaller context is what helps
}
"""Whether the model that a person chose for this case answers in place of one that failed so."""


def falls_back(error: ModelError | ConfigurationError) -> bool:
    """Tell whether another model may answer: only for what no repeat of the request can fix."""
    if isinstance(error, ConfigurationError):
        return True
    return not error.retryable and FALLS_BACK.get(
        error.error_class, False
    )  # someone's own adapter may have its own words


class ModelOptions(BaseModel):
    """How a model is to answer; None leaves it to the provider. ``tool_choice``: also a tool, which it has to call."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_output_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=2, allow_inf_nan=False)
    reasoning_effort: ReasoningEffort | None = None
    top_p: float | None = Field(default=None, gt=0, le=1, allow_inf_nan=False)
    tool_choice: ToolChoice | ToolName | None = None

    @property
    def chosen_tool(self) -> str | None:
        """The tool that has to be called; None: ``tool_choice`` names none."""
        return None if self.tool_choice in {None, *get_args(ToolChoice)} else self.tool_choice

    def over(self, others: ModelOptions) -> ModelOptions:
        """Return these options, and the others where these say nothing."""
        return others.model_copy(update=self.model_dump(exclude_none=True))


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A model under a name of one's own. ``model``: ``provider:name``.

    ``context_window``: tokens that it takes; None: not said. ``fallback``: specs, in the order they are tried. ``price``: per
    million tokens; None: as the app prices ``model``.
    """

    name: str
    model: str
    options: ModelOptions = field(default_factory=ModelOptions)
    context_window: int | None = None
    fallback: tuple[str, ...] = ()
    price: Price | None = None


class Profiles(Mapping[str, Profile]):
    """The profiles by name. ``source``: the file that has them, for messages; None: there is none."""

    def __init__(self, profiles: Mapping[str, Profile] | None = None, *, source: str | None = None) -> None:
        self._by_name = dict(profiles or {})
        self.source = source

    def __getitem__(self, name: str) -> Profile:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def model(self, spec: str) -> str:
        """Return ``provider:name`` of a spec. Raises ConfigurationError for a name that no profile has."""
        if spec in self._by_name:
            return self._by_name[spec].model
        if ":" in spec:
            return spec
        if self.source is None:
            known = "no models.toml was found; TURNGATE_MODELS_FILE names one"
        else:
            known = f"{self.source} has: {', '.join(self._by_name) or 'none'}"
        raise ConfigurationError(f"there is no model profile {spec!r} ({known})", spec=spec)

    def options(self, spec: str) -> ModelOptions:
        """Return how the model of a spec is to answer."""
        profile = self._by_name.get(spec)
        return ModelOptions() if profile is None else profile.options

    def prices(self, of_app: Mapping[str, Price]) -> dict[str, Price]:
        """Return what each spec costs: as the app says; else a profile as it says itself, or as the app says of its model."""
        prices = dict(of_app)
        for name, profile in self._by_name.items():
            price = profile.price or of_app.get(profile.model) or (FREE if is_free(profile.model) else None)
            if name not in prices and price is not None:
                prices[name] = price
        return prices

    def fallbacks(self, spec: str, more: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Return the specs to try after a spec, in order: each profile is followed by its own list. ``more``: the agent's."""
        chain: list[str] = []

        def follow(specs: tuple[str, ...]) -> None:
            for each in specs:
                if each != spec and each not in chain:
                    chain.append(each)
                    follow(self._by_name[each].fallback if each in self._by_name else ())

        follow((*(self._by_name[spec].fallback if spec in self._by_name else ()), *more))
        return tuple(chain)

    def after(self, spec: str, *, fell_back_from: str | None, more: tuple[str, ...] = ()) -> str | None:
        """Return who answers next in place of a spec that failed; None when no one is left.

        ``fell_back_from``: the spec that this one has already replaced; its list continues.
        """
        if fell_back_from is not None:
            chain = self.fallbacks(fell_back_from, more)
            if spec in chain:
                rest = chain[chain.index(spec) + 1 :]
                return rest[0] if rest else None
        chain = self.fallbacks(spec, more)
        return next((each for each in chain if each != fell_back_from), None)
