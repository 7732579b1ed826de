"""Why a run failed: the class of each stored ``error_class``, what it means in a sentence, and what to do about it.

Stored values are never renamed: old runs keep theirs. One that is not in :data:`MEANINGS` (the type of an exception that
no one foresaw) is a ``bug``. Pure, and the one place that knows all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

FailureClass = Literal[
    "model_unreachable",
    "model_refused",
    "malformed_output",
    "no_progress",
    "budget",
    "tool_raised",
    "policy_error",
    "configuration",
    "infrastructure",
    "bug",
]
"""What kind of thing went wrong. ``policy_error``: a rule that fails asks or denies (DESIGN §6), so few runs end with it."""

Happened = Literal["next_response", "this_step", "either", "before_start"]
"""Where a run with this ending broke off: waiting for its next response, in its current step, either, or before it began."""

Remedy = Literal[
    "raise_limit",
    "check_model",
    "other_model",
    "mend_tool",
    "mend_app",
    "mend_policy",
    "check_stack",
    "read_log",
    "find_lost",
    "retry",
    "send_message",
    "fork",
    "start_again",
]
"""What a person can do next. How it is done (a command, a link) is for those to say who show it."""


@dataclass(frozen=True, kw_only=True)
class Meaning:
    """What an ending means. ``cause``: one sentence, without the run's own words. ``remedies``: the likeliest first."""

    failure: FailureClass
    cause: str
    happened: Happened
    remedies: tuple[Remedy, ...]


def _model_away(cause: str) -> Meaning:
    remedies: tuple[Remedy, ...] = ("check_model", "retry", "send_message", "fork", "other_model")
    return Meaning(failure="model_unreachable", cause=cause, happened="next_response", remedies=remedies)


def _model_refused(cause: str, *remedies: Remedy) -> Meaning:
    return Meaning(failure="model_refused", cause=cause, happened="next_response", remedies=remedies)


def _infrastructure(cause: str, happened: Happened, *remedies: Remedy) -> Meaning:
    return Meaning(failure="infrastructure", cause=cause, happened=happened, remedies=remedies)


_WRONG_APP: Final = Meaning(
    failure="configuration",
    cause="The worker's app or settings do not fit this run, so it could not continue.",
    happened="either",
    remedies=("mend_app", "retry", "send_message", "fork"),
)
_STORE_AWAY: Final = _infrastructure(
    "The store could not be reached for longer than the run could wait.",
    "either",
    "check_stack",
    "retry",
    "send_message",
    "fork",
)
BUG: Final = Meaning(
    failure="bug",
    cause="Something unexpected failed, in Turngate or in the app's own code.",
    happened="either",
    remedies=("read_log", "retry", "send_message", "fork"),
)

