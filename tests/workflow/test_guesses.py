"""Small values can't be guessed from what is stored of a run: a million amounts are tried against all of it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Any, Final

import pytest
from pydantic import BaseModel
from sqlalchemy import select
from support.engine.stack import OPERATOR, STARTER, ListModel, Stack, call, says, stack
from temporalio.client import Client

from turngate import Limits, tool
from turngate.approvals_api.requests import comments
from turngate.approvals_api.requests.precedents import add_after
from turngate.approvals_api.retention.erase import ErasureOrder, erase
from turngate.approvals_api.runs.dry_run import start_dry_run
from turngate.approvals_api.runs.send_message import send
from turngate.domain.agents.overrides import RunOverrides
from turngate.domain.conversation.clipping import result_digest
from turngate.domain.digest import framed, repeat_key
from turngate.domain.likeness import features
from turngate.store.database import Database
from turngate.store.encryption.places import HASHES
from turngate.store.runs import runs
from turngate.store.storable import MARK
from turngate.store.tables import metadata
from turngate.wire.orders import DryRunOrder, MessageOrder, StartOrder

CANDIDATES: Final = range(1_000_000, 2_000_000)
AMOUNT: Final = 1_271_828
NEAR: Final = range(AMOUNT - 100, AMOUNT + 100)
SHORT: Final = frozenset({"arguments", "order", "whole call, as a number"})
"""Hashes of which a million are tried; of the others the nearest ones."""
PADDING: Final = "x" * 3_000
TASK: Final = "Pay {} cents."
ARGUMENTS: Final = '{{"cents":{}}}'
WHOLE: Final = '{{"receipt":"' + PADDING + '","paid":{}}}'
INSTRUCTIONS: Final = "Never pay more than {} cents."

Guess = Callable[[bytes], bytes]
"""An amount in digits → the first eight bytes of a hash that a row would have if that was the amount."""


class Payment(BaseModel):
    cents: int


@tool(effect="once", ask=True)
async def pay(params: Payment) -> dict[str, Any]:
    """Pay."""
    return {"receipt": PADDING, "paid": params.cents}


async def run_about_an_amount(database: Database, engine: Stack) -> runs.Run:
    """A run with the amount wherever the store keeps a hash of content, and a dry run of it."""
    run = await engine.start(TASK.format(AMOUNT), idempotency_key="start")
    request = await engine.request(run)
    await comments.comment(engine.services, OPERATOR, request.id, text=f"{AMOUNT}?", idempotency_key="comment")
    order = MessageOrder(input=TASK.format(AMOUNT), while_running="inject")
    await send(engine.services, OPERATOR, run.id, order, idempotency_key="send")
    await engine.decide(request, "approve")
    ended = await engine.ended(run)
    assert ended.status == "completed"
    order_again = DryRunOrder(instructions=INSTRUCTIONS.format(AMOUNT))
    await engine.ended(await start_dry_run(engine.services, OPERATOR, run.id, order_again))
    await add_after(database, 0)
    return ended


def guesses() -> dict[str, Guess]:
    """How each hash follows from the amount, by what it is of."""
    overrides = RunOverrides(agent="agent", instructions=INSTRUCTIONS.format(AMOUNT))
    start = StartOrder(agent="agent", input=TASK.format(AMOUNT))
    message = framed("agent", TASK.format(AMOUNT), "", "", "")
    of_texts = {
        "arguments": framed("pay", ARGUMENTS.format(AMOUNT)),
        "order": framed(STARTER.name) + message,
        "whole result": framed(WHOLE.format(AMOUNT)),
        "instructions": framed(overrides.model_dump_json(exclude_none=True)),
        "arguments alone": ARGUMENTS.format(AMOUNT).encode(),
        "task alone": TASK.format(AMOUNT).encode(),
    }
    named = {name: _sha256(whole) for name, whole in of_texts.items()}
    named["whole call, as a number"] = _number(framed("pay", "all", "/cents", f"n{AMOUNT}"))
    named["one value, as a number"] = _number(framed("pay", "one", "/cents", f"n{AMOUNT}"))
    amount = str(AMOUNT).encode()
    for name, known in {
        "arguments": repeat_key("pay", ARGUMENTS.format(AMOUNT)),
        "order": start.fingerprint(STARTER.name),
        "whole result": result_digest(WHOLE.format(AMOUNT)),
        "instructions": overrides.digest,
    }.items():
        assert named[name](amount).hex() == known[:16], name
    numbers = [each.to_bytes(8, "big") for each in features("pay", ARGUMENTS.format(AMOUNT))]
    assert {named["whole call, as a number"](amount), named["one value, as a number"](amount)} == set(numbers)
    return named


def _split(whole: bytes) -> tuple[bytes, bytes]:
    before, after = whole.split(str(AMOUNT).encode())
    return before, after


def _sha256(whole: bytes) -> Guess:
    before, after = _split(whole)
    begun = hashlib.sha256(before)

    def guess(amount: bytes) -> bytes:
        own = begun.copy()
        own.update(amount + after)
        return own.digest()[:8]

    return guess


def _number(whole: bytes) -> Guess:
    before, after = _split(whole)

    def guess(amount: bytes) -> bytes:
        number = int.from_bytes(hashlib.blake2b(before + amount + after, digest_size=8).digest()) >> 1
        return number.to_bytes(8, "big")

    return guess


async def stored_values(database: Database) -> list[Any]:
    """All values of all tables, as someone with the database's file reads them."""
    values: list[Any] = []
    async with database._backend.write() as conn:
        for table in metadata.sorted_tables:
            values.extend(value for row in await conn.execute(select(table)) for value in row)
    return values


