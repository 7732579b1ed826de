"""Who may decide a request, and with which verbs: checked here first. The workflow applies the same terms."""

from __future__ import annotations

from typing import Protocol

from approvals_api.principal import Principal
from turngate.domain.errors import ForbiddenError, InvalidInputError
from turngate.domain.policy.terms import AskTerms
from turngate.domain.requests import RequestKind, Verb


class OnTerms(Protocol):
    """A request, as the store has it or as it is shown."""

    @property
    def kind(self) -> RequestKind:
        """What is asked."""

    @property
    def not_by(self) -> str | None:
        """The person who may not decide it."""

    @property
    def ask_terms(self) -> AskTerms:
        """The terms that apply now."""


def why_not(request: OnTerms, principal: Principal) -> str | None:
    """Return why this principal may not decide the request, in words for them; None: they may."""
    if request.not_by is not None and request.not_by == principal.name:
        return "you started this run, and its rule wants someone else to decide"
    return request.ask_terms.barred(name=principal.name, role=principal.role, machine=principal.machine)


def require_eligible(request: OnTerms, principal: Principal) -> None:
    """Raise ForbiddenError (code ``not_eligible``) when this principal may not decide the request."""
    barred = why_not(request, principal)
    if barred is not None:
        raise ForbiddenError(barred, code="not_eligible")


def check_verb(request: OnTerms, verb: Verb) -> None:
    """Raise InvalidInputError (code ``verb_not_allowed``) when the request does not take this verb."""
    allowed = request.ask_terms.verbs(request.kind)
    if verb not in allowed:
        message = f"this request of kind {request.kind} takes: {', '.join(allowed)}"
        raise InvalidInputError(message, code="verb_not_allowed", errors=[{"pointer": "/decision", "message": message}])
