"""The stored rules: read, replace, revert. Every change is a version, and an event that says whose it is.

With ``policy_four_eyes`` a change that may loosen becomes a proposal, which :mod:`turngate.approvals_api.policy.proposals` ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError
from sqlalchemy.exc import IntegrityError

from turngate.approvals_api.paging import encode_cursor
from turngate.approvals_api.principal import Principal
from turngate.approvals_api.services import Services
from turngate.domain.digest import framed_sha256
from turngate.domain.errors import (
    ConfigurationError,
    ConflictError,
    ForbiddenError,
    InvalidInputError,
    NotFoundError,
)
from turngate.domain.policy.looser_rules import loosening
from turngate.domain.policy.policy import Policy, Rule, parse_policy
from turngate.domain.policy.totals import rule_owner
from turngate.domain.text.instants import in_utc
from turngate.domain.tools.secrets import mask_text
from turngate.policies.explain import in_order, rule_views
from turngate.policies.rule_text import one_rule, rule_text, with_people, with_rule
from turngate.store import agents
from turngate.store.access import people
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.events.row_digests import row_digest, secret_of
from turngate.store.policy import policies, totals
from turngate.store.policy.policies import PolicyProposal, StoredPolicy
from turngate.wire import policy as wire
from turngate.wire.orders import RuleOrder
from turngate.wire.policy import PRECEDENCE, FilePolicy, PolicyVersion, PolicyVersionDetail, PolicyView
from turngate.wire.view import Page

MAX_SOURCE_CHARS: Final = 200_000
MAX_COMMENT_CHARS: Final = 500
INVALID: Final = "invalid_policy"


async def policy_view(conn: Connection) -> PolicyView:
    """Return the rules in force: the stored ones, and each app's file as its worker published it."""
    newest = await policies.newest(conn)
    proposal = await policies.waiting_proposal(conn)
    published = await policies.published(conn)
    own = Policy() if newest is None else readable(newest)
    used = await totals_used(conn, [rule for policy in (own, *map(_of_file, published)) for rule in policy.rule])
    agents_of: dict[str, list[str]] = {}
    for agent in await agents.every(conn):
        agents_of.setdefault(agent.task_queue, []).append(agent.name)
    return PolicyView(
        version=0 if newest is None else newest.version,
        stored=None if newest is None else detail(newest, used),
        files=[_file_view(each, agents_of.get(each.task_queue, []), used) for each in published],
        precedence=list(PRECEDENCE),
        proposed=None if proposal is None else _proposal_view(proposal, own),
    )


async def totals_used(conn: Connection, rules: Iterable[Rule]) -> dict[str, int]:
    """Return meter → units: what the totals of rules come to in their present windows. One statement, if any has a total."""
    meters = {rule.total.meter(rule_owner(rule.name)): rule.total for rule in rules if rule.total is not None}
    return await totals.used_now(conn, meters)


async def version_page(conn: Connection, *, limit: int, before: tuple[str, str] | None) -> Page[PolicyVersion]:
    """Return one page of versions, newest first. ``before``: of a cursor. Raises InvalidInputError."""
    if before is not None and not (before[1].isascii() and before[1].isdecimal() and len(before[1]) < 10):  # noqa: PLR2004 - an int32
        message = "this is no cursor of this list: omit it for the first page"
        raise InvalidInputError(message, code="bad_cursor", errors=[{"pointer": "", "message": f"cursor: {message}"}])
    older_than = None if before is None else int(before[1])
    rows = await policies.versions(conn, limit=limit + 1, before=older_than)
    listed = rows[:limit]
    more = encode_cursor(listed[-1].created_at, str(listed[-1].version)) if len(rows) > limit else None
    return Page(items=[PolicyVersion.model_validate(each) for each in listed], next_cursor=more)


async def version_detail(conn: Connection, version: int) -> PolicyVersionDetail:
    """Return one version with its text and rules. Raises NotFoundError."""
    return detail(await _existing(conn, version))


