"""What a chaos run says and sees: runs and decisions through the public API, starts in the ledger, and all of it audited."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from http import HTTPStatus
from itertools import cycle
from pathlib import Path
from typing import Any, TypeVar

import chaos_app
import instants
from checker import violations
from evidence import Answered, Code, Evidence, Planned, Start, TakenBack, gather, read_ledger
from processes import DEADLINE_SECONDS, PAUSE_SECONDS, Embedded, Layout, Processes, running, until
from sqlalchemy.exc import SQLAlchemyError
from temporalio.client import Client

from turngate.cli.api_link import read_cli_token
from turngate.client import Retries, TurngateClient
from turngate.domain.agents.model_profiles import Profiles
from turngate.domain.errors import ConflictError, GoneError, UnavailableError
from turngate.domain.requests import RequestKind, Resolution, Verb
from turngate.domain.tools.results import Failure
from turngate.runtime.temporal_client import data_converter
from turngate.store import agents
from turngate.store.database import Database
from turngate.wire.orders import DecisionOrder
from turngate.wire.requests import RequestDetail, RequestItem
from turngate.wire.runs import RunDetail
from turngate.workflows.agent_turn import AgentTurn

Answer = TypeVar("Answer")
OPERATORS = ("ann", "bob")
HTTP_SECONDS = 8.0


def order(tool: str, name: str, **details: Any) -> dict[str, Any]:
    """A tool call of a script; ``details``: of chaos_app.Order. All of its fields, in its order, as the ledger has them."""
    return {"tool": tool, "input": chaos_app.Order(name=name, **details).model_dump()}


class Scene:
    """One data directory with its processes, and clients that try again while the API or Temporal is away.

    ``planned``: the runs that were started. ``answers``: the answer to each decision that was sent. ``taken_back``: and to
    each approval that was taken back.
    """

    def __init__(self, processes: Processes, ledger: Path, database_url: str) -> None:
        self.processes = processes
        self.planned: list[Planned] = []
        self.answers: list[Answered] = []
        self.taken_back: list[TakenBack] = []
        self.away = 0
        """How often the API could not be asked, or said that Temporal or the store was away."""
        self._ledger = ledger
        self._database_url = database_url
        self.store = Database(database_url)
        self._clients: dict[str, Iterator[TurngateClient]] = {}
        self._opened: list[TurngateClient] = []
        self._decided: set[str] = set()
        self.code: Code = lambda _builds: AgentTurn
        """What the histories of some builds are replayed with."""

    async def enrol(self) -> None:
        """Make the operators; the API must be ready."""
        self._enrol("owner", read_cli_token(self.processes.data_dir))
        for name in OPERATORS:
            issued = await self.ask(
                lambda client, name=name: client.issue_token(name, ["requests:read", "requests:decide"]), by="owner"
            )
            self._enrol(name, issued.secret)

    def _enrol(self, name: str, token: str | None) -> None:
        clients = [
            TurngateClient(url, token=token, timeout=HTTP_SECONDS, retries=Retries(attempts=1))
            for url in self.processes.api_urls
        ]
        self._opened += clients
        self._clients[name] = cycle(clients)

    async def ask(self, question: Callable[[TurngateClient], Awaitable[Answer]], by: str = "ann") -> Answer:
        """Ask an API, once; where there are several, one after the other."""
        return await question(next(self._clients[by]))

    async def insist(self, question: Callable[[TurngateClient], Awaitable[Answer]], by: str = "ann") -> Answer:
        """Call the API until it answers; any error other than being unreachable is a failure."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            try:
                return await self.ask(question, by)
            except UnavailableError:
                self.away += 1
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(PAUSE_SECONDS)

    async def start(
        self, name: str, *steps: Sequence[Mapping[str, Any]], agent: str = "clerk", may_be_interrupted: bool = False
    ) -> str:
        """Start a run that makes these calls, step by step, then ends; returns its id. Sent again until it is taken."""
        script = self._ledger.with_name(f"{name}.json")
        responses = [{"text": "Next.", "calls": calls} for calls in steps]
        script.write_text(json.dumps({"responses": [*responses, {"text": "Done."}]}))
        await self._declare(f"scripted:{script.name}")
        run = await self.insist(
            lambda client: client.start_run(
                agent=agent, text=name, model=f"scripted:{script.name}", idempotency_key=f"start-{name}"
            ),
            by="owner",
        )
        planned_calls = sum(map(len, steps))
        self.planned.append(
            Planned(run_id=run.id, name=name, calls=planned_calls, may_be_interrupted=may_be_interrupted),
        )
        return run.id

    async def _declare(self, spec: str) -> None:
        """Store that the app has this model, as a worker does at its start; again while the database is away."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            try:
                async with self.store.write() as conn:
                    await agents.publish_model_names(conn, Profiles(), (), task_queue=spec[-200:], declared=[spec])
            except (UnavailableError, SQLAlchemyError, OSError):
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(PAUSE_SECONDS)
            else:
                return

    async def run(self, run_id: str) -> RunDetail:
        return await self.insist(lambda client: client.get_run(run_id))

    async def requests(self, run_id: str | None = None) -> list[RequestItem]:
        """What is pending."""
        where = {} if run_id is None else {"run_id": run_id}
        return (await self.insist(lambda client: client.list_requests(limit=200, **where))).items

    async def glance(self) -> list[RequestItem]:
        """What is pending; nothing while the API is away."""
        with suppress(UnavailableError):
            return (await self.ask(lambda client: client.list_requests(limit=200))).items
        return []

    async def request(self, run_id: str, kind: RequestKind = "approval") -> RequestItem:
        async def look() -> RequestItem | None:
            return next((each for each in await self.requests(run_id) if each.kind == kind), None)

        return await until(look, f"pending {kind} request of {run_id}")

    async def detail(self, request_id: str) -> RequestDetail:
        return await self.insist(lambda client: client.get_request(request_id))

    async def decide(
        self,
        request: RequestItem,
        verb: Verb,
        *,
        outcome: Resolution | None = None,
        args: str | None = None,
        key: str | None = None,
        by: str = "ann",
    ) -> Answered:
        """Decide, again and again under one key until the API takes it, or says that it is too late."""
        key = key or f"decide-{request.id}"
        self._decided.add(request.id)
        sent = {"decision_id": key, "request_id": request.id, "by": by, "verb": verb, "outcome": outcome}
        try:
            decided = await self.insist(
                lambda client: client.decide(
                    request.id,
                    DecisionOrder(verb=verb, digest=request.digest, outcome=outcome, args=args),
                    decision_id=key,
                ),
                by,
            )
        except ConflictError as late:
            winner = late.details.get("decision_id") or late.details.get("winner")
            answer = {"http": HTTPStatus.CONFLICT, "code": late.error_code, "winner": winner}
        except GoneError as late:
            answer = {"http": HTTPStatus.GONE, "code": late.error_code}
        else:
            answer = {"http": HTTPStatus.OK, "status": decided.status}
        self.answers.append(Answered(**sent, **answer))
        return self.answers[-1]

    async def take_back(self, request: RequestItem, *, by: str) -> None:
        """Take an approval back, again and again until the API does, or says that it is too late."""
        sent = {"request_id": request.id, "by": by}
        try:
            await self.insist(lambda client: client.withdraw_approval(request.id), by)
        except ConflictError as late:
            answer = TakenBack(**sent, http=HTTPStatus.CONFLICT, code=late.error_code)
        except GoneError as late:
            answer = TakenBack(**sent, http=HTTPStatus.GONE, code=late.error_code)
        else:
            answer = TakenBack(**sent, http=HTTPStatus.OK)
        self.taken_back.append(answer)

    async def approve(self, run_id: str) -> Answered:
        return await self.decide(await self.request(run_id), "approve")

    def knows_decision(self, request_id: str) -> bool:
        """Tell whether this request was decided here; a list that was read before may still show it."""
        return request_id in self._decided

    # The world outside

    def starts(self, name: str) -> list[Start]:
        """Starts of handlers for this order, in order."""
        return [line for line in read_ledger(self._ledger) if line.name == name]

    def starts_of(self, request: RequestItem) -> list[Start]:
        """Starts of the handler of the call that this request is about."""
        return [line for line in read_ledger(self._ledger) if line.of == (request.run_id, request.tool_call_id)]

    async def started(self, name: str, times: int = 1) -> None:
        """Wait until this order's handler has been started so often."""

        async def look() -> bool:
            return len(self.starts(name)) >= times

        await until(look, f"start {times} of {name}")

    def go(self, *names: str) -> None:
        """Let these orders' handlers continue."""
        for name in names:
            self._ledger.with_name(f"go-{name}").touch()

    def arm(self, instant: str, action: str = "kill") -> None:
        """Let the first process that comes to this instant kill (or ``stop``) itself."""
        directory = self._ledger.parent / "instants"
        unnamed = directory / f"new-{instant}"
        unnamed.write_text(action)
        unnamed.rename(directory / instant)  # a reader sees all of it, or nothing

    def disarm(self, instant: str) -> bool:
        """Remove an instant; False if a process has reached it already."""
        try:
            (self._ledger.parent / "instants" / instant).unlink()
        except FileNotFoundError:
            return False
        return True

    def hits(self, instant: str) -> list[int]:
        """The pids of the processes that came to this instant so far, in order."""
        return instants.hits(self._ledger.parent / "instants", instant)

    # Endings

    async def completed(self, run_id: str, outcome: Resolution = "happened") -> RunDetail:
        """The run, once it is completed; any other ending is a failure.

        ``outcome``: the answer when the engine asks what happened to a call. It may ask although no process was killed: a
        worker without processor time, or a Temporal that is away, for longer than the heartbeat timeout looks the same.
        """

        async def look() -> RunDetail | None:
            run = await self.run(run_id)
            if run.status == "running":
                for request in await self.requests(run_id):
                    if request.kind == "outcome" and not self.knows_decision(request.id):
                        await self.decide(request, "respond", outcome=outcome)
                return None
            assert run.status == "completed", f"{run.task}: {run.status}, {run.reason}"
            return run

        return await until(look, f"end of run {run_id}")

    async def workflow_status(self, run_id: str) -> str:
        """What Temporal says of a run's workflow; Temporal must be up."""
        described = await (await self.temporal()).get_workflow_handle(run_id).describe()
        return "" if described.status is None else described.status.name

    async def has_closed(self, run_id: str) -> bool:
        """Tell whether a run's workflow has ended."""
        return await self.workflow_status(run_id) != "RUNNING"

    async def temporal(self) -> Client:
        """A client of the server as it is now; it may be away."""
        return await Client.connect(
            self.processes.temporal_address,
            namespace=self.processes.layout.namespace,
            data_converter=data_converter(),
        )

    async def evidence(self) -> Evidence:
        """Gather the evidence of all runs; Temporal must be up."""
        client = await self.temporal()
        database = Database(self._database_url)
        try:
            return await gather(
                database,
                client,
                planned=self.planned,
                ledger=self._ledger,
                answers=self.answers,
                taken_back=self.taken_back,
                code=self.code,
            )
        finally:
            await database.close()

    async def audit(self) -> Evidence:
        """Hold every run against ledger, store, workflow and answers. The store ends a run before its workflow ends."""
        for planned in self.planned:
            await until(partial(self.has_closed, planned.run_id), f"end of the workflow of run {planned.run_id}")
        evidence = await self.evidence()
        violated = violations(evidence)
        assert not violated, "\n".join(map(str, violated))
        return evidence

    async def close(self) -> None:
        await self.store.close()
        for client in self._opened:
            await client.aclose()


