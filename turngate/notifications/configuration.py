"""The notifications file (TOML, named by TURNGATE_NOTIFICATIONS) and the environment, read once, into channels that send.

Every error names the file, the channel and the fix, and never a secret.
"""

from __future__ import annotations

import base64
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Final, Literal, Protocol, assert_never

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from turngate.domain.errors import ConfigurationError, NotFoundError
from turngate.domain.policy.policy import Risk
from turngate.domain.tools.failures import describe_validation
from turngate.http_environment import is_loopback
from turngate.notifications.email_channel import EmailSender, Tls
from turngate.notifications.http_post import Poster
from turngate.notifications.items import Payload
from turngate.notifications.message_text import Links
from turngate.notifications.selection import DEFAULT_EVENTS, NOTIFIABLE, Selection
from turngate.notifications.send_results import SendResult
from turngate.notifications.slack_channel import SlackSender
from turngate.notifications.webhook_channel import WebhookSender
from turngate.text_files import NotTextError, read_text
from turngate.toolkits.http_client.hosts import BadUrl, Target

# What a ``[[channel]]`` table may hold. Secrets are named by environment variable, never written down.


MAX_DIGEST_SECONDS: Final = 86_400
_ADDRESS: Final = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?")
"""The common form of an address (HTML's ``input type=email``): ASCII, no quoted local part."""


def _known_events(patterns: list[str]) -> list[str]:
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in NOTIFIABLE):
            raise ValueError(f"{pattern!r} fits no event; there are: {', '.join(NOTIFIABLE)}")
    return patterns


def _address(text: str) -> str:
    if not _ADDRESS.fullmatch(text):
        raise ValueError(f"{text!r} is no plain e-mail address, such as ops@example.com")
    return text


def _no_secret(name: str) -> str:
    if name.startswith("whsec_"):  # would pass for a name, and be repeated as the one that is not set
        raise ValueError("this is a secret itself: put it into an environment variable, and name that here")
    return name


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=200), AfterValidator(_no_secret)]
Patterns = Annotated[list[str], Field(min_length=1)]
Address = Annotated[str, AfterValidator(_address)]


class ChannelTable(BaseModel):
    """What all kinds have in common."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?$")]
    events: Annotated[Patterns, AfterValidator(_known_events)] = list(DEFAULT_EVENTS)
    agents: Patterns | None = None
    tools: Patterns | None = None
    rules: Patterns | None = None
    risk_at_least: Risk | None = None
    digest_seconds: int = Field(default=10, ge=0, le=MAX_DIGEST_SECONDS)

    @property
    def selection(self) -> Selection:
        """Which events the channel wants."""
        return Selection(
            events=self.events, agents=self.agents, tools=self.tools, rules=self.rules, risk_at_least=self.risk_at_least
        )


class WebhookTable(ChannelTable):
    """A webhook by Standard Webhooks. ``secret_env``: one variable, or several while the secret is rotated."""

    type: Literal["webhook"]
    url: str | None = None
    url_env: Variable | None = None
    secret_env: Annotated[list[Variable], BeforeValidator(_listed), Field(min_length=1, max_length=5)]
    allow_private: bool = False

    @model_validator(mode="after")
    def _one_url(self) -> WebhookTable:
        if (self.url is None) == (self.url_env is None):
            raise ValueError('say where to: url = "https://…", or url_env = "VARIABLE" when the URL is a secret')
        if self.url is not None:
            check_url(self.url, allow_private=self.allow_private)
        return self


class SlackTable(ChannelTable):
    """Slack's incoming webhook, or what speaks its format. The URL is the secret, hence only by variable."""

    type: Literal["slack"]
    url_env: Variable
    allow_private: bool = False


class EmailTable(ChannelTable):
    """E-mail by SMTP."""

    type: Literal["email"]
    host: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.-]{0,252}$|^[0-9A-Fa-f:.]+$")]
    port: int = Field(default=587, ge=1, le=65_535)
    tls: Tls = "starttls"
    user: str | None = Field(default=None, min_length=1)
    password_env: Variable | None = None
    sender: Address = Field(alias="from")
    to: Annotated[list[Address], Field(min_length=1, max_length=50)]

    @model_validator(mode="after")
    def _logs_in_safely(self) -> EmailTable:
        if (self.user is None) != (self.password_env is None):
            raise ValueError("give both user and password_env, or neither")
        if self.user is not None and self.tls == "none" and not is_loopback(self.host):
            raise ValueError('the password would travel in the clear: use tls = "starttls" or "tls"')
        return self


AnyTable = WebhookTable | SlackTable | EmailTable


def check_url(url: str, *, allow_private: bool) -> None:
    """Raise ValueError unless messages may be sent there. Names neither host nor path: the URL may be a secret."""
    try:
        target = Target.parse(url)
    except BadUrl as problem:
        raise ValueError(f"the URL cannot be used: {problem.fields['reason']}") from None
    if target.scheme != "https" and not allow_private:
        raise ValueError("the URL must begin with https:// (http:// only with allow_private = true)")


KINDS: Final = ("webhook", "email", "slack")
SECRET_BYTES: Final = (24, 64)
"""How long a webhook's secret is, decoded (Standard Webhooks 1.0, "Signature scheme")."""
_TABLE: Final[TypeAdapter[AnyTable]] = TypeAdapter(Annotated[AnyTable, Field(discriminator="type")])


class Sender(Protocol):
    """One medium, ready to send."""

    async def send(self, delivery_id: str, payload: Payload, created_at: datetime, /) -> SendResult:
        """Send one message and return the result. A repeat passes the same three. Raises only for its own mistakes."""


