"""The form that makes a grant with an approval: every argument fixed, limited or left open, and the pattern before it is saved.

Pure. The first press shows what the grant would let through, the second one saves exactly that: a form that says
something else by then is shown again instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue, ValidationError

from turngate.approvals_api.pages import arguments
from turngate.approvals_api.pages.arguments import ArgumentRow
from turngate.approvals_api.policy.grants import ungrantable
from turngate.domain.digest import framed_sha256
from turngate.domain.errors import InvalidInputError
from turngate.domain.policy.grants import MAX_GRANT_USES, WantedGrant, exact_pattern, with_left_out
from turngate.domain.policy.limits import COMMANDS, LimitKind, ValueLimit, written_limit, written_total
from turngate.domain.policy.measures import measured
from turngate.domain.policy.totals import Per, Total
from turngate.domain.text.hidden_text import has_hidden
from turngate.domain.text.json_pointers import decode_arguments
from turngate.domain.tools.defaults import constant_text
from turngate.domain.tools.failures import describe_validation
from turngate.domain.tools.secrets import has_marks
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


WINDOWS: Final[tuple[tuple[Per, str], ...]] = (("hour", "hour"), ("day", "day"), ("week", "week"))
HOW: Final[Mapping[str, str]] = {
    "range": "from … to …",
    "one_of": "one of several values",
    "prefix": "anything that begins with …",
}
MAX_PREFILLED_CHARS: Final = 200
"""Of a value that the fields for limits begin with. One with hidden characters isn't put there: no field can mark them."""
FIXED: Final = "fixed"
OPEN: Final = "open"


@dataclass(frozen=True, kw_only=True)
class GrantRow:
    """One argument. ``choices``: besides exactly this value and any, value and label. ``how``: the chosen one.

    ``low``, ``high``, ``values``, ``start``: what was typed for each kind of limit.
    """

    place: int
    name: str
    text: str
    choices: Sequence[tuple[LimitKind, str]]
    how: str
    low: str
    high: str
    values: str
    start: str


@dataclass(frozen=True, kw_only=True)
class GrantForm:
    """What the form shows. ``amounts``: arguments that a total can be over.

    ``wanted``: the grant to show before it is saved, with its ``seal``, and what it says of each argument; None: none yet.
    """

    rows: Sequence[GrantRow]
    scopes: tuple[tuple[str, str], ...]
    amounts: Sequence[str]
    wanted: WantedGrant | None = None
    conditions: Sequence[tuple[str, str]] = ()
    seal: str = ""


def grant_form(
    request: RequestDetail, typed: Mapping[str, str], *, admin: bool, wanted: WantedGrant | None
) -> GrantForm | None:
    """Return the form; None where no grant can answer calls like this one."""
    view = arguments.view(constant_text(request.input_for_readers, request.defaults))
    if request.status != "pending" or ungrantable(request) is not None or view.rows is None or view.doubled:
        return None
    decoded = _decoded(request)
    rows = [_row(request, place, row, decoded.get(row.name), typed) for place, row in enumerate(view.rows)]
    return GrantForm(
        rows=rows,
        scopes=SCOPES + (FOR_ADMINS if admin else ()),
        amounts=[name for name, value in decoded.items() if _is_number(value)],
        wanted=wanted,
        conditions=[] if wanted is None else wanted.pattern.conditions,
        seal="" if wanted is None else seal(wanted),
    )


def _row(request: RequestDetail, place: int, row: ArgumentRow, value: JsonValue, typed: Mapping[str, str]) -> GrantRow:
    begin = row.text if len(row.text) <= MAX_PREFILLED_CHARS and not has_hidden(row.text) else ""
    own = {name: typed.get(f"grant-{name}-{place}", begin) for name in ("low", "high", "values", "start")}
    return GrantRow(
        place=place,
        name=row.name,
        text=row.text,
        choices=[(kind, HOW[kind]) for kind in _kinds(request, row.name, value)],
        how=typed.get(f"grant-how-{place}", FIXED),
        **own,
    )


def _kinds(request: RequestDetail, name: str, value: JsonValue) -> list[LimitKind]:
    """Return which limits an argument can have."""
    if value is None or has_marks(str(value)):
        return []
    measure = measured(value)
    kinds: list[LimitKind] = [] if measure is None else ["range", "one_of"]
    if not isinstance(value, str):
        return kinds
    if measure is None:
        kinds.append("one_of")
    if request.confinement is None and name.casefold() not in COMMANDS and measure is None:
        kinds.append("prefix")
    return kinds


def _is_number(value: JsonValue) -> bool:
    measure = measured(value)
    return measure is not None and measure.kind == "number"


def _decoded(request: RequestDetail) -> dict[str, JsonValue]:
    try:
        decoded = with_left_out(decode_arguments(request.input_for_readers), request.defaults)
    except ValueError:
        return {}
    return decoded if isinstance(decoded, dict) else {}


def read_grant(request: RequestDetail, typed: Mapping[str, str]) -> WantedGrant:
    """Return the grant that the form orders. Raises InvalidInputError when it is not valid."""
    decoded = _decoded(request)
    free: list[str] = []
    within: dict[str, ValueLimit] = {}
    for place, (name, value) in enumerate(decoded.items()):
        how = typed.get(f"grant-how-{place}", FIXED)
        kind = next((each for each in _kinds(request, name, value) if each == how), None)
        if how == OPEN:
            free.append(name)
        elif kind is not None:
            within[name] = written_limit(kind, value, _written(kind, place, typed))
    try:
        uses, seconds = int(typed.get("grant-uses", "")), int(typed.get("grant-lasts", ""))
    except ValueError:
        message = f"uses: a number from 1 to {MAX_GRANT_USES:,}"
        raise InvalidInputError(message, errors=[{"pointer": "/grant-uses", "message": message}]) from None
    pattern = exact_pattern(
        request.tool_name, decoded, open_arguments=free, within=within, total=_total(decoded, typed)
    )
    try:
        return WantedGrant.model_validate(
            {
                "pattern": pattern,
                "scope": typed.get("grant-scope", ""),
                "expires_after_seconds": seconds,
                "max_uses": uses,
                "note": typed.get("grant-note", "").strip(),
            }
        )
    except ValidationError as error:
        message = describe_validation(error)
        raise InvalidInputError(message, errors=[{"pointer": "/grant-uses", "message": message}]) from None


def _written(kind: LimitKind, place: int, typed: Mapping[str, str]) -> list[str]:
    match kind:
        case "range":
            return [typed.get(f"grant-low-{place}", ""), typed.get(f"grant-high-{place}", "")]
        case "one_of":
            return typed.get(f"grant-values-{place}", "").replace("\r\n", "\n").split("\n")
        case "prefix":
            return [typed.get(f"grant-start-{place}", "")]


def _total(decoded: Mapping[str, JsonValue], typed: Mapping[str, str]) -> Total | None:
    name = typed.get("grant-total-at", "")
    if not name or name not in decoded:
        return None
    chosen = [window for window, _label in WINDOWS if window == typed.get("grant-total-per")]
    return written_total(name, typed.get("grant-total-most", ""), chosen[0] if chosen else "day")


def seal(wanted: WantedGrant) -> str:
    """Return a text that proves that the saved grant is the one that was shown."""
    return framed_sha256(wanted.model_dump_json())[:24]
