"""Settings: what the environment and the command line say, checked once, passed on by the composition roots.

There is no global instance. Build one with :func:`load_settings`, so that a wrong value is reported by the name of the
environment variable that holds it. Temporal's own variables keep the names Temporal's tools use (``TEMPORAL_ADDRESS``,
https://docs.temporal.io/references/client-environment-configuration); everything else begins with ``TURNGATE_``.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from datetime import timedelta
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, AliasChoices, BeforeValidator, Field, SecretStr, ValidationError, model_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from turngate.domain.errors import ConfigurationError, MissingExtraError
from turngate.domain.text.sqlite_urls import sqlite_file, sqlite_url
from turngate.runtime.locations import (
    data_dir_of_stack,
    default_data_dir,
    ensure_data_dir,
)
from turngate.runtime.secret_files import SUFFIX, secrets_from_files
from turngate.runtime.traces.switch import Traces, TraceSettings, trace_settings

ENV_PREFIX: Final = "TURNGATE_"
HOST_AND_PORT: Final = re.compile(r"[^\s/]+:\d{1,5}")

SQLITE_SCHEMES: Final = ("sqlite",)
POSTGRESQL_SCHEMES: Final = ("postgres", "postgresql", "postgresql+psycopg")

ALIKE: Final = 0.75
"""Of 1: how much a variable resembles a setting that it misspells, both without the prefix."""
NO_SETTINGS: Final = frozenset({"TOKEN", "URL", "COMMAND", "APP", "APP_DIR"})
"""Variables of clients, of tools' processes and of the compose file."""
OIDC_PACKAGES: Final = ("itsdangerous", "joserfc")
PROVIDER_ADDRESS: Final = "_BASE_URL"
"""A model provider's address has a variable by the provider's name."""

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["console", "json"]
Port = Annotated[int, Field(ge=1, le=65_535)]
AtOnce = Annotated[int, Field(ge=1, le=10_000)]


def _absolute(path: Path) -> Path:
    return path.expanduser().resolve()


def _database_url(url: SecretStr) -> SecretStr:
    scheme, separator, rest = url.get_secret_value().partition("://")
    if not separator or scheme not in SQLITE_SCHEMES + POSTGRESQL_SCHEMES:
        # The URL may hold a password: it is never repeated in a message.
        raise ValueError("must begin with sqlite:/// or postgresql://")
    if scheme in SQLITE_SCHEMES:
        _require_file(rest)
    else:
        _require_server(rest)
    return url


def _require_file(rest: str) -> None:
    path, _mark, query = rest.partition("?")
    if not path.startswith("/") or path[1:] in {"", ":memory:"}:
        raise ValueError("must name a file: sqlite:///relative/path or sqlite:////absolute/path")
    if query and not all("=" in each for each in query.split("&")):
        raise ValueError("has a ?, after which come options: in a path, write it as %3F (and % as %25)")


def _require_server(rest: str) -> None:
    # As SQLAlchemy reads it: a password may have anything but an @.
    credentials, at, after = rest.partition("@")
    address = after if at and "/" not in credentials.partition(":")[0] else rest
    host = re.split("[/?]", address, maxsplit=1)[0]
    if "@" in host:
        raise ValueError("has more than one @ before the host: in the password, write @ as %40 (and % as %25)")
    port = host.rpartition("]")[2].partition(":")[2]
    if port and not re.fullmatch("[0-9]{1,5}", port):
        raise ValueError("has no port after the host's colon: write postgresql://USER:PASSWORD@HOST:PORT/NAME")


def _temporal_address(address: str) -> str:
    if not HOST_AND_PORT.fullmatch(address):
        raise ValueError("must be HOST:PORT without a scheme, such as temporal.example.com:7233")
    return address


def _http_url(url: str) -> str:
    if not re.match(r"https?://[^\s/]", url):
        raise ValueError("must be a URL that begins with http:// or https://")
    return url.rstrip("/")


_PUBLIC_PATH: Final = re.compile(r"(?:/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*")
"""Of segments that no proxy rewrites; none begins with a dot."""


