"""What the client sends again and what it never does; and that it needs no server code."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from datetime import timedelta

import httpx
import pytest

from turngate.client import Retries, SyncTurngateClient, TurngateClient, requests
from turngate.domain.errors import (
    ConflictError,
    NotFoundError,
    TooManyRequestsError,
    TurngateError,
    UnavailableError,
)
from turngate.wire.orders import DecisionOrder

QUICK = Retries(attempts=4, first_pause=timedelta(milliseconds=1), longest_pause=timedelta(seconds=1))
Outcome = httpx.Response | httpx.TransportError
COUNT = httpx.Response(200, json={"status": "pending", "count": 3})
AWAY = httpx.Response(503, json={"detail": "Temporal is away", "code": "unavailable"}, headers={"Retry-After": "0"})
DECIDED = httpx.Response(200, json={"request_id": "rq_1", "decision_id": "d", "status": "approved"})


class Line(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """A connection with these outcomes, one after the other; the last one repeats. Records the requests."""

    def __init__(self, *outcomes: Outcome) -> None:
        self.outcomes = list(outcomes)
        self.sent: list[httpx.Request] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.sent.append(request)
        outcome = self.outcomes[min(len(self.sent), len(self.outcomes)) - 1]
        if isinstance(outcome, httpx.TransportError):
            raise outcome
        return httpx.Response(outcome.status_code, content=outcome.content, headers=outcome.headers)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return self.handle_request(request)


def client(line: Line, retries: Retries = QUICK) -> SyncTurngateClient:
    return SyncTurngateClient("http://turngate.test/", token="t", retries=retries, transport=line)


def decide(turngate: SyncTurngateClient, key: str | None = None) -> object:
    return turngate.decide("rq_1", DecisionOrder(verb="approve", digest="d"), decision_id=key)


REFUSED = httpx.ConnectError("refused")
LOST = httpx.ReadError("lost")
READS: list[tuple[list[Outcome], int, type[TurngateError] | None]] = [
    ([COUNT], 1, None),
    ([AWAY, AWAY, COUNT], 3, None),
    ([REFUSED, LOST, COUNT], 3, None),
    ([AWAY], 4, UnavailableError),
    ([REFUSED], 4, UnavailableError),
    (
        [httpx.Response(429, json={"detail": "slow", "code": "rate_limited"}, headers={"Retry-After": "0"}), COUNT],
        2,
        None,
    ),
    (
        [httpx.Response(429, json={"detail": "slow", "code": "rate_limited"}, headers={"Retry-After": "60"})],
        1,
        TooManyRequestsError,
    ),
    ([httpx.Response(404, json={"detail": "no", "code": "not_found"})], 1, NotFoundError),
    ([httpx.Response(502, text="<html>")], 1, UnavailableError),
    ([httpx.Response(200, text="<html>")], 1, UnavailableError),
    ([httpx.Response(500, json={"detail": "our mistake", "code": "internal_error"})], 1, TurngateError),
    ([httpx.UnsupportedProtocol("no scheme")], 1, UnavailableError),
]


@pytest.mark.parametrize(("outcomes", "sent", "error"), READS)
def test_a_read_is_sent_again_while_the_server_is_away(
    outcomes: list[Outcome], sent: int, error: type[TurngateError] | None
) -> None:
    """After 503, 429 and lost connections only, at most four times; not after a Retry-After beyond the client's limit."""
    line = Line(*outcomes)
    with client(line) as turngate:
        if error is None:
            assert turngate.count_requests().count == 3
        else:
            with pytest.raises(error):
                turngate.count_requests()
    assert len(line.sent) == sent


async def test_the_other_client_does_the_same() -> None:
    """Both count attempts and raise the same errors."""
    line = Line(AWAY, REFUSED, COUNT)
    async with TurngateClient("http://turngate.test", retries=QUICK, transport=line) as turngate:
        assert (await turngate.count_requests()).count == 3
        line.outcomes = [AWAY]
        with pytest.raises(UnavailableError, match="Temporal is away"):
            await turngate.count_requests()
    assert len(line.sent) == 3 + 4