@dataclass(frozen=True, kw_only=True)
class Channel:
    """One place to send to. ``window``: how long what follows a message is gathered; zero: not at all."""

    name: str
    kind: str
    selection: Selection
    window: timedelta
    sender: Sender


def load_channels(path: Path, environment: Mapping[str, str], links: Links) -> tuple[Channel, ...]:
    """Read the file and the secrets it names; returns the channels in its order.

    Raises:
        ConfigurationError: the file is not there, is no TOML, a channel does not fit, or a variable is missing or wrong.
    """
    return tuple(_channel(table, path, environment, links) for table in read_tables(path))


def named_channel(channels: Sequence[Channel], name: str) -> Channel:
    """Return the channel of this name; raises NotFoundError naming those there are."""
    for channel in channels:
        if channel.name == name:
            return channel
    there_are = ", ".join(channel.name for channel in channels) or "none"
    raise NotFoundError(f"there is no channel {name!r}; there are: {there_are}")


def read_tables(path: Path) -> list[AnyTable]:
    """Read the file alone. Raises ConfigurationError as above."""
    try:
        document = tomllib.loads(read_text(path))
    except OSError as error:
        raise ConfigurationError(
            f"notifications file {path} cannot be read ({error.strerror}): set TURNGATE_NOTIFICATIONS to a file that is there"
        ) from None
    except (tomllib.TOMLDecodeError, NotTextError) as error:
        raise ConfigurationError(f"notifications file {path} is not TOML: {error}") from None
    tables = document.pop("channel", [])
    if document or not isinstance(tables, list) or not tables:
        stray = f", and not {next(iter(document))!r}" if document else ""
        raise ConfigurationError(f"notifications file {path} holds one or more [[channel]] tables{stray}")
    read: list[AnyTable] = []
    for place, table in enumerate(tables, 1):
        read.append(_table(table, place, path))
        if any(earlier.name == read[-1].name for earlier in read[:-1]):
            raise _wrong(path, repr(read[-1].name), "another channel has this name: give each its own")
    return read


def _table(table: object, place: int, path: Path) -> AnyTable:
    named = table.get("name") if isinstance(table, dict) else None
    called = repr(named) if isinstance(named, str) else f"number {place}"
    kind = table.get("type") if isinstance(table, dict) else None
    if kind not in KINDS:
        raise _wrong(path, called, f"type is one of {', '.join(KINDS)}" + ("" if kind is None else f", not {kind!r}"))
    try:
        return _TABLE.validate_python(table)
    except ValidationError as error:
        message = describe_validation(error).replace(f"{kind}.", "").replace(f"{kind}: Value error, ", "")
        raise _wrong(path, called, message.replace("Value error, ", "")) from None


def _channel(table: AnyTable, path: Path, environment: Mapping[str, str], links: Links) -> Channel:
    variables = _Variables(table.name, path, environment)
    return Channel(
        name=table.name,
        kind=table.type,
        selection=table.selection,
        window=timedelta(seconds=table.digest_seconds),
        sender=_sender(table, variables, links),
    )


def _sender(table: AnyTable, variables: _Variables, links: Links) -> Sender:
    match table:
        case WebhookTable():
            url = table.url or variables.url(table.url_env or "", allow_private=table.allow_private)
            secrets = [variables.webhook_secret(name) for name in table.secret_env]
            return WebhookSender(
                poster=Poster(url=url, allow_private=table.allow_private), secrets=secrets, links=links
            )
        case SlackTable():
            url = variables.url(table.url_env, allow_private=table.allow_private)
            return SlackSender(poster=Poster(url=url, allow_private=table.allow_private), links=links)
        case EmailTable():
            password = None if table.password_env is None else SecretStr(variables.text(table.password_env))
            return EmailSender(
                channel=table.name,
                host=table.host,
                port=table.port,
                tls=table.tls,
                user=table.user,
                password=password,
                sender=table.sender,
                to=table.to,
                links=links,
            )
        case _:
            assert_never(table)


@dataclass(frozen=True, repr=False)
class _Variables:
    """Reads what a channel names in the environment."""

    channel: str
    path: Path
    environment: Mapping[str, str]

    def text(self, name: str) -> str:
        value = self.environment.get(name, "")
        if not value:
            raise _wrong(
                self.path, repr(self.channel), f"the environment variable {name} is not set: set it for the API"
            )
        return value

    def url(self, name: str, *, allow_private: bool) -> str:
        url = self.text(name).strip()
        try:
            check_url(url, allow_private=allow_private)
        except ValueError as problem:
            raise _wrong(self.path, repr(self.channel), f"in {name}, {problem}") from None
        return url

    def webhook_secret(self, name: str) -> SecretStr:
        secret = self.text(name).strip()
        encoded = secret.removeprefix("whsec_").rstrip("=")  # with or without padding, as the library takes it
        try:
            size = len(base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True))
        except ValueError:
            size = 0
        fewest, most = SECRET_BYTES
        if not secret.startswith("whsec_") or not fewest <= size <= most:
            raise _wrong(
                self.path,
                repr(self.channel),
                f"{name} must be whsec_ and {fewest} to {most} bytes in base64; make one with: "
                'echo "whsec_$(openssl rand -base64 32)"',
            )
        return SecretStr(secret)


def _wrong(path: Path, channel: str, problem: str) -> ConfigurationError:
    return ConfigurationError(f"notifications file {path}, channel {channel}: {problem}")
