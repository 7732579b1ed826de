"""Names, passwords, roles and scopes: what may be called what, and who may do what.

Pure. The store keeps people by these rules, the API lets them in by them, and the command line refuses by the same words.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from turngate.domain.errors import InvalidInputError
from turngate.domain.person_ids import ERASED_PREFIX, is_person_id
from turngate.domain.policy.terms import OWNERS_PREFIX, Role
from turngate.domain.text.hidden_text import is_hidden

Scope = Literal["runs:write", "runs:all", "requests:read", "requests:decide", "admin"]
Via = Literal["link", "password", "oidc"]
"""How a person came in."""

ALL_SCOPES: Final = frozenset[Scope]({"runs:write", "runs:all", "requests:read", "requests:decide", "admin"})
ROLE_SCOPES: Final[Mapping[Role, frozenset[Scope]]] = {
    "viewer": frozenset({"requests:read"}),
    "operator": frozenset({"requests:read", "requests:decide", "runs:write", "runs:all"}),
    "admin": ALL_SCOPES,
}

MAX_BOUNDS: Final = 100
"""Names or directories in one list of a token's bounds."""
BoundName = Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[^\u0000]*$")]
BoundDirectory = Annotated[str, Field(min_length=1, max_length=4_096, pattern=r"^/[^\u0000]*$")]


class TokenBounds(BaseModel):
    """What a token is bound to. None: it is not bound there.

    ``agents``: whose runs it may start; names or globs. ``workspaces``: absolute directories in and below which these work.
    ``sources``: under which it may send external calls; names or globs. A token with sources and no agents starts no agent's
    run. ``trust_ask``: an external call that says ``ask: false`` runs if no rule covers it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    agents: Annotated[list[BoundName], Field(max_length=MAX_BOUNDS)] | None = None
    workspaces: Annotated[list[BoundDirectory], Field(max_length=MAX_BOUNDS)] | None = None
    sources: Annotated[list[BoundName], Field(max_length=MAX_BOUNDS)] | None = None
    trust_ask: bool = False

    def allow_agent(self, agent: str) -> bool:
        """Tell whether the token may start runs of this agent."""
        if self.agents is None:
            return self.sources is None
        return any(fnmatchcase(agent, each) for each in self.agents)

    def allow_source(self, source: str) -> bool:
        """Tell whether the token may send calls under this source."""
        if self.sources is None:
            return self.agents is None
        return any(fnmatchcase(source, each) for each in self.sources)


UNBOUND: Final = TokenBounds()

MAX_NAME_CHARS: Final = 100
MIN_PASSWORD_CHARS: Final = 12
MAX_PASSWORD_BYTES: Final = 1024
"""Enough for any pass phrase; more would be work for the hash that a stranger can order."""

RESERVED: Final = frozenset({"me", "nobody", "engine", "system", "temporal"})
"""Names that filters and logs use for something other than a person."""


def looks_like_id(name: str) -> bool:
    """Tell whether a name could be taken for a person's id, in any spelling."""
    return is_person_id(name_key(name).strip())


def checked_name(text: str) -> str:
    """Return the name as it is stored: NFKC, one space between words, none around.

    Raises InvalidInputError for an empty or too long one, for control, direction-changing and invisible characters, for what
    means something else here, for one that looks like a person's id, and for the prefix that is kept for a stack's own token.
    Two names are the same when :func:`name_key` is.
    """
    # Split at spaces only: any other white space, a line feed say, is refused below, not fixed.
    name = " ".join(word for word in unicodedata.normalize("NFKC", text).split(" ") if word)
    if not 1 <= len(name) <= MAX_NAME_CHARS:
        raise _wrong("/name", f"a name has 1 to {MAX_NAME_CHARS} characters")
    hidden = next((char for char in name if is_hidden(char) or not char.isprintable()), None)
    if hidden is not None:
        raise _wrong(
            "/name", f"a name has no control, direction-changing or invisible characters (U+{ord(hidden):04X})"
        )
    if name_key(name) in RESERVED:
        raise _wrong("/name", f"{name!r} means something of its own in filters and logs: take another name")
    if name_key(name).startswith(ERASED_PREFIX):
        raise _wrong("/name", f"{name!r} is what Turngate shows of people who were erased: take another name")
    if looks_like_id(name):
        raise _wrong("/name", f"{name!r} looks like the id that the log has for a person: take another name")
    if name_key(name).startswith(OWNERS_PREFIX):
        raise _wrong("/name", f"names that begin with {OWNERS_PREFIX} are kept for the commands of a stack's owner")
    return name


def name_key(name: str) -> str:
    """Return what two names have in common when they count as one: ``Ann``, ``ANN`` and full-width letters alike."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


def checked_password(text: str) -> str:
    """Return the password as it is hashed (NFKC). Raises InvalidInputError when it is too short or too long.

    Length is the only rule (NIST SP 800-63B §5.1.1.2): rules about kinds of characters make passwords worse.
    """
    password = normal_password(text)
    if password is None:
        raise _wrong("/password", f"a password has at most {MAX_PASSWORD_BYTES} bytes")
    if len(password) < MIN_PASSWORD_CHARS:
        raise _wrong(
            "/password", f"a password has at least {MIN_PASSWORD_CHARS} characters; a few words are easy to keep"
        )
    return password


def normal_password(text: str) -> str | None:
    """Return what is compared when someone types a password; None when it is longer than any password can be."""
    if len(text) > MAX_PASSWORD_BYTES:  # before the work of normalising it
        return None
    password = unicodedata.normalize("NFKC", text)
    return password if len(password.encode("utf-8", "surrogatepass")) <= MAX_PASSWORD_BYTES else None


def held_scopes(scopes: Iterable[str], role: Role | None) -> frozenset[str]:
    """Return what a token may do now. ``role``: of the user it belongs to, which it can only narrow; None: no one's.

    A token that belongs to no one and may start runs never decides, even if its row lists both (I10).
    """
    granted = frozenset(scopes)
    if role is not None:
        return (ALL_SCOPES if "admin" in granted else granted) & ROLE_SCOPES[role]
    if "admin" not in granted and "runs:write" in granted:
        return granted - {"requests:decide"}
    return granted


def check_token_scopes(scopes: Iterable[str], *, owned: bool) -> None:
    """Raise InvalidInputError for a token that would let an agent decide about its own calls (I10).

    ``owned``: the token belongs to a stored user, and acts under their name.
    """
    granted = frozenset(scopes)
    unknown = sorted(granted - ALL_SCOPES)
    if unknown:
        raise _wrong("/scopes", f"there is no scope {unknown[0]!r}: use {', '.join(sorted(ALL_SCOPES))}")
    if {"runs:write", "requests:decide"} <= granted and not owned and "admin" not in granted:
        raise _wrong(
            "/scopes",
            "a token that starts runs may not decide requests too: an agent that holds it could approve its own calls. "
            "Make two tokens, or bind this one to a user with --user NAME, so that decisions carry that person's name",
        )


def role_of_scopes(scopes: frozenset[str]) -> Role:
    """Return the role that a token without a user has when a rule asks for one."""
    if "admin" in scopes:
        return "admin"
    return "operator" if scopes & {"requests:decide", "runs:write"} else "viewer"


def _wrong(pointer: str, message: str) -> InvalidInputError:
    return InvalidInputError(message, errors=[{"pointer": pointer, "message": message}])
