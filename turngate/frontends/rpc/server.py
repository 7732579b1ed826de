"""``turngate rpc``: JSON-RPC 2.0 on stdio, one message a line, each method one call of the API."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from turngate.client import TurngateClient
from turngate.domain.errors import InvalidInputError, TurngateError
from turngate.domain.text.json_pointers import pointer_of
from turngate.frontends.lines import JsonLines
from turngate.frontends.rpc import parameters as take
from turngate.frontends.rpc.discovery import describe
from turngate.frontends.rpc.methods import METHODS, Method
from turngate.frontends.rpc.watch import Watches
from turngate.frontends.rpc.wire import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    RpcError,
    RpcRequest,
    answer,
    application_error,
    failure,
    read_line,
)

AT_ONCE: Final = 32
"""Requests that are worked on at the same time; more wait, unread."""

_log = logging.getLogger("turngate.rpc")


async def serve_rpc(client: TurngateClient, lines: JsonLines) -> None:
    """Answer requests until the input ends; then those that were read are still answered, and watches end.

    Requests are worked on at the same time, and answered as they are done: a client tells answers apart by their ids.
    """
    served = _Connection(client, lines)
    try:
        await served.to_the_end()
    finally:
        await served.close()


class _Connection:
    """One client. Its errors are answers: none of them ends the connection."""

    def __init__(self, client: TurngateClient, lines: JsonLines) -> None:
        self._client = client
        self._lines = lines
        self._watches = Watches(client, lines.send)
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._answering: set[asyncio.Task[None]] = set()
        self._methods = {**METHODS, **self._own_methods()}

    async def to_the_end(self) -> None:
        """Read requests to the end of the input, and answer all of them."""
        while True:
            try:
                line = await self._lines.receive()
                if line is None:
                    break
                request = read_line(line)
            except InvalidInputError as error:
                await self._lines.send(failure(RpcError(INVALID_REQUEST, error.message)))
                continue
            except RpcError as error:
                await self._lines.send(failure(error))
                continue
            await self._slots.acquire()
            task = asyncio.create_task(self._answer(request))
            self._answering.add(task)
            task.add_done_callback(self._done)
        await asyncio.gather(*self._answering)

    async def close(self) -> None:
        """Leave everything; runs continue."""
        for task in self._answering:
            task.cancel()
        await self._watches.close()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._answering.discard(task)
        self._slots.release()

    async def _answer(self, request: RpcRequest | list[RpcRequest | RpcError]) -> None:
        """Answer a request, or a batch: that one after the other, its answers together in one list, if there are any."""
        requests: Sequence[RpcRequest | RpcError] = request if isinstance(request, list) else [request]
        answers: list[dict[str, Any]] = []
        watches: list[str] = []
        for each in requests:
            if isinstance(each, RpcError):
                answers.append(failure(each))
                continue
            answer, begun = await self._run(each)
            if each.wants_answer:
                answers.append(answer)
            if begun is not None:
                watches.append(begun.watch_id)
        if answers:
            await self._lines.send(answers if isinstance(request, list) else answers[0])
        for watch_id in watches:  # not before its answer: the client would not know whose events these are
            self._watches.begin(watch_id)

    async def _run(self, request: RpcRequest) -> tuple[dict[str, Any], take.WatchBegun | None]:
        try:
            method = self._method(request.method)
            result = await method.call(self._client, _checked(method, request))
            body = method.result.dump_python(result, mode="json")
            return answer(request.id, body), result if isinstance(result, take.WatchBegun) else None
        except TurngateError as error:
            return failure(application_error(error, of=request.id)), None
        except RpcError as error:
            error.of = request.id
            return failure(error), None
        except Exception:  # noqa: BLE001 - one answer fails; the connection and its other requests continue
            _log.exception("%s failed", request.method)
            message = "this is a mistake of Turngate's own: its log on stderr says more"
            return failure(RpcError(INTERNAL_ERROR, message, of=request.id)), None

    def _method(self, name: str) -> Method:
        method = self._methods.get(name)
        if method is None:
            raise RpcError(METHOD_NOT_FOUND, f"there is no method {name!r}: rpc.discover lists those there are")
        return method

    def _own_methods(self) -> dict[str, Method]:
        async def watch(_client: TurngateClient, params: take.WatchRun) -> take.WatchBegun:
            return await self._watches.watch(params)

        async def unwatch(_client: TurngateClient, params: take.Unwatch) -> take.WatchStopped:
            return await self._watches.stop(params)

        async def discover(_client: TurngateClient, _params: take.Nothing) -> dict[str, Any]:
            return describe(self._methods)

        return {
            "run.watch": Method(
                summary="Tell a run's events, and its sub-agents', as notifications, to its end.",
                params=take.WatchRun,
                result=TypeAdapter(take.WatchBegun),
                call=watch,
            ),
            "run.unwatch": Method(
                summary="Stop a watch; the run continues.",
                params=take.Unwatch,
                result=TypeAdapter(take.WatchStopped),
                call=unwatch,
            ),
            "rpc.discover": Method(
                summary="This description.", params=take.Nothing, result=TypeAdapter(dict[str, Any]), call=discover
            ),
        }


def _checked(method: Method, request: RpcRequest) -> take.Params:
    try:
        return method.params.model_validate(request.params)
    except ValidationError as error:
        errors = [
            {"pointer": pointer_of(issue["loc"]), "message": issue["msg"]}
            for issue in error.errors(include_url=False, include_context=False, include_input=False)
        ]
        message = "; ".join(f"{each['pointer'] or 'params'}: {each['message']}" for each in errors)
        raise RpcError(INVALID_PARAMS, message, {"errors": errors}) from None
