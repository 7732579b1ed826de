"""What becomes of a message that is sent while a run of its conversation works or waits. Pure."""

from __future__ import annotations

from typing import Literal

WhileRunning = Literal["queue", "inject", "supersede"]
"""``queue``: a run of its own answers it, as soon as this one has ended, however it ended. ``inject``: the model reads it
before its next step. ``supersede``: as ``inject``, and requests that wait end at once, because they are out of date."""