async def store_rules(
    services: Services,
    principal: Principal,
    *,
    source: str,
    comment: str = "",
    if_version: int | None = None,
    reverted_to: int | None = None,
) -> PolicyVersionDetail:
    """Replace the stored rules; the new ones are parsed and checked as a whole first.

    With ``policy_four_eyes``, rules that may loosen are only proposed: the answer has the proposal's number.
    Safe to repeat: the same text again, from the same person, returns the version that it created.

    Args:
        services: the process's services.
        principal: who changes them; must hold ``admin``.
        source: TOML, at most 200,000 characters; empty removes every stored rule.
        comment: why, for people; at most 500 characters.
        if_version: the version that was changed, 0 for none; None: any.
        reverted_to: the version whose text this is.

    Raises:
        InvalidInputError: ``invalid_policy``: it cannot be read, or a rule does not fit; nothing was stored.
        ConflictError: ``policy_changed``: someone saved a newer version first; details say which, who and when.
        ForbiddenError: the principal is no admin; ``needs_person``: a token without a user proposes nothing.
    """
    principal.require("admin")
    wanted = parsed(source, pointer="/source")
    if len(comment) > MAX_COMMENT_CHARS:
        message = f"a comment has at most {MAX_COMMENT_CHARS} characters"
        raise InvalidInputError(message, errors=[{"pointer": "/comment", "message": message}])
    comment = mask_text(comment, ())
    source = await _by_ids(services, source, wanted)
    wanted = parsed(source, pointer="/source")
    digest = framed_sha256(source)
    try:
        async with services.database.write() as conn:
            newest = await policies.newest(conn)
            version = 0 if newest is None else newest.version
            if newest is not None and newest.digest == digest and _is_repeat(newest, principal, if_version):
                return detail(newest)
            if if_version not in {None, version}:
                raise _changed(newest)
            new = StoredPolicy(
                version=version + 1, source=source, digest=digest, changed_by=principal.name, comment=comment
            )
            was = Policy() if newest is None else readable(newest)
            payload = {
                "version": new.version,
                "digest": digest,
                "by": principal.name,
                **difference(was, wanted).members(),
            }
            if reverted_to is not None:
                payload["reverted_to"] = reverted_to
            why = await _loosens(conn, newest, wanted) if services.settings.policy_four_eyes else None
            if why is not None:
                return await _propose(conn, principal, new, why, payload)
            stored = await policies.append_version(conn, new)
            await tell_changed(conn, stored, payload)
    except IntegrityError:
        raise await changed_meanwhile(services, version) from None
    return detail(stored)


async def tell_changed(conn: Connection, stored: StoredPolicy, payload: Mapping[str, object]) -> None:
    """Append the event of a new version of the stored rules, with the digest of its row."""
    digests = events.digests(policy={str(stored.version): row_digest("policy", vars(stored), secret_of(conn))})
    await events.append(conn, events.SYSTEM, [("policy.changed", {**payload, **digests})])


async def _by_ids(services: Services, source: str, wanted: Policy) -> str:
    """Return the text with ids for the names of people: what is stored names no one."""
    if not wanted.people:
        return source
    async with services.database.write() as conn:
        ids = await people.ids_for_policy(conn, wanted)
    try:
        return with_people(source, ids) if ids else source
    except ConfigurationError as error:
        raise invalid_policy(error.message, "/source") from None


async def _loosens(conn: Connection, newest: StoredPolicy | None, wanted: Policy) -> str | None:
    """Return why rules may loosen those in force; None: they certainly don't."""
    try:
        was = Policy() if newest is None else parse_policy(newest.source, source="")
        files = [each.policy for each in await policies.published(conn)]
    except (ConfigurationError, ValidationError):  # such rules ask about every call
        return "this server can't read the rules in force"
    return loosening(was, wanted, files=files)


async def _propose(
    conn: Connection, principal: Principal, new: StoredPolicy, why: str, payload: dict[str, object]
) -> PolicyVersionDetail:
    if principal.machine:
        message = f"a second admin has to confirm this ({why}), and this token belongs to no one: log in, or bind it to a user"
        raise ForbiddenError(message, code="needs_person")
    waiting = await policies.waiting_proposal(conn)
    if waiting is None or (waiting.digest, waiting.proposed_by) != (new.digest, principal.name):
        waiting = await policies.propose(conn, new, why=why)
        event = {**payload, "proposal": waiting.number, "why": why, "comment": new.comment}
        event |= events.digests(proposal={str(waiting.number): row_digest("proposal", vars(waiting), secret_of(conn))})
        await events.append(conn, events.SYSTEM, [("policy.proposed", event)])
    return detail(as_version(waiting)).model_copy(update={"proposal": waiting.number})


