"""Tool calls of a run: what the model called, who was asked, and the result."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from turngate.domain.requests import ExecutionState, RequestKind, RequestStatus, Verb
from turngate.domain.tools.control_calls import ControlCall
from turngate.domain.tools.defaults import Default
from turngate.domain.tools.presentation import Presentation, warning_in
from turngate.domain.tools.results import ToolResult
from turngate.wire.people import Person, PolicyVerdict
from turngate.wire.view import View


class CallRequest(View):
    """A request that one call opened, and how it was answered."""

    id: str
    kind: RequestKind
    status: RequestStatus
    verb: Verb | None
    decided_by: Person | None
    decided_at: str | None
    created_at: str
    expires_at: str | None


class ResultInPart(View):
    """How much of a long result's JSON text is shown. The whole result is at ``…/calls/{tool_call_id}/result``."""

    shown_chars: int
    total_chars: int


class CallView(View):
    """One tool call. What the model sent, what was decided and what happened are separate members.

    ``input``: the exact text that the model sent. ``edited_input``: what ran in its place. ``requests``: oldest first.
    ``defaults``: in what its tool gets something else than is written there. ``execution``: ``not_started`` until its handler
    may run. ``result``: None while the call is open.
    ``presentation``: the result as its tool, or else the default, shows it to people; None while the call is open.
    ``in_part``: set if ``result`` is only a part. ``signal``: what a control call asks of the run, and ``waits_until``: the
    end of a wait. ``child_run_id``: the sub-agent's run that answers it. ``by_engine``: the engine made this call, to ask for
    more of a budget. ``recorded_call_id``: in a dry run, the recorded call whose result answers this one; None there: it
    diverged.
    """

    tool_call_id: str
    tool_name: str
    input: str
    edited_input: str | None
    defaults: list[Default] = Field(default_factory=list)
    digest: str
    effect: str
    disposition: Literal["run", "ask", "closed"]
    verdict: PolicyVerdict | None
    requests: list[CallRequest]
    execution: ExecutionState
    attempts: int
    started_at: str | None
    ended_at: str | None
    result: ToolResult | None
    presentation: Presentation | None = None
    settled_at: str | None
    in_part: ResultInPart | None = None
    signal: ControlCall | None = None
    waits_until: str | None = None
    child_run_id: str | None = None
    by_engine: bool = False
    recorded_call_id: str | None = None

    @property
    def request(self) -> CallRequest | None:
        """The newest request of the call, which is the one that counts; None if the call never asked."""
        return self.requests[-1] if self.requests else None

    @property
    def warning(self) -> str:
        """What a result that is no failure warns of; empty: nothing."""
        return warning_in(self.result, self.presentation)


class WholeResult(View):
    """A call's result as the run shows it, but never cut."""

    result: ToolResult
