"""Asking a person: a question about a call becomes a request in the inbox, and the call waits for its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final

from turngate.activities.engine.author_code import MOST_VIEWS_OVERDUE, await_author, in_own_thread
from turngate.domain.agents.app import Agent
from turngate.domain.contract import PlannedCall
from turngate.domain.crashes import report_crash
from turngate.domain.digest import derived_id
from turngate.domain.origins.origin import Origins
from turngate.domain.policy.policy import Verdict
from turngate.domain.policy.terms import AskTerms
from turngate.domain.requests import RequestKind
from turngate.domain.runs.inbox import urgent_at
from turngate.domain.text.credentials import credentials_in
from turngate.domain.tools.defaults import Defaults, for_readers
from turngate.domain.tools.preview import Preview
from turngate.domain.tools.secrets import Masked, mask_text
from turngate.domain.tools.summary import clean, describe
from turngate.domain.tools.tool import Summarizer, Tool
from turngate.store.clock import as_text, from_text, now
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.evidence import opening_event
from turngate.store.requests import requests
from turngate.store.requests.requests import Request
from turngate.store.runs import calls, runs

SUMMARY_SECONDS = 2.0
QUICK_CHARS: Final = 20_000
"""Of arguments that are rendered on the event loop; longer ones in a thread."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question to a person: may this call run, or how do they answer it?

    ``agent``, ``tool``: of the call, as this run has them. ``verdict``: what asks, with its terms. ``digest``: of the bytes
    that are shown; None: the call's as it was planned. ``precondition``: what the call depends on now, as JSON; None: its
    tool does not say. ``origins``: of the arguments; None: not known. ``summary``: what the call does, in one sentence.
    ``replaces``: the approval that no longer counts; None: this is the first question about the call.
    """

    run: runs.Run
    agent: Agent
    call: calls.Call
    tool: Tool
    verdict: Verdict
    reason: str
    kind: RequestKind = "approval"
    digest: str | None = None
    agent_words: str = ""
    preview: Preview | None = None
    precondition: str | None = None
    origins: Origins | None = None
    summary: str | None = None
    replaces: Request | None = None

    @property
    def request_id(self) -> str:
        """The id of its request; a retry derives the same one."""
        if self.replaces is not None:
            return requests.again_id(self.replaces)
        return request_id_of(self.run.id, self.call.tool_call_id, self.kind)

    @property
    def terms(self) -> AskTerms:
        """The terms on which it is asked: one answer settles anything but an approval."""
        terms = self.verdict.terms
        return terms if self.kind == "approval" else terms.model_copy(update={"quorum": 1})

    def request(self) -> Request:
        """Return its request: pending, opened now."""
        created_at, terms = now(), self.terms
        confinement = None if self.tool.confinement is None else self.tool.confinement(self.call.decoded_by(self.tool))
        seconds = expiry_seconds(self.run, self.agent, terms)
        expires_at = None if seconds is None else created_at + timedelta(seconds=seconds)
        parks = is_parked(self.run)
        masked = self.tool.manifest.masked_input(self.call.running_input)
        # What belongs to the call is stored as who may decide sees it. Every other view of it is masked where it is made.
        seen = self.tool.manifest.masked_input(self.call.running_input, "decider")
        mask = partial(mask_text, values=seen.unshown, audience="decider")
        preview = None if self.preview is None else mask(self.preview.text)
        origins = None if self.origins is None else self.origins.masked([each.pointer for each in seen.secrets], mask)
        return Request(
            id=self.request_id,
            run_id=self.run.id,
            tool_call_id=self.call.tool_call_id,
            kind=self.kind,
            status="pending",
            agent=self.agent.name,
            tool_name=self.tool.name,
            manifest=self.tool.manifest.model_dump_json(),
            input=self.call.running_input,
            defaults=self.call.defaults,
            masked_input=self._masked_input(masked),
            digest=self.call.digest if self.digest is None else self.digest,
            rule=self.verdict.rule,
            reason=mask_text(self.reason, masked.values),
            risk=self.verdict.risk,
            agent_words=mask_text(self.agent_words, masked.values),
            preview_kind=self.preview.kind if self.preview else None,
            preview=preview,
            not_by=None if terms.starter_may_decide else self.run.started_by,
            expires_at=None if expires_at is None else as_text(expires_at),
            created_at=as_text(created_at),
            urgent_at=as_text(urgent_at(created_at, None if parks else expires_at, self.verdict.risk)),
            path=self.run.path,
            precondition=self.precondition,
            confinement=None if confinement is None else confinement.model_dump_json(),
            origins=None if origins is None else origins.model_dump_json(exclude_defaults=True),
            repeat_key=self.call.running_key,
            summary=None if self.summary is None else mask_text(self.summary, masked.values),
            terms=terms.model_dump_json(exclude_defaults=True),
            quorum=terms.quorum,
            parked_at=as_text(created_at) if parks else None,
            nonce=self.call.nonce,
        )

    def _masked_input(self, masked: Masked) -> str | None:
        """Return the arguments as people see them, if a search may not read the request and its task as they are."""
        return masked.text if masked.secrets or credentials_in(self.run.task) else None

    async def ask(
        self, conn: Connection, *, after: Sequence[events.NewEvent] = (), **more: Mapping[str, Any]
    ) -> PlannedCall:
        """Open its request in the caller's transaction, and return the call as it waits for the answer.

        ``after``: events of the same transaction that come before the request's own. ``more``: further fields of that.
        """
        request = self.request()
        replaced = {} if self.replaces is None else {"instead_of": self.replaces.id}
        await open_request(conn, request, after=after, **replaced, **more)
        return waiting_call(self.run, self.agent, self.tool, request)


async def open_request(
    conn: Connection, request: Request, *, after: Sequence[events.NewEvent] = (), **more: object
) -> None:
    """Insert a request and append the event of its opening. ``more``: further fields of the event.

    ``after``: events of the same transaction that come before it.
    """
    await requests.insert_all(conn, [request])
    await events.append(conn, request.run_id, [*after, opening_event(request, **more)])


def ready_call(call: calls.Call, tool: Tool) -> PlannedCall:
    """Return a call that may run at once, as the workflow settles it."""
    return PlannedCall(call=call.tool_call_id, timeout_seconds=int(tool.timeout.total_seconds()), queue=tool.task_queue)


def waiting_call(run: runs.Run, agent: Agent, tool: Tool, request: Request) -> PlannedCall:
    """Return a call that waits for the answer to this new request, as the workflow settles it."""
    terms = request.ask_terms
    expires_after = None if request.kind == "outcome" else expiry_seconds(run, agent, terms)
    return PlannedCall(
        call=request.tool_call_id,
        timeout_seconds=int(tool.timeout.total_seconds()),
        queue=tool.task_queue,
        request_id=request.id,
        expires_after_seconds=expires_after,
        ladder=tuple(terms.ladder[rung].after_seconds for rung in terms.rungs_before(expires_after)),
    )


def still_waiting_call(run: runs.Run, agent: Agent, tool: Tool, request: Request) -> PlannedCall:
    """Return a call that waits for the answer to an earlier request: its clock began when that was opened."""
    call = waiting_call(run, agent, tool, request)
    return call.model_copy(update={"waits_since": from_text(request.created_at), "climbed": request.rungs_climbed})


def request_id_of(run_id: str, tool_call_id: str, kind: RequestKind) -> str:
    """Return the id of the first request for this call; a retry derives the same one."""
    return derived_id("rq", run_id, tool_call_id, kind)


def expiry_seconds(run: runs.Run, agent: Agent, terms: AskTerms) -> int | None:
    """Return how long a request waits for an answer; None: forever, as all do in a run whose questions are parked."""
    if is_parked(run):
        return None
    if terms.expires_after_seconds is not None:
        return terms.expires_after_seconds
    limit = agent.limits.request_expiry
    return None if limit is None else int(limit.total_seconds())


def is_parked(run: runs.Run) -> bool:
    """Tell whether the run's requests wait without a clock, because no one attends it."""
    return not run.attended and run.unattended_asks == "park"


