"""How fast one person lets calls run: a breath after a few within seconds, a word after many within a minute."""

from __future__ import annotations

import pytest
from support.engine.stack import person

from turngate.approvals_api.pace import Pace
from turngate.domain.errors import InvalidInputError, TooManyRequestsError

ANN, BOB, MACHINE = person("ann"), person("bob"), person("bot", machine=True)


class Hour:
    """A clock that a test moves."""

    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def hour() -> Hour:
    return Hour()


def approve(pace: Pace, *tools: str, by=ANN, confirm: str = "") -> None:
    with pace.act(by, tools or ("pay",), confirm=confirm):
        pass


def test_a_few_calls_within_seconds_take_a_breath(hour):
    """Of six within ten seconds the seventh waits until the first is ten seconds old; waiting is all it takes."""
    pace = Pace(6, clock=hour)
    for number in range(6):
        approve(pace, f"tool-{number}")
        hour.now += 1
    with pytest.raises(TooManyRequestsError, match=r"6 calls within 10 seconds.*in 4 s") as refused:
        approve(pace, "tool-6", confirm="tool-6")
    assert (refused.value.error_code, refused.value.retry_after_seconds) == ("too_fast", 4)
    hour.now += 4
    approve(pace, "tool-6")


def test_calls_of_one_tool_take_it_sooner(hour):
    """Four of one tool are as many as six of several, and a call of another tool may be approved meanwhile."""
    pace = Pace(6, clock=hour)
    for _number in range(4):
        approve(pace, "pay")
    with pytest.raises(TooManyRequestsError, match="4 calls of pay"):
        approve(pace, "pay")
    approve(pace, "mail")


def test_many_calls_within_a_minute_take_a_word(hour):
    """At a call each five seconds, the ninth of one tool needs its name, typed; then as many again do not."""
    pace = Pace(6, clock=hour)

    def approve_eight() -> None:
        for _number in range(8):
            hour.now += 4.9
            approve(pace, "pay")

    approve_eight()
    hour.now += 4.9
    with pytest.raises(InvalidInputError, match="8 calls of pay within a minute") as refused:
        approve(pace, "pay")
    assert refused.value.error_code == "confirm_needed"
    assert [each["pointer"] for each in refused.value.details["errors"]] == ["/confirm"]
    with pytest.raises(InvalidInputError, match="type pay"):
        approve(pace, "pay", confirm="Pay")
    approve(pace, "pay", confirm="pay")
    approve_eight()
    hour.now += 4.9
    with pytest.raises(InvalidInputError):
        approve(pace, "pay")


def test_a_calm_person_is_never_slowed(hour):
    """A call each eight seconds, for an hour, never takes anything."""
    pace = Pace(6, clock=hour)
    for _number in range(450):
        hour.now += 8
        approve(pace, "pay")


def test_several_calls_together_are_one_act(hour):
    """Several calls that were reviewed together count once; the word for several tools is ``approve``."""
    pace = Pace(1, clock=hour)
    for _number in range(2):
        approve(pace, *(["pay"] * 50))
        hour.now += 10
    with pytest.raises(InvalidInputError, match="type pay"):
        approve(pace, *(["pay"] * 50))
    approve(pace, "pay", "mail")
    hour.now += 10
    with pytest.raises(InvalidInputError, match="type approve"):
        approve(pace, "pay", "mail")
    approve(pace, "pay", "mail", confirm="approve")


def test_what_was_refused_does_not_count(hour):
    """A decision that came too late, or was not accepted, is given back."""
    pace = Pace(1, clock=hour)
    for _number in range(5):
        with pytest.raises(RuntimeError), pace.act(ANN, ["pay"], confirm=""):
            raise RuntimeError
    approve(pace)


def test_acts_at_the_same_moment_are_each_counted(hour):
    """A script that sends many at once gets no further than one that sends them in turn."""
    pace = Pace(2, clock=hour)
    with pace.act(ANN, ["pay"], confirm=""), pytest.raises(TooManyRequestsError), pace.act(ANN, ["pay"], confirm=""):
        pass


def test_everyone_has_a_pace_of_their_own_and_machines_have_none(hour):
    """One person's haste slows no one else; a token of no person is not slowed, nor is anyone where it is switched off."""
    pace = Pace(1, clock=hour)
    approve(pace)
    approve(pace, by=BOB)
    for _number in range(50):
        approve(pace, by=MACHINE)
        approve(Pace(0, clock=hour))
