"""Presence: who looks at a request now."""

from __future__ import annotations

from turngate.wire.view import View


class LookingView(View):
    """Somebody who looks at the request. ``last_at``: their last sign, at most a minute ago."""

    name: str
    last_at: str


class Presence(View):
    """Who else looks at a request, by name."""

    looking: list[LookingView]
