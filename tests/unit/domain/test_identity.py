"""Names, passwords and scopes as rules of values."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngate.domain.errors import InvalidInputError
from turngate.domain.identity import (
    ALL_SCOPES,
    ROLE_SCOPES,
    check_token_scopes,
    checked_name,
    checked_password,
    held_scopes,
    name_key,
    normal_password,
    role_of_scopes,
)

SETS = [frozenset(each) for size in range(5) for each in itertools.combinations(sorted(ALL_SCOPES), size)]


@given(st.text(max_size=120))
def test_a_name_that_is_stored_is_stored_the_same_again(text: str) -> None:
    """Normalising is idempotent: a stored name is its own normal form and equals the typed one."""
    try:
        name = checked_name(text)
    except InvalidInputError:
        return
    assert checked_name(name) == name
    assert name_key(name) == name_key(name.upper()) or name_key(name.upper()) != name_key(name.lower())


def test_a_password_has_a_length_and_no_other_rule() -> None:
    """Twelve characters of any kind, at most 1024 bytes; the same letters typed another way are the same password."""
    for good in ("aaaaaaaaaaaa", "correct horse battery", "é" * 512, "   spaces   count   "):
        assert checked_password(good) == good
    for bad in ("elevenchars", "", "é" * 513, "a" * 1025, "x" * 10_000_000):
        with pytest.raises(InvalidInputError):
            checked_password(bad)
    assert normal_password("e\u0301" * 12) == checked_password("é" * 12)
    assert normal_password("a" * 1025) is None


@pytest.mark.parametrize("scopes", SETS)
def test_i10_who_may_both_start_and_decide(scopes: frozenset[str]) -> None:
    """I10: over all sets of scopes, an ownerless token that starts runs can't decide, unless it is an admin's."""
    both = {"runs:write", "requests:decide"} <= scopes and "admin" not in scopes
    try:
        check_token_scopes(scopes, owned=False)
        allowed = True
    except InvalidInputError:
        allowed = False
    assert allowed is not both
    held = held_scopes(scopes, None)
    assert not ({"runs:write", "requests:decide"} <= held and "admin" not in held)
    check_token_scopes(scopes, owned=True)


@pytest.mark.parametrize("scopes", SETS)
@pytest.mark.parametrize("role", sorted(ROLE_SCOPES))
def test_a_users_token_never_passes_the_role(scopes: frozenset[str], role) -> None:
    """Over all sets and roles, a token stays within its role and its scopes; an admin scope grants all of the role."""
    held = held_scopes(scopes, role)
    assert held <= ROLE_SCOPES[role]
    assert held == (ROLE_SCOPES[role] if "admin" in scopes else scopes & ROLE_SCOPES[role])


def test_an_unknown_scope_is_refused_and_roles_follow_scopes() -> None:
    """An error about an unknown scope lists the known ones; a token's role follows from its scopes."""
    with pytest.raises(InvalidInputError, match="no scope 'root'"):
        check_token_scopes({"root"}, owned=True)
    roles = {role_of_scopes(frozenset(each)) for each in ([], ["requests:read"])}
    assert roles == {"viewer"}
    assert role_of_scopes(frozenset({"runs:write"})) == role_of_scopes(frozenset({"requests:decide"})) == "operator"
    assert role_of_scopes(frozenset({"admin"})) == "admin"
