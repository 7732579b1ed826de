"""What ends a proposal of stored rules: a second admin confirms it, or any admin refuses it."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy.exc import IntegrityError

from turngate.approvals_api.policy.rules import (
    as_version,
    changed_meanwhile,
    detail,
    difference,
    parsed,
    policy_view,
    readable,
    tell_changed,
)
from turngate.approvals_api.principal import Principal
from turngate.approvals_api.services import Services
from turngate.domain.errors import ConflictError, ForbiddenError
from turngate.domain.identity import name_key
from turngate.domain.policy.policy import Policy
from turngate.domain.policy.terms import person_of
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.policy import policies
from turngate.store.policy.policies import PolicyProposal
from turngate.wire.policy import PolicyVersionDetail, PolicyView


async def confirm(services: Services, principal: Principal, number: int) -> PolicyVersionDetail:
    """Put proposed rules in force as the next version, which is their author's.

    Args:
        services: the process's services.
        principal: who confirms; must hold ``admin`` and be another person than the one who proposed them.
        number: the proposal's.

    Raises:
        ForbiddenError: the principal is no admin; ``own_proposal``: they proposed it; ``needs_person``: a token without a user.
        ConflictError: ``proposal_ended``: it doesn't wait, or no longer; ``policy_changed``: someone saved a version meanwhile.
        InvalidInputError: ``invalid_policy``: this server can't read the rules.
    """
    principal.require("admin")
    version = 0
    try:
        async with services.database.write() as conn:
            proposal = await _waiting(conn, number)
            version = proposal.version - 1
            _check_second_person(principal, proposal)
            wanted = parsed(proposal.source, pointer="/proposal")
            await _end(conn, proposal, principal, outcome="confirmed")
            newest = await policies.newest(conn)
            stored = await policies.append_version(conn, replace(as_version(proposal), confirmed_by=principal.name))
            was = Policy() if newest is None else readable(newest)
            payload = {
                "version": stored.version,
                "digest": stored.digest,
                "by": proposal.proposed_by,
                "confirmed_by": principal.name,
                **difference(was, wanted).members(),
            }
            await tell_changed(conn, stored, payload)
    except IntegrityError:
        raise await changed_meanwhile(services, version) from None
    return detail(stored)


async def refuse(services: Services, principal: Principal, number: int) -> PolicyView:
    """Refuse proposed rules; their author may, too. Return the rules in force, which stay.

    Raises ForbiddenError: the principal is no admin; ConflictError ``proposal_ended``.
    """
    principal.require("admin")
    async with services.database.write() as conn:
        await _end(conn, await _waiting(conn, number), principal, outcome="refused")
    async with services.database.read() as conn:
        return await policy_view(conn)


async def _waiting(conn: Connection, number: int) -> PolicyProposal:
    proposal = await policies.waiting_proposal(conn)
    if proposal is None or proposal.number != number:
        raise _ended(number)
    return proposal


async def _end(conn: Connection, proposal: PolicyProposal, principal: Principal, *, outcome: policies.Outcome) -> None:
    if not await policies.end_proposal(conn, proposal.number, outcome=outcome, by=principal.name):
        raise _ended(proposal.number)
    payload = {
        "proposal": proposal.number,
        "digest": proposal.digest,
        "by": principal.name,
        "proposed_by": proposal.proposed_by,
    }
    await events.append(conn, events.SYSTEM, [(f"policy.{outcome}", payload)])


def is_own(principal: Principal, proposed_by: str) -> bool:
    """Tell whether this person proposed it, in any spelling, with any terminal or token."""
    return name_key(person_of(principal.name)) == name_key(person_of(proposed_by))


def may_confirm(principal: Principal, proposed_by: str) -> bool:
    """Tell whether it waits for this person: another admin than its proposer."""
    return principal.may("admin") and not principal.machine and not is_own(principal, proposed_by)


def _check_second_person(principal: Principal, proposal: PolicyProposal) -> None:
    if principal.machine:
        message = "a person has to confirm this, and this token belongs to no one: log in, or bind it to a user"
        raise ForbiddenError(message, code="needs_person")
    if is_own(principal, proposal.proposed_by):
        raise ForbiddenError("you proposed these rules: another admin has to confirm them", code="own_proposal")


def _ended(number: int) -> ConflictError:
    message = f"proposal {number} doesn't wait: it was confirmed, refused, or a later change took its place"
    return ConflictError(message, code="proposal_ended")
