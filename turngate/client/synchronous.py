"""The client for programs without an event loop: scripts, and Turngate's own command line."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

import httpx
import httpx_sse

from turngate.client import access, events, external_calls, health, policy, requests, retention, runs, schedules
from turngate.client.calls import STREAM_TIMEOUT, Call, Result, options
from turngate.client.event_stream import BROKEN, EventStream, StreamItem
from turngate.client.methods import blocking, blocking_each
from turngate.client.responses import no_answer, read_answer
from turngate.client.retries import Retries


class SyncTurngateClient:
    """:class:`~turngate.client.TurngateClient` without ``await``. It may be shared by threads.

    Use it as a context manager, or :meth:`close` it. Arguments, methods and errors are the other one's.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout: httpx.Timeout | float | None = None,
        stream_timeout: httpx.Timeout = STREAM_TIMEOUT,
        retries: Retries | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self._retries = retries or Retries()
        self._stream_timeout = stream_timeout
        self._http = httpx.Client(**options(self.url, token, timeout), transport=transport)

    def __enter__(self) -> Self:
        """Return the client."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the client."""
        self.close()

    def close(self) -> None:
        """Close every connection."""
        self._http.close()

    start_run = blocking(runs.start_run)
    list_runs = blocking(runs.list_runs)
    iter_runs = blocking_each(runs.list_runs)
    get_run = blocking(runs.get_run)
    explain_run = blocking(runs.explain_run)
    list_errors = blocking(runs.list_errors)
    get_error = blocking(runs.get_error)
    compare_runs = blocking(runs.compare_runs)
    list_stuck_runs = blocking(runs.list_stuck_runs)
    iter_stuck_runs = blocking_each(runs.list_stuck_runs)
    send_message = blocking(runs.send_message)
    fork_run = blocking(runs.fork_run)
    preview_fork = blocking(runs.preview_fork)
    preview_replay = blocking(runs.preview_replay)
    replay_run = blocking(runs.replay_run)
    retry_run = blocking(runs.retry_run)
    interrupt = blocking(runs.interrupt)
    pause = blocking(runs.pause)
    switch_model = blocking(runs.switch_model)
    resume = blocking(runs.resume)
    get_result = blocking(runs.get_result)
    get_result_text = blocking(runs.get_result_text)

    send_external_call = blocking(external_calls.send_external_call)
    list_external_calls = blocking(external_calls.list_external_calls)
    iter_external_calls = blocking_each(external_calls.list_external_calls)
    get_external_call = blocking(external_calls.get_external_call)
    start_external_call = blocking(external_calls.start_external_call)
    report_external_call = blocking(external_calls.report_external_call)

    list_requests = blocking(requests.list_requests)
    iter_requests = blocking_each(requests.list_requests)
    count_requests = blocking(requests.count_requests)
    get_request = blocking(requests.get_request)
    decide = blocking(requests.decide)
    decide_requests = blocking(requests.decide_requests)

    get_policy = blocking(policy.get_policy)
    put_policy = blocking(policy.put_policy)
    revert_policy = blocking(policy.revert_policy)
    confirm_policy = blocking(policy.confirm_policy)
    refuse_policy = blocking(policy.refuse_policy)
    list_waiting_for_rule = blocking(policy.list_waiting_for_rule)
    get_policy_offer = blocking(policy.get_policy_offer)
    preview_policy_rule = blocking(policy.preview_policy_rule)
    store_policy_rule = blocking(policy.store_policy_rule)
    enforce_policy_rule = blocking(policy.enforce_policy_rule)
    list_policy_versions = blocking(policy.list_policy_versions)
    iter_policy_versions = blocking_each(policy.list_policy_versions)
    get_policy_version = blocking(policy.get_policy_version)
    explain_policy = blocking(policy.explain_policy)
    get_shadow_report = blocking(policy.get_shadow_report)

    create_schedule = blocking(schedules.create_schedule)
    list_schedules = blocking(schedules.list_schedules)
    iter_schedules = blocking_each(schedules.list_schedules)
    get_schedule = blocking(schedules.get_schedule)
    change_schedule = blocking(schedules.change_schedule)
    pause_schedule = blocking(schedules.pause_schedule)
    resume_schedule = blocking(schedules.resume_schedule)
    run_schedule = blocking(schedules.run_schedule)
    delete_schedule = blocking(schedules.delete_schedule)
    list_grants = blocking(policy.list_grants)
    iter_grants = blocking_each(policy.list_grants)
    get_grant = blocking(policy.get_grant)
    list_waiting_for_grant = blocking(policy.list_waiting_for_grant)
    preview_grant = blocking(policy.preview_grant)
    create_grant = blocking(policy.create_grant)
    revoke_grant = blocking(policy.revoke_grant)

    list_messages = blocking(runs.list_messages)
    list_agents = blocking(runs.list_agents)
    list_models = blocking(runs.list_models)

    claim_request = blocking(requests.claim_request)
    withdraw_approval = blocking(requests.withdraw_approval)
    reveal_secrets = blocking(requests.reveal_secrets)
    release_request = blocking(requests.release_request)
    list_comments = blocking(requests.list_comments)
    iter_comments = blocking_each(requests.list_comments)
    add_comment = blocking(requests.add_comment)
    get_presence = blocking(requests.get_presence)
    keep_presence = blocking(requests.keep_presence)

    list_audit = blocking(events.list_audit)
    iter_audit = blocking_each(events.list_audit)
    get_chain = blocking(events.get_chain)

    get_me = blocking(access.get_me)
    get_retention = blocking(retention.get_retention)
    add_hold = blocking(retention.add_hold)
    release_hold = blocking(retention.release_hold)
    preview_erasure = blocking(retention.preview_erasure)
    erase_content = blocking(retention.erase_content)
    get_health = blocking(health.get_health)
    list_sessions = blocking(access.list_sessions)
    iter_sessions = blocking_each(access.list_sessions)
    end_session = blocking(access.end_session)
    list_tokens = blocking(access.list_tokens)
    iter_tokens = blocking_each(access.list_tokens)
    issue_token = blocking(access.issue_token)
    revoke_token = blocking(access.revoke_token)

    list_deliveries = blocking(events.list_deliveries)
    iter_deliveries = blocking_each(events.list_deliveries)
    retry_delivery = blocking(events.retry_delivery)

    def follow_events(
        self,
        run_id: str | None = None,
        *,
        after: int | None = None,
        with_progress: bool = True,
        with_deltas: bool = False,
        on_link: Callable[[bool], None] | None = None,
    ) -> Iterator[StreamItem]:
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
                with httpx_sse.connect_sse(
                    self._http, "GET", stream.path, **stream.options, timeout=self._stream_timeout
                ) as source:
                    if not source.response.is_success:
                        source.response.read()
                    stream.opened(source.response)
                    if stream.ended:
                        return
                    notify_link(True)
                    for sent in source.iter_sse():
                        item = stream.take(sent)
                        if item is not None:
                            yield item
                        if stream.ended:
                            return
            except BROKEN as error:
                notify_link(False)
                stream.broken(error)
            time.sleep(stream.next_pause())

    def send(self, call: Call[Result], /) -> Result:
        """Send one call, again where that is safe, and return its answer. The other methods are made of this one."""
        for attempt in itertools.count(1):
            result = self._attempt(call)
            pause = self._retries.pause(call, attempt, result)
            if pause is None:
                break
            time.sleep(pause)
        if isinstance(result, httpx.TransportError):
            raise no_answer(result, self.url) from result
        return read_answer(call, result, self.url)

    def _attempt(self, call: Call[Result]) -> httpx.Response | httpx.TransportError:
        try:
            return self._http.request(
                call.method, call.path, params=call.params, content=call.content, headers=call.headers
            )
        except httpx.TransportError as error:
            return error
