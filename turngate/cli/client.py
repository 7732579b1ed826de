"""The command line's way to the API: typed, synchronous, with the API's errors as Turngate's own.

Reads the same models the API writes (``approvals_api.read_models``); imports neither store nor Temporal.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote

import httpx
import httpx_sse
from pydantic import BaseModel

from approvals_api.read_models import (
    AgentView,
    DecisionResult,
    EventView,
    Page,
    ProgressView,
    RequestDetail,
    RequestItem,
    RunDetail,
    RunSummary,
)
from turngate.domain.errors import (
    ConflictError,
    ForbiddenError,
    GoneError,
    InvalidInputError,
    NotFoundError,
    TurngateError,
    UnauthenticatedError,
    UnavailableError,
)
from turngate.domain.requests import Outcome, RequestStatus, RunStatus, Verb

Model = TypeVar("Model", bound=BaseModel)

TIMEOUT = httpx.Timeout(15.0, connect=3.0)
STREAM_TIMEOUT = httpx.Timeout(15.0, connect=3.0, read=45.0)
"""Three heartbeats: a stream silent for longer is dead, though its connection may not know."""
LIMITS = httpx.Limits(keepalive_expiry=2.0)
"""Below uvicorn's 5 s, which is also httpx's default: a request sent as the server closes its idle connection is lost."""
FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 2.0
GIVE_UP_SECONDS = 120.0
"""How long a broken stream is tried again: long enough for a restart of the server."""
RUN_ENDED = "run.ended"
PROGRESS = "progress"

_ERRORS: Mapping[int, type[TurngateError]] = {
    HTTPStatus.BAD_REQUEST: InvalidInputError,
    HTTPStatus.UNAUTHORIZED: UnauthenticatedError,
    HTTPStatus.FORBIDDEN: ForbiddenError,
    HTTPStatus.NOT_FOUND: NotFoundError,
    HTTPStatus.CONFLICT: ConflictError,
    HTTPStatus.GONE: GoneError,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: InvalidInputError,
    HTTPStatus.UNPROCESSABLE_ENTITY: InvalidInputError,
    HTTPStatus.BAD_GATEWAY: UnavailableError,
    HTTPStatus.SERVICE_UNAVAILABLE: UnavailableError,
    HTTPStatus.GATEWAY_TIMEOUT: UnavailableError,
}
_OWN_MEMBERS = frozenset({"type", "title", "status", "detail", "code", "message", "self"})


class ApiClient:
    """A client of one Turngate API. Use it as a context manager, or :meth:`close` it.

    Every method raises the TurngateError that the API's problem document stands for, and UnavailableError, with the
    fix, when nothing listens at the address.
    """

    def __init__(self, url: str, *, token: str | None = None) -> None:
        self.url = url.rstrip("/")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        # trust_env=False: a proxy from the environment must not see tokens meant for loopback.
        self._http = httpx.Client(
            base_url=f"{self.url}/api/v1", headers=headers, timeout=TIMEOUT, limits=LIMITS, trust_env=False
        )

    def __enter__(self) -> Self:
        """Return the client."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the client."""
        self.close()

    def close(self) -> None:
        """Close every connection."""
        self._http.close()

    # Runs

    def start_run(
        self,
        *,
        agent: str,
        text: str,
        conversation_id: str | None = None,
        workspace: str | None = None,
        model: str | None = None,
        idempotency_key: str | None = None,
    ) -> RunSummary:
        """Start a run. ``idempotency_key``: the same key and content again returns the first run."""
        body = {
            "agent": agent,
            "input": text,
            "conversation_id": conversation_id,
            "workspace": workspace,
            "model": model,
        }
        return self._send(RunSummary, "POST", "/runs", _without_none(body), key=idempotency_key)

    def get_run(self, run_id: str) -> RunDetail:
        """Return a run with its steps and calls."""
        return self._get(RunDetail, f"/runs/{run_id}")

    def list_runs(
        self, *, status: RunStatus | None = None, limit: int = 50, cursor: str | None = None
    ) -> Page[RunSummary]:
        """Return one page of runs, newest first."""
        return self._get(Page[RunSummary], "/runs", status=status, limit=limit, cursor=cursor)

    def send_message(self, run_id: str, text: str, *, idempotency_key: str | None = None) -> RunSummary:
        """Start the next run of the run's conversation."""
        return self._send(RunSummary, "POST", f"/runs/{run_id}/messages", {"input": text}, key=idempotency_key)

    def fork_run(
        self, run_id: str, text: str, *, step: int | None = None, idempotency_key: str | None = None, **own: str | None
    ) -> RunSummary:
        """Start a run after a closed step of this one (None: its newest). ``own``: ``agent``, ``model``, ``workspace``."""
        body = _without_none({"text": text, "step": step, **own})
        return self._send(RunSummary, "POST", f"/runs/{run_id}/fork", body, key=idempotency_key)

    def interrupt(self, run_id: str, *, reason: str = "") -> RunSummary:
        """Tell a run to stop; it ends a moment later."""
        return self._send(RunSummary, "POST", f"/runs/{run_id}/interrupt", {"reason": reason})

    def get_result(self, run_id: str, tool_call_id: str) -> str:
        """Return a call's whole result, ``{"result": …}``, as the very text that the API sent."""
        path = f"/runs/{quote(run_id, safe='')}/calls/{quote(tool_call_id, safe='')}/result"
        return self._answer(self._http.build_request("GET", path)).text

    def list_agents(self) -> list[AgentView]:
        """Return the published agents."""
        return self._get(Page[AgentView], "/agents").items

    # Requests

    def list_requests(
        self,
        *,
        status: RequestStatus | None = "pending",
        run_id: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[RequestItem]:
        """Return one page of requests, oldest first; ``status`` None: whatever their status."""
        return self._get(
            Page[RequestItem], "/requests", status=status or "all", run_id=run_id, limit=limit, cursor=cursor
        )

    def get_request(self, request_id: str) -> RequestDetail:
        """Return a request with everything needed to decide it."""
        return self._get(RequestDetail, f"/requests/{request_id}")

    def decide(
        self,
        request_id: str,
        *,
        verb: Verb,
        digest: str,
        args: str | None = None,
        message: str = "",
        outcome: Outcome | None = None,
        decision_id: str | None = None,
    ) -> DecisionResult:
        """Decide a request. ``args``: JSON text, sent as it is. ``status`` None in the answer: no worker took it up yet.

        Raises, besides what the API refuses, InvalidInputError when ``args`` is not JSON.
        """
        body = _without_none({"decision": verb, "digest": digest, "message": message or None, "outcome": outcome})
        text = json.dumps(body)
        if args is not None:
            try:
                json.loads(args)
            except ValueError as error:
                message = f"args is not JSON: {error}"
                raise InvalidInputError(message, errors=[{"pointer": "/args", "message": message}]) from None
            text = f'{text[:-1]}, "args": {args}}}'
        return self._send(DecisionResult, "POST", f"/requests/{request_id}/decisions", text, key=decision_id)

    # Events

    def follow_events(self, run_id: str | None = None, after: int = 0) -> Iterator[EventView | ProgressView]:
        """Yield events after sequence number ``after``, and tools' progress between them, each once, as they happen.

        With a ``run_id``: of that run and its sub-agents' runs, and it ends after the run's own last event. A broken
        stream is taken up again where it broke, for up to two minutes; then UnavailableError is raised, as it is at once
        when the first connection fails.
        """
        path = "/events" if run_id is None else f"/runs/{run_id}/events"
        connected = False
        shown: dict[tuple[str, str], int] = {}  # progress is sent again on every connection
        pause, broken_since = FIRST_PAUSE_SECONDS, 0.0
        while True:
            try:
                with httpx_sse.connect_sse(
                    self._http, "GET", path, headers={"Last-Event-ID": str(after)}, timeout=STREAM_TIMEOUT
                ) as source:
                    if source.response.status_code == HTTPStatus.NO_CONTENT:
                        return
                    self._check(source.response)
                    connected = True
                    for sent in source.iter_sse():
                        if not sent.data:  # httpx-sse makes an empty event of a heartbeat comment
                            continue
                        pause, broken_since = FIRST_PAUSE_SECONDS, 0.0
                        if sent.event == PROGRESS:
                            said = ProgressView.model_validate_json(sent.data)
                            call = (said.run_id, said.tool_call_id)
                            if said.n > shown.get(call, 0):
                                shown[call] = said.n
                                yield said
                            continue
                        event = EventView.model_validate_json(sent.data)
                        after = event.seq
                        yield event
                        if event.type == RUN_ENDED and event.run_id == run_id:
                            return
            except (httpx.TransportError, UnavailableError) as error:
                broken_since = broken_since or time.monotonic()
                if not connected or time.monotonic() - broken_since > GIVE_UP_SECONDS:
                    raise (error if isinstance(error, UnavailableError) else self._nobody_there(error)) from None
            time.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    # Wire

    def _get(self, model: type[Model], path: str, **query: str | int | None) -> Model:
        return self._call(model, self._http.build_request("GET", path, params=_without_none(query)))

    def _send(
        self, model: type[Model], method: str, path: str, body: Mapping[str, Any] | str, *, key: str | None = None
    ) -> Model:
        text = body if isinstance(body, str) else json.dumps(body)
        headers = {"Content-Type": "application/json", **({"Idempotency-Key": key} if key else {})}
        return self._call(model, self._http.build_request(method, path, content=text, headers=headers))

    def _answer(self, request: httpx.Request) -> httpx.Response:
        try:
            response = self._http.send(request)
        except httpx.TransportError as error:
            raise self._nobody_there(error) from error
        self._check(response)
        return response

    def _call(self, model: type[Model], request: httpx.Request) -> Model:
        response = self._answer(request)
        try:
            return model.model_validate_json(response.content)
        except ValueError as error:
            raise UnavailableError(f"{self.url} does not speak Turngate's API: is the address right?") from error

    def _check(self, response: httpx.Response) -> None:
        """Raise the error that a problem document stands for."""
        if response.is_success:
            return
        response.read()
        try:
            problem = response.json()
            detail, code = str(problem["detail"]), str(problem["code"])
        except (ValueError, KeyError, TypeError):
            raise UnavailableError(
                f"{self.url} answered {response.status_code} and does not speak Turngate's API: is the address right?"
            ) from None
        details = {name: value for name, value in problem.items() if name not in _OWN_MEMBERS}
        raise _ERRORS.get(response.status_code, TurngateError)(detail, code=code, **details)

    def _nobody_there(self, error: httpx.TransportError) -> UnavailableError:
        return UnavailableError(
            f"no Turngate answers at {self.url} ({error or type(error).__name__}): start it with `turngate up`, or give "
            "the address of one that runs with --url or TURNGATE_API_URL",
            url=self.url,
        )


def _without_none(members: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value is not None}
