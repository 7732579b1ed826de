"""What a person can do next, as a text with the command or the page for it. It only says what to do."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Final, assert_never

from turngate.domain.runs.budgets import SCRIPTED, is_free
from turngate.domain.runs.failure_classes import Remedy
from turngate.wire.explanation import NextAction, WaitReason
from turngate.wire.runs import RunDetail

_LIMITS: Final = {
    "step_cap": "steps",
    "malformed": "malformed_in_a_row",
    "no_progress": "no_progress",
    "tool_call_cap": "tool_calls",
    "token_cap": "tokens",
    "cost_cap": "cost",
    "time_cap": "wall_time",
}
"""Error class → the member of the agent's Limits that ended the run."""

PLAIN: Final[dict[Remedy, NextAction]] = {
    "check_model": NextAction(
        text="Check that the model answers: its server's address, the key, its name.",
        command="turngate doctor APP --probe",
    ),
    "check_stack": NextAction(
        text="Check that Temporal, the store and a worker are running.", command="turngate doctor"
    ),
    "mend_tool": NextAction(
        text='Fix the tool, or what it depends on. With failure_mode="return" the model reads such a failure.'
    ),
    "mend_app": NextAction(
        text="Fix the app or the worker's settings, then restart the worker.",
        command="turngate doctor APP",
    ),
    "mend_policy": NextAction(text="Fix the policy.", command="turngate policy check FILE", href="/policy"),
    "find_lost": NextAction(
        text="Check that this is the Temporal server and namespace where the run was started.",
        command="turngate doctor",
    ),
}
"""Remedies that are the same for every run."""

FIX_SCRIPT: Final = NextAction(
    text="Fix the script: the reason names the file and the line. Workers read it again when it changes, so nothing has to be "
    "restarted, and a script continues after the responses that the run has."
)


def plays_script(run: RunDetail) -> bool:
    """Tell whether a script plays the run's model, so that no server and no key can be at fault."""
    return is_free(run.model) or run.reason.startswith(f"the script {SCRIPTED}")


@dataclass(frozen=True, kw_only=True)
class Remedies:
    """The remedies of one run that ended. ``temporal``: the options that lead Temporal's own commands to its server."""

    run: RunDetail
    temporal_url: str | None
    temporal: str

    def actions(self, remedies: tuple[Remedy, ...]) -> list[NextAction]:
        """Return the action of each for this run, in order; those that don't apply are left out."""
        return [action for each in remedies if (action := self._action(each)) is not None]

    @property
    def last_closed(self) -> int | None:
        """The newest step that a fork can start after; None: there is none."""
        return max((step.step for step in self.run.steps if step.closed_at is not None), default=None)

    def _action(self, remedy: Remedy) -> NextAction | None:
        match remedy:
            case "retry":
                return self._retry()
            case "send_message":
                return self._send_message()
            case "fork":
                return self._fork()
            case "other_model":
                return self._other_model()
            case "start_again":
                again = "Start the task again as a new run, in a new conversation."
                return NextAction(
                    text=again, command=f'turngate run --agent {shlex.quote(self.run.agent)} "…"', href="/runs/new"
                )
            case "check_model" if plays_script(self.run):
                return FIX_SCRIPT
            case "raise_limit":
                limit = _LIMITS.get(self.run.error_class, "…")
                return NextAction(
                    text=f"Raise the agent's limit, Limits({limit}=…), and restart the worker. It applies from the next run on."
                )
            case "read_log":
                return NextAction(
                    text="Read the worker's log of that time. Temporal has the error with its traceback.",
                    command=f"temporal workflow show --workflow-id {self.run.id} {self.temporal}",
                    href=self.temporal_url,
                )
            case _:
                return PLAIN[remedy]

    def _retry(self) -> NextAction | None:
        if self.run.parent is not None or self.run.replay_of_run_id is not None:
            return None
        return NextAction(
            text="Once that is fixed, continue where the run ended. What it did stays done, and no call is sent twice.",
            command=f"turngate retry {self.run.id}",
            href=f"/runs/{self.run.id}#act-title",
        )

    def _send_message(self) -> NextAction:
        run = self.run
        if run.replay_of_run_id is not None:
            return NextAction(
                text="Once that is fixed, start another dry run: a dry run can't continue.",
                command=f"turngate replay {run.replay_of_run_id} --dry",
                href=f"/runs/{run.replay_of_run_id}/replay",
            )
        if run.parent is not None:
            return NextAction(
                text=f"See the run that called this agent: the model of {run.parent.agents} has read that it failed.",
                command=f"turngate explain {run.parent.run_id}",
                href=f"/runs/{run.parent.run_id}",
            )
        agent, conversation = shlex.quote(run.agent), shlex.quote(run.conversation_id)
        return NextAction(
            text="Send a message to continue the conversation: every open call was closed.",
            command=f'turngate run --agent {agent} --conversation {conversation} "…"',
            href=f"/runs/{run.id}#act-title",
        )

    def _fork(self) -> NextAction | None:
        step = self.last_closed
        if step is None:
            return None
        return NextAction(
            text=f"Fork it after step {step}, its last closed one, or an earlier one: a new conversation that shares the past up "
            "to there. What tools did is neither undone nor repeated.",
            command=f'turngate fork {self.run.id} --step {step} "…"',
            href=f"/runs/{self.run.id}/fork?step={step}",
        )

    def _other_model(self) -> NextAction:
        if self._retry() is not None:
            start = f"turngate retry {self.run.id}"
            return NextAction(
                text="Continue where the run ended, with another model.", command=f"{start} --model PROVIDER:NAME"
            )
        step = self.last_closed
        agent = f"--agent {shlex.quote(self.run.agent)}"
        start = f"turngate run {agent}" if step is None else f"turngate fork {self.run.id} --step {step}"
        return NextAction(text="Continue with another model.", command=f'{start} --model PROVIDER:NAME "…"')


