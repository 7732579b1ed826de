"""``turngate evidence``: a signed package for auditors about a period, and its check, which needs no store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from pydantic import ValidationError

from turngate import __version__
from turngate.approvals_api.requests.evidence import (
    EvidenceOrder,
    NotedEvents,
    collect,
    default_seed,
    draw,
    exception_of,
)
from turngate.cli import stores, terminal
from turngate.cli.commands.events.audit import check_lines, events_in
from turngate.cli.commands.events.evidence_page import page_of
from turngate.cli.errors import EXIT_WENT_WRONG
from turngate.cli.options import DataDir, instant_of
from turngate.domain.digest import call_digest
from turngate.domain.errors import ConfigurationError
from turngate.domain.policy.terms import OWNERS_PREFIX
from turngate.domain.runs.event_chain import ChainedEvent, chain_hash
from turngate.runtime import signed_heads
from turngate.runtime.locations import write_atomically
from turngate.runtime.settings import Settings, load_stack_settings
from turngate.runtime.signed_heads import HeadsCheck, SignedHeadsError
from turngate.store.events.counts import LogCounts, payload_of
from turngate.store.events.row_digests import is_digest_of, text_digest
from turngate.store.tables.evidence import CLIMBS
from turngate.text.plain_text import plain
from turngate.wire.evidence import PURPOSE, EvidenceDocument, FourEyesException, SampledRequest

STREAM: Final = "-"
ON_ITS_PAGE: Final = ("input", "tool_name", "risk", "rule", "agent")
"""What of a request's page is in its row, too."""
STARTERS_KINDS: Final = ("own_run", "against_the_rule")
"""Exceptions to four eyes for which one must know who started what led to a run. The log alone doesn't say."""
MAX_FILE_BYTES: Final = 512 * 1024 * 1024

app = typer.Typer(invoke_without_command=True)