def _public_url(url: str) -> str:
    try:
        address = urlsplit(_http_url(url))
        is_whole = address.hostname is not None and address.port != 0
    except ValueError as error:
        raise ValueError(f"must be an address such as https://turngate.example.com: {error}") from None
    if "?" in url or "#" in url or address.username is not None or not is_whole:
        raise ValueError(
            "must be an address without a query, a fragment or a user, such as https://turngate.example.com"
        )
    if not _PUBLIC_PATH.fullmatch(address.path):
        raise ValueError("has a path with other characters than letters, digits and . _ ~ -: use one such as /turngate")
    return address.geturl()


def _build_id(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._+-]{1,200}", name):
        raise ValueError("must be up to 200 letters, digits, dots, plus and minus signs and underscores")
    return name


def _deployment_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,200}", name):  # Temporal joins it to the build by a dot or a colon
        raise ValueError("must be up to 200 letters, digits, minus signs and underscores")
    return name


def _lower_case(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def _issuer(url: str) -> str:
    """Return the issuer unchanged: it is compared letter by letter, so no slash is removed."""
    if not re.match(r"https://[^\s/?#]|http://(127\.|localhost[:/]|\[::1\])", url) or re.search(r"[\s?#]", url):
        raise ValueError("must be the issuer as the provider spells it, beginning with https://")
    return url


def _command(line: str) -> str:
    try:
        shlex.split(line)
    except ValueError as error:
        raise ValueError(f"cannot be split into words: {error}") from None
    return line


def _split(value: object) -> object:
    return frozenset(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def _paths(value: object) -> object:
    if not isinstance(value, str):
        return value
    return tuple(_absolute(Path(part)) for part in value.split(os.pathsep) if part)


CommaSeparated = Annotated[frozenset[str], NoDecode, BeforeValidator(_split)]
HttpUrl = Annotated[str, AfterValidator(_http_url)]
PublicUrl = Annotated[str, AfterValidator(_public_url)]


class Settings(BaseSettings):
    """Everything that is configured from outside. Frozen; an empty environment variable counts as not set.

    ``temporal_address`` None means that ``turngate up`` runs its own server, on ``temporal_port`` (None: a free port,
    the same one again after a restart). ``temporal_ui_url``: where Temporal's own pages are, for links; None: unknown,
    unless ``turngate up --temporal-ui`` serves them. ``temporal_tls`` None means TLS if an API key or a certificate is set.
    ``public_url``: where people's browsers reach the pages (links in notifications lead there), with a path or without; None: the
    same URL as on this machine. ``notifications``: the file that says who is notified of what. ``model`` overrides the agents'
    default model (``provider:name`` or a profile's name). ``models_file``: the file of profiles; None: ``models.toml`` in the
    data directory, or else next to the app, if it exists. Secrets print as asterisks, and may come from a file:
    ``TURNGATE_DATABASE_URL_FILE``.

    ``tool_calls_at_once``, ``model_requests_at_once``: of one worker; the others wait in Temporal, oldest first. Without a
    number, model requests share the tools' slots. ``streaming``: watchers see a model's answer while it arrives.
    ``workspaces``: the directories in which and below which runs may work; None: where ``turngate up`` was started, and none
    for ``turngate worker`` and ``turngate api``.
    ``tool_user``: the system's user that tools' processes become where neither bubblewrap nor Landlock works.
    ``tool_paths``: what they may read besides the system's programs. ``tool_networks``: the private networks
    that those with the network reach. ``allow_unconfined``: start them where nothing works.
    ``health_file``: a worker sets its time while its event loop runs, for a probe; None: none.
    ``stop_grace_seconds``: how long tools and model requests of a worker, and requests of an API, may continue after the process
    must stop. ``drain_seconds``: how long ``turngate api`` still serves after that, while /readyz says that it stops, so that
    a balancer sends no more; None: 5, and 0 where the API is bound to loopback.
    ``build_id``: of ``turngate worker``, whose runs then stay with workers of that build; None: it takes every run.
    ``search_attributes``, ``priority``, ``fairness``: how Temporal finds runs and orders their work; False: it isn't told.
    ``deployment_name``: the name under which Temporal groups those builds; different for each stack in a namespace.

    ``metrics_port``: where this process serves metrics for Prometheus, on ``metrics_host``; None: nowhere.

    ``retention``: the file that says what is kept for how long; None: everything is kept. ``retention_every_seconds``: how often
    an API applies it; 0: only ``turngate retention run`` does.
    ``session_idle_seconds``: after this time without a request, a browser must log in again. ``rate_limits`` None: failed
    log-ins are limited, and requests if the API is not bound to loopback; True: both always; False: neither.
    ``audit_key_file``, ``audit_heads``: the key that signs the audit log, and the file that the signed lines are added to, at
    least every ``audit_every`` events; both or neither. ``audit_heads_command`` gets each line on its standard input, too.
    ``key``, ``key_service``: the deployment's own key, with which stored content is encrypted;
    None: it isn't. ``former_key``, ``former_key_service``: the one before it, until keys are rotated.
    ``offer_rule_after``: so many calls like one, all approved, offer an admin a rule; 0: none is offered.
    ``policy_four_eyes``: stored rules that may let more run unasked wait until a second admin confirms them.
    ``traces``: ``auto`` exports them where OpenTelemetry's own variables name a collector; ``trace_names``: with people's names.
    ``oidc_*``: an OpenID provider with which people log in; comma-separated values of ``oidc_role_claim`` give the roles,
    which are asked for again after ``oidc_session_seconds``.
    """

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_ignore_empty=True, populate_by_name=True, frozen=True, extra="forbid"
    )

    data_dir: Annotated[Path, AfterValidator(_absolute)] = Field(
        default_factory=default_data_dir, validate_default=True
    )
    database_url: Annotated[SecretStr, AfterValidator(_database_url)] | None = None

    api_host: str = "127.0.0.1"
    api_port: Port = 8321
    api_url: PublicUrl | None = None
    public_url: PublicUrl | None = None
    drain_seconds: Annotated[int, Field(ge=0, le=600)] | None = None
    stop_grace_seconds: Annotated[int, Field(ge=0, le=86_400)] = 5
    notifications: Annotated[Path, AfterValidator(_absolute)] | None = None

    retention: Annotated[Path, AfterValidator(_absolute)] | None = None
    retention_every_seconds: Annotated[int, Field(ge=0, le=2_592_000)] = 86_400

    session_idle_seconds: Annotated[int, Field(ge=60, le=43_200)] = 7_200
    rate_limits: bool | None = None
    rate_limit_per_second: Annotated[float, Field(gt=0, le=10_000)] = 20
    rate_limit_burst: Annotated[int, Field(ge=1, le=100_000)] = 200
    login_limit_per_name: Annotated[int, Field(ge=1, le=1_000)] = 5
    login_limit_per_address: Annotated[int, Field(ge=1, le=10_000)] = 20

    approval_pace: Annotated[int, Field(ge=0, le=1_000)] = 6
    offer_rule_after: Annotated[int, Field(ge=0, le=200)] = 10
    policy_four_eyes: bool = False

    audit_key_file: Annotated[Path, AfterValidator(_absolute)] | None = None
    audit_heads: Annotated[Path, AfterValidator(_absolute)] | None = None
    audit_heads_command: Annotated[str, AfterValidator(_command)] | None = None
    audit_every: Annotated[int, Field(ge=1, le=10_000)] = 100

    key: SecretStr | None = None
    key_service: str | None = None
    former_key: SecretStr | None = None
    former_key_service: str | None = None

    oidc_issuer: Annotated[str, AfterValidator(_issuer)] | None = None
    oidc_client_id: str | None = None
    oidc_client_secret: SecretStr | None = None
    oidc_scopes: str = "openid profile email"
    oidc_role_claim: Annotated[str, Field(min_length=1)] = "groups"
    oidc_admin_values: CommaSeparated = frozenset()
    oidc_operator_values: CommaSeparated = frozenset()
    oidc_viewer_values: CommaSeparated = frozenset()
    oidc_session_seconds: Annotated[int, Field(ge=300, le=12 * 3_600)] = 3_600
    oidc_default_role: Annotated[Literal["none", "viewer", "operator"], BeforeValidator(_lower_case)] = "none"

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
    temporal_ui_url: HttpUrl | None = None
    task_queue: Annotated[str, Field(min_length=1, max_length=200)] = "turngate"
    build_id: Annotated[str, AfterValidator(_build_id)] | None = None
    health_file: Annotated[Path, AfterValidator(_absolute)] | None = None
    deployment_name: Annotated[str, AfterValidator(_deployment_name)] = "turngate"
    heartbeat_timeout_seconds: Annotated[int, Field(ge=1, le=3_600)] = 10
    search_attributes: bool = True
    priority: bool = True
    fairness: bool = True
    tool_calls_at_once: AtOnce = 100
    model_requests_at_once: AtOnce | None = None

    model: str | None = None
    models_file: Annotated[Path, AfterValidator(_absolute)] | None = None
    streaming: bool = True
    workspaces: Annotated[tuple[Path, ...] | None, NoDecode, BeforeValidator(_paths)] = None
    tool_user: Annotated[str, Field(min_length=1)] | None = None
    tool_paths: Annotated[tuple[Path, ...], NoDecode, BeforeValidator(_paths)] = ()
    tool_networks: CommaSeparated = frozenset()
    allow_unconfined: bool = False
    openai_base_url: HttpUrl | None = Field(
        default=None, validation_alias=AliasChoices("TURNGATE_OPENAI_BASE_URL", "OPENAI_BASE_URL")
    )
    openai_api_key: SecretStr | None = Field(
        default=None, validation_alias=AliasChoices("TURNGATE_OPENAI_API_KEY", "OPENAI_API_KEY")
    )

    metrics_host: str = "127.0.0.1"
    metrics_port: Port | None = None

    log_level: Annotated[LogLevel, BeforeValidator(_lower_case)] = "info"
    log_format: Annotated[LogFormat, BeforeValidator(_lower_case)] = "console"
    traces: Annotated[Traces, BeforeValidator(_lower_case)] = "auto"
    trace_names: bool = False

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Settings:
        if (self.temporal_tls_cert is None) != (self.temporal_tls_key is None):
            raise ValueError("set both TEMPORAL_TLS_CERT and TEMPORAL_TLS_KEY, or neither")
        if self.temporal_tls is False and (self.temporal_tls_cert or self.temporal_tls_server_ca):
            raise ValueError("TEMPORAL_TLS is false, but certificates are set: unset one of them")
        return self

    @model_validator(mode="after")
    def _signing_is_whole(self) -> Settings:
        if (self.audit_key_file is None) != (self.audit_heads is None):
            raise ValueError("set both TURNGATE_AUDIT_KEY_FILE and TURNGATE_AUDIT_HEADS, or neither")
        if self.audit_heads_command is not None and self.audit_heads is None:
            raise ValueError("TURNGATE_AUDIT_HEADS_COMMAND is of no use without TURNGATE_AUDIT_HEADS: set that too")
        return self

    @model_validator(mode="after")
    def _oidc_is_whole(self) -> Settings:
        present = [each for each in ("oidc_client_id", "oidc_client_secret") if getattr(self, each) is not None]
        if self.oidc_issuer is None:
            if present:
                names = ", ".join(f"{ENV_PREFIX}{each.upper()}" for each in present)
                raise ValueError(f"{names} is of no use without TURNGATE_OIDC_ISSUER: set that too")
            return self
        if self.oidc_client_id is None:
            raise ValueError("set TURNGATE_OIDC_CLIENT_ID too: the provider gives it to you")
        if self.oidc_client_secret is None:
            raise ValueError("set either TURNGATE_OIDC_CLIENT_SECRET or TURNGATE_OIDC_CLIENT_SECRET_FILE")
        if "openid" not in self.oidc_scopes.split():
            raise ValueError("TURNGATE_OIDC_SCOPES must contain openid")
        if not all(map(find_spec, OIDC_PACKAGES)):
            raise MissingExtraError("The log-in by OpenID (TURNGATE_OIDC_ISSUER)", "oidc")
        return self

    @property
    def session_idle(self) -> timedelta:
        """Return the time without a request after which a session ends."""
        return timedelta(seconds=self.session_idle_seconds)

    @property
    def resolved_database_url(self) -> str:
        """Return the SQLAlchemy URL (``sqlite`` or ``postgresql+psycopg``). May contain a password."""
        if self.database_url is None:
            return sqlite_url(self.data_dir / "turngate.db")
        scheme, _separator, rest = self.database_url.get_secret_value().partition("://")
        return f"{'sqlite' if scheme in SQLITE_SCHEMES else 'postgresql+psycopg'}://{rest}"

    @property
    def tracing(self) -> TraceSettings | None:
        """Return how this process exports traces; None: it doesn't. Raises ConfigurationError when it should and can't."""
        return trace_settings(self.traces, os.environ, with_names=self.trace_names)

    @property
    def database_files(self) -> tuple[Path, ...]:
        """Return the file of an SQLite store; empty for a server's."""
        url = self.resolved_database_url
        return (sqlite_file(url),) if url.startswith(SQLITE_SCHEMES) else ()

    @property
    def heads_command(self) -> tuple[str, ...]:
        """Return the words of ``audit_heads_command``; none: it isn't set."""
        return tuple(shlex.split(self.audit_heads_command or ""))

    @property
    def obeyed_files(self) -> tuple[Path, ...]:
        """Return the files that a process of this deployment obeys, runs or trusts because a setting names them."""
        named = (
            self.notifications,
            self.retention,
            self.temporal_tls_cert,
            self.temporal_tls_key,
            self.temporal_tls_server_ca,
        )
        words = (Path(word) for word in self.heads_command)
        return (*(path for path in named if path is not None), *(word for word in words if word.is_file()))

    @property
    def resolved_api_url(self) -> str:
        """Return where a client on this machine reaches the API, without a trailing slash."""
        if self.api_url is not None:
            return self.api_url
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.api_host, self.api_host)  # noqa: S104  # read, not bound
        return f"http://{f'[{host}]' if ':' in host else host}:{self.api_port}"

    @property
    def resolved_public_url(self) -> str:
        """Return where people's browsers reach the pages, without a trailing slash."""
        return self.public_url or self.resolved_api_url

    def ensure_data_dir(self) -> Path:
        """Create ``data_dir`` if necessary and prove that it can be written. Raises ConfigurationError if not."""
        return ensure_data_dir(self.data_dir)


