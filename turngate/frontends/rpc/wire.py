"""JSON-RPC 2.0 as it goes over the line: requests read, answers and errors made. Knows no method.

Source: https://www.jsonrpc.org/specification
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from turngate.domain.errors import TurngateError
from turngate.domain.text.json_text import without_repeats
from turngate.wire.problems import problem_of, status_of

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
APPLICATION_ERROR: Final = -32000
"""What the API refused: this less its status' distance from 400, such as -32009 for 409; -32053 for 503; else this itself."""
UNAVAILABLE: Final = -32053

Id = str | int | float | None
_MISSING: Final = object()


class RpcError(Exception):
    """An error as JSON-RPC says it. ``of``: the id of the request, None where none could be read."""

    def __init__(self, code: int, message: str, details: object = None, *, of: Id = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details
        self.of = of

    @property
    def body(self) -> dict[str, Any]:
        """Return the member ``error`` of an answer."""
        body: dict[str, Any] = {"code": self.code, "message": self.message}
        return body if self.details is None else {**body, "data": self.details}


@dataclass(frozen=True, kw_only=True)
class RpcRequest:
    """A request; without ``wants_answer``, a notification."""

    id: Id
    wants_answer: bool
    method: str
    params: Mapping[str, Any]


def read_line(line: bytes) -> RpcRequest | list[RpcRequest | RpcError]:
    """Return the request on a line, or those of a batch, in which each one that is wrong is its own error.

    Raises RpcError (parse error, invalid request, invalid params) for a line with no request, or an empty batch.
    """
    message = _decoded(line)
    if not isinstance(message, list):
        return _request(message)
    if not message:
        raise RpcError(INVALID_REQUEST, "a batch has at least one request")
    return [_request_or_error(each) for each in message]


def _request_or_error(message: Any) -> RpcRequest | RpcError:
    try:
        return _request(message)
    except RpcError as error:
        return error


def _request(message: Any) -> RpcRequest:
    if not isinstance(message, dict):
        raise RpcError(INVALID_REQUEST, "a request is a JSON object with jsonrpc, method, params and id")
    known = _id(message)
    if message.get("jsonrpc") != "2.0":
        raise RpcError(INVALID_REQUEST, 'a request says "jsonrpc": "2.0"', of=known)
    method, params = message.get("method"), message.get("params", {})
    if not isinstance(method, str):
        raise RpcError(INVALID_REQUEST, "a request names its method, as a string", of=known)
    if isinstance(params, list):
        raise RpcError(INVALID_PARAMS, "params are given by name: send an object", of=known)
    if not isinstance(params, dict):
        raise RpcError(INVALID_REQUEST, "params are an object", of=known)
    return RpcRequest(id=known, wants_answer="id" in message, method=method, params=params)


def answer(request_id: Id, result: object) -> dict[str, Any]:
    """Return the answer of a request that went well."""
    return {"jsonrpc": "2.0", "id": request_id, "result": result}


def failure(error: RpcError) -> dict[str, Any]:
    """Return the answer of a request that failed."""
    return {"jsonrpc": "2.0", "id": error.of, "error": error.body}


def notification(method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is sent without a request."""
    return {"jsonrpc": "2.0", "method": method, "params": params}


def application_error(error: TurngateError, *, of: Id = None) -> RpcError:
    """Return the API's refusal with its problem document as ``data``."""
    status = status_of(error)
    code = UNAVAILABLE if status is HTTPStatus.SERVICE_UNAVAILABLE else APPLICATION_ERROR
    if status < HTTPStatus.INTERNAL_SERVER_ERROR:
        code = APPLICATION_ERROR - (status - HTTPStatus.BAD_REQUEST)
    return RpcError(code, error.message, problem_of(error), of=of)


def _decoded(line: bytes) -> Any:
    try:
        return json.loads(line, parse_constant=_refused, parse_float=_finite, object_pairs_hook=without_repeats)
    except (ValueError, RecursionError) as error:
        raise RpcError(PARSE_ERROR, f"this line is no JSON: {error}") from None


def _refused(word: str) -> float:
    raise ValueError(f"{word} is no JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"the number {digits} is too large")
    return number


def _id(message: Mapping[str, Any]) -> Id:
    known = message.get("id", _MISSING)
    if known is _MISSING or known is None:
        return None
    if isinstance(known, bool) or not isinstance(known, str | int | float):
        raise RpcError(INVALID_REQUEST, "an id is a string, a number or null")
    return known
