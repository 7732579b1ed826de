"""Headers a builder configured: to whom they are sent, and that their values are never shown."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import quote

from turngate import ConfigurationError
from turngate.toolkits.http_client.hosts import AllowList, HostPattern, Target

MIN_SECRET_CHARS = 6
"""A shorter value is sent, but not hidden: masking every ``1`` in a page would help no one."""

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # A token (RFC 9110 §5.6.2).
_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
_FRAMING = {"host", "content-length", "transfer-encoding", "connection", "accept-encoding", "te", "upgrade", "trailer"}
_NOT_SECRET = {"accept", "accept-language", "cache-control", "content-type", "from", "referer", "user-agent"}
_ENCODINGS = ("utf-8", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")


@dataclass(frozen=True, kw_only=True, repr=False)
class ConfiguredHeaders:
    """Host → headers. No ``repr``: it would show the values in a traceback.

    ``plain_http``: send them without TLS, too.
    """

    by_host: tuple[tuple[HostPattern, Mapping[str, str]], ...]
    spellings: tuple[str, ...]
    plain_http: bool

    @staticmethod
    def of(headers: Mapping[str, Mapping[str, str]], allow: AllowList, *, plain_http: bool) -> ConfiguredHeaders:
        """Check what was configured: entry of the allow list → header name → value.

        Raises ConfigurationError, naming the header and never its value.
        """
        by_host: list[tuple[HostPattern, Mapping[str, str]]] = []
        spellings: set[str] = set()
        for entry, named in headers.items():
            if not isinstance(named, Mapping):
                raise ConfigurationError("headers go by host: headers={'api.example.com': {'Authorization': …}}")
            pattern = HostPattern.parse(entry)
            if pattern not in allow.patterns:
                raise ConfigurationError(f"headers for {entry!r}, which is not in the allow list: {allow}")
            for name, value in named.items():
                _check(name, value)
                if name.lower() not in _NOT_SECRET:
                    spellings.update(_spellings(value))
            by_host.append((pattern, dict(named)))
        longest_first = sorted(spellings, key=lambda spelling: (-len(spelling), spelling))
        return ConfiguredHeaders(by_host=tuple(by_host), spellings=tuple(longest_first), plain_http=plain_http)

    def for_target(self, target: Target) -> dict[str, str]:
        """Return the headers for this target: none over plain HTTP, unless that was allowed."""
        if target.scheme != "https" and not self.plain_http:
            return {}
        return {
            name: value for pattern, named in self.by_host if pattern.matches(target) for name, value in named.items()
        }

    @property
    def overlap(self) -> int:
        """How many bytes after a cut must be known to see a secret that begins before it."""
        return max(
            (len(spelling.encode(encoding)) for spelling in self.spellings for encoding in _ENCODINGS), default=0
        )

    def hide(self, text: str) -> str:
        """Return the text with each secret masked, in upper or lower case: host names lose theirs."""
        for spelling in self.spellings:
            text = re.sub(re.escape(spelling), "*" * len(spelling), text, flags=re.IGNORECASE)
        return text

    def hide_bytes(self, content: bytes) -> bytes:
        """Return the bytes with each secret masked, in any Unicode encoding; the length stays, so a cut stays in place."""
        for spelling in self.spellings:
            for encoding in _ENCODINGS:
                content = content.replace(spelling.encode(encoding), ("*" * len(spelling)).encode(encoding))
        return content


def _check(name: str, value: str) -> None:
    if not _NAME.fullmatch(name) or name.lower() in _FRAMING:
        raise ConfigurationError(
            f"header {name!r} cannot be configured: the client sets it itself, or it is no header name"
        )
    if not _VALUE.fullmatch(value):
        raise ConfigurationError(
            f"the value of header {name!r} is empty, or holds line breaks, outer spaces or non-ASCII characters"
        )


def _spellings(value: str) -> set[str]:
    """Return the ways a server that echoes its request may write the value: whole, in part, or escaped."""
    scheme, _, credentials = value.partition(" ")
    parts = {value, credentials}
    if scheme.lower() == "basic":
        try:
            user_and_password = base64.b64decode(credentials, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            user_and_password = ""
        parts |= {user_and_password, user_and_password.partition(":")[2]}
    return {spelling for part in parts if len(part) >= MIN_SECRET_CHARS for spelling in _escaped(part)}


def _escaped(part: str) -> Iterator[str]:
    yield part
    yield part.replace("/", "\\/")  # PHP's JSON.
    yield part.replace("\\", "\\\\").replace('"', '\\"')
    yield quote(part, safe="")
