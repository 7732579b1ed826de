"""What a ``[[channel]]`` table may hold. Secrets are named by environment variable, never written down."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from ipaddress import ip_address
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from turngate.domain.policy.policy import Risk
from turngate.notifications.email_channel import Tls
from turngate.notifications.selection import DEFAULT_EVENTS, NOTIFIABLE, Selection
from turngate.toolkits.http_client.hosts import BadUrl, Target

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
    risk_at_least: Risk | None = None
    digest_seconds: int = Field(default=10, ge=0, le=MAX_DIGEST_SECONDS)

    @property
    def selection(self) -> Selection:
        """Which events the channel wants."""
        return Selection(events=self.events, agents=self.agents, tools=self.tools, risk_at_least=self.risk_at_least)


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
        if self.user is not None and self.tls == "none" and not _is_loopback(self.host):
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


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
