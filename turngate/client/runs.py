"""Calls about runs: start, look, send a message, fork, stop; and what their tool calls returned."""

from __future__ import annotations

from typing import TypedDict, Unpack

import httpx

from turngate.client.calls import Call, change, get, key_or_new, model, post, segment, without_none
from turngate.client.calls import model as read_as
from turngate.domain.requests import RunStatus, UnattendedAsks, WhileRunning
from turngate.domain.runs.failure_classes import FailureClass
from turngate.domain.text.suggestions import refuse_unknown
from turngate.wire.agents import AgentView, ModelChoice
from turngate.wire.calls import WholeResult
from turngate.wire.comparison import Comparison
from turngate.wire.explanation import ErrorView, Explanation, StuckRun, WaitKind
from turngate.wire.orders import DryRunOrder, ForkOrder, MessageOrder, OverridesOrder, StartOrder
from turngate.wire.plans import ForkPlan
from turngate.wire.runs import MessageView, RunDetail, RunSummary
from turngate.wire.view import Page


def start_run(
    *,
    agent: str,
    text: str,
    conversation_id: str | None = None,
    workspace: str | None = None,
    model: str | None = None,
    idempotency_key: str | None = None,
    unattended: UnattendedAsks | None = None,
) -> Call[RunSummary]:
    """Start a run, and return it as it begins.

    Args:
        agent: its name; ``list_agents`` shows those there are.
        text: what it should do, 1 to 100,000 characters.
        conversation_id: continue this conversation; None begins a new one.
        workspace: the directory it works in, absolute, on the server's machine.
        model: in place of the agent's own, as ``provider:name`` or a profile's name.
        idempotency_key: the same key and content again returns the first run; None makes one.
        unattended: no one attends it, so what would be asked is refused (``deny``), waits (``park``), or is asked only
            where a rule of the policy says so (``rules``); None: someone does.

    Raises:
        InvalidInputError: no such agent, or something else does not fit; ``details["errors"]`` says what.
        NotFoundError: no such conversation.
        ConflictError: ``run_live`` (a run of the conversation has not ended), ``idempotency_key_reused``.
    """
    order = StartOrder(
        agent=agent,
        input=text,
        conversation_id=conversation_id,
        workspace=workspace,
        model=model,
        unattended=unattended,
    )
    return post("/runs", _run, order.members(), key=key_or_new(idempotency_key))


class RunsWhere(TypedDict, total=False):
    """Which runs (``turngate.domain.runs.run_filter.RunFilter``), all conditions together; what is left out does not matter.

    ``search``: words that all occur in the run. ``cause``: how it failed, as its explanation says.
    """

    status: RunStatus | None
    search: str | None
    agent: str | None
    cause: FailureClass | None


def list_runs(*, limit: int = 50, cursor: str | None = None, **where: Unpack[RunsWhere]) -> Call[Page[RunSummary]]:
    """Return one page of runs, newest first.

    ``where``: conditions, such as ``status="failed"`` (:class:`RunsWhere`). ``limit``: 1 to 200. ``cursor``: ``next_cursor``
    of the page before, under the same conditions. A page of a search may be empty and not the last.
    """
    refuse_unknown(where, {*RunsWhere.__optional_keys__, "limit", "cursor"}, "list_runs")
    return get("/runs", model(Page[RunSummary]), limit=limit, cursor=cursor, **where)


def get_run(run_id: str) -> Call[RunDetail]:
    """Return a run with its steps and calls. Raises NotFoundError."""
    return get(f"/runs/{segment(run_id)}", model(RunDetail))


def explain_run(run_id: str) -> Call[Explanation]:
    """Return why a run failed or what a live one waits for, and what to do about it. Raises NotFoundError."""
    return get(f"/runs/{segment(run_id)}/explanation", model(Explanation))


def list_errors(*, run_id: str | None = None, limit: int = 50) -> Call[Page[ErrorView]]:
    """Return the newest errors of runs, with text and traceback, newest first. ``run_id``: only of this run."""
    return get("/errors", model(Page[ErrorView]), run_id=run_id, limit=limit)


def get_error(error_id: str) -> Call[ErrorView]:
    """Return an error of a run by its id, such as ``err-4k7mp-2xq9t``. Raises NotFoundError."""
    return get(f"/errors/{segment(error_id)}", model(ErrorView))


def compare_runs(run_id: str, other_id: str) -> Call[Comparison]:
    """Return two runs side by side: what they share, and where and in what they differ.

    Raises NotFoundError; InvalidInputError ``same_run``.
    """
    return get(f"/runs/{segment(run_id)}/comparison/{segment(other_id)}", model(Comparison))


def list_stuck_runs(
    *, still_for_seconds: int = 60, cause: WaitKind | None = None, limit: int = 50, cursor: str | None = None
) -> Call[Page[StuckRun]]:
    """Return the stalled live runs, newest first, each with its reason.

    ``still_for_seconds``: how long a person, a tool or a model may take before it counts. ``cause``: only those that wait for
    this. A page looks at ``limit`` live runs, 1 to 200: it may be empty and not the last.
    """
    read = model(Page[StuckRun])
    return get("/stuck-runs", read, still_for_seconds=still_for_seconds, cause=cause, limit=limit, cursor=cursor)


def send_message(
    run_id: str, text: str, *, while_running: WhileRunning | None = None, idempotency_key: str | None = None
) -> Call[RunSummary]:
    """Say something more in the run's conversation, and return the run that answers it or, while one is live, that one.

    It starts the next run, with this one's agent, model and workspace. A live run takes the message as ``while_running``
    says (``queue``, ``inject``, ``supersede``), or as its agent declares. Raises what ``start_run`` raises.
    """
    order = MessageOrder(input=text, while_running=while_running)
    return post(f"/runs/{segment(run_id)}/messages", _run, order.members(), key=key_or_new(idempotency_key))


