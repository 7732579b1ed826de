"""Policy: the rules in force, stored versions, the verdict on one call and why, and what shadow rules would change."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from turngate.domain.policy.facts import Match
from turngate.domain.policy.grants import GrantPattern, GrantScope
from turngate.domain.policy.policy import Risk, ShadowVerdict, VerdictKind
from turngate.domain.requests import UnattendedAsks, Verb
from turngate.domain.tools.defaults import Defaults
from turngate.wire.people import NamedMembers, Person, Rules, Says, Terms
from turngate.wire.view import View

RuleSource = Literal["stored", "file", "tried"]
"""Where a rule comes from: ``stored`` by an admin, the app's ``file``, or a text that someone tries out."""

PRECEDENCE: Final = (
    "Deny rules: the first one that matches denies the call.",
    "Ask rules: a person is asked on the terms of the first one that matches.",
    "A deny or ask rule that can't be evaluated asks a person.",
    "Grants: an active grant allows the call. It overrides an ask rule only if that rule has grantable = true.",
    "Allow rules: the first one that matches allows the call.",
    "The tool's own ask setting.",
    "Default: a person is asked, unless the app's enforcing judge allows the call.",
)
"""The order in which a call is judged. Stored rules come before those of the app's file; shadow rules never count."""


class RuleView(View):
    """One rule. ``place``: in the order of evaluation, from 1. ``says``: what it means, in a sentence.

    ``rule``: as written in TOML, without defaults. ``total_used``: what the calls that it allowed in this window come to; None:
    it has no total, or that is not known.
    """

    place: int
    name: str
    verdict: VerdictKind
    source: RuleSource
    shadow: bool
    says: Says
    rule: NamedMembers
    total_used: str | None = None


class FilePolicy(View):
    """The rules of one app's file, as its worker last published them. ``file``: its path there; empty: the rules are code."""

    task_queue: str
    agents: list[str]
    file: str
    version: str
    rules: list[RuleView]
    published_at: str


class PolicyVersion(View):
    """One version of the stored rules. ``digest``: SHA-256 of its source.

    ``confirmed_by``: the second admin; None: it took effect without one.
    """

    version: int
    digest: str
    changed_by: Person
    comment: str
    created_at: str
    confirmed_by: Person | None = None

    @property
    def by(self) -> str:
        """Who changed the rules and who confirmed it. It contains people's names: escape it before you show it."""
        return self.changed_by if self.confirmed_by is None else f"{self.changed_by}, confirmed by {self.confirmed_by}"


class PolicyVersionDetail(PolicyVersion):
    """A version with its text. ``problem``: why this server can't read it, so that every call asks; None if it can.

    ``proposal``: these rules are not in force: they are the proposal of this number, which waits for a second admin.
    """

    source: Rules
    rules: list[RuleView]
    problem: str | None = None
    proposal: int | None = None


class PolicyProposal(View):
    """Stored rules that wait for a second admin. ``version``: the one that they would become. ``why``: what may loosen.

    ``added``, ``removed``, ``changed``: names of rules, compared with those in force.
    """

    number: int
    version: int
    digest: str
    proposed_by: Person
    comment: str
    why: Says
    created_at: str
    added: list[str]
    removed: list[str]
    changed: list[str]
    source: Rules
    rules: list[RuleView]


class PolicyView(View):
    """The rules in force. ``stored`` None: admins have stored none. ``version``: what a change sends as ``if_version``.

    ``proposed``: rules that are not in force until a second admin confirms them; None: none wait.
    """

    version: int
    stored: PolicyVersionDetail | None
    files: list[FilePolicy]
    precedence: list[str]
    proposed: PolicyProposal | None = None


class RuleFinding(View):
    """One rule applied to one call. ``decides``: the verdict is its own. ``why``: why it covers the call or does not."""

    name: str
    verdict: VerdictKind
    source: RuleSource
    shadow: bool
    match: Match
    why: Says
    decides: bool


class GrantFinding(View):
    """An active grant for the tool, applied to the call."""

    id: str
    scope: GrantScope
    created_by: Person
    expires_at: str
    covers: bool
    why: Says


class Explanation(View):
    """The verdict on one call, and why. ``answer`` ``depends``: on the tool's own ``ask``, which is unknown here.

    ``terms``: the terms of the question to a person; None for other verdicts. ``rules``: in the order of evaluation.
    ``defaults``: what the call leaves out. ``shadow``: the verdict if shadow rules counted, where it differs. ``notes``: what is
    unknown here.
    """

    tool: str
    agent: str
    answer: VerdictKind | Literal["depends"]
    rule: str
    reason: Says
    risk: Risk
    terms: Terms | None
    grant_id: str | None
    shadow: ShadowVerdict | None
    unattended: UnattendedAsks | None = None
    defaults: Defaults = ()
    rules: list[RuleFinding]
    grants: list[GrantFinding]
    notes: list[str]


