"""One call of the API as a value: what to send, and how to read the answer. Sends nothing.

Each endpoint is described once, as a function that returns a :class:`Call`; both clients are made from those functions.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, Literal, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel

from turngate import __version__
from turngate.domain.errors import InvalidInputError
from turngate.wire.events import HEARTBEAT_SECONDS

Result = TypeVar("Result")
Model = TypeVar("Model", bound=BaseModel)
Method = Literal["GET", "POST", "DELETE", "PUT", "PATCH"]
MAX_KEY_CHARS: Final = 255


@dataclass(frozen=True, kw_only=True)
class Call(Generic[Result]):
    """A call. ``path``: below ``/api/v1``, quoted. ``params``: without those left out. ``key``: its Idempotency-Key.

    ``read``: makes the answer of a successful response; its ValueError means that this was no answer of Turngate's.
    ``same_again``: the server knows a repeat by what it says.
    """

    method: Method
    path: str
    read: Callable[[httpx.Response], Result]
    params: Mapping[str, str | int] = field(default_factory=dict)
    content: str | None = None
    key: str | None = None
    same_again: bool = False

    @property
    def is_repeatable(self) -> bool:
        """Whether sending it twice is the same as sending it once."""
        return self.method == "GET" or self.key is not None or self.same_again

    @property
    def headers(self) -> dict[str, str]:
        """The headers of this call alone."""
        body = {} if self.content is None else {"Content-Type": "application/json"}
        return body if self.key is None else {**body, "Idempotency-Key": self.key}

    def after(self, cursor: str) -> Call[Result]:
        """Return the same call for the page that begins at ``cursor``."""
        return replace(self, params={**self.params, "cursor": cursor})


def get(path: str, read: Callable[[httpx.Response], Result], **params: str | int | None) -> Call[Result]:
    """Return a call that reads; parameters that are None are left out."""
    return Call(method="GET", path=path, read=read, params=without_none(params))


def post(
    path: str, read: Callable[[httpx.Response], Result], body: Mapping[str, Any] | str, *, key: str | None = None
) -> Call[Result]:
    """Return a call that changes something. ``body``: a JSON object, or its very text."""
    content = body if isinstance(body, str) else json.dumps(body)
    return Call(method="POST", path=path, read=read, content=content, key=key)


def change(
    method: Method, path: str, read: Callable[[httpx.Response], Result], body: Mapping[str, Any] | None = None
) -> Call[Result]:
    """Return a call that changes something and has no key: it is sent once. ``body`` None: it has none."""
    return Call(method=method, path=path, read=read, content=None if body is None else json.dumps(body))


def nothing(_response: httpx.Response) -> None:
    """Read an answer that has no content."""


def model(kind: type[Model]) -> Callable[[httpx.Response], Model]:
    """Return the reader of an answer of this kind."""
    return lambda response: kind.model_validate_json(response.content)


def key_or_new(key: str | None) -> str:
    """Return the key, or a new one: with a key of its own, a call whose answer was lost can be sent again.

    Raises InvalidInputError when no HTTP header can carry the key.
    """
    if key is None:
        return f"key_{secrets.token_hex(12)}"
    if not (0 < len(key) <= MAX_KEY_CHARS and key.isascii() and key.isprintable()):
        message = f"Idempotency-Key: 1 to {MAX_KEY_CHARS} printable ASCII characters, not {key!r}"
        raise InvalidInputError(message, errors=[{"pointer": "", "message": message}])
    return key


def segment(value: str) -> str:
    """Return an id as one segment of a path. Raises InvalidInputError for one that would name another path."""
    if value in {"", ".", ".."}:
        message = f"{value!r} is not an id: give one as the API shows it"
        raise InvalidInputError(message, errors=[{"pointer": "", "message": message}])
    return quote(value, safe="")


def with_member(body: str, name: str, text: str | None) -> str:
    """Return the JSON object ``body`` with one more member, whose JSON text stays as it is, byte for byte.

    ``text`` None: no such member. Raises InvalidInputError when it is not JSON.
    """
    if text is None:
        return body
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        message = f"{name} is not JSON: {error}"
        raise InvalidInputError(message, errors=[{"pointer": f"/{name}", "message": message}]) from None
    return f'{body[:-1]}{", " if len(body) > len("{}") else ""}"{name}": {text}}}'


def without_none(members: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members that are not None."""
    return {name: value for name, value in members.items() if value is not None}


# What both clients connect with: address, headers, timeouts.


TIMEOUT: Final = httpx.Timeout(15.0, connect=3.0)
STREAM_TIMEOUT: Final = httpx.Timeout(15.0, connect=3.0, read=3 * HEARTBEAT_SECONDS + 1)
"""Three heartbeats: a stream silent for longer is dead, though its connection may not know. A NAT, a VPN or a computer that
slept drops connections without closing them."""
LIMITS: Final = httpx.Limits(keepalive_expiry=2.0)
"""Below uvicorn's 5 s, which is also httpx's default: a request sent as the server closes its idle connection is lost."""


def options(url: str, token: str | None, timeout: httpx.Timeout | float | None) -> dict[str, Any]:
    """Return what an httpx client is made with."""
    headers = {"User-Agent": f"turngate-python/{__version__} httpx/{httpx.__version__}"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    return {
        "base_url": f"{url}/api/v1",
        "headers": headers,
        "timeout": TIMEOUT if timeout is None else timeout,
        "limits": LIMITS,
        "trust_env": False,  # a proxy from the environment must not see tokens meant for loopback
    }
