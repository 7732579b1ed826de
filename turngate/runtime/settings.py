"""Settings: what the environment and the command line say, checked once, passed on by the composition roots.

There is no global instance. Build one with :func:`load_settings`, so that a wrong value is reported by the name of the
environment variable that holds it. Temporal's own variables keep the names Temporal's tools use (``TEMPORAL_ADDRESS``,
https://docs.temporal.io/references/client-environment-configuration); everything else begins with ``TURNGATE_``.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, AliasChoices, BeforeValidator, Field, SecretStr, ValidationError, model_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, SettingsConfigDict

from turngate.domain.errors import ConfigurationError
from turngate.runtime.locations import ensure_data_dir

ENV_PREFIX: Final = "TURNGATE_"
HOST_AND_PORT: Final = re.compile(r"[^\s/]+:\d{1,5}")

SQLITE_SCHEMES: Final = ("sqlite",)
POSTGRESQL_SCHEMES: Final = ("postgres", "postgresql", "postgresql+psycopg")

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["console", "json"]
Port = Annotated[int, Field(ge=1, le=65_535)]


def _absolute(path: Path) -> Path:
    return path.expanduser().resolve()


def _database_url(url: SecretStr) -> SecretStr:
    scheme, separator, _rest = url.get_secret_value().partition("://")
    if not separator or scheme not in SQLITE_SCHEMES + POSTGRESQL_SCHEMES:
        # The URL may hold a password: it is never repeated in a message.
        raise ValueError("must begin with sqlite:/// or postgresql://")
    return url


def _temporal_address(address: str) -> str:
    if not HOST_AND_PORT.fullmatch(address):
        raise ValueError("must be HOST:PORT without a scheme, such as temporal.example.com:7233")
    return address


def _http_url(url: str) -> str:
    if not re.match(r"https?://[^\s/]", url):
        raise ValueError("must be a URL that begins with http:// or https://")
    return url.rstrip("/")


def _lower_case(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


HttpUrl = Annotated[str, AfterValidator(_http_url)]


class Settings(BaseSettings):
    """Everything a process is told from outside. Frozen; an empty environment variable counts as not set.

    ``temporal_address`` None means that ``turngate up`` runs its own server, on ``temporal_port`` (None: a free port,
    the same one again after a restart). ``temporal_tls`` None means TLS when an API key or a certificate is given.
    ``model`` overrides the default model of agents (``provider:name``). Secrets print as asterisks.
    """

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_ignore_empty=True, populate_by_name=True, frozen=True, extra="forbid"
    )

    data_dir: Annotated[Path, AfterValidator(_absolute)] = Field(default=Path(".turngate"), validate_default=True)
    database_url: Annotated[SecretStr, AfterValidator(_database_url)] | None = None

    api_host: str = "127.0.0.1"
    api_port: Port = 8321
    api_url: HttpUrl | None = None

    temporal_address: Annotated[str, AfterValidator(_temporal_address)] | None = Field(
        default=None, validation_alias="TEMPORAL_ADDRESS"
    )
    temporal_namespace: str = Field(default="default", validation_alias="TEMPORAL_NAMESPACE")
    temporal_api_key: SecretStr | None = Field(default=None, validation_alias="TEMPORAL_API_KEY")
    temporal_tls: bool | None = Field(default=None, validation_alias="TEMPORAL_TLS")
    temporal_tls_cert: Path | None = Field(default=None, validation_alias="TEMPORAL_TLS_CERT")
    temporal_tls_key: Path | None = Field(default=None, validation_alias="TEMPORAL_TLS_KEY")
    temporal_tls_server_ca: Path | None = Field(default=None, validation_alias="TEMPORAL_TLS_SERVER_CA")
    temporal_port: Port | None = None
    task_queue: Annotated[str, Field(min_length=1, max_length=200)] = "turngate"
    heartbeat_timeout_seconds: Annotated[int, Field(ge=1, le=3_600)] = 10

    model: str | None = None
    openai_base_url: HttpUrl | None = Field(
        default=None, validation_alias=AliasChoices("TURNGATE_OPENAI_BASE_URL", "OPENAI_BASE_URL")
    )
    openai_api_key: SecretStr | None = Field(
        default=None, validation_alias=AliasChoices("TURNGATE_OPENAI_API_KEY", "OPENAI_API_KEY")
    )

    log_level: Annotated[LogLevel, BeforeValidator(_lower_case)] = "info"
    log_format: Annotated[LogFormat, BeforeValidator(_lower_case)] = "console"

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Settings:
        if (self.temporal_tls_cert is None) != (self.temporal_tls_key is None):
            raise ValueError("set both TEMPORAL_TLS_CERT and TEMPORAL_TLS_KEY, or neither")
        if self.temporal_tls is False and (self.temporal_tls_cert or self.temporal_tls_server_ca):
            raise ValueError("TEMPORAL_TLS is false, but certificates are given: unset one of them")
        return self

    @property
    def resolved_database_url(self) -> str:
        """Return the SQLAlchemy URL (``sqlite`` or ``postgresql+psycopg``). May hold a password."""
        if self.database_url is None:
            return f"sqlite:///{self.data_dir / 'turngate.db'}"
        scheme, _separator, rest = self.database_url.get_secret_value().partition("://")
        return f"{'sqlite' if scheme in SQLITE_SCHEMES else 'postgresql+psycopg'}://{rest}"

    @property
    def resolved_api_url(self) -> str:
        """Return where a client on this machine reaches the API, without a trailing slash."""
        if self.api_url is not None:
            return self.api_url
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.api_host, self.api_host)  # noqa: S104  # read, not bound
        return f"http://{f'[{host}]' if ':' in host else host}:{self.api_port}"

    def ensure_data_dir(self) -> Path:
        """Create ``data_dir`` if need be and prove that it can be written; raises ConfigurationError if not."""
        return ensure_data_dir(self.data_dir)


def load_settings(**overrides: Any) -> Settings:
    """Build settings: ``overrides`` (by field name; None counts as not given) before environment before defaults.

    Raises:
        ConfigurationError: a value is wrong; names every variable that holds one. Secrets are not repeated.
    """
    given = {name: value for name, value in overrides.items() if value is not None}
    try:
        return Settings(**given)
    except ValidationError as error:
        problems = [_describe(issue) for issue in error.errors(include_url=False, include_context=False)]
        raise ConfigurationError(f"settings are wrong: {'; '.join(problems)}", problems=problems) from None


def environment_names(field: str) -> tuple[str, ...]:
    """Return the environment variables a field is read from, first one first; empty for an unknown field."""
    declared = Settings.model_fields.get(field)
    if declared is None:
        return ()
    alias = declared.validation_alias
    if isinstance(alias, str):
        return (alias,)
    if isinstance(alias, AliasChoices):
        return tuple(choice for choice in alias.choices if isinstance(choice, str))
    return (f"{ENV_PREFIX}{field.upper()}",)


def _describe(issue: ErrorDetails) -> str:
    message = issue["msg"].removeprefix("Value error, ")
    if not issue["loc"]:
        return message
    # pydantic reports a field by its first alias when it has one, else by its name.
    reported = str(issue["loc"][0])
    field = next((name for name in Settings.model_fields if reported in (name, *environment_names(name))), reported)
    names = environment_names(field)
    if not names:
        return f"there is no setting {field!r}"
    name = next((candidate for candidate in names if os.environ.get(candidate)), names[0])
    secret = "SecretStr" in str(Settings.model_fields[field].annotation)
    shown = name if secret else f"{name}={issue['input']}"
    return f"{shown}: {message}"