MEANINGS: Final[dict[str, Meaning]] = {
    # Of a model: turngate.domain.errors.ModelErrorClass.
    "unreachable": _model_away(
        "The model's server could not be reached, for as long as the agent's model_retry allows."
    ),
    "rate_limited": _model_away("The model's provider asked to come back later, for as long as model_retry allows."),
    "server_error": _model_away("The model's provider failed again and again, for as long as model_retry allows."),
    "authentication": _model_refused(
        "The model's provider refused the key.", "check_model", "retry", "send_message", "fork"
    ),
    "permission": _model_refused(
        "The model's provider does not let this account use the model.",
        "check_model",
        "other_model",
        "retry",
        "send_message",
    ),
    "not_found": _model_refused(
        "The model's provider knows no model of this name.", "check_model", "other_model", "retry", "send_message"
    ),
    "invalid_request": _model_refused(
        "The model's provider does not accept the request as it was sent.", "read_log", "other_model", "fork"
    ),
    "context_length": _model_refused(
        "The conversation is longer than the model can take.", "fork", "other_model", "start_again"
    ),
    "bad_response": Meaning(
        failure="malformed_output",
        cause="The model's server answered with what is no answer of a model.",
        happened="next_response",
        remedies=("check_model", "other_model", "retry", "send_message", "fork"),
    ),
    # Of the loop.
    "malformed": Meaning(
        failure="malformed_output",
        cause="The model sent one response after the other that nothing could be run from.",
        happened="this_step",
        remedies=("fork", "other_model", "retry", "send_message", "raise_limit"),
    ),
    "no_progress": Meaning(
        failure="no_progress",
        cause="The model made the same calls with the same results again and again, even after a message told it so.",
        happened="this_step",
        remedies=("fork", "other_model", "send_message", "retry", "raise_limit"),
    ),
    "step_cap": Meaning(
        failure="budget",
        cause="The run used up the steps that its agent's limits allow.",
        happened="this_step",
        remedies=("retry", "send_message", "raise_limit", "fork"),
    ),
    **{
        name: Meaning(
            failure="budget",
            cause=f"The run used up {what} that its agent's limits allow.",
            happened="next_response",
            remedies=("raise_limit", "retry", "send_message", "fork"),
        )
        for name, what in (
            ("tool_call_cap", "the tool calls"),
            ("token_cap", "the tokens"),
            ("cost_cap", "the cost"),
            ("time_cap", "the time"),
        )
    },
    "tool_raised": Meaning(
        failure="tool_raised",
        cause='A tool failed that is declared to end the run when it does (failure_mode="raise").',
        happened="this_step",
        remedies=("mend_tool", "retry", "send_message", "fork"),
    ),
    "policy_error": Meaning(
        failure="policy_error",
        cause="The policy could not be applied to a call, so the call did not run and the run could not continue.",
        happened="this_step",
        remedies=("mend_policy", "retry", "send_message", "fork"),
    ),
    "configuration": _WRONG_APP,
    "ConfigurationError": _WRONG_APP,
    # Of what the engine depends on.
    "UnavailableError": _STORE_AWAY,
    "store_unavailable": _STORE_AWAY,
    "timeout": _infrastructure(
        "A part of the run got no answer in time: no worker took it, or the one that did never reported back.",
        "either",
        "check_stack",
        "read_log",
        "retry",
        "send_message",
        "fork",
    ),
    "worker_lost": _infrastructure(
        "Each worker that judged one of the run's calls was killed, or froze.",
        "this_step",
        "read_log",
        "mend_app",
        "fork",
        "other_model",
    ),
    "not_started": _infrastructure(
        "Temporal was away when the run was to start, so it never began.", "before_start", "check_stack", "start_again"
    ),
    "workflow_gone": _infrastructure(
        "Temporal no longer knows the run's workflow: it was terminated, or Temporal's data was lost.",
        "this_step",
        "find_lost",
        "retry",
        "send_message",
        "fork",
    ),
    "conflict": BUG,
    "bug": BUG,
}
"""Stored ``error_class`` → what it means. It has class names of exceptions too, as Temporal passes them on."""


def meaning_of(error_class: str) -> Meaning:
    """Return what a failed run's stored class means; of one that is unknown, that it is a bug."""
    return MEANINGS.get(error_class, BUG)


def classes_of(failure: FailureClass) -> frozenset[str]:
    """Return the stored classes with this meaning; a bug has further ones, which no one foresaw."""
    return frozenset(name for name, meaning in MEANINGS.items() if meaning.failure == failure)


def broke_off_at(
    meaning: Meaning, *, step: int, has_response: bool, planned: bool, all_settled_before: bool
) -> int | None:
    """Return the step at which a failed run broke off; None when it never began.

    The run itself only knows the newest step that has a response: one whose request failed left no row.

    Args:
        meaning: of its error class.
        step: the newest step it worked on, from 1; 0: none.
        has_response: that step's response is stored.
        planned: that response's calls are planned.
        all_settled_before: each of them got its result before the run ended, so none broke it off.
    """
    match meaning.happened:
        case "before_start":
            return None
        case "next_response":
            return step + 1 if has_response or step == 0 else step
        case "this_step":
            return step or None
        case "either":
            done = has_response and planned and all_settled_before
            return step + 1 if done or step == 0 else step
