"""A call as it was judged when the model made it: what reports over the past read. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from turngate.domain.origins.origin import Origins
from turngate.domain.policy.policy import Verdict
from turngate.domain.requests import UnattendedAsks
from turngate.domain.tools.defaults import Defaults, read_stored


@dataclass(frozen=True)
class RecordedCall:
    """One call that reached policy. ``input``: the exact text the model sent. ``verdict_json``: as it was stored.

    ``effect``: empty for a call that was closed at once. ``unattended``: how the run answers what would be asked; None:
    someone attends it. ``place``: its place among all calls, newest first; a page continues after it. ``origins_json``: as stored
    with the request about it; None: there was none, or it wasn't read. ``defaults_json``: as stored.
    """

    run_id: str
    tool_call_id: str
    tool: str
    agent: str
    input: str
    verdict_json: str
    effect: str
    workspace: str | None
    starter: str
    unattended: UnattendedAsks | None
    place: tuple[Any, ...]
    origins_json: str | None = None
    defaults_json: str | None = None

    @cached_property
    def defaults(self) -> Defaults:
        """What its arguments leave out, as far as it is on record."""
        return read_stored(self.defaults_json)

    @cached_property
    def verdict(self) -> Verdict:
        """The verdict, decoded."""
        return Verdict.model_validate_json(self.verdict_json)

    @property
    def origins(self) -> Origins | None:
        """Where its arguments came from; None: not known."""
        return None if self.origins_json is None else Origins.model_validate_json(self.origins_json)
