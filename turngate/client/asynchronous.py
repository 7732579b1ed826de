"""The client for programs that run an event loop (asyncio or trio)."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Self

import anyio
import httpx
import httpx_sse

from turngate.client import access, events, external_calls, health, policy, requests, retention, runs, schedules
from turngate.client.calls import STREAM_TIMEOUT, Call, Result, options
from turngate.client.event_stream import BROKEN, EventStream, StreamItem
from turngate.client.methods import awaited, awaited_each
from turngate.client.responses import no_answer, read_answer
from turngate.client.retries import Retries


class TurngateClient:
    """A client of one Turngate API. Use it as an async context manager, or :meth:`aclose` it.

    Every method raises the TurngateError that the API's problem document stands for, with its code and details, and
    UnavailableError, with the fix, when nothing answers at the address. It may be shared by tasks.

    Args:
        url: where the API is, such as ``http://127.0.0.1:8321``.
        token: from ``turngate token NAME --scope SCOPE``.
        timeout: seconds for one answer; None: 15, and 3 to connect.
        stream_timeout: of an event stream; its ``read`` is how long a stream may be silent before it counts as dead.
        retries: how calls that may be repeated are sent again.
        transport: in place of a network connection, such as ``httpx.ASGITransport(app)``.
        pages_url: where people open the pages; None: below ``url``.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout: httpx.Timeout | float | None = None,
        stream_timeout: httpx.Timeout = STREAM_TIMEOUT,
        retries: Retries | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        pages_url: str | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self.pages_url = (pages_url or url).rstrip("/")
        self._retries = retries or Retries()
        self._stream_timeout = stream_timeout
        self._http = httpx.AsyncClient(**options(self.url, token, timeout), transport=transport)

    async def __aenter__(self) -> Self:
        """Return the client."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the client."""
        await self.aclose()

    async def aclose(self) -> None:
        """Close every connection."""
        await self._http.aclose()

    start_run = awaited(runs.start_run)
    list_runs = awaited(runs.list_runs)
    iter_runs = awaited_each(runs.list_runs)
    get_run = awaited(runs.get_run)
    explain_run = awaited(runs.explain_run)
    list_errors = awaited(runs.list_errors)
    get_error = awaited(runs.get_error)
    compare_runs = awaited(runs.compare_runs)
    list_stuck_runs = awaited(runs.list_stuck_runs)
    iter_stuck_runs = awaited_each(runs.list_stuck_runs)
    send_message = awaited(runs.send_message)
    fork_run = awaited(runs.fork_run)
    preview_fork = awaited(runs.preview_fork)
    preview_replay = awaited(runs.preview_replay)
    replay_run = awaited(runs.replay_run)
    retry_run = awaited(runs.retry_run)
    interrupt = awaited(runs.interrupt)
    pause = awaited(runs.pause)
    switch_model = awaited(runs.switch_model)
    resume = awaited(runs.resume)
    get_result = awaited(runs.get_result)
    get_result_text = awaited(runs.get_result_text)

    send_external_call = awaited(external_calls.send_external_call)
    list_external_calls = awaited(external_calls.list_external_calls)
    iter_external_calls = awaited_each(external_calls.list_external_calls)
    get_external_call = awaited(external_calls.get_external_call)
    start_external_call = awaited(external_calls.start_external_call)
    report_external_call = awaited(external_calls.report_external_call)

    list_requests = awaited(requests.list_requests)
    iter_requests = awaited_each(requests.list_requests)
    count_requests = awaited(requests.count_requests)
    get_request = awaited(requests.get_request)
    decide = awaited(requests.decide)
    decide_requests = awaited(requests.decide_requests)

    get_policy = awaited(policy.get_policy)
    put_policy = awaited(policy.put_policy)
    revert_policy = awaited(policy.revert_policy)
    confirm_policy = awaited(policy.confirm_policy)
    refuse_policy = awaited(policy.refuse_policy)
    list_waiting_for_rule = awaited(policy.list_waiting_for_rule)
    get_policy_offer = awaited(policy.get_policy_offer)
    preview_policy_rule = awaited(policy.preview_policy_rule)
    store_policy_rule = awaited(policy.store_policy_rule)
    enforce_policy_rule = awaited(policy.enforce_policy_rule)
    list_policy_versions = awaited(policy.list_policy_versions)
    iter_policy_versions = awaited_each(policy.list_policy_versions)
    get_policy_version = awaited(policy.get_policy_version)
    explain_policy = awaited(policy.explain_policy)
    get_shadow_report = awaited(policy.get_shadow_report)

    create_schedule = awaited(schedules.create_schedule)
    list_schedules = awaited(schedules.list_schedules)
    iter_schedules = awaited_each(schedules.list_schedules)
    get_schedule = awaited(schedules.get_schedule)
    change_schedule = awaited(schedules.change_schedule)
    pause_schedule = awaited(schedules.pause_schedule)
    resume_schedule = awaited(schedules.resume_schedule)
    run_schedule = awaited(schedules.run_schedule)
    delete_schedule = awaited(schedules.delete_schedule)
    list_grants = awaited(policy.list_grants)
    iter_grants = awaited_each(policy.list_grants)
    get_grant = awaited(policy.get_grant)
    list_waiting_for_grant = awaited(policy.list_waiting_for_grant)
    preview_grant = awaited(policy.preview_grant)
    create_grant = awaited(policy.create_grant)
    revoke_grant = awaited(policy.revoke_grant)

    list_messages = awaited(runs.list_messages)
    list_agents = awaited(runs.list_agents)
    list_models = awaited(runs.list_models)

    claim_request = awaited(requests.claim_request)
    withdraw_approval = awaited(requests.withdraw_approval)
    reveal_secrets = awaited(requests.reveal_secrets)
    release_request = awaited(requests.release_request)
    list_comments = awaited(requests.list_comments)
    iter_comments = awaited_each(requests.list_comments)
    add_comment = awaited(requests.add_comment)
    get_presence = awaited(requests.get_presence)
    keep_presence = awaited(requests.keep_presence)

    list_audit = awaited(events.list_audit)
    iter_audit = awaited_each(events.list_audit)
    get_chain = awaited(events.get_chain)

    get_me = awaited(access.get_me)
    get_retention = awaited(retention.get_retention)
    add_hold = awaited(retention.add_hold)
    release_hold = awaited(retention.release_hold)
    preview_erasure = awaited(retention.preview_erasure)
    erase_content = awaited(retention.erase_content)
    get_health = awaited(health.get_health)
    list_sessions = awaited(access.list_sessions)
    iter_sessions = awaited_each(access.list_sessions)
    end_session = awaited(access.end_session)
    list_tokens = awaited(access.list_tokens)
    iter_tokens = awaited_each(access.list_tokens)
    issue_token = awaited(access.issue_token)
    revoke_token = awaited(access.revoke_token)

    list_deliveries = awaited(events.list_deliveries)
    iter_deliveries = awaited_each(events.list_deliveries)
    retry_delivery = awaited(events.retry_delivery)

    async def follow_events(
        self,
        run_id: str | None = None,
        *,
        after: int | None = None,
        with_progress: bool = True,
        with_deltas: bool = False,
        on_link: Callable[[bool], None] | None = None,
    ) -> AsyncIterator[StreamItem]:
        """Yield events, and what tools say while they run, each once, as they happen; models, too, if ``with_deltas``.

        ``run_id``: of that run and its sub-agents' runs only; it ends after the run's own last event. ``after``: from
        this ``seq``, exclusive; None: a run from its beginning, all runs from now on. A broken stream is taken up again where
        it broke, for up to two minutes; then UnavailableError is raised, as it is at once when the first connection fails.
        ``on_link``: called with True each time a connection was opened, and with False when it broke.
        """
        notify_link = on_link or (lambda _is_open: None)
        stream = EventStream(self.url, run_id=run_id, after=after, with_progress=with_progress, with_deltas=with_deltas)
        while True:
            try:
                async with httpx_sse.aconnect_sse(
                    self._http, "GET", stream.path, **stream.options, timeout=self._stream_timeout
                ) as source:
                    if not source.response.is_success:
                        await source.response.aread()
                    stream.opened(source.response)
                    if stream.ended:
                        return
                    notify_link(True)
                    async for sent in source.aiter_sse():
                        item = stream.take(sent)
                        if item is not None:
                            yield item
                        if stream.ended:
                            return
            except BROKEN as error:
                notify_link(False)
                stream.broken(error)
            await anyio.sleep(stream.next_pause())

    async def send(self, call: Call[Result], /) -> Result:
        """Send one call, again where that is safe, and return its answer. The other methods are made of this one."""
        for attempt in itertools.count(1):
            result = await self._attempt(call)
            pause = self._retries.pause(call, attempt, result)
            if pause is None:
                break
            await anyio.sleep(pause)
        if isinstance(result, httpx.TransportError):
            raise no_answer(result, self.url) from result
        return read_answer(call, result, self.url)

    async def _attempt(self, call: Call[Result]) -> httpx.Response | httpx.TransportError:
        try:
            return await self._http.request(
                call.method, call.path, params=call.params, content=call.content, headers=call.headers
            )
        except httpx.TransportError as error:
            return error
