"""Decisions on four tools, and twins of some of them: calls that differ from a decided one in a known way. The same each time."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import insert
from support.stores.stored_requests import live_run, request_row

from turngate.approvals_api.requests.precedents import add_after
from turngate.domain.likeness import features
from turngate.domain.requests import STATUS_OF_VERB, Verb
from turngate.store.clock import as_text, now
from turngate.store.database import Database
from turngate.store.requests import precedents
from turngate.store.requests.precedents import Decided
from turngate.store.tables import decisions, executions, requests

PER_RUN: Final = 500
_BEGINNINGS: Final = (
    "bar", "cor", "del", "fen", "gal", "hus", "jor", "kel", "lam",
    "mor", "nel", "por", "quil", "ras", "sol", "tam",
)  # fmt: skip
_ENDS: Final = (
    "a", "ben", "den", "fis", "gon", "ker", "lin", "mas", "nor",
    "pel", "rik", "son", "ton", "vas", "wen", "zet",
)  # fmt: skip
WORDS: Final = tuple(first + second for first in _BEGINNINGS for second in _ENDS)
REASONS: Final = (
    "The parcel arrived damaged", "The customer changed their mind", "Paid twice", "Never delivered",
    "Wrong size", "As agreed on the phone", "Goodwill after a long delay", "The article is sold out",
)  # fmt: skip
TOOLS: Final = ("refund", "send_mail", "bash", "edit_file")


@dataclass(frozen=True)
class Twin:
    """A call that is like the decided ``of``. ``change``: how it differs."""

    of: str
    change: str
    tool_name: str
    input: str


def planted(count: int, *, seed: int = 17) -> Iterator[Decided]:
    """Yield so many decisions, oldest first."""
    chance = random.Random(seed)  # noqa: S311 - test data
    for seq in range(1, count + 1):
        tool_name = chance.choices(TOOLS, (60, 15, 15, 10))[0]
        verb: Verb = chance.choices(("approve", "edit", "reject"), (90, 4, 6))[0]
        arguments = json.dumps(_arguments(tool_name, chance))
        yield Decided(seq=seq, request_id=f"rq_{seq:06}", tool_name=tool_name, input=arguments, verb=verb)


def _arguments(tool_name: str, chance: random.Random) -> dict[str, Any]:
    def word() -> str:
        return chance.choice(WORDS)

    match tool_name:
        case "refund":
            return {
                "order": f"A-{chance.randrange(10**6)}",
                "customer": f"{word()}.{word()}@example.com",
                "amount_cents": chance.randrange(1, 200) * 100,
                "currency": chance.choice(("EUR", "EUR", "EUR", "USD")),
                "reason": chance.choice(REASONS),
            }
        case "send_mail":
            body = " ".join(word() for _ in range(40))
            return {"to": f"{word()}@example.com", "subject": f"{chance.choice(REASONS)}: {word()}", "body": body}
        case "bash":
            start = chance.choice(
                ("kubectl rollout restart", "pytest -q", "git diff --stat", "terraform apply -target")
            )
            return {"command": f"{start} {word()}/{word()}-{chance.randrange(900)} --context {word()} --since {word()}"}
        case _:
            path = f"src/{word()}/{word()}_{word()}.py"
            return {
                "path": path,
                "old": " ".join(word() for _ in range(12)),
                "new": " ".join(word() for _ in range(12)),
            }


def twins(decided: Sequence[Decided], count: int, *, seed: int = 4) -> list[Twin]:
    """Return twins of decisions anywhere among these, each kind of change in turn."""
    chance = random.Random(seed)  # noqa: S311 - test data
    return [_twin(each, place, chance) for place, each in enumerate(chance.sample(decided, count))]


def _twin(decided: Decided, place: int, chance: random.Random) -> Twin:
    arguments = json.loads(decided.input)
    names = list(arguments)
    match place % 5:
        case 0:
            change = "the same, in another order and spacing"
            text = json.dumps(dict(reversed(arguments.items())), indent=3)
            return Twin(decided.request_id, change, decided.tool_name, text)
        case 1:
            change = "one value"
            _change(arguments, chance.choice(names), chance)
        case 2:
            change = "one word of the longest text"
            _change_word(arguments, chance)
        case 3:
            change = "one more argument"
            arguments["notify"] = True
        case _:
            change = "two values" if len(names) > 2 else "one word of the longest text"
            if len(names) > 2:
                for name in chance.sample(names[2:] if len(names) > 3 else names[1:], 2):
                    _change(arguments, name, chance)
            else:
                _change_word(arguments, chance)
    return Twin(decided.request_id, change, decided.tool_name, json.dumps(arguments))


def _change(arguments: dict[str, Any], name: str, chance: random.Random) -> None:
    value = arguments[name]
    if isinstance(value, int):
        arguments[name] = value * 10
    elif " " in value:
        _change_word(arguments, chance, name)
    else:
        arguments[name] = f"{chance.choice(WORDS)}{chance.randrange(1000)}"


def _change_word(arguments: dict[str, Any], chance: random.Random, name: str | None = None) -> None:
    name = name or max(arguments, key=lambda each: len(str(arguments[each])))
    words = str(arguments[name]).split(" ")
    words[chance.randrange(len(words))] = "elsewhere"
    arguments[name] = " ".join(words)


async def store(database: Database, decided: Sequence[Decided], **more: str) -> None:
    """Store decided requests with their decisions and executions, and add them to the precedents. ``more``: of each request."""
    began = now() - timedelta(days=30)
    for number, first in enumerate(range(0, len(decided), PER_RUN)):
        batch = decided[first : first + PER_RUN]
        async with database.write() as conn:
            run = await live_run(conn, f"run_{number}")
            rows = [
                replace(
                    request_row(run, each.request_id, tool_name=each.tool_name, input=each.input, **more),
                    status=STATUS_OF_VERB[each.verb],
                    verb=each.verb,
                    decision_id=f"dec_{each.seq}",
                    decided_by="ann",
                    decided_at=as_text(began + timedelta(seconds=each.seq)),
                )
                for each in batch
            ]
            await conn.execute(insert(requests), [vars(row) for row in rows])
            await conn.execute(insert(decisions), [_decision(each) for each in batch])
            await conn.execute(
                insert(executions),
                [_execution(run.id, each) for each in batch if each.verb != "reject"],
            )
            await precedents.add(conn, [(each, features(each.tool_name, each.input)) for each in batch])


def _decision(decided: Decided) -> dict[str, Any]:
    message = "Not this one." if decided.verb == "reject" else ""
    whose = {"id": f"dec_{decided.seq}", "request_id": decided.request_id, "verb": decided.verb, "message": message}
    return {**whose, "digest": "d", "decided_by": "ann", "created_at": as_text(now())}


def _execution(run_id: str, decided: Decided) -> dict[str, Any]:
    state = "failed" if decided.seq % 10 == 0 else "succeeded"
    call = {"run_id": run_id, "tool_call_id": f"call of {decided.request_id}", "state": state, "digest": "d"}
    return {**call, "idempotency_key": f"k{decided.seq}", "attempts": 1, "started_at": as_text(now())}


async def caught_up(database: Database) -> None:
    """Make precedents of all decisions, as the API does soon after them."""
    seq, more = 0, True
    while more:
        seq, more = await add_after(database, seq)