def as_version(proposal: PolicyProposal) -> StoredPolicy:
    """Return the version that a proposal would become."""
    return StoredPolicy(
        version=proposal.version,
        source=proposal.source,
        digest=proposal.digest,
        changed_by=proposal.proposed_by,
        comment=proposal.comment,
        created_at=proposal.created_at,
    )


async def changed_meanwhile(services: Services, version: int) -> ConflictError:
    """Return the error of a change to ``version`` that the database refused, because of another at the same time."""
    async with services.database.read() as conn:
        newest = await policies.newest(conn)
    if newest is not None and newest.version != version:
        return _changed(newest)
    message = "someone else proposed rules at the same time: reload, and change those"
    return ConflictError(message, code="policy_changed", version=version)


async def store_rule(services: Services, principal: Principal, order: RuleOrder) -> PolicyVersionDetail:
    """Store one rule among the others, as a new version; the text of the others stays as it is.

    Raises as :func:`store_rules`; InvalidInputError also where the rule can't be put among the others.
    """
    principal.require("admin")
    rule = parsed_rule(order.rule).model_copy(update={"shadow": order.mode == "shadow"})
    async with services.database.read() as conn:
        newest = await policies.newest(conn)
    version = 0 if newest is None else newest.version
    if order.if_version not in {None, version}:
        raise _changed(newest)
    try:
        source = with_rule("" if newest is None else newest.source, rule, replacing=order.replacing)
    except ConfigurationError as error:
        raise invalid_policy(error.message, "/rule") from None
    comment = order.comment or f"{'Record only' if rule.shadow else 'Enforce'}: {rule.name}"
    return await store_rules(services, principal, source=source, comment=comment, if_version=version)


async def enforce(
    services: Services, principal: Principal, name: str, *, if_version: int | None = None, comment: str = ""
) -> PolicyVersionDetail:
    """Make a stored shadow rule count. Raises as :func:`store_rule`; NotFoundError: no stored rule has this name."""
    principal.require("admin")
    rule = await stored_rule(services, name)
    order = RuleOrder(rule=rule_text(rule), mode="enforce", replacing=name, if_version=if_version, comment=comment)
    return await store_rule(services, principal, order)


async def stored_rule(services: Services, name: str) -> Rule:
    """Return a stored rule. Raises NotFoundError."""
    async with services.database.read() as conn:
        newest = await policies.newest(conn)
    rules = [] if newest is None else readable(newest).rule
    rule = next((each for each in rules if each.name == name), None)
    if rule is None:
        raise NotFoundError(f"there is no stored rule {name!r}")
    return rule


async def revert(
    services: Services, principal: Principal, *, version: int, comment: str = "", if_version: int | None = None
) -> PolicyVersionDetail:
    """Restore the rules of an earlier version, as a new version. Raises as :func:`store_rules`; NotFoundError."""
    principal.require("admin")
    async with services.database.read() as conn:
        earlier = await _existing(conn, version)
    reason = comment or f"Back to version {version}."
    return await store_rules(
        services, principal, source=earlier.source, comment=reason, if_version=if_version, reverted_to=version
    )


def parsed(source: str, *, pointer: str) -> Policy:
    """Return the rules of a TOML text. Raises InvalidInputError (code ``invalid_policy``), pointing there."""
    if len(source) > MAX_SOURCE_CHARS:
        raise invalid_policy(f"the rules have more than {MAX_SOURCE_CHARS:,} characters", pointer)
    try:
        source.encode()  # half a surrogate pair would be stored as another character
        return parse_policy(source, source="text")
    except UnicodeEncodeError:
        raise invalid_policy("the text is not valid Unicode", pointer) from None
    except ConfigurationError as error:
        raise invalid_policy(error.message, pointer) from None


def parsed_rule(text: str) -> Rule:
    """Return the one rule of a TOML text. Raises InvalidInputError (code ``invalid_policy``)."""
    parsed(text, pointer="/rule")
    try:
        return one_rule(text)
    except ConfigurationError as error:
        raise invalid_policy(error.message, "/rule") from None


