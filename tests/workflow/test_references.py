"""References to secrets: resolved for the handler alone, right before it starts, and written down nowhere."""

from __future__ import annotations

import asyncio
import json

import pytest
from pydantic import BaseModel, SecretStr
from sqlalchemy import select
from support.engine.stack import Stack, call, says, stack, until
from temporalio.client import Client

from turngate import Agent, App, ConfigurationError, ToolContext, Toolkit, tool
from turngate.domain.conversation.messages import ModelResponse
from turngate.domain.tools.results import Failure, Ok
from turngate.domain.tools.tool import Effect, Tool
from turngate.models.port import ModelRequest
from turngate.store.database import Database
from turngate.store.runs import runs
from turngate.store.tables import metadata

VALUE = "correct horse battery"
REFERENCE = 'secret("stripe-key")'


class Charge(BaseModel):
    key: SecretStr
    note: str = ""


class Charged(BaseModel):
    used: str
    note: str


received: list[Charge] = []


def charging(*references: str, effect: Effect = "once", ask: bool = True) -> Tool:
    @tool(effect=effect, ask=ask, references=references, name="charge")
    async def charge(params: Charge, ctx: ToolContext) -> Charged:
        """Charge a card."""
        received.append(params)
        ctx.emit({"with": params.key.get_secret_value()})
        if params.note == "crash":
            raise RuntimeError(f"no luck with {params.key.get_secret_value()}")
        return Charged(used=f"Bearer {params.key.get_secret_value()}", note=params.note)

    return charge


class Charges:
    """Charges with the key and the note that the task names in JSON."""

    name = "scripted:test"

    def __init__(self) -> None:
        self.seen: list[ModelRequest] = []

    async def generate(self, request: ModelRequest) -> ModelResponse:
        self.seen.append(request)
        last = request.messages[-1]
        return says(call("charge", last.text, "c1")) if last.role == "user" else says("Done.")

    async def aclose(self) -> None:
        return None


@pytest.fixture(autouse=True)
def _nothing_received() -> None:
    received.clear()


async def everything_stored(database: Database) -> str:
    async with database.read() as conn:
        rows = [list(await conn.execute(select(table))) for table in metadata.sorted_tables]
    return repr(rows)


async def ended(engine: Stack, run: runs.Run) -> Ok | Failure:
    run = await engine.ended(run)
    assert run.status == "completed", run.reason
    return (await engine.results(run))["c1"]


async def test_the_handler_gets_the_value_and_no_one_else(client: Client, sqlite: Database) -> None:
    """Model, request, digest, store, result, progress and history have the reference; the result says no value."""
    model = Charges()
    async with stack(client, sqlite, charging("stripe-key"), model=model, secrets={"stripe-key": VALUE}.get) as engine:
        run = await engine.start(json.dumps({"key": REFERENCE, "note": REFERENCE}))
        request = await engine.request(run)
        assert json.loads(request.input) == {"key": REFERENCE, "note": REFERENCE}
        assert request.masked_input is None, "the name of a secret is not secret"
        await engine.decide(request, "approve")
        result = await ended(engine, run)
        history = await engine.workflow(run).fetch_history()
    assert [(each.key.get_secret_value(), each.note) for each in received] == [(VALUE, REFERENCE)]
    assert result == Ok(value={"used": "Bearer ⟦secret⟧", "note": REFERENCE})
    assert REFERENCE in model.seen[0].tools[0].description
    assert VALUE not in repr(model.seen)
    assert VALUE not in await everything_stored(sqlite)
    assert VALUE.encode() not in b"".join(event.SerializeToString() for event in history.events)


async def test_a_crash_does_not_tell_the_value(client: Client, sqlite: Database) -> None:
    """The failure that the model reads, and what is stored, are without it."""
    async with stack(
        client,
        sqlite,
        charging("stripe-key", effect="idempotent", ask=False),
        model=Charges(),
        secrets={"stripe-key": VALUE}.get,
    ) as engine:
        result = await ended(engine, await engine.start(json.dumps({"key": REFERENCE, "note": "crash"})))
    assert isinstance(result, Failure)
    assert result.kind == "execution_error"
    assert VALUE not in await everything_stored(sqlite)