async def take_summary(tool: Tool, params: Any, raw_input: str, defaults: Defaults = ()) -> str:
    """Return what a call does, in one sentence: the author's, or one rendered from the declaration where that fails or hangs."""
    written = await _written_summary(tool, tool.summary, params) if callable(tool.summary) else None
    return written or await rendered_summary(tool, raw_input, defaults)


async def rendered_summary(tool: Tool, raw_input: str, defaults: Defaults = ()) -> str:
    """Return what a call does without calling author's code: the author's text, or the sentence of its declaration."""
    template = tool.summary if isinstance(tool.summary, str) else None
    if len(raw_input) <= QUICK_CHARS:
        return _described(tool, raw_input, template, defaults)
    return await asyncio.to_thread(_described, tool, raw_input, template, defaults)


def _described(tool: Tool, raw_input: str, template: str | None, defaults: Defaults) -> str:
    return describe(tool.manifest, tool.manifest.masked_input(raw_input).text, template, for_readers(defaults))


async def _written_summary(tool: Tool, summarizer: Summarizer, params: Any) -> str | None:
    """Return what an author's function says of a call; None: it fails, hangs or returns anything but words."""
    try:
        words = in_own_thread(lambda: clean(summarizer(params)), of=summarizer, most_overdue=MOST_VIEWS_OVERDUE)
        return await await_author(words, seconds=SUMMARY_SECONDS) or None
    except Exception as error:  # noqa: BLE001 - reported; Turngate renders one
        report_crash("summary failed", error, tool=tool.name)
        return None