@app.callback()
def evidence(
    context: typer.Context,
    since: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", help="Where the period begins: ISO 8601, or 30d for 30 days ago."),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="Where it ends.", show_default="now")
    ] = None,
    sample: Annotated[int, typer.Option(min=0, max=10_000, help="How many requests to draw.")] = 25,
    seed: Annotated[
        str | None,
        typer.Option(help="The text that the sample is drawn with.", show_default="made from the log"),
    ] = None,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="The file to write; - is stdout.")
    ] = STREAM,
    page: Annotated[
        Path | None, typer.Option(metavar="HTML", help="Also write a page for people to this file.")
    ] = None,
    unsigned: Annotated[bool, typer.Option("--unsigned", help="Write the package without a signature.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Write a signed package for auditors about a period, or verify one.

    It has counts from the rows and from the log, a sample of requests as people saw them, exceptions to four eyes, changes of
    policy, and drills. It is signed with the key of TURNGATE_AUDIT_KEY_FILE. It holds content: keep it as you keep the store.

    Exit code: 0, or 1 if the log, the rows or the counts don't agree; the package says where.
    """
    if context.invoked_subcommand is not None:
        return
    if since is None:
        raise ConfigurationError("say where the period begins: `turngate evidence --from 30d -o evidence.json`")
    settings = load_stack_settings(data_dir=data_dir)
    if settings.audit_key_file is None and not unsigned:
        raise ConfigurationError(
            "TURNGATE_AUDIT_KEY_FILE is not set, so nothing can sign the package: `turngate audit keygen FILE` makes a key. "
            "Or use --unsigned"
        )
    order = EvidenceOrder(
        since=instant_of(since, "--from"),
        until=datetime.now(UTC) if until is None else instant_of(until, "--to"),
        sample=sample,
        seed=seed,
        by=f"{OWNERS_PREFIX}{stores.local_user()}",
        version=__version__,
    )
    if order.until <= order.since:
        raise ConfigurationError("--to must be after --from")
    document = asyncio.run(_collect(settings, order))
    if not unsigned:
        document = _signed(settings, document)
    _write(output, document.model_dump_json(indent=2) + "\n")
    if page is not None:
        _write(str(page), page_of(document))
    _report(document)
    if document.chain.problem or document.counts.difference_count:
        raise typer.Exit(EXIT_WENT_WRONG)


@app.command()
def verify(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The package.")],
    key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PUBLIC",
            help="A public key that may sign it, or a file that holds it.",
            show_default="those in TURNGATE_AUDIT_KEY_FILE",
        ),
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option(metavar="EXPORT", help="An export of the log: count it, and draw the sample again from it."),
    ] = None,
    page: Annotated[Path | None, typer.Option(metavar="HTML", help="Write a page for people to this file.")] = None,
    data_dir: DataDir = None,
) -> None:
    """Check a package: its signature, its range of the log, its counts, and the digests of its sample.

    It needs no store. With --log, an export of `turngate audit export` must give the same counts, sample, changes of policy and
    drills, and the same exceptions to four eyes by machines and by one person alone.

    Exit code: 0, or 1 when something is wrong; the messages say what.
    """
    document = _read(file)
    trusted = _trusted(key, data_dir)
    problems = list(_problems(document, trusted))
    if log is not None:
        problems += _log_problems(document, log)
    for problem in problems:
        terminal.error(plain(problem))
    if page is not None and not problems:
        _write(str(page), page_of(document))
    if problems:
        raise typer.Exit(EXIT_WENT_WRONG)
    recounted = sum(each.row is not None for each in document.sample.requests)
    _report(document)
    terminal.note(f"the package is intact: signed by {document.key}")
    terminal.note(
        f"{recounted:,} of {len(document.sample.requests):,} sampled request(s) have the digests that the log has of them"
    )
    if document.sample.seed_was_given:
        terminal.note(
            "the sample was drawn with a seed that its maker chose, and may have tried: ask for one without --seed"
        )
    if log is None:
        terminal.note("the counts and the draw were not compared with the log: give it an export with --log")


async def _collect(settings: Settings, order: EvidenceOrder) -> EvidenceDocument:
    signed = _own_heads(settings)

    def compare(event: ChainedEvent) -> str | None:
        try:
            different = None if signed is None else signed.add(event)
        except SignedHeadsError as error:
            return f"{settings.audit_heads}, {error.message}"
        return None if different is None else f"{settings.audit_heads}: {different}"

    async with stores.opened_store(settings) as database, database.read() as conn:
        document = await collect(conn, replace(order, on_event=compare))
    if signed is None or settings.audit_heads is None:
        return document
    period = document.period
    lines = signed_heads.heads_over(settings.audit_heads, period.first_seq, period.last_seq)
    chain = document.chain.model_copy(update={"signed_heads": lines, "signed_to": signed.compared_to})
    return document.model_copy(update={"chain": chain})


def _own_heads(settings: Settings) -> HeadsCheck | None:
    """Return what compares the log with the file that this deployment signs into; None: it has none."""
    if settings.audit_key_file is None or settings.audit_heads is None or not settings.audit_heads.exists():
        return None
    text = settings.audit_heads.read_text(encoding="utf-8", errors="surrogateescape")
    first = json.loads(text.partition("\n")[0] or "{}").get("key") if text else None
    # The file may begin with a key that has handed over since and is deleted: what counts here is that it leads to ours.
    return HeadsCheck(signed_heads.read_heads(iter(text.splitlines(keepends=True)), [first])) if first else None


def _signed(settings: Settings, document: EvidenceDocument) -> EvidenceDocument:
    if settings.audit_key_file is None:  # pragma: no cover - refused before
        raise ConfigurationError("TURNGATE_AUDIT_KEY_FILE is not set")
    key = signed_heads.read_keys(settings.audit_key_file, apart_from=settings.data_dir)[-1]
    named = document.model_copy(update={"key": signed_heads.public_text(key)})
    return named.model_copy(update={"signature": signed_heads.sign(key, PURPOSE, _signed_bytes(named))})


def _signed_bytes(document: EvidenceDocument) -> bytes:
    members = document.model_dump(mode="json", exclude={"signature"})
    return json.dumps(members, sort_keys=True, separators=(",", ":")).encode()


def _read(file: Path) -> EvidenceDocument:
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            raise ConfigurationError(f"{file} is no evidence package: it has more than {MAX_FILE_BYTES:,} bytes")
        return EvidenceDocument.model_validate_json(file.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigurationError(
            f"{file} is no evidence package of this version: {plain(where)}: {plain(first['msg'])}"
        ) from None


def _trusted(keys: Sequence[str] | None, data_dir: Path | None) -> list[str]:
    trusted = [each for text in keys or () for each in signed_heads.public_keys(text)]
    if trusted:
        return trusted
    own = load_stack_settings(data_dir=data_dir).audit_key_file
    if own is None:
        raise ConfigurationError("verify needs --key: the public key that signs, which `turngate audit keygen` printed")
    return [signed_heads.public_text(each) for each in signed_heads.read_keys(own)]


def _problems(document: EvidenceDocument, trusted: Sequence[str]) -> Iterator[str]:
    """Yield what is wrong with a package by itself."""
    broken, heads, keys = signed_heads.heads_problem(document.chain.signed_heads, trusted)
    if not document.signature:
        yield "the package is not signed"
    elif document.key not in keys:
        yield f"the package names the key {document.key}, which is none of those you trust (--key)"
    elif not signed_heads.is_signed(document.key, PURPOSE, _signed_bytes(document), document.signature):
        yield "the signature is wrong: the package was changed after it was signed"
    if broken is not None:
        yield broken
    covered = [head for head in heads if head.last_seq >= head.first_seq]
    if any(later.first_seq != before.last_seq + 1 for before, later in pairwise(covered)):
        yield "the signed heads leave out events of the period"
    if document.chain.problem:
        yield f"the log or the store was damaged when the package was made: {document.chain.problem}"
    if document.counts.difference_count or document.counts.from_events != document.counts.from_rows:
        yield f"the rows and the log differ in {document.counts.difference_count:,} place(s)"
        yield from document.counts.differences
    yield from _sample_problems(document)


def _sample_problems(document: EvidenceDocument) -> Iterator[str]:
    sample = document.sample
    again = draw((each.request_id for each in sample.requests), sample.seed, len(sample.requests))
    if again != [(each.rank, each.request_id) for each in sample.requests]:
        yield "the sample is not in the order of its ranks, or a rank is wrong"
    for each in sample.requests:
        for problem in _request_problems(each):
            yield f"request {each.request_id}: {problem}"


def _request_problems(sampled: SampledRequest) -> Iterator[str]:
    logged = [ChainedEvent(**vars(each)) for each in sampled.events]
    yield from _event_problems(logged)
    about = [(each, payload_of(each)) for each in logged if payload_of(each).get("request_id") == sampled.request_id]
    opened = next((payload for event, payload in about if event.type == "request.opened"), None)
    if opened is None:
        yield "the event that opened it is missing"
        return
    started = next((payload_of(each) for each in logged if each.type == "execution.started"), None)
    decided = next((payload for event, payload in about if event.type == "request.decided"), {})
    if started is not None and sampled.execution_digest not in {None, started.get("digest")}:
        yield "what ran has another digest in the log"
    if sampled.row is None or sampled.nonce is None:
        return
    yield from _digest_problems(sampled, sampled.row, sampled.nonce, opened, decided)


def _event_problems(logged: Sequence[ChainedEvent]) -> Iterator[str]:
    for each in logged:
        own_hash = chain_hash(each.previous_hash, each.run_id, each.run_seq, each.type, each.payload, each.created_at)
        if own_hash != each.hash:
            yield f"event {each.seq} is not what its hash was made over"


def _digest_problems(
    sampled: SampledRequest, row: dict[str, Any], nonce: str, opened: dict[str, Any], decided: dict[str, Any]
) -> Iterator[str]:
    if row.get("id") != sampled.request_id or not is_digest_of(row, nonce, opened.get("content")):
        yield "what is given as asked for is not what the log has the digest of"
    climbed = row.get("rungs_climbed") or any(each.type in CLIMBS for each in sampled.events)
    terms = None if climbed or "terms" not in opened else sampled.terms
    if terms is not None and text_digest(terms, nonce) != opened["terms"]:
        yield "its terms are not those that the log has the digest of"
    differs = [name for name in ON_ITS_PAGE if sampled.view.get(name) != row.get(name)]
    if differs:
        yield f"what people were shown differs from what was stored: {', '.join(differs)}"
    yield from _call_problems(sampled, row, nonce, opened)
    if sampled.decision_row is not None and not is_digest_of(sampled.decision_row, nonce, decided.get("content")):
        yield "its decision is not what the log has the digest of"


def _call_problems(sampled: SampledRequest, row: dict[str, Any], nonce: str, opened: dict[str, Any]) -> Iterator[str]:
    own_call = call_digest(
        tool_name=str(row.get("tool_name")),
        manifest_digest=sampled.manifest_digest,
        raw_input=str(row.get("input")),
        run_id=sampled.run_id,
        tool_call_id=sampled.tool_call_id,
        policy_version=sampled.policy_version,
        nonce=nonce,
        defaults=row.get("defaults"),
    )
    overruled = '"overruled"' in sampled.policy_verdict
    if row.get("kind") != "outcome" and not overruled and own_call != opened.get("digest"):
        yield "the digest of its call is not the one in the log"


def _log_problems(document: EvidenceDocument, log: Path) -> list[str]:
    """Count an export, draw the sample again, and return what differs."""
    period, last_hash = document.period, ""
    counts, noted = LogCounts(first=period.first_seq, last=period.last_seq), NotedEvents()
    try:
        with log.open(encoding="utf-8", errors="surrogateescape") as lines:
            checked = check_lines(lines)
        if checked.broken is not None:
            return [f"{log}: {checked.broken}"]
        for event in events_in(log):
            counts.add(event)
            if period.first_seq <= event.seq <= period.last_seq:
                noted.add(event)
                last_hash = event.hash
    except OSError as error:
        raise ConfigurationError(f"{log} cannot be read: {error.strerror}") from None
    return [*_count_problems(document, counts, last_hash, log), *_noted_problems(document, noted, log)]


def _count_problems(document: EvidenceDocument, counts: LogCounts, last_hash: str, log: Path) -> Iterator[str]:
    """Compare what a package counts, and its draw, with the log."""
    period, sample = document.period, document.sample
    if counts.events_digest != document.chain.events_digest:
        yield f"{log}: the events of the period are not those that the package is about"
    if counts.totals() != document.counts.from_events:
        yield f"{log}: other counts come out than the package has"
    if not sample.seed_was_given and sample.seed != default_seed(period.first_seq, period.last_seq, last_hash):
        yield "the seed is not the one that the log gives, and the package says that no one chose it"
    drawn = draw(counts.requests_opened, sample.seed, len(sample.requests))
    if drawn != [(each.rank, each.request_id) for each in sample.requests]:
        yield f"{log}: another sample is drawn from it"
    if (sample.population, sample.population_digest) != (len(counts.requests_opened), counts.population_digest):
        yield f"{log}: the sample was not drawn from all requests of the period"


def _noted_problems(document: EvidenceDocument, noted: NotedEvents, log: Path) -> Iterator[str]:
    """Compare what a package names of events with the log."""
    for name, expected in noted.sections().items():
        if getattr(document, name) != expected:
            yield f"{log}: its {name.replace('_', ' ')} are not those of the package"
    if document.four_eyes_count < len(document.four_eyes):
        yield "the package counts fewer exceptions to four eyes than it lists"
    decided = [exception_of("own_run", event, payload) for event, payload in noted.decided]
    possible = [each.model_copy(update={"kind": kind}) for each in decided for kind in STARTERS_KINDS]
    by_log, listed = noted.exceptions(), document.four_eyes
    own = [each for each in listed if each.kind not in STARTERS_KINDS]
    is_cut = document.four_eyes_count > len(listed)
    if not is_cut and sorted(own, key=_place) != sorted(by_log, key=_place):
        yield f"{log}: its exceptions to four eyes are not those of the package"
    if any(each not in [*by_log, *possible] for each in listed):
        yield f"{log}: the package lists exceptions to four eyes that no event shows"


def _place(exception: FourEyesException) -> tuple[int, str]:
    return exception.seq, exception.kind


def _report(document: EvidenceDocument) -> None:
    period, counts, chain = document.period, document.counts, document.chain
    terminal.note(f"events {period.first_seq:,} to {period.last_seq:,}; the log is verified to {chain.verified_to:,}")
    for what, by in counts.from_events.items():
        rows = counts.from_rows.get(what, {})
        terminal.note(plain(f"{what}: {sum(by.values()):,} in the log, {sum(rows.values()):,} in the rows"))
    for difference in counts.differences:
        terminal.error(plain(difference))
    if counts.difference_count > len(counts.differences):
        terminal.error(f"{counts.difference_count - len(counts.differences):,} more difference(s)")
    if chain.problem:
        terminal.error(plain(f"the log was changed or is damaged. {chain.problem}"))
    terminal.note(
        f"sample: {len(document.sample.requests):,} of {document.sample.population:,} request(s); "
        f"exceptions to four eyes: {document.four_eyes_count:,}; changes of policy: {len(document.policy_changes):,}"
    )
    for kind in document.drills_missing:
        terminal.note(f"no {kind} drill was recorded in the period: record one with `turngate drill`")
    if chain.signed_to < period.last_seq:
        terminal.note(f"signed heads cover the log up to event {chain.signed_to:,}")


def _write(output: str, text: str) -> None:
    if output == STREAM:
        terminal.raw(text.rstrip("\n"))
        return
    try:
        write_atomically(Path(output), text)
    except OSError as error:
        raise ConfigurationError(f"{output} cannot be written: {error.strerror}") from None