def test_a_decision_is_sent_again_under_one_key() -> None:
    """A POST with an Idempotency-Key, the caller's or a new one for each call. I4 does the rest."""
    line = Line(LOST, AWAY, DECIDED)
    with client(line) as turngate:
        decide(turngate, "mine")
        assert [each.headers["Idempotency-Key"] for each in line.sent] == ["mine"] * 3
        line.sent.clear()
        decide(turngate)
        keys = {each.headers["Idempotency-Key"] for each in line.sent}
        decide(turngate)
    assert len(keys) == 1
    assert keys != {line.sent[-1].headers["Idempotency-Key"]}


def test_a_call_that_might_happen_twice_is_sent_once() -> None:
    """An interrupt has no key: its lost answer is an error, and not hidden by a second request."""
    line = Line(LOST)
    with client(line) as turngate, pytest.raises(UnavailableError):
        turngate.interrupt("run_1")
    assert len(line.sent) == 1


def test_pauses_grow_and_stay_within_their_bounds() -> None:
    """Doubling from the first to the longest, each shortened by at most half; a Retry-After comes first."""
    retries = Retries(attempts=9, first_pause=timedelta(seconds=1), longest_pause=timedelta(seconds=4))
    call = requests.count_requests()
    for attempt, longest in ((1, 1), (2, 2), (3, 4), (4, 4), (8, 4)):
        pause = retries.pause(call, attempt, REFUSED)
        assert pause is not None
        assert longest / 2 <= pause <= longest
    wished = httpx.Response(503, headers={"Retry-After": "3"})
    assert retries.pause(call, 1, wished) == 3
    assert retries.pause(call, 9, REFUSED) is None
    assert retries.pause(call, 1, httpx.Response(503, headers={"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}))


def test_an_error_keeps_its_code_and_details() -> None:
    """Whatever members the problem has; those that an error's constructor uses do no harm."""
    problem = {"detail": "late", "code": "already_decided", "decided_by": "ada", "self": 1, "message": 2, "status": 409}
    with (
        client(Line(httpx.Response(409, json=problem))) as turngate,
        pytest.raises(ConflictError, match="late") as lost,
    ):
        decide(turngate)
    assert (lost.value.error_code, lost.value.details) == ("already_decided", {"decided_by": "ada"})


def test_it_identifies_itself() -> None:
    """With token and User-Agent; a trailing slash in the address does no harm."""
    line = Line(COUNT)
    with client(line) as turngate:
        turngate.count_requests(status="all", parked=True)
    (sent,) = line.sent
    assert str(sent.url) == "http://turngate.test/api/v1/requests/count?status=all&parked=true"
    assert sent.headers["Authorization"] == "Bearer t"
    assert re.fullmatch(r"turngate-python/\S+ httpx/\S+", sent.headers["User-Agent"])


def test_importing_it_imports_nothing_of_the_server() -> None:
    """Neither FastAPI nor SQLAlchemy nor Temporal, nor what draws terminals, nor any part of Turngate that imports them."""
    code = "import sys, json, turngate.client; print(json.dumps(sorted(sys.modules)))"
    loaded = set(json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout))
    servers = {"fastapi", "starlette", "sqlalchemy", "temporalio", "approvals_api", "activities", "workflows"}
    terminals = {"rich", "pygments", "click", "typer", "structlog", "yaml", "jsonschema_rs", "cryptography"}
    parts = {f"turngate.{name}" for name in ("store", "runtime", "cli", "activities", "workflows", "approvals_api")}
    assert not loaded & (servers | terminals | parts)


@pytest.mark.exhaustive
def test_a_worker_imports_no_web_framework_for_its_services() -> None:
    """Handlers get services from svcs, whose integrations stay out of the process until a program imports one by name."""
    code = (
        "import sys, turngate.worker; "
        "print(sorted({'fastapi', 'svcs.fastapi', 'starlette.testclient', 'svcs.starlette'} & set(sys.modules))); "
        "import svcs.starlette; print(svcs.starlette.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "svcs.starlette"]
