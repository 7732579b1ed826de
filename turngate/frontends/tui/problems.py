"""What went wrong, in words that say what the person at the keys can do now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from turngate.domain.errors import (
    ConflictError,
    ForbiddenError,
    GoneError,
    InvalidInputError,
    TooManyRequestsError,
    TurngateError,
    UnauthenticatedError,
    UnavailableError,
)
from turngate.frontends.tui.texts import ago, plain_line, until
from turngate.text.instants import second

WORDS_CHARS: Final = 1_000
DID: Final = {"approve": "approved it", "edit": "approved it with edited arguments", "reject": "rejected it"}
GONE: Final = {
    "run_ended": "Its run has ended, and the request with it: there is nothing left to decide.",
    "request_superseded": "A newer message to the run took its place: there is nothing left to decide.",
    "request_expired": "No one answered in time, and it has expired: there is nothing left to decide.",
}
LOGIN: Final = (
    "Turngate does not accept this token (any more): it is unknown, revoked or out of date. Keep this screen for what is typed "
    "on it, make a new token with `turngate token NAME --scope requests:decide`, and start again with it in TURNGATE_TOKEN."
)


def problem_words(error: TurngateError) -> str:
    """Return what is wrong, and what to do about it."""
    return plain_line(_words(error), WORDS_CHARS)


def problems_of(error: TurngateError) -> tuple[Mapping[str, str], ...]:
    """Return each place of the input that does not fit: ``pointer`` and ``message``."""
    errors = error.details.get("errors") if isinstance(error, InvalidInputError) else None
    return tuple(
        {"pointer": str(each.get("pointer", "")), "message": str(each.get("message", ""))}
        for each in (errors if isinstance(errors, list) else [])
        if isinstance(each, dict)
    )


def _words(error: TurngateError) -> str:
    match error:
        case UnauthenticatedError():
            return LOGIN
        case ForbiddenError(error_code="missing_scope"):
            return f"Your token may not do this. {error.message}"
        case ForbiddenError():
            return f"You may not do this: {error.message}"
        case ConflictError():
            return _conflict(error)
        case GoneError():
            return GONE.get(error.error_code, error.message)
        case TooManyRequestsError(error_code="too_fast"):
            return f"Take a breath. {error.message}"
        case TooManyRequestsError():
            return (
                f"Too many at once: send it again in {error.details.get('retry_after_seconds', 1)} s. {error.message}"
            )
        case UnavailableError() if "url" in error.details:
            return f"No connection: {error.message}"
        case UnavailableError():
            return f"Not possible right now: {error.message}"
        case _:
            return _with_places(error)


def _conflict(error: ConflictError) -> str:
    details: dict[str, Any] = error.details
    match error.error_code:
        case "already_decided":
            who, when = details.get("decided_by", "someone"), details.get("decided_at")
            return f"{who} was first: {DID.get(str(details.get('verb')), 'answered it')}{_when(when)}. Yours does not count."
        case "already_approved":
            return "You approved this already. One more person must approve it."
        case "digest_differs":
            return "The call on your screen is not the one that waits any more. Look at it again (F5), then decide."
        case "claimed":
            until_when = details.get("claimed_until")
            ends = f", which ends {until(until_when)}" if isinstance(until_when, str) else ""
            return f"{details.get('claimed_by', 'Someone')} has claimed it{ends}: c c takes it over."
        case _:
            return error.message


def _when(instant: object) -> str:
    if not isinstance(instant, str):
        return ""
    return f" {ago(instant)} ago, at {second(instant)}"


def _with_places(error: TurngateError) -> str:
    places = [
        f"{each['pointer'] or 'all of it'}: {each['message']}"
        for each in problems_of(error)
        if each["message"] not in error.message
    ]
    return f"{error.message} {'; '.join(places)}".strip()
