"""How fast one person lets calls run: the faster and the more alike, the more it takes to approve the next one.

In this process only, on purpose, as rate limits are: it makes a person look, and it is no bound on what may be decided. A
token that belongs to no person is not slowed.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from turngate.approvals_api.principal import Principal
from turngate.domain.errors import InvalidInputError, TooManyRequestsError
from turngate.domain.text.sentences import counted

BREATH_SECONDS: Final = 10
"""In which a person approves so many calls at most, and two thirds of that of one tool."""
MEMORY_SECONDS: Final = 60
"""In which a person approves three times as many, twice as many of one tool, before they type a word."""
MAX_PEOPLE: Final = 10_000
MAX_ACTS: Final = 200
"""Acts of one person that are kept."""

Clock = Callable[[], float]


@dataclass
class _Person:
    """One person's latest approvals: when, and of what. ``confirmed_at``: when they last typed a word."""

    acts: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=MAX_ACTS))
    confirmed_at: float = -math.inf


class Pace:
    """The pace of everyone who decides in this process. Belongs to one event loop.

    ``most``: approvals within :data:`BREATH_SECONDS`; 0: any number. ``clock``: monotonic seconds.
    """

    def __init__(self, most: int, *, clock: Clock = time.monotonic) -> None:
        self._most = most
        self.clock = clock
        self._people: OrderedDict[str, _Person] = OrderedDict()

    @contextmanager
    def act(self, principal: Principal, tools: Sequence[str], *, confirm: str) -> Iterator[None]:
        """Count one act that lets calls of these tools run; it does not count if the block fails.

        ``confirm``: what the person typed. Several calls that are approved together are one act.

        Raises:
            TooManyRequestsError: ``too_fast``: it can be sent again after ``retry_after_seconds``.
            InvalidInputError: ``confirm_needed``: with ``confirm`` the same can be sent at once.
        """
        if not self._most or principal.machine or not tools:
            yield
            return
        person = self._people.setdefault(principal.name, _Person())
        self._people.move_to_end(principal.name)
        while len(self._people) > MAX_PEOPLE:
            self._people.popitem(last=False)
        now, what = self.clock(), word_for(tools)
        self._require_breath(person, now, what)
        if confirm == what:
            person.confirmed_at = now
        self._require_word(person, now, what)
        act = (now, what)
        person.acts.append(act)
        try:
            yield
        except BaseException:
            if act in person.acts:
                person.acts.remove(act)
            raise

    def _require_breath(self, person: _Person, now: float, what: str) -> None:
        recent = [each for each in person.acts if each[0] > now - BREATH_SECONDS]
        alike = [each for each in recent if each[1] == what]
        for acts, most, of_what in ((recent, self._most, ""), (alike, self._alike, f" of {what}")):
            if len(acts) >= most:
                wait = max(1, math.ceil(acts[-most][0] + BREATH_SECONDS - now))
                message = (
                    f"You approved {counted(len(acts), 'call')}{of_what} within {BREATH_SECONDS} seconds. "
                    f"Look at this one again: you can approve it in {wait} s."
                )
                raise TooManyRequestsError(message, retry_after_seconds=wait, code="too_fast")

    def _require_word(self, person: _Person, now: float, what: str) -> None:
        since = max(now - MEMORY_SECONDS, person.confirmed_at)
        recent = [each for at, each in person.acts if at > since]
        alike = recent.count(what)
        if len(recent) < 3 * self._most and alike < 2 * self._alike:
            return
        many = f"{counted(alike, 'call')} of {what}" if alike >= 2 * self._alike else counted(len(recent), "call")
        message = f"You approved {many} within a minute. If this one is right, too, type {what} and approve it."
        raise InvalidInputError(message, code="confirm_needed", errors=[{"pointer": "/confirm", "message": message}])

    @property
    def _alike(self) -> int:
        return max(1, self._most * 2 // 3)


def word_for(tools: Sequence[str]) -> str:
    """Return the word that confirms an act: the tool's name, or ``approve`` for calls of several tools."""
    return tools[0] if len(set(tools)) == 1 else "approve"