@asynccontextmanager
async def scene(
    directory: Path,
    *,
    layout: Layout | None = None,
    heartbeat_seconds: int | None,
    database_url: str | None = None,
) -> AsyncIterator[Scene]:
    """Processes over a new data directory in ``directory``, which exists; at the end each must have lived until then.

    ``layout``: None: a worker, an API and ``turngate temporal``. ``heartbeat_seconds``: how long a worker may be silent before it
    counts as lost; None: as long as the default says. ``database_url``: of a migrated PostgreSQL; None: SQLite in the data
    directory.
    """
    ledger = directory / "ledger.jsonl"
    (directory / "instants").mkdir()
    environment = {
        chaos_app.LEDGER: str(ledger),
        instants.DIRECTORY: str(directory / "instants"),
        "TURNGATE_APPROVAL_PACE": "0",
    }
    if heartbeat_seconds is not None:
        environment["TURNGATE_HEARTBEAT_TIMEOUT_SECONDS"] = str(heartbeat_seconds)
    if database_url is not None:
        environment["TURNGATE_DATABASE_URL"] = database_url.replace("+psycopg", "")
    async with running(directory, environment, layout or Embedded()) as processes:
        url = database_url or f"sqlite:///{processes.data_dir}/turngate.db"
        staged = Scene(processes, ledger, url)
        await staged.enrol()
        try:
            yield staged
            processes.check_alive()
        finally:
            await staged.close()


async def asked_after_the_effect(on: Scene, name: str, instant: str | None) -> None:
    """Have a call of this tool take effect and never report it; a person says that they don't know, and nothing runs again.

    ``instant``: at which its worker is killed; None: it isn't.
    """
    called = f"{name}-{instant}"
    if instant is not None:
        on.arm(instant)
    run = await on.start(called, [order(name, called)])
    await on.approve(run)
    if instant is not None:
        await on.processes.gone("worker")
        on.processes.start("worker")
    lost = await on.detail((await on.request(run, "outcome")).id)
    assert lost.execution == "unknown"
    if name == "wire":
        assert lost.lost_start is not None
        assert lost.lost_start.check_with == f"Look for {on.starts(called)[0].key} at the bank"
    assert (await on.decide(lost, "respond", outcome="tell_model", key=f"tell-{run}")).http == HTTPStatus.OK
    await on.completed(run)
    result = (await on.run(run)).steps[0].calls[0].result
    assert isinstance(result, Failure)
    assert result.kind == "unknown"
    assert len(on.starts(called)) == 1
