"""Who may decide a request, and with which verbs: checked here first. The workflow applies the same terms."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from turngate.approvals_api.principal import Principal
from turngate.domain.errors import ConflictError, ForbiddenError, InvalidInputError
from turngate.domain.policy.terms import AskTerms, person_of
from turngate.domain.requests import RequestKind, Verb
from turngate.domain.tools.secrets import Audience
from turngate.store.access import people
from turngate.store.clock import now
from turngate.store.database import Connection
from turngate.store.requests.requests import AsOpened, Request
from turngate.store.runs import runs
from turngate.store.runs.starters import starters_of


class OnTerms(Protocol):
    """A request, as the store has it or as it is shown."""

    @property
    def run_id(self) -> str:
        """The run that asks."""

    @property
    def created_at(self) -> str:
        """When it was asked."""

    @property
    def kind(self) -> RequestKind:
        """What is asked."""

    @property
    def not_by(self) -> str | None:
        """The person who may not decide it."""

    @property
    def ask_terms(self) -> AskTerms:
        """The terms that apply now."""


async def starters(conn: Connection, request: OnTerms) -> frozenset[str]:
    """Return whose orders led to what the request asks about; empty where its rule lets the starter decide."""
    run = None if request.not_by is None else await runs.get(conn, request.run_id)
    return frozenset() if run is None else await starters_of(conn, run, until=request.created_at)


async def starters_or_newer(conn: Connection, request: OnTerms) -> frozenset[str]:
    """Return the starters, and who came after one of them was erased: under a new account, it could be the same human."""
    own = await starters(conn, request)
    return own | await people.newer_than_erased(conn, own)


def why_not(request: OnTerms, principal: Principal, starters: Collection[str]) -> str | None:
    """Return why this principal may not decide the request, in words for them; None: they may.

    ``starters``: of :func:`starters_or_newer`; of :func:`starters` to display it, where the decision has the last word.
    """
    if request.not_by is not None and person_of(request.not_by) == person_of(principal.name):
        return "you started this run, and its rule wants someone else to decide"
    if request.not_by is not None and person_of(principal.name) in {person_of(each) for each in starters}:
        return (
            "what you started, sent or changed led to this call (or what someone did who was erased before you got your "
            "account), and its rule wants someone else to decide"
        )
    return request.ask_terms.barred(name=principal.name, role=principal.role, machine=principal.machine)


def require_as_opened(seen: AsOpened) -> Request:
    """Return the request. Raises ConflictError for one that waits and was changed in the database."""
    request, changed = seen
    if changed is not None and request.status == "pending":
        raise ConflictError(
            f"this request was changed in the database after it was written (column {changed}): what it shows is not what the "
            "agent asked for. Don't decide it; tell those who run Turngate that `turngate audit verify` says what was changed",
            code="changed_after_opening",
            column=changed,
        )
    return request


def require_eligible(request: OnTerms, principal: Principal, starters: Collection[str]) -> None:
    """Raise ForbiddenError (code ``not_eligible``) when this principal may not decide the request. As :func:`why_not`."""
    barred = why_not(request, principal, starters)
    if barred is not None:
        raise ForbiddenError(barred, code="not_eligible")


async def audience_of(conn: Connection, principal: Principal | None, request: Request) -> Audience:
    """Return who a principal is to a request: its ``decider`` for as long as they may decide it. None: a ``reader``."""
    if principal is None or not principal.may("requests:decide"):
        return "reader"
    if request.status != "pending" or request.has_expired(now()):
        return "reader"
    barred = why_not(request, principal, await starters_or_newer(conn, request))
    return "decider" if barred is None else "reader"


def check_verb(request: OnTerms, verb: Verb) -> None:
    """Raise InvalidInputError (code ``verb_not_allowed``) when the request does not take this verb."""
    allowed = request.ask_terms.verbs(request.kind)
    if verb not in allowed:
        message = f"this request of kind {request.kind} takes: {', '.join(allowed)}"
        raise InvalidInputError(message, code="verb_not_allowed", errors=[{"pointer": "/decision", "message": message}])