class CallPlace(View):
    """Which call."""

    run_id: str
    tool_call_id: str
    tool: str


class ShadowChange(View):
    """Calls whose verdict a shadow rule would have changed. ``examples``: the newest."""

    rule: str
    was: VerdictKind
    would_be: VerdictKind
    calls: int
    examples: list[CallPlace]


class ShadowReport(View):
    """What shadow rules would have changed, newest calls first. ``looked_at``: how many calls were read; ``whole``: all were."""

    since: str | None
    looked_at: int
    whole: bool
    changes: list[ShadowChange] = Field(default_factory=list)


class PreviewedCall(View):
    """A recorded call whose verdict a rule would change. ``input``: its arguments, the first 300 characters.

    ``request_id``: the newest request about it; None: no one was asked. ``decision`` None: no one has decided.
    """

    run_id: str
    tool_call_id: str
    tool: str
    agent: str
    input: str
    request_id: str | None
    decision: Verb | None
    decided_by: Person | None


class PreviewedChange(View):
    """Calls whose verdict a rule would change from ``was`` to ``now``, and what people decided about them.

    ``against``: how many of the decisions contradict the new verdict: for `allow` those that did not let the call run as it was.
    ``against_at_most``: the share of such decisions, at most, with 95 % confidence; None: no one has decided any.
    ``examples``: at most 20, decisions against the new verdict first, then the newest.
    """

    was: VerdictKind
    now: VerdictKind
    calls: int
    approved: int
    edited: int
    rejected: int
    against: int
    against_at_most: float | None
    examples: list[PreviewedCall]


class RulePreview(View):
    """What a rule would change if it were enforced. ``says``: the rule in a sentence. ``toml``: as TOML.

    ``warnings``: what it might not do as expected. ``tool``: only calls of this tool were read; None: of all tools.
    ``looked_at``: how many, the newest first; ``whole`` false: the time was up before all of the newest 1,000.
    ``unjudged``: calls whose verdict depends on what is not recorded.
    """

    rule: str
    says: Says
    toml: Rules
    warnings: list[str]
    tool: str | None
    looked_at: int
    whole: bool
    unjudged: int
    changes: list[PreviewedChange]


class RuleOffer(View):
    """A rule that would answer the next call like one that people approved so often. ``approved``: how many they did.

    ``says``: the rule in a sentence. ``toml``: as TOML, to preview and store.
    """

    approved: int
    says: Says
    toml: Rules


class WaitingRequest(View):
    """A pending request, with the digest to decide it by."""

    request_id: str
    digest: str
    tool: str


class WaitingForRule(View):
    """Pending requests whose calls an enforced rule would let run now, the oldest first, at most 100.

    ``reason``: what to send with each decision. ``more``: there may be others.
    """

    rule: str
    version: int
    reason: Says
    requests: list[WaitingRequest]
    more: bool


class WaitingForGrant(View):
    """Pending requests that a grant covers, the oldest first: at most 100, and no more than it has uses left.

    ``reason``: what to send with each decision. ``more``: there may be others.
    """

    grant_id: str
    reason: Says
    requests: list[WaitingRequest]
    more: bool


# Grants: as listed, with their uses, and what a new one would cover.


class GrantView(View):
    """A grant. ``uses`` of ``max_uses`` calls went through. ``ended``: why it no longer applies; None: it is active.

    ``says``: the exact pattern in words. ``request_id``: the request whose decision created it; None: none did.
    ``total_used``: what its calls of this window come to; None: it has no total.
    """

    id: str
    pattern: GrantPattern
    says: Says
    scope: GrantScope
    run_id: str | None
    agent: str | None
    expires_at: str
    max_uses: int
    uses: int
    note: str
    created_by: Person
    created_at: str
    request_id: str | None
    revoked_at: str | None
    revoked_by: Person | None
    ended: Literal["revoked", "expired", "used_up"] | None
    total_used: str | None = None


class GrantUseView(View):
    """One call that a grant allowed."""

    run_id: str
    tool_call_id: str
    used_at: str


class GrantDetail(GrantView):
    """A grant with the calls it allowed, newest first, at most 200."""

    used_by: list[GrantUseView]


class GrantPreview(View):
    """The grant that a request could lead to. ``ungrantable``: why no grant can cover calls like it; None if one can.

    ``would_have_covered``: how many of the ``looked_at`` newest calls of this tool, by scope.
    """

    request_id: str
    pattern: GrantPattern | None
    says: Says
    ungrantable: str | None
    looked_at: int
    would_have_covered: dict[GrantScope, int]
