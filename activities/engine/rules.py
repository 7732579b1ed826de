"""The rules in force at one moment: the app's file, what admins have stored, and the grants that apply.

Read in the transaction that uses them. Stored rules are parsed once per version; a source that cannot be read asks for
everything and still denies what the file denies (fail closed).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import structlog

from turngate.domain.errors import ConfigurationError
from turngate.domain.origins.origin import Origins
from turngate.domain.policy.always_asked import always_asked
from turngate.domain.policy.grants import Grant
from turngate.domain.policy.judge import Judge
from turngate.domain.policy.policy import BUILT_IN_ASKS, FactsOf, Policy, Verdict, evaluate, parse_policy
from turngate.domain.policy.unattended import unattended
from turngate.domain.tools.defaults import Defaults
from turngate.domain.tools.external import agent_of_source, is_external, source_of
from turngate.domain.tools.tool import Tool
from turngate.policies.facts import DISTRUSTED, UNREADABLE, SeenPaths, call_facts, lies_in, without_permissions
from turngate.store.clock import as_text, now
from turngate.store.database import Connection
from turngate.store.policy import grants, policies
from turngate.store.runs import external_calls, runs
from turngate.store.runs.starters import starters_of

CLAIMED = agent_of_source("")
"""How rules that allow and grants see the agent of an external call whose source is only claimed."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class RulesInForce:
    """Policy and grants for the calls of one run, as they are in this transaction.

    ``distrusted``: the rules with those that do not count for this run, because their file lies in its workspace. ``judge``:
    the model that may answer in place of a person; its own answers are not part of :meth:`verdict`. ``source_counts``: False for
    an external call whose sender only claims its source: what allows calls of that source allows none of these. ``starters``:
    who counts as the run's starter; empty: only its own. ``spent``: meters of totals that the call at hand was found to exceed.
    """

    run: runs.Run
    policy: Policy
    grants: Sequence[Grant] = ()
    distrusted: Policy | None = None
    judge: Judge | None = None
    source_counts: bool = True
    starters: frozenset[str] = frozenset()
    spent: frozenset[str] = frozenset()

    def without(self, verdict: Verdict) -> RulesInForce:
        """Return the same without the grant that gave a verdict, or with the total of the rule that did as used up."""
        if verdict.grant_id is None and verdict.share is not None:
            return replace(self, spent=self.spent | {verdict.share.meter})
        return replace(self, grants=[each for each in self.grants if each.id != verdict.grant_id])

    def need_origins(self, tool: Tool) -> bool:
        """Tell whether a rule about calls of this tool asks where their arguments come from."""
        return self.policy.needs_origins(tool=tool.name, agent=self.run.agent)

    def verdict(
        self,
        tool: Tool,
        params: Any,
        raw_input: str | None,
        *,
        defaults: Defaults = (),
        origins: Origins | None = None,
        decided: bool = False,
        may_have_happened: bool = False,
    ) -> Verdict:
        """Return the verdict for one call of the run; in a run that no one attends, no one is asked (see ``unattended``).

        ``raw_input``: the exact argument text; None: nothing is known of the arguments. ``defaults``: what it leaves out.
        ``origins``: where they come from; None:
        not known, or no rule needs it. ``decided``: a person has decided this call, so someone attends it whatever the run
        says; or it was let through before. ``may_have_happened``: no one knows whether the same call took effect before.
        """
        run, seen = self.run, SeenPaths()
        look = partial(call_facts, raw_input or "", run.workspace, origins, defaults, seen)
        facts = None if raw_input is None else cache(look)
        verdict = self._by_rules(tool, params, facts)
        if _is_default(verdict) and self.distrusted is not None:
            if_trusted = evaluate(self.distrusted, tool, params, agent=run.agent, facts=facts)
            if if_trusted.answer == "allow":
                verdict = verdict.model_copy(update={"reason": DISTRUSTED})
        if not decided:
            verdict = always_asked(verdict, tool, params, may_have_happened=may_have_happened)
        verdict = verdict.model_copy(update={"places": seen.real})
        return verdict if run.attended or decided else unattended(verdict, tool, run.unattended_asks)

    def _by_rules(self, tool: Tool, params: Any, facts: FactsOf | None) -> Verdict:
        """Return what rules and grants say; those that name the call's source count only where its token proves it."""
        run, name = self.run, self.run.agent
        verdict = evaluate(
            self.policy,
            tool,
            params,
            agent=name,
            facts=facts,
            run_id=run.id,
            grants=self.grants,
            starters=self.starters or (run.started_by,),
            spent=self.spent,
        )
        if verdict.answer != "allow" or self.source_counts:
            return verdict
        by_claim = verdict.rule
        verdict = evaluate(
            self.policy,
            tool,
            params,
            agent=CLAIMED,
            facts=facts,
            run_id=run.id,
            grants=self.grants,
            spent=self.spent,
        )
        if not _is_default(verdict):
            return verdict
        reason = f"The sender's token is not bound to the source {source_of(name)!r}, so {by_claim!r} does not count."
        return verdict.model_copy(update={"reason": reason})


def _is_default(verdict: Verdict) -> bool:
    return verdict.answer == "ask" and verdict.rule in BUILT_IN_ASKS


@dataclass
class StoredRules:
    """The stored rules of the newest version that was read, so that each version is parsed once per process."""

    version: int = 0
    policy: Policy = field(default_factory=Policy)

    async def read(self, conn: Connection, version: int) -> Policy:
        """Return the rules of this version."""
        if version != self.version:
            stored = await policies.get(conn, version)
            try:
                parsed = parse_policy(stored.source if stored else "", source=f"stored version {version}")
            except ConfigurationError as error:
                log.exception("the stored rules cannot be read", version=version, problem=error.message)
                parsed = Policy(rule=[UNREADABLE])
            self.policy, self.version = parsed, version
        return self.policy


async def in_force(
    conn: Connection,
    file_policy: Policy,
    stored: StoredRules,
    run: runs.Run,
    *,
    glance: tuple[int, bool],
    policy_file: Path | None,
) -> RulesInForce:
    """Return the rules for a run, as they are now. Stored rules come before the file's, so their terms count where both ask.

    ``glance``: of :func:`turngate.store.policy.policies.glance`, in the same transaction.

    A policy file that lies in the workspace an agent can write is no source of permission: its allow rules do not count
    for that run (DESIGN §6). Its deny and ask rules do.
    """
    version, has_grants = glance
    admins_policy = Policy() if version == 0 else await stored.read(conn, version)
    rules, distrusted = admins_policy.joined_with(file_policy), None
    if policy_file is not None and run.workspace is not None and lies_in(policy_file, run.workspace):
        rules, distrusted = admins_policy.joined_with(without_permissions(file_policy)), rules
    stored_grants = await grants.active(conn, run_id=run.id, agent=run.agent) if has_grants else []
    wants_others = any(not rule.starter_may_decide for rule in rules.rule)
    others = await starters_of(conn, run, until=as_text(now())) if stored_grants and wants_others else frozenset[str]()
    call = await external_calls.get(conn, run.id) if is_external(run.agent) else None
    return RulesInForce(
        run=run,
        policy=rules,
        grants=[each.grant for each in stored_grants],
        distrusted=distrusted,
        source_counts=call is None or call.source_counts,
        starters=others,
    )
