"""The workflow's state: one serializable value, what a run must remember from one step to the next.

Pure and deterministic: callable from workflow code. Nothing in it decides a request: the store does.
"""

from __future__ import annotations

from pydantic import BaseModel


class TurnState(BaseModel):
    """Everything a run must not forget.

    ``step``: the one being worked on, from 1. ``recovered_step``: the step in which a lost workflow is continued, so its
    requests may have ended already; None: none is. ``interrupted``: it is to come to its end, and nothing starts any more.
    ``paused``: someone holds it. ``finishing``: a call of the step at hand ends the run as completed.
    """

    step: int = 1
    malformed_in_a_row: int = 0
    recovered_step: int | None = None
    interrupted: bool = False
    paused: bool = False
    finishing: bool = False

    @property
    def held(self) -> bool:
        """Whether nothing may start now. An interrupt ends a pause: the run has to come to its end."""
        return self.paused and not self.interrupted

    @property
    def recovering(self) -> bool:
        """Whether requests of the step at hand may have ended before this workflow began."""
        return self.recovered_step == self.step

    def close_step(self, *, malformed: bool) -> None:
        """Continue to the next step: its results are stored."""
        self.step += 1
        self.malformed_in_a_row = self.malformed_in_a_row + 1 if malformed else 0
