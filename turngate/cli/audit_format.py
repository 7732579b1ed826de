"""The audit export's lines: how each is written, how each is read, and a whole export checked without any store.

JSON lines. First a header; then one line per event with all that its hash is made over, ``payload`` as the exact text; then
one line per chain with its length and newest hash; then one line that says how many of both there were. So a file that was
cut off anywhere is noticed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from turngate.domain.runs.event_chain import ChainBreak, ChainedEvent, ChainHead, LogCheck

VERSION: Final = 1
_MEMBERS: Final = {
    "seq": int,
    "run_id": str,
    "run_seq": int,
    "type": str,
    "payload": str,
    "created_at": str,
    "previous_hash": str,
    "hash": str,
}


@dataclass(frozen=True, kw_only=True)
class Header:
    """What an export holds. ``since``: the number it begins at; ``only``: the one chain; ``last_seq``: the newest number."""

    since: int
    only: str | None
    last_seq: int
    exported_at: str


@dataclass(frozen=True, kw_only=True)
class Checked:
    """The outcome of a check. ``broken``: the first thing that is wrong, in a sentence; None when all holds."""

    events: int
    heads: list[ChainHead]
    broken: str | None


def header_line(header: Header) -> str:
    """Return the first line."""
    return _line({"turngate_audit": VERSION, **asdict(header)})


def event_line(event: ChainedEvent) -> str:
    """Return the line of one event."""
    return _line(asdict(event))


def head_line(head: ChainHead) -> str:
    """Return the closing line of one chain."""
    return _line({"chain": head.run_id, "length": head.length, "head": head.hash})


def end_line(*, events: int, chains: int) -> str:
    """Return the last line."""
    return _line({"end": {"events": events, "chains": chains}})


def check_lines(lines: Iterable[str]) -> Checked:
    """Check an export, line by line; memory grows with the number of chains only."""
    reading = _Reading()
    for number, line in enumerate(lines, start=1):
        broken = reading.take(number, line)
        if broken is not None:
            return reading.outcome(broken)
    return reading.outcome(reading.finish())


class _Reading:
    """Where the check of a file stands."""

    def __init__(self) -> None:
        self._header: Header | None = None
        self._check = LogCheck()
        self._chains = 0
        self._ended = False

    def outcome(self, broken: str | None) -> Checked:
        return Checked(events=self._check.events, heads=self._check.heads, broken=broken)

    def take(self, number: int, line: str) -> str | None:
        """Take the next line; returns what is wrong with it."""
        where = f"line {number}"
        if not line.endswith("\n"):
            return f"{where}: the file is cut off in the middle of it"
        try:
            read = json.loads(line, object_pairs_hook=_without_repeats)
        except (ValueError, RecursionError):
            return f"{where}: it is not JSON, or names a member twice"
        if not isinstance(read, dict):
            return f"{where}: it is not a line of an audit export"
        if self._ended:
            return f"{where}: it stands behind the line that ends the export"
        if self._header is None:
            return self._begin(where, read)
        if "end" in read:
            return self._end(where, read["end"])
        broken = self._close(read) if "chain" in read else self._event(read)
        return None if broken is None else f"{where}: {broken}"

    def finish(self) -> str | None:
        """Say that the file is over; returns what is missing."""
        if self._header is None:
            return "the file is empty: an audit export begins with a header"
        if not self._ended:
            return "the file is cut off: the line that ends an audit export is missing"
        broken = self._check.end(last_seq=self._header.last_seq if self._header.only is None else None)
        return None if broken is None else str(broken)

    def _begin(self, where: str, read: Mapping[str, Any]) -> str | None:
        version, since, only, last = (read.get(name) for name in ("turngate_audit", "since", "only", "last_seq"))
        if version is None:
            return f"{where}: it is not the header of an audit export"
        if version != VERSION:
            return f"{where}: the export's format is {version!r}, and this version of Turngate reads {VERSION}"
        if not (isinstance(since, int) and isinstance(last, int) and (only is None or isinstance(only, str))):
            return f"{where}: the header does not say what the export holds"
        self._header = Header(since=since, only=only, last_seq=last, exported_at=str(read.get("exported_at", "")))
        self._check = LogCheck(since=since, only=only)
        return None

    def _event(self, read: Mapping[str, Any]) -> ChainBreak | str | None:
        if self._chains:
            return "an event stands behind the closing lines"
        if set(read) != set(_MEMBERS) or any(type(read[name]) is not kind for name, kind in _MEMBERS.items()):
            return "it is neither an event nor a closing line"
        return self._check.add(ChainedEvent(**read))

    def _close(self, read: Mapping[str, Any]) -> ChainBreak | str | None:
        run_id, length, head = (read.get(name) for name in ("chain", "length", "head"))
        if not (isinstance(run_id, str) and isinstance(length, int) and isinstance(head, str)):
            return "it is not a closing line"
        self._chains += 1
        return self._check.close(ChainHead(run_id=run_id, length=length, hash=head))

    def _end(self, where: str, counts: Any) -> str | None:
        self._ended = True
        here = {"events": self._check.events, "chains": self._chains}
        if counts != here:
            return f"{where}: it says that the export holds {counts}, and {here} are here"
        return None


def _line(members: Mapping[str, Any]) -> str:
    # ASCII: so no stream's encoding can change a character, and with it a hash.
    return json.dumps(members, separators=(",", ":")) + "\n"


def _without_repeats(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse what two readers could read in two ways."""
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a member is there twice")
    return members
