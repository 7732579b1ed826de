"""How many such calls people would stop, at most."""

from __future__ import annotations

from fractions import Fraction
from math import comb

import pytest

from turngate.approvals_api.policy.preview import against_at_most


def chance_of_at_most(against: int, decided: int, share: float) -> float:
    """The probability of so few, added up exactly."""
    yes = Fraction(share)
    return float(
        sum(comb(decided, number) * yes**number * (1 - yes) ** (decided - number) for number in range(against + 1))
    )


@pytest.mark.parametrize("decided", [1, 2, 10, 31, 200])
@pytest.mark.parametrize("against", [0, 1, 5, 30, 199])
def test_the_bound_is_the_share_at_which_so_few_are_just_improbable(against: int, decided: int) -> None:
    """Clopper and Pearson: there, so few decisions against the rule have a probability of 5 %, neither more nor less."""
    if against >= decided:
        assert against_at_most(against, decided) == 1
        return
    bound = against_at_most(against, decided)
    assert against / decided < bound < 1
    assert chance_of_at_most(against, decided, bound) == pytest.approx(0.05, rel=1e-5)


def test_the_bound_is_that_of_the_tables() -> None:
    """None of 10: 25.9 %; none of 31: 9.2 %; 2 of 20: 28.3 %; none of 1,000: 0.3 %, as the rule of three says."""
    bounds = [against_at_most(0, 10), against_at_most(0, 31), against_at_most(2, 20), against_at_most(0, 1000)]
    assert [round(each, 3) for each in bounds] == [0.259, 0.092, 0.283, 0.003]
    assert against_at_most(500, 1000) == pytest.approx(0.526, abs=0.002)
