"""URLs and the allow list: what a URL really names, and whether that is allowed. Pure; looks nothing up.

A URL is parsed once, strictly, into a :class:`Target`; what was checked is what is sent. Two parsers that disagree on
where the host ends are how allow lists are fooled, so a URL that could be read in two ways is refused, not repaired.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass

import httpx

from turngate import ConfigurationError, ToolFailure

MAX_URL_CHARS = 8_000
_SHOWN_CHARS = 500
_SHOWN_ENTRIES = 50

_URL = re.compile(r"(?i:https?)://([^/?#]*)([/?#].*)?")
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s%\\:\[\]]+)(:[0-9]{1,5})?")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMERIC_LABEL = re.compile(r"\d+|0x[0-9a-f]*")
_MAX_HOST_CHARS = 253
_MAX_PORT = 65535
_DEFAULT_PORTS = {"http": 80, "https": 443}


class BadUrl(ToolFailure):
    """The URL is not one that can be requested. ``url`` as it was given, clipped."""

    url: str
    reason: str


class HostNotAllowed(ToolFailure):
    """The host is not one of those this tool may talk to. ``allowed``: those it may."""

    host: str
    reason: str
    allowed: list[str]


@dataclass(frozen=True, kw_only=True)
class Target:
    """A URL that was checked. ``host``: lower case, IDNA-encoded, no trailing dot, IPv6 without brackets."""

    url: httpx.URL
    scheme: str
    host: str
    port: int

    @staticmethod
    def parse(text: str) -> Target:
        """Parse an absolute http(s) URL strictly; its fragment is dropped. Raises BadUrl."""
        matched = _URL.fullmatch(text) if len(text) <= MAX_URL_CHARS and not _UNPRINTABLE.search(text) else None
        if matched is None:
            raise _bad(
                text, f"give an absolute http:// or https:// URL of at most {MAX_URL_CHARS} printable characters"
            )
        if "@" in matched[1]:
            raise _bad(text, "a URL must not hold a user name or password")
        if not _AUTHORITY.fullmatch(matched[1]):
            raise _bad(text, "the host must not hold spaces, backslashes or %-escapes, and the port is a number")
        try:
            url = httpx.URL(text).copy_with(fragment=None)
            host = _normal_host(url.raw_host.decode("ascii"))
            port = _port(url)
            url = url.copy_with(host=host)
        except (httpx.InvalidURL, ValueError) as error:
            raise _bad(text, str(error)) from None
        return Target(url=url, scheme=url.scheme, host=host, port=port)

    @property
    def origin(self) -> tuple[str, str, int]:
        """Scheme, host and port: what credentials belong to (RFC 6454)."""
        return self.scheme, self.host, self.port


@dataclass(frozen=True, kw_only=True)
class HostPattern:
    """One entry of an allow list. ``wildcard``: any name *below* ``host``; ``port`` None: the scheme's own port."""

    host: str
    wildcard: bool = False
    port: int | None = None

    @staticmethod
    def parse(entry: str) -> HostPattern:
        """Parse ``host``, ``host:port``, ``*.host`` or ``*.host:port``; raises ConfigurationError saying the fix."""
        wildcard = entry.startswith("*.")
        bare = entry.removeprefix("*.")
        try:
            if re.search(r"[/?#*]", bare):
                raise _bad(entry, "only a host belongs here, without scheme or path, and `*.` only in front")
            target = Target.parse(f"http://{bare}")
            if wildcard and _is_address(target.host):
                raise _bad(entry, "an IP address has no names below it")
        except BadUrl as failure:
            raise ConfigurationError(
                f"{entry!r} is no host to allow: {failure.fields['reason']}. Write it like 'api.example.com', "
                "'*.example.com' or 'localhost:8080'"
            ) from None
        has_port = re.search(r":[0-9]+$", bare) is not None
        return HostPattern(host=target.host, wildcard=wildcard, port=target.port if has_port else None)

    def matches(self, target: Target) -> bool:
        """Tell whether the target is at this host and port."""
        if target.port != (self.port or _DEFAULT_PORTS[target.scheme]):
            return False
        # The dot is part of the suffix: `evil-example.com` ends with `example.com`, and is someone else's.
        return target.host.endswith(f".{self.host}") if self.wildcard else target.host == self.host

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'*.' if self.wildcard else ''}{host}{'' if self.port is None else f':{self.port}'}"


@dataclass(frozen=True)
class AllowList:
    """The hosts a tool may talk to."""

    patterns: tuple[HostPattern, ...]

    @staticmethod
    def of(entries: Sequence[str]) -> AllowList:
        """Parse the entries; raises ConfigurationError when there are none or one is wrong."""
        if isinstance(entries, str) or not entries:
            raise ConfigurationError("give the hosts to allow as a list, such as allow=['api.example.com']")
        return AllowList(tuple(HostPattern.parse(entry) for entry in entries))

    def permits(self, target: Target) -> bool:
        """Tell whether an entry matches."""
        return any(pattern.matches(target) for pattern in self.patterns)

    def check(self, target: Target) -> None:
        """Raise HostNotAllowed unless an entry matches."""
        if not self.permits(target):
            raise self.refusal(target.host, f"{target.host}:{target.port} is not allowed; use one of: {self}")

    def refusal(self, host: str, reason: str) -> HostNotAllowed:
        """Return the failure for a host that may not be talked to."""
        return HostNotAllowed(host=host, reason=reason, allowed=[str(each) for each in self._first()])

    def __str__(self) -> str:
        left = len(self.patterns) - _SHOWN_ENTRIES
        return ", ".join(map(str, self._first())) + (f" and {left} more" if left > 0 else "")

    def _first(self) -> tuple[HostPattern, ...]:
        return self.patterns[:_SHOWN_ENTRIES]


def clipped(text: str, limit: int = _SHOWN_CHARS) -> str:
    """Return the text fit to be shown: printable, and at most ``limit`` characters and an ellipsis."""
    printable = _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)
    return printable if len(printable) <= limit else f"{printable[:limit]}…"


def _bad(url: str, reason: str) -> BadUrl:
    return BadUrl(url=clipped(url), reason=reason)


def _normal_host(host: str) -> str:
    """Return the one spelling of a host; raises ValueError for what is no host name and no plain IP address."""
    if ":" in host:
        return str(ipaddress.IPv6Address(host))
    name = host.lower().removesuffix(".")
    labels = name.split(".")
    # `127.1`, `2130706433`, `0x7f.0.0.1` and `0177.0.0.1` are all 127.0.0.1 to a C library and to a browser. A name
    # whose last label is a number is an IPv4 address or nothing (WHATWG URL, "ends in a number").
    if _NUMERIC_LABEL.fullmatch(labels[-1]):
        try:
            return str(ipaddress.IPv4Address(name))
        except ValueError:
            raise ValueError("write an IPv4 address as four decimal numbers") from None
    if len(name) > _MAX_HOST_CHARS or not all(_LABEL.fullmatch(label) for label in labels):
        raise ValueError("that is no host name")
    return name


def _port(url: httpx.URL) -> int:
    port = _DEFAULT_PORTS[url.scheme] if url.port is None else url.port
    if not 0 < port <= _MAX_PORT:
        raise ValueError("the port must be between 1 and 65535")
    return port


def _is_address(host: str) -> bool:
    return ":" in host or _NUMERIC_LABEL.fullmatch(host.rsplit(".", 1)[-1]) is not None
