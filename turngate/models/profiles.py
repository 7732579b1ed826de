"""The models file (TOML, named by TURNGATE_MODELS_FILE): named profiles, read once. Every error names file and place."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from turngate.domain.agents.model_profiles import (
    MAX_SPEC_CHARS,
    PROFILE_NAME,
    ModelOptions,
    Profile,
    Profiles,
    ReasoningEffort,
    ToolChoice,
)
from turngate.domain.errors import ConfigurationError
from turngate.domain.runs.budgets import Price
from turngate.domain.text.suggestions import problems
from turngate.domain.tools.failures import describe_issues
from turngate.text_files import NotTextError, read_text

FILE_NAME: Final = "models.toml"
"""The file's name if none is configured: in the data directory, or else next to the app."""

Spec = Annotated[str, Field(min_length=1, max_length=MAX_SPEC_CHARS)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    model: Annotated[str, Field(pattern=r"^[^\s:]+:\S", max_length=MAX_SPEC_CHARS)]
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    reasoning_effort: ReasoningEffort | None = None
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    tool_choice: ToolChoice | None = None
    context_window: Annotated[int, Field(ge=1)] | None = None
    fallback: list[Spec] = Field(default_factory=list)
    price_in: Annotated[Decimal, Field(ge=0, allow_inf_nan=False)] | None = None
    price_out: Annotated[Decimal, Field(ge=0, allow_inf_nan=False)] | None = None
    price_cache_read: Annotated[Decimal, Field(ge=0, allow_inf_nan=False)] | None = None
    price_cache_write: Annotated[Decimal, Field(ge=0, allow_inf_nan=False)] | None = None

    def profile(self, name: str) -> Profile:
        """Return the profile; raises ValueError for half a price."""
        if (self.price_in is None) != (self.price_out is None):
            raise ValueError("price_in and price_out belong together: give both, per million tokens")
        price = None
        if self.price_in is not None and self.price_out is not None:
            price = Price(
                input=self.price_in,
                output=self.price_out,
                cache_read=self.price_cache_read,
                cache_write=self.price_cache_write,
            )
        elif self.price_cache_read is not None or self.price_cache_write is not None:
            raise ValueError("price_cache_read and price_cache_write need price_in and price_out, per million tokens")
        return Profile(
            name=name,
            model=self.model,
            options=ModelOptions(
                max_output_tokens=self.max_output_tokens,
                temperature=self.temperature,
                reasoning_effort=self.reasoning_effort,
                top_p=self.top_p,
                tool_choice=self.tool_choice,
            ),
            context_window=self.context_window,
            fallback=tuple(self.fallback),
            price=price,
        )


def find_models_file(named: Path | None, *places: Path) -> Path | None:
    """Return the file to read: the one that is configured, else the first ``models.toml`` in these directories, else None."""
    if named is not None:
        return named
    return next((place / FILE_NAME for place in places if (place / FILE_NAME).is_file()), None)


def load_profiles(path: Path | None) -> Profiles:
    """Read the file; None: there are no profiles.

    Raises:
        ConfigurationError: it does not exist, is not TOML, a key or value is wrong, a fallback names no profile, or
            fallbacks form a circle.
    """
    if path is None:
        return Profiles()
    try:
        text = read_text(path)
    except OSError as error:
        raise ConfigurationError(
            f"models file {path} cannot be read ({error.strerror}): set TURNGATE_MODELS_FILE to a file that is there"
        ) from None
    except NotTextError as error:
        raise ConfigurationError(f"models file {path} is not TOML: {error}") from None
    return parse_profiles(text, source=str(path))


def parse_profiles(text: str, *, source: str) -> Profiles:
    """Return the profiles of a file's text. Raises ConfigurationError as :func:`load_profiles`."""
    try:
        # A price is money: as a float, 0.1 would not be a tenth.
        document = tomllib.loads(text, parse_float=Decimal)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"models file {source} is not TOML: {error}") from None
    tables = document.pop("profile", {})
    if document or not isinstance(tables, dict):
        stray = f", and not {next(iter(document))!r}" if document else ""
        raise ConfigurationError(f"models file {source} holds [profile.NAME] tables{stray}")
    profiles = {name: _profile(name, table, source) for name, table in tables.items()}
    for profile in profiles.values():
        _require_names(profile, profiles, source)
    for name in profiles:
        _require_no_cycle(name, profiles, source)
    return Profiles(profiles, source=source)


def _profile(name: str, table: Any, source: str) -> Profile:
    if not PROFILE_NAME.fullmatch(name):
        raise _wrong(source, name, "a name is lower-case letters, digits, '_', '.' and '-', at most 64")
    if not isinstance(table, dict):
        raise _wrong(source, name, 'it is a table: [profile.NAME], then model = "provider:name"')
    plain = {**table, **{key: _as_float(table[key]) for key in ("temperature", "top_p") if key in table}}
    prices = {key: _as_decimal(plain[key]) for key in plain if key.startswith("price_")}
    try:
        return _Table.model_validate({**plain, **prices}).profile(name)
    except ValidationError as error:
        raise _wrong(source, name, describe_issues(problems(error, _Table))) from None
    except ValueError as error:
        raise _wrong(source, name, str(error)) from None


def _as_float(value: Any) -> Any:
    return float(value) if isinstance(value, Decimal) else value


def _as_decimal(value: Any) -> Any:
    return Decimal(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _require_names(profile: Profile, profiles: Mapping[str, Profile], source: str) -> None:
    for spec in profile.fallback:
        if ":" not in spec and spec not in profiles:
            names = ", ".join(profiles)
            raise _wrong(source, profile.name, f"fallback {spec!r} is neither provider:name nor a profile ({names})")


def _require_no_cycle(name: str, profiles: Mapping[str, Profile], source: str) -> None:
    def follow(at: str, path: tuple[str, ...]) -> None:
        for spec in profiles[at].fallback if at in profiles else ():
            if spec in path:
                way = " → ".join((*path[path.index(spec) :], spec))
                raise _wrong(source, name, f"its fallbacks lead back to where they were: {way}")
            follow(spec, (*path, spec))

    follow(name, (name,))


def _wrong(source: str, name: str, problem: str) -> ConfigurationError:
    return ConfigurationError(f"models file {source}, [profile.{name}]: {problem}")
