"""The notifications file (TOML, named by TURNGATE_NOTIFICATIONS) and the environment, read once, into channels that send.

Every error names the file, the channel and the mend, and never a secret.
"""

from __future__ import annotations

import base64
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Final, Protocol, assert_never

from pydantic import Field, SecretStr, TypeAdapter, ValidationError

from turngate.domain.errors import ConfigurationError, NotFoundError
from turngate.domain.tools.failures import describe_validation
from turngate.notifications.channel_tables import (
    AnyTable,
    EmailTable,
    SlackTable,
    WebhookTable,
    check_url,
)
from turngate.notifications.email_channel import EmailSender
from turngate.notifications.http_sending import Poster
from turngate.notifications.items import Payload
from turngate.notifications.outcomes import Outcome
from turngate.notifications.selection import Selection
from turngate.notifications.slack_channel import SlackSender
from turngate.notifications.webhook_channel import WebhookSender
from turngate.notifications.wording import Links

KINDS: Final = ("webhook", "email", "slack")
SECRET_BYTES: Final = (24, 64)
"""How long a webhook's secret is, decoded (Standard Webhooks 1.0, "Signature scheme")."""
_TABLE: Final[TypeAdapter[AnyTable]] = TypeAdapter(Annotated[AnyTable, Field(discriminator="type")])


class Sender(Protocol):
    """One medium, ready to send."""

    async def send(self, delivery_id: str, payload: Payload, created_at: datetime, /) -> Outcome:
        """Send one message and say what came of it. A repeat passes the same three. Raises only for its own mistakes."""


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
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(
            f"notifications file {path} cannot be read ({error.strerror}): set TURNGATE_NOTIFICATIONS to a file that is there"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
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
        said = describe_validation(error).replace(f"{kind}.", "").replace(f"{kind}: Value error, ", "")
        raise _wrong(path, called, said.replace("Value error, ", "")) from None


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