def fork_run(run_id: str, order: ForkOrder, *, idempotency_key: str | None = None) -> Call[RunSummary]:
    """Start a run in a new conversation that shares this run's past up to a closed step; this run stays as it is.

    Raises what ``start_run`` raises; InvalidInputError ``no_such_step``, ``unknown_tool``, ``invalid_policy``.
    """
    body = {"text": order.text, **order.members()}
    return post(f"/runs/{segment(run_id)}/fork", _run, body, key=key_or_new(idempotency_key))


def preview_fork(run_id: str, order: ForkOrder) -> Call[ForkPlan]:
    """Return what a fork would use again, what it doesn't undo, and what the model may do again. Starts nothing.

    The plan needs no ``text``, and looks neither at ``workspace`` nor at ``instructions`` and ``policy``.
    Raises NotFoundError; InvalidInputError ``no_such_step``, ``unknown_agent``, ``unknown_tool``.
    """
    flags = {"summarise": "true"} if order.summarise else {}
    return get(f"/runs/{segment(run_id)}/fork", read_as(ForkPlan), **_planned(order), **flags)


def preview_replay(run_id: str, order: DryRunOrder) -> Call[ForkPlan]:
    """Return which recorded results a dry run would answer its calls from. Starts nothing.

    The plan looks neither at ``instructions`` nor at ``policy``.
    """
    return get(f"/runs/{segment(run_id)}/replay", read_as(ForkPlan), **_planned(order))


def replay_run(run_id: str, order: DryRunOrder, *, idempotency_key: str | None = None) -> Call[RunSummary]:
    """Start a dry run: the run is done again with its recorded results; no tool runs and no one is asked.

    A ``policy`` needs no admin here. ``compare_runs`` shows the result. Raises what ``fork_run`` raises; ConflictError
    ``dry_replay``.
    """
    body = {"dry": True, **order.members()}
    return post(f"/runs/{segment(run_id)}/replay", _run, body, key=key_or_new(idempotency_key))


def retry_run(run_id: str, *, model: str | None = None, idempotency_key: str | None = None) -> Call[RunSummary]:
    """Start the run that continues where this one failed or was interrupted, in the same conversation.

    ``model``: in place of the run's own. Raises what ``start_run`` raises; ConflictError ``not_failed``,
    ``conversation_moved_on``.
    """
    body = without_none({"model": model})
    return post(f"/runs/{segment(run_id)}/retry", _run, body, key=key_or_new(idempotency_key))


def interrupt(run_id: str, *, reason: str = "") -> Call[RunSummary]:
    """Tell a run to stop, and return it as it is now: it ends a moment later. Raises ConflictError ``run_ended``."""
    return post(f"/runs/{segment(run_id)}/interrupt", _run, {"reason": reason})


def pause(run_id: str, *, reason: str = "") -> Call[RunSummary]:
    """Pause a run: what runs may finish, nothing new starts. Raises ConflictError ``run_ended``."""
    return post(f"/runs/{segment(run_id)}/pause", _run, {"reason": reason})


def resume(run_id: str) -> Call[RunSummary]:
    """Resume a paused run. Raises ConflictError ``run_ended``."""
    return change("POST", f"/runs/{segment(run_id)}/resume", _run)


def switch_model(run_id: str, model: str) -> Call[RunSummary]:
    """Let another model (``provider:name`` or a profile's name) answer a live run's next request, and return the run.

    Raises InvalidInputError ``unknown_model``; ConflictError ``run_ended``, ``no_model``.
    """
    return change("POST", f"/runs/{segment(run_id)}/model", _run, {"model": model})


def get_result(run_id: str, tool_call_id: str) -> Call[WholeResult]:
    """Return a call's result, always whole. Raises NotFoundError, ``no_result_yet`` while the call is open."""
    return get(_result_path(run_id, tool_call_id), model(WholeResult))


def get_result_text(run_id: str, tool_call_id: str) -> Call[str]:
    """Return a call's result, ``{"result": …}``, as the very JSON text that the API sent."""
    return get(_result_path(run_id, tool_call_id), _text)


def _planned(order: OverridesOrder) -> dict[str, str | int | None]:
    """Return the parameters of a plan."""
    return {
        "step": order.step,
        "agent": order.agent,
        "model": order.model,
        "tools": None if order.tools is None else ",".join(order.tools),
        "plain": "true" if order.plain else None,
    }


def _result_path(run_id: str, tool_call_id: str) -> str:
    return f"/runs/{segment(run_id)}/calls/{segment(tool_call_id)}/result"


def _run(response: httpx.Response) -> RunSummary:
    return RunSummary.model_validate_json(response.content)


def _text(response: httpx.Response) -> str:
    return response.text


# Calls about conversations.


def list_messages(conversation_id: str) -> Call[list[MessageView]]:
    """Return a conversation from its first message to its newest closed one. Raises NotFoundError."""
    return get(f"/conversations/{segment(conversation_id)}/messages", _messages)


def _messages(response: httpx.Response) -> list[MessageView]:
    return Page[MessageView].model_validate_json(response.content).items


# Calls about agents, and the models that their runs may be given.


def list_agents() -> Call[list[AgentView]]:
    """Return the agents that workers have published, by name."""
    return get("/agents", _agents)


def list_models() -> Call[list[ModelChoice]]:
    """Return the models to choose from: profiles, then the agents' own. A run also takes other ``PROVIDER:NAME``."""
    return get("/models", _models)


def _agents(response: httpx.Response) -> list[AgentView]:
    return Page[AgentView].model_validate_json(response.content).items


def _models(response: httpx.Response) -> list[ModelChoice]:
    return Page[ModelChoice].model_validate_json(response.content).items
