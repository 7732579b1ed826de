"""The form that makes a grant with an approval: every argument fixed or left open, and the exact pattern before it is saved.

Pure. The first press shows what the grant would let through, the second one saves exactly that: a form that says
something else by then is shown again instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue, ValidationError

from approvals_api.pages import arguments
from approvals_api.policy.grants import ungrantable
from turngate.domain.digest import framed_sha256
from turngate.domain.errors import InvalidInputError
from turngate.domain.policy.grants import MAX_GRANT_USES, WantedGrant, exact_pattern
from turngate.domain.text.json_pointers import decode_arguments
from turngate.domain.tools.failures import describe_validation
from turngate.wire.requests import RequestDetail

LASTS: Final[tuple[tuple[int, str], ...]] = (
    (15 * 60, "15 minutes"),
    (3600, "an hour"),
    (8 * 3600, "8 hours"),
    (24 * 3600, "a day"),
    (7 * 24 * 3600, "a week"),
)
SCOPES: Final[tuple[tuple[str, str], ...]] = (("run", "this run"), ("agent", "this agent"))
FOR_ADMINS: Final[tuple[tuple[str, str], ...]] = (("everyone", "every agent"),)


@dataclass(frozen=True, kw_only=True)
class GrantForm:
    """What the form shows. ``rows``: control name, argument, its value as text, whether it is left open.

    ``wanted``: the grant to show before it is saved, with its ``seal``; None: none yet.
    """

    rows: list[tuple[str, str, str, bool]]
    scopes: tuple[tuple[str, str], ...]
    wanted: WantedGrant | None = None
    seal: str = ""


def grant_form(
    request: RequestDetail, typed: Mapping[str, str], *, admin: bool, wanted: WantedGrant | None
) -> GrantForm | None:
    """Return the form; None where no grant can answer calls like this one."""
    view = arguments.view(request.input)
    if request.status != "pending" or ungrantable(request) is not None or view.rows is None or view.doubled:
        return None
    rows = [
        (f"grant-open-{place}", row.name, row.text, typed.get(f"grant-open-{place}") == "yes")
        for place, row in enumerate(view.rows)
    ]
    scopes = SCOPES + (FOR_ADMINS if admin else ())
    return GrantForm(rows=rows, scopes=scopes, wanted=wanted, seal="" if wanted is None else seal(wanted))


def read_grant(request: RequestDetail, typed: Mapping[str, str]) -> WantedGrant:
    """Return the grant that the form orders. Raises InvalidInputError when it is not valid."""
    try:
        decoded: JsonValue = decode_arguments(request.input)
    except ValueError:
        decoded = None
    names = list(decoded) if isinstance(decoded, dict) else []
    free = [name for place, name in enumerate(names) if typed.get(f"grant-open-{place}") == "yes"]
    try:
        uses, seconds = int(typed.get("grant-uses", "")), int(typed.get("grant-lasts", ""))
    except ValueError:
        message = f"uses: a number from 1 to {MAX_GRANT_USES:,}"
        raise InvalidInputError(message, errors=[{"pointer": "/grant-uses", "message": message}]) from None
    try:
        return WantedGrant.model_validate(
            {
                "pattern": exact_pattern(request.tool_name, decoded, open_arguments=free),
                "scope": typed.get("grant-scope", ""),
                "expires_after_seconds": seconds,
                "max_uses": uses,
                "note": typed.get("grant-note", "").strip(),
            }
        )
    except ValidationError as error:
        message = describe_validation(error)
        raise InvalidInputError(message, errors=[{"pointer": "/grant-uses", "message": message}]) from None


def seal(wanted: WantedGrant) -> str:
    """Return a text that proves that the saved grant is the one that was shown."""
    return framed_sha256(wanted.model_dump_json())[:24]