def hashes_in(values: list[Any]) -> set[bytes]:
    """The first eight bytes of all that could be a hash, whole or cut, in hex or as a number."""
    texts = (each for each in values if isinstance(each, str))
    hits = {bytes.fromhex(each) for value in texts for each in re.findall(r"(?<![0-9a-f])[0-9a-f]{16}", value)}
    return hits | {each.to_bytes(8, "big") for each in values if isinstance(each, int) and each >= 0}


def guessed(values: list[Any], candidates: range = NEAR) -> dict[str, int]:
    """What could be guessed: which hash gave away which amount. ``candidates``: what is tried of the short texts."""
    stored = hashes_in(values)
    hits = {}
    for name, guess in guesses().items():
        for candidate in candidates if name in SHORT else NEAR:
            if guess(b"%d" % candidate) in stored:
                hits[name] = candidate
    return hits


async def unsealed_hashes(database: Database) -> tuple[set[str], set[str]]:
    """The columns of hashes that have any, and those of them where one is not under a key."""
    used, plain = set(), set()
    async with database._backend.write() as conn:
        for place in HASHES - {"precedent_features.feature"}:
            table, _, column = place.partition(".")
            of_column = metadata.tables[table].c[column]
            for value in (await conn.execute(select(of_column).where(of_column != ""))).scalars():
                used.add(place)
                plain |= set() if value.startswith(MARK) else {place}
    return used, plain


@pytest.mark.parametrize(
    ("database", "candidates"),
    [
        ("sqlite", NEAR),
        ("encrypted", NEAR),
        pytest.param("postgresql", NEAR, marks=pytest.mark.exhaustive),
        pytest.param("encrypted", CANDIDATES, marks=pytest.mark.exhaustive),
    ],
    indirect=["database"],
)
async def test_no_amount_can_be_guessed_from_what_is_stored(
    client: Client, database: Database, candidates: range
) -> None:
    """A plain store's hashes go with the content when it is erased; an encrypted one keeps them under a key."""
    model = ListModel(says(call("pay", ARGUMENTS.format(AMOUNT), "c1")), says("Done."))
    async with stack(client, database, pay, model=model, limits=Limits(result_chars=2_000)) as engine:
        run = await run_about_an_amount(database, engine)
        stored = await stored_values(database)
        used, plain = await unsealed_hashes(database)
        assert used == HASHES - {"precedent_features.feature", "external_calls.repeat_key"}
        if database.is_encrypted:
            assert plain == set()
            assert str(AMOUNT) not in "".join(map(str, stored))
            assert guessed(stored, candidates) == {}
            return
        of_rows = set(guesses()) - {"arguments alone", "task alone"}
        assert guessed(stored) == dict.fromkeys(of_rows, AMOUNT)  # so the guesses are good ones
        order = ErasureOrder(target=run.conversation_id, by="root", reason="They asked for it.", with_forks=True)
        await erase(database, order)
        left = await stored_values(database)
        assert str(AMOUNT) not in "".join(map(str, left))
        assert guessed(left) == {}
