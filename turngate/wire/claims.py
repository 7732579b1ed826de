"""Claims: who has taken a request on."""

from __future__ import annotations

from turngate.wire.view import View


class ClaimView(View):
    """The claim that stands on a request, and until when it counts."""

    request_id: str
    claimed_by: str
    claimed_until: str