def detail(stored: StoredPolicy, used: Mapping[str, int] | None = None) -> PolicyVersionDetail:
    """Return a version as it is shown, with ``problem`` if this release cannot read it.

    ``used``: of :func:`totals_used`, if it is in force.
    """
    problem, policy = None, Policy()
    try:
        policy = parse_policy(stored.source, source=f"version {stored.version}")
    except ConfigurationError as error:
        problem = error.message
    return PolicyVersionDetail(
        version=stored.version,
        digest=stored.digest,
        changed_by=stored.changed_by,
        comment=stored.comment,
        created_at=stored.created_at,
        confirmed_by=stored.confirmed_by,
        source=stored.source,
        rules=rule_views(in_order(("stored", policy)), used),
        problem=problem,
    )


def invalid_policy(message: str, pointer: str) -> InvalidInputError:
    """Return the error of rules that can't be stored."""
    return InvalidInputError(message, code=INVALID, errors=[{"pointer": pointer, "message": message}])


def _of_file(published: policies.PublishedPolicy) -> Policy:
    try:
        return published.policy
    except ValidationError:  # a worker of another release published rules that this one does not know
        return Policy()


def _file_view(published: policies.PublishedPolicy, names: list[str], used: Mapping[str, int]) -> FilePolicy:
    return FilePolicy(
        task_queue=published.task_queue,
        agents=names,
        file=published.file,
        version=published.version,
        rules=rule_views(in_order(("file", _of_file(published))), used),
        published_at=published.published_at,
    )


async def _existing(conn: Connection, version: int) -> StoredPolicy:
    stored = await policies.get(conn, version)
    if stored is None:
        raise NotFoundError(f"there is no version {version} of the stored rules")
    return stored


def _is_repeat(newest: StoredPolicy, principal: Principal, if_version: int | None) -> bool:
    """Tell whether a change to the newest version's text is that change sent again, or no change at all."""
    if if_version in {None, newest.version}:
        return True
    return if_version == newest.version - 1 and newest.changed_by == principal.name


def _changed(newest: StoredPolicy | None) -> ConflictError:
    if newest is None:
        return ConflictError("no rules are stored yet: send if_version 0", code="policy_changed", version=0)
    return ConflictError(
        f"{newest.changed_by} saved version {newest.version} at {in_utc(newest.created_at)}: reload it, and change that one",
        code="policy_changed",
        version=newest.version,
        changed_by=newest.changed_by,
        changed_at=newest.created_at,
    )


def readable(stored: StoredPolicy) -> Policy:
    """Return the rules of a version; none where this release can't read them."""
    try:
        return parse_policy(stored.source, source="")
    except ConfigurationError:
        return Policy()


def _proposal_view(proposal: PolicyProposal, in_force: Policy) -> wire.PolicyProposal:
    version = detail(as_version(proposal))
    names = difference(in_force, readable(as_version(proposal)))
    return wire.PolicyProposal(
        number=proposal.number,
        version=proposal.version,
        digest=proposal.digest,
        proposed_by=proposal.proposed_by,
        comment=proposal.comment,
        why=proposal.why,
        created_at=proposal.created_at,
        added=names.added,
        removed=names.removed,
        changed=names.changed,
        source=proposal.source,
        rules=version.rules,
    )


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The names of the rules that a change adds, removes and changes."""

    added: list[str]
    removed: list[str]
    changed: list[str]
    reordered: bool

    def members(self) -> dict[str, object]:
        """Return what an event says of it."""
        members: dict[str, object] = {"added": self.added, "removed": self.removed, "changed": self.changed}
        return {**members, "reordered": True} if self.reordered else members


def difference(was: Policy, now: Policy) -> Difference:
    """Return in which rules two policies differ."""
    old, new = ({rule.name: rule for rule in policy.rule} for policy in (was, now))
    common = [name for name in new if name in old]
    return Difference(
        added=[name for name in new if name not in old],
        removed=[name for name in old if name not in new],
        changed=[name for name in common if new[name] != old[name]],
        # Of two rules with one verdict the first one counts.
        reordered=common != [name for name in old if name in new],
    )
