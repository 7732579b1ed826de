"""A package of evidence as one page of HTML: no script, no link, nothing loaded, and every value isolated and escaped."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, Final

from turngate.domain.text.instants import in_utc
from turngate.text.plain_text import plain
from turngate.wire.evidence import EvidenceDocument, SampledRequest

_HEAD: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>Evidence</title>
<style>
body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#1b1f24;background:#fff}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem;border-bottom:1px solid #d0d7de}h3{font-size:1rem;margin-bottom:.3rem}
table{border-collapse:collapse;margin:.5rem 0;width:100%}
th,td{text-align:left;vertical-align:top;padding:.25rem .6rem;border-bottom:1px solid #eaeef2}
td{overflow-wrap:anywhere}pre{background:#f6f8fa;padding:.6rem;white-space:pre-wrap;overflow-wrap:anywhere;margin:.3rem 0}
.bad{color:#a40e26;font-weight:600}.good{color:#116329}section{break-inside:avoid}
</style></head><body>
"""
MAX_VALUE_CHARS: Final = 20_000


def page_of(document: EvidenceDocument) -> str:
    """Return the page of a package."""
    page = "".join(
        [_HEAD, *_summary(document), *_counts(document), *_people(document), *_sample(document), "</body></html>\n"]
    )
    for person, name in document.people.items():
        page = page.replace(person, escape(plain(name)))
    return page


def _text(value: object) -> str:
    text = plain(str(value))
    if len(text) > MAX_VALUE_CHARS:
        text = f"{text[:MAX_VALUE_CHARS]}… ({len(text) - MAX_VALUE_CHARS:,} more characters are in the package)"
    return f"<bdi>{escape(text)}</bdi>"


def _at(instant: str | None) -> str:
    return in_utc(instant, "seconds") if instant else ""


def _table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    body = "".join(f"<tr>{''.join(f'<td>{_text(each)}</td>' for each in row)}</tr>" for row in rows)
    if not body:
        return "<p>None.</p>"
    head = "".join(f"<th>{escape(each)}</th>" for each in headers)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _summary(document: EvidenceDocument) -> list[str]:
    period, chain = document.period, document.chain
    is_good = not chain.problem and not document.counts.difference_count
    verdict = "The log, the rows and the counts agree." if is_good else "The log, the rows or the counts do not agree."
    rows: list[tuple[str, object]] = [
        ("Period", f"{_at(period.since)} to {_at(period.until)}: events {period.first_seq:,} to {period.last_seq:,}"),
        ("Log", f"verified from event 1 to {chain.verified_to:,}, {chain.chains:,} chains"),
        ("Rows", f"those of {chain.runs_compared:,} runs were compared with the log"),
        ("Signed heads", f"cover events up to {chain.signed_to:,}"),
        ("Package", f"made {_at(document.made_at)} by {document.made_by}, Turngate {document.version}"),
        ("Signature", document.key or "none"),
    ]
    if chain.problem:
        rows.insert(0, ("Problem", chain.problem))
    return [
        "<h1>Evidence</h1>",
        f'<p class="{"good" if is_good else "bad"}">{verdict}</p>',
        _table(("", ""), rows),
        "<p>This page is for reading. The package is what <code>turngate evidence verify</code> checks.</p>",
    ]


def _counts(document: EvidenceDocument) -> list[str]:
    counts, parts = document.counts, ["<h2>Counts</h2>"]
    for what, by_event in counts.from_events.items():
        by_row = counts.from_rows.get(what, {})
        names = sorted({*by_event, *by_row})
        rows = [(name, f"{by_event.get(name, 0):,}", f"{by_row.get(name, 0):,}") for name in names]
        parts += [f"<h3>{_text(what)}</h3>", _table(("", "in the log", "in the rows"), rows)]
    parts += ["<h3>Requests by risk</h3>", _table(("risk", "requests"), counts.requests_by_risk.items())]
    if counts.difference_count:
        parts += [
            f'<h3 class="bad">{counts.difference_count:,} difference(s)</h3>',
            _table(("difference",), [(each,) for each in counts.differences]),
        ]
    return parts


def _people(document: EvidenceDocument) -> list[str]:
    noted = ("time", "event", "by", "what")
    kinds = {
        "own_run": "decided what they started (the rule lets them)",
        "against_the_rule": "decided what they started, against the rule",
        "machine": "decided by a credential of no person",
        "rules_by_one": "rules changed by one person",
    }
    missing = "".join(f"<p>No {_text(kind)} drill was recorded in the period.</p>" for kind in document.drills_missing)
    return [
        f"<h2>Exceptions to four eyes: {document.four_eyes_count:,}</h2>",
        _table(
            ("time", "who", "what", "about"), [(_at(e.at), e.by, kinds[e.kind], e.about) for e in document.four_eyes]
        ),
        "<h2>Changes of policy and people</h2>",
        _table(noted, [(_at(e.at), e.type, e.by or "", _json(e.payload)) for e in document.policy_changes]),
        "<h2>Rules that waited for a second admin</h2>",
        _table(
            ("proposed", "by", "outcome", "ended by", "waited"),
            [
                (_at(w.proposed_at), w.proposed_by, w.outcome or "waits", w.ended_by or "", _seconds(w.waited_seconds))
                for w in document.loosening_waits
            ],
        ),
        "<h2>Drills and restores</h2>",
        _table(noted, [(_at(e.at), e.type, e.by or "", _json(e.payload)) for e in document.drills]),
        missing,
    ]


def _sample(document: EvidenceDocument) -> list[str]:
    sample = document.sample
    chosen = ". The maker of this package chose it, and may have tried others" if sample.seed_was_given else ""
    return [
        f"<h2>Sample: {len(sample.requests):,} of {sample.population:,} requests</h2>",
        f"<p>{_text(sample.method)}</p><p>Seed: {_text(sample.seed)}{chosen}</p>",
        *(part for each in sample.requests for part in _request(each)),
    ]


def _request(sampled: SampledRequest) -> list[str]:
    view = sampled.view
    decision = view.get("decision") or {}
    rows: list[tuple[str, object]] = [
        ("Asked", f"{_at(view.get('created_at'))} by {view.get('agent')}, run {sampled.run_id}"),
        ("Rule", f"{view.get('rule')}: {view.get('reason')}"),
        ("Verdict", sampled.policy_verdict),
        ("Risk, approvals needed", f"{view.get('risk')}, {sampled.quorum}"),
        ("Digest", view.get("digest")),
        ("Status", view.get("status")),
        ("Decided", f"{decision.get('verb', '')} by {view.get('decided_by') or ''} {_at(view.get('decided_at'))}"),
        ("Not by", view.get("not_by") or ""),
        ("Looked at", ", ".join(f"{each.viewer} {_at(each.first_at)}" for each in sampled.viewers)),
        ("Ran", f"{_at(sampled.executed_at) or 'no'} {view.get('execution')}"),
    ]
    if sampled.without_row:
        rows.append(("Digests", f"can't be computed again from this package: {sampled.without_row}"))
    parts = [f"<section><h3>{_text(view.get('tool_name'))} {_text(sampled.request_id)}</h3>"]
    if sampled.erased:
        parts.append(f'<p class="bad">{_text(sampled.erased)}</p>')
    parts += [
        f"<pre>{_text(view.get('input'))}</pre>",
        f"<pre>{_text(view['preview'])}</pre>" if view.get("preview") else "",
        _table(("", ""), rows),
        "</section>",
    ]
    return parts


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:,.0f} s"