def for_stall(run: RunDetail, waits_for: WaitReason) -> NextAction | None:
    """Return what a person can do about one thing that a live run waits for; None: only wait."""
    match waits_for.kind:
        case "person":
            request = waits_for.request_id
            text = "Read the request and decide it. The command prints the commands that decide it, too."
            return NextAction(text=text, command=f"turngate show {request}", href=f"/requests/{request}")
        case "sub_agent":
            child = waits_for.child_run_id
            return NextAction(
                text="See what the sub-agent's run waits for.",
                command=f"turngate explain {child}",
                href=f"/runs/{child}",
            )
        case "paused":
            resume = f"turngate resume {run.id}"
            return NextAction(text="Resume it.", command=resume, href=f"/runs/{run.id}#act-title")
        case "no_worker":
            return _start_worker(waits_for)
        case "workflow_fails":
            return _start_old_worker(waits_for)
        case "temporal_away":
            return NextAction(text="Start Temporal: the run then continues by itself.", command="turngate doctor")
        case "workflow_gone":
            return NextAction(
                text="If this is the Temporal server and namespace where the run was started, recover it: it continues from its "
                "last closed step.",
                command=f"turngate recover {run.id}",
            )
        case "model_retrying":
            return NextAction(
                text="Check that the model answers (`turngate models --probe`), or switch to another one.",
                command=f"turngate model {run.id} MODEL",
                href=f"/runs/{run.id}#act-title",
            )
        case "tool" | "model" | "timer":
            return NextAction(
                text="Wait, or interrupt the run: running calls are stopped, and the conversation stays usable.",
                command=f"turngate interrupt {run.id}",
                href=f"/runs/{run.id}#act-title",
            )
        case _:
            assert_never(waits_for.kind)


def _start_old_worker(waits_for: WaitReason) -> NextAction:
    if waits_for.build is not None:
        build = shlex.quote(waits_for.build)
        return NextAction(
            text=f"Start a worker of build {waits_for.build} with the code of that release, and stop those of that build which "
            "have other code: the run then continues by itself. `turngate replay-check` says which code can continue it.",
            command=f"turngate worker APP --build-id {build}",
        )
    return NextAction(
        text="Start a worker of the release that began the run, with a build id of its own, then let that build continue it: "
        "`turngate builds --set-current OLD`. The run then continues by itself, and new runs go to OLD until another build is "
        "current. `turngate replay-check` says which code can continue it.",
        command="turngate worker APP --build-id OLD",
    )


def _start_worker(waits_for: WaitReason) -> NextAction:
    build = waits_for.build
    if build is None:
        return NextAction(text="Start a worker: the run then continues by itself.", command="turngate worker APP")
    text = f"Start a worker of build {build}, with the code of that release: the run then continues by itself."
    if not waits_for.pinned:
        text += " Or let workers without a build take new runs: `turngate builds --unset-current`."
    return NextAction(text=text, command=f"turngate worker APP --build-id {shlex.quote(build)}")
