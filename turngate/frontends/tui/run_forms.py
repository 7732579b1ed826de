"""What is asked of a person who speaks to a run, forks it, retries it or gives it another model."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from turngate.frontends.tui.form_dialog import FormSpec
from turngate.frontends.tui.form_model import Control, choice_of, object_form
from turngate.frontends.tui.session import Sent
from turngate.frontends.tui.texts import line, plain_line
from turngate.wire.agents import AgentView
from turngate.wire.runs import RunDetail

Send = Callable[[dict[str, Any]], Awaitable[Sent]]
"""Takes what the form says."""

FIELD_OF: Final = {"/input": "/message", "/while_running": "/the agent reads it"}
"""Where the API's complaints about a message are shown."""
MESSAGE: Final = Control(name="", key="message", kind="text", text="")
WHEN: Final = choice_of(
    "the agent reads it",
    [
        (None, "as the agent declares"),
        ("queue", "queue: when this run has ended, in a run of its own"),
        ("inject", "inject: before its next step"),
        ("supersede", "supersede: before its next step; what waits for a person ends now"),
    ],
)
MODEL_HINT: Final = "provider:name, or a profile's name; empty: the run's own"


def message_form(run: RunDetail, send: Send) -> FormSpec:
    """Return what asks for a message, and for when a live run reads it."""
    live = run.status == "running"
    form = object_form(MESSAGE, WHEN) if live else object_form(MESSAGE)
    return FormSpec(
        title="Message to the run" if live else "Next message of this conversation",
        lead=line(f"To {plain_line(run.agent, 60)}." if live else "This run has ended: it starts the next one."),
        draw=lambda _source: form,
        send=_taking(send),
        fault=lambda args: None if json.loads(args)["message"].strip() else "Say something, or leave with Escape.",
        pointer="",
    )


def retry_form(run: RunDetail, send: Send) -> FormSpec:
    """Return what asks whether, and with which model, to continue where a run ended."""
    form = object_form(Control(name="", key="model", kind="line", text="", required=False, description=MODEL_HINT))
    return FormSpec(
        title="Retry: continue where it ended, with no new message?",
        lead=line(
            "What it did stays done, and no call is sent twice. What did not run is asked for again, if the agent still "
            f"wants it. Its model was {plain_line(run.model, 80)}."
        ),
        draw=lambda _source: form,
        send=_taking(send),
        pointer="",
    )


def fork_form(run: RunDetail, agents: Sequence[AgentView], send: Send) -> FormSpec:
    """Return what asks where a fork continues from, and with what."""
    closed = [step.step for step in run.steps if step.closed_at]
    names = [each.name for each in agents if each.name != run.agent and not each.sub_agent_of]
    form = object_form(
        choice_of("step", [(str(each), str(each)) for each in reversed(closed)], description="after which closed step"),
        Control(name="", key="text", kind="text", text="", description="what to say then"),
        choice_of("agent", [(None, f"the run's: {run.agent}"), *((name, name) for name in names)]),
        Control(name="", key="model", kind="line", text="", required=False, description=MODEL_HINT),
        choice_of("past", [(None, "the messages as they are"), ("summary", "a summary of them, which a model writes")]),
    )
    return FormSpec(
        title="Fork: continue from a step in a conversation of its own",
        lead=line("This run stays as it is. Ctrl+S shows what is used again and what is not undone, before it starts."),
        draw=lambda _source: form,
        send=_taking(send),
        fault=lambda args: None if json.loads(args)["text"].strip() else "Say what it should do, or leave with Escape.",
        pointer="",
    )


def _taking(send: Send) -> Callable[[str], Awaitable[Sent]]:
    async def take(args: str) -> Sent:
        return await send(json.loads(args))

    return take