@pytest.mark.parametrize("effect", ["once", "idempotent"])
async def test_i2_a_reference_without_a_value_runs_nothing(client: Client, sqlite: Database, effect: Effect) -> None:
    """Unknown, not the tool's, too short to be kept out of texts, or a resolver that fails: typed, and no execution."""

    async def resolve(name: str) -> str | None:
        if name == "broken":
            raise OSError("the vault is sealed")
        return {"short": "abc", "other": VALUE}.get(name)

    charge = charging("gone", "short", "broken", effect=effect, ask=False)
    kinds = {}
    async with stack(client, sqlite, charge, model=Charges(), secrets=resolve) as engine:
        for key in ("gone", "other", "short", "broken"):
            run = await engine.start(json.dumps({"key": f'secret("{key}")'}))
            result = await ended(engine, run)
            assert isinstance(result, Failure)
            kinds[key] = result.kind
            assert "execution.started" not in [each.type for each in await engine.events(run)]
    assert received == []
    unknown, failed = "unknown_secret", "execution_error"
    assert kinds == {"gone": unknown, "other": unknown, "short": failed, "broken": failed}


@pytest.mark.parametrize("effect", ["once", "idempotent"])
async def test_i3_a_lost_call_resolves_again(client: Client, sqlite: Database, effect: Effect) -> None:
    """The start after the lost one gets the value that there is then; a ``once`` call only after a person's word."""
    names: list[str] = []

    def resolve(name: str) -> str:
        names.append(name)
        return f"{VALUE} {len(names)}"

    used: list[str] = []

    @tool(effect=effect, ask=False, references=["stripe-key"])
    async def charge(params: Charge) -> str:
        """Charge a card, and hang at first."""
        used.append(params.key.get_secret_value())
        if len(used) == 1:
            await asyncio.sleep(3600)
        return used[-1]

    async with stack(client, sqlite, charge, model=Charges(), working=False, secrets=resolve) as engine:
        async with engine.worker(graceful_shutdown_seconds=0):
            run = await engine.start(json.dumps({"key": REFERENCE}))
            await until(lambda: asyncio.sleep(0, len(used) == 1), "first start")
        async with engine.worker():
            if effect == "once":
                await engine.decide(await engine.request(run, kind="outcome"), "respond", outcome="did_not_happen")
            result = await ended(engine, run)
    assert len(used) == 2
    assert used[1].startswith(VALUE)
    assert used[0] != used[1]
    assert result == Ok(value={"value": "⟦secret⟧"})
    assert VALUE not in await everything_stored(sqlite)


async def test_only_a_secret_argument_of_a_tool_that_takes_references_is_resolved(
    client: Client, sqlite: Database
) -> None:
    """Elsewhere, and for other tools, the same text is a text."""
    async with stack(client, sqlite, charging(ask=False), model=Charges(), secrets={"stripe-key": VALUE}.get) as engine:
        result = await ended(engine, await engine.start(json.dumps({"key": REFERENCE, "note": REFERENCE})))
    assert [each.key.get_secret_value() for each in received] == [REFERENCE]
    assert isinstance(result, Ok)


def test_references_without_a_place_or_a_resolver_are_refused() -> None:
    """A tool without a secret argument, a name that no text could hold, an app without ``secrets=``."""
    with pytest.raises(ConfigurationError, match="no place could hold one"):

        @tool(references=["stripe-key"])
        async def plain(params: Charged) -> str:
            """Do."""
            return params.note

    with pytest.raises(ConfigurationError, match="can't be a secret's name"):
        charging('x") or ("y')
    agent = Agent(name="a", instructions="x", toolkit=Toolkit.of(charging("stripe-key")), model="scripted:test")
    with pytest.raises(ConfigurationError, match="nothing resolves them"):
        App(agents=[agent])