def load_settings(**overrides: Any) -> Settings:
    """Build settings: ``overrides`` (by field name; None counts as absent) before environment before defaults.

    Raises:
        ConfigurationError: a value is wrong; names every variable with a wrong value. Secrets are not repeated.
    """
    present = {name: value for name, value in overrides.items() if value is not None}
    secrets = {
        field: environment_names(field) for field in Settings.model_fields if _is_secret(field) and field not in present
    }
    present |= secrets_from_files(secrets, os.environ)
    try:
        settings = Settings(**present)
    except ValidationError as error:
        problems = [_describe(issue) for issue in error.errors(include_url=False, include_context=False)]
        raise ConfigurationError(f"settings are wrong: {'; '.join(problems)}", problems=problems) from None
    return settings


def load_stack_settings(**overrides: Any) -> Settings:
    """Build settings for a command that uses a stack, as :func:`load_settings`.

    Unless a data directory is named, it is that of the stack that runs for the current directory.
    """
    settings = load_settings(**overrides)
    if "data_dir" not in settings.model_fields_set:
        settings = settings.model_copy(update={"data_dir": data_dir_of_stack()})
    return settings


def unknown_variables(environment: Mapping[str, str], named_in: str = "") -> list[str]:
    """Return a sentence for each variable that begins with ``TURNGATE_`` and is no setting.

    ``named_in``: the text of a file that may name variables of its own, such as that of the notifications.
    """
    names = [name for field in Settings.model_fields for name in environment_names(field)]
    known = {name.removeprefix(ENV_PREFIX): name for name in reversed(names)}
    known |= {
        name.removeprefix(ENV_PREFIX) + SUFFIX: name + SUFFIX
        for field in Settings.model_fields
        if _is_secret(field)
        for name in environment_names(field)
    }
    sentences = []
    for name in sorted(environment):
        word = name.upper().removeprefix(ENV_PREFIX)
        if not name.upper().startswith(ENV_PREFIX) or word in NO_SETTINGS or word.endswith(PROVIDER_ADDRESS):
            continue
        if known.get(word) == name.upper() or name in named_in:
            continue
        similar = get_close_matches(word, known, 1, ALIKE)
        meant = f"Did you mean {known[similar[0]]}?" if similar else "It changes nothing, unless your own app reads it."
        sentences.append(f"{name} is no setting. {meant}")
    return sentences


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
    # pydantic reports a field by its first alias if it has one, else by its name.
    reported = str(issue["loc"][0])
    field = next((name for name in Settings.model_fields if reported in (name, *environment_names(name))), reported)
    names = environment_names(field)
    if not names:
        return f"there is no setting {field!r}"
    name = next((candidate for candidate in names if os.environ.get(candidate)), names[0])
    return f"{name}: {message}" if _is_secret(field) else f"{name}={issue['input']}: {message}"


def _is_secret(field: str) -> bool:
    return "SecretStr" in str(Settings.model_fields[field].annotation)
