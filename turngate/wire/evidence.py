"""The evidence package: what an auditor gets about a period, in one signed document. Its names are part of the format."""

from __future__ import annotations

import operator
from typing import Any, Final, Literal

from pydantic import Field

from turngate.wire.view import View

PURPOSE: Final = "evidence"
SAMPLE_METHOD: Final = (
    "The population is every request whose event request.opened is numbered from first_seq to last_seq. Unless it was given, "
    "the seed is the SHA-256, in hexadecimal, of the text 'turngate-evidence-1' + LF + first_seq + LF + last_seq + LF + the "
    "hash of the event numbered last_seq + LF. Each request's rank is the SHA-256, in hexadecimal, of the text seed + LF + "
    "request id + LF, in UTF-8. The sample is the requests of the lowest ranks, lowest first."
)


class ChainedEventView(View):
    """An event with everything that its hash is made over."""

    seq: int
    run_id: str
    run_seq: int
    type: str
    payload: str
    created_at: str
    previous_hash: str
    hash: str


class Period(View):
    """What the package is about: events by number, and the instants that they were found by."""

    since: str
    until: str
    first_seq: int
    last_seq: int


class ChainEvidence(View):
    """The log as it was verified, from event 1 to ``verified_to``.

    ``problem``: the first thing that is wrong with the log or the rows; None: nothing. ``events_digest``: over the hashes of the
    period's events. ``heads_digest``: over the newest hash of each chain. ``signed_heads``: lines about the period;
    ``signed_to``: the last event that a signed line covers and the log agrees with.
    """

    verified_to: int
    last_hash: str
    events_digest: str
    heads_digest: str
    chains: int
    runs_compared: int
    problem: str | None
    signed_heads: list[str] = Field(default_factory=list)
    signed_to: int = 0


class CountsEvidence(View):
    """Two independent counts: what → by what → how many. They agree if ``difference_count`` is 0."""

    from_events: dict[str, dict[str, int]]
    from_rows: dict[str, dict[str, int]]
    requests_by_risk: dict[str, int]
    differences: list[str]
    difference_count: int


class Viewer(View):
    """Who looked at a request, and when first."""

    viewer: str
    first_at: str


class SampledRequest(View):
    """One request of the sample.

    ``view``: what its page shows, secrets masked. ``row``, ``terms``, ``nonce``: what its digests are over, if nothing of it is
    masked or erased; ``without_row`` says why they are missing. ``policy_verdict``: with the rule that it came from.
    ``events``: those of its run that are about it or its call.
    """

    request_id: str
    run_id: str
    tool_call_id: str
    rank: str
    view: dict[str, Any]
    erased: str | None
    row: dict[str, Any] | None = None
    decision_row: dict[str, Any] | None = None
    terms: str | None = None
    nonce: str | None = None
    without_row: str | None
    manifest_digest: str
    policy_verdict: str
    policy_version: str
    viewers: list[Viewer]
    execution_digest: str | None = None
    execution_decision_id: str | None = None
    executed_at: str | None = None
    is_high_risk: bool
    quorum: int
    events: list[ChainedEventView]


class SampleEvidence(View):
    """The sample, and how to draw it again. ``population_digest``: over the sorted ids of all requests of the period."""

    method: str = SAMPLE_METHOD
    seed: str
    seed_was_given: bool
    population: int
    population_digest: str
    requests: list[SampledRequest]


ExceptionKind = Literal["own_run", "against_the_rule", "machine", "rules_by_one"]


class FourEyesException(View):
    """A decision, or a change of rules, that one person could make alone.

    ``kind``: ``own_run`` (what they started, sent or changed led to the call, and the rule let them decide), ``against_the_rule``
    (the rule wanted someone else), ``machine`` (a credential of no person), ``rules_by_one`` (no second admin confirmed).
    """

    kind: ExceptionKind
    seq: int
    at: str
    by: str
    about: str


class NotedEvent(View):
    """An event that is named in the package: of policy, people, or a drill."""

    seq: int
    at: str
    type: str
    by: str | None
    payload: dict[str, Any]


class LooseningWait(View):
    """Rules that might loosen and waited for a second admin. ``waited_seconds``: None: they still wait."""

    proposal: int
    proposed_by: str
    proposed_at: str
    outcome: str | None
    ended_by: str | None
    waited_seconds: float | None


class EvidenceDocument(View):
    """The package. The signature is over its JSON without ``signature``: keys sorted, no spaces, non-ASCII escaped."""

    turngate_evidence: Literal[1] = 1
    made_at: str
    made_by: str
    version: str
    period: Period
    chain: ChainEvidence
    counts: CountsEvidence
    sample: SampleEvidence
    four_eyes: list[FourEyesException]
    four_eyes_count: int
    policy_changes: list[NotedEvent]
    loosening_waits: list[LooseningWait]
    drills: list[NotedEvent]
    drills_missing: list[str] = Field(description="Kinds of drill that were not recorded in the period.")
    people: dict[str, str] = Field(
        default_factory=dict,
        exclude_if=operator.not_,
        description="Id → name, of those whom the package names by id, as they were called when it was made.",
    )
    key: str = ""
    signature: str = ""
