"""The hash chain of events: how a hash is made, and what is wrong with a chain that does not hold.

Pure: the store, an export and the pages are all checked by these rules. A chain holds the events of one run (or those of no
run, ``system``): numbered from 1 without a gap, each hash over the one before it. Over all chains, ``seq`` counts from 1
without a gap, too; it is not hashed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from turngate.domain.digest import framed_sha256


@dataclass(frozen=True, kw_only=True)
class ChainedEvent:
    """One event with all that its hash is made over. ``payload``: the stored text, to the byte.

    ``words``: JSON of what was said, apart from the payload, which has digests of it; None: nothing, or it was erased.
    """

    seq: int
    run_id: str
    run_seq: int
    type: str
    payload: str
    created_at: str
    previous_hash: str
    hash: str
    words: str | None = None

    @property
    def lacks_words(self) -> bool:
        """Whether its payload has digests of words that are not here: they were erased, or taken out."""
        return self.words is None and '"words":{' in self.payload and bool(_decoded(self.payload).get("words"))

    @property
    def has_its_hash(self) -> bool:
        """Whether its hash is over its content."""
        return self.hash == chain_hash(
            self.previous_hash, self.run_id, self.run_seq, self.type, self.payload, self.created_at
        )

    @property
    def has_its_words(self) -> bool:
        """Whether its words, where it has any, are those that its payload has digests of."""
        if self.words is None:
            return True
        texts, digests = _decoded(self.words), _decoded(self.payload).get("words")
        try:
            return {name: words_digest(nonce, text) for name, (nonce, text) in texts.items()} == digests
        except (TypeError, ValueError, AttributeError):
            return False


@dataclass(frozen=True, kw_only=True)
class ChainHead:
    """How long a chain is said to be, and its newest hash; ``""`` for an empty one."""

    run_id: str
    length: int
    hash: str


@dataclass(frozen=True, kw_only=True)
class ChainBreak:
    """The first place where a log does not hold. ``run_seq``: which of the chain's events; ``problem``: in one clause.

    ``run_id`` "": it is about no chain, but about what the log should hold besides.
    """

    run_id: str
    run_seq: int
    problem: str

    def __str__(self) -> str:
        """Return the whole sentence."""
        return f"chain {self.run_id}, event {self.run_seq}: {self.problem}" if self.run_id else self.problem


def chain_hash(previous: str, run_id: str, run_seq: int, kind: str, payload: str, created_at: str) -> str:
    """Return the hash of one event: SHA-256 over length-prefixed fields, the previous hash first."""
    return framed_sha256(previous, run_id, str(run_seq), kind, payload, created_at)


def words_digest(nonce: str, text: str) -> str:
    """Return the digest that an event has of words that are stored apart from it."""
    return framed_sha256(nonce, text)


def _decoded(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


class ChainCheck:
    """Checks one chain, event by event. After the first break its answers mean nothing.

    ``from_start`` False: the chain is given from somewhere on, so its first event is taken at its word for what was before.
    """

    def __init__(self, run_id: str, *, from_start: bool = True) -> None:
        self.head = ChainHead(run_id=run_id, length=0, hash="")
        self._last_seq = 0
        self._anchored = from_start

    def add(self, event: ChainedEvent) -> ChainBreak | None:
        """Take the next event; returns what is wrong with it."""
        if not self._anchored:
            self._anchored = True
            if event.run_seq > 1:
                self.head = ChainHead(run_id=event.run_id, length=event.run_seq - 1, hash=event.previous_hash)
        expected = self.head.length + 1
        problem = self._problem(event, expected)
        if problem is not None:
            return ChainBreak(run_id=self.head.run_id, run_seq=expected, problem=problem)
        self.head = ChainHead(run_id=event.run_id, length=expected, hash=event.hash)
        self._last_seq = event.seq
        return None

    def close(self, stored: ChainHead) -> ChainBreak | None:
        """Compare with the length and hash that are stored apart from the events: they reveal a tail that was cut off."""
        own, at = self.head, min(self.head.length, stored.length) + 1
        if own.length < stored.length:
            problem = f"it is missing: {own.length} of the chain's {stored.length} event(s) are here"
        elif own.length > stored.length:
            problem = f"it is one too many: the chain has {stored.length} event(s), and {own.length} are here"
        elif own.hash != stored.hash:
            at, problem = max(own.length, 1), "its hash is not the one kept as the newest of the chain"
        else:
            return None
        return ChainBreak(run_id=own.run_id, run_seq=at, problem=problem)

    def _problem(self, event: ChainedEvent, expected: int) -> str | None:
        if event.run_seq > expected:
            return f"it is missing; event {event.run_seq} comes next"
        if event.run_seq < expected:
            return f"event {event.run_seq} is here, twice or in the wrong place"
        # Readers go by `seq`, which is not in the hash: two events that swapped theirs would appear in the wrong order.
        if event.seq <= self._last_seq:
            return f"its number among all events, {event.seq}, is not above that of the event before it"
        if event.previous_hash != self.head.hash:
            return "the previous hash it names is not the hash of the event before it"
        if not event.has_its_hash:
            return "its content is not what its hash was made over"
        if not event.has_its_words:
            return "its words are not those that it has digests of"
        return None


class LogCheck:
    """Checks a whole log given in order of ``seq``: every chain, and that no number is missing or there twice.

    ``since``: the first number the log is to begin with; above 1 a chain may begin anywhere. ``only``: the one chain it
    holds, whose numbers have gaps. Memory grows with the number of chains, not of events.
    """

    def __init__(self, *, since: int = 1, only: str | None = None) -> None:
        self._expected = since
        self._from_start = since <= 1
        self._only = only
        self._chains: dict[str, ChainCheck] = {}
        self._closed: set[str] = set()
        self.events = 0

    @property
    def heads(self) -> list[ChainHead]:
        """The head of each chain as found, by its run."""
        return [self._chains[run_id].head for run_id in sorted(self._chains)]

    def add(self, event: ChainedEvent) -> ChainBreak | None:
        """Take the next event; returns what is wrong with it, or with what should have come before it."""
        if self._only is not None and event.run_id != self._only:
            return self._at(event, f"it belongs to another chain than {self._only}, the only one this log should hold")
        if self._only is None and event.seq != self._expected:
            return self._at(event, self._misnumbered(event.seq))
        self._expected = event.seq + 1
        self.events += 1
        return self._chain(event.run_id).add(event)

    def close(self, stored: ChainHead) -> ChainBreak | None:
        """Compare one chain with its stored head."""
        self._closed.add(stored.run_id)
        return self._chain(stored.run_id).close(stored)

    def end(self, *, last_seq: int | None) -> ChainBreak | None:
        """Say that nothing more comes. ``last_seq``: the newest number there was; None when only one chain was given."""
        open_chain = next((run_id for run_id in self._chains if run_id not in self._closed), None)
        if open_chain is not None:
            check = self._chains[open_chain]
            problem = "it may be missing: nothing says how long this chain is"
            return ChainBreak(run_id=open_chain, run_seq=check.head.length + 1, problem=problem)
        if last_seq is not None and self._expected <= last_seq:
            problem = f"the events numbered {self._expected} to {last_seq} are missing"
            return ChainBreak(run_id="", run_seq=0, problem=problem)
        return None

    def _chain(self, run_id: str) -> ChainCheck:
        if run_id not in self._chains:
            self._chains[run_id] = ChainCheck(run_id, from_start=self._from_start)
        return self._chains[run_id]

    def _misnumbered(self, seq: int) -> str:
        if seq > self._expected:
            missing = f"{self._expected} to {seq - 1}" if seq - 1 > self._expected else str(self._expected)
            return f"its number among all events is {seq}, and {missing} before it is missing"
        return f"its number among all events is {seq}, where {self._expected} should come: it is there twice or out of order"

    @staticmethod
    def _at(event: ChainedEvent, problem: str) -> ChainBreak:
        return ChainBreak(run_id=event.run_id, run_seq=event.run_seq, problem=problem)
