"""A session that is open in an editor: its conversation, what was shown of it, its model, and the running prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from acp.schema import ConfigOptionUpdate

from turngate.client import TurngateClient
from turngate.domain.errors import ConflictError
from turngate.frontends.acp.calls import Calls
from turngate.frontends.acp.editor import Editor
from turngate.frontends.acp.gates import Gates
from turngate.frontends.acp.history import updates_of
from turngate.frontends.acp.models import SessionModel
from turngate.frontends.acp.sessions import Session
from turngate.frontends.acp.turn import Turn
from turngate.wire.runs import MessageView, RunSummary


@dataclass
class Prompted:
    """A prompt that is being answered. ``run_id``, ``gates``: None until its run has begun."""

    run_id: str | None = None
    gates: Gates | None = None
    is_cancelled: bool = False


@dataclass
class OpenSession:
    """One open session. ``agent``: who answers in it. ``seen_steps``: steps that the editor has, as (run, step)."""

    session: Session
    editor: Editor
    agent: str
    model: SessionModel
    seen_steps: set[tuple[str, int]] = field(default_factory=set)
    prompted: Prompted | None = None

    def __post_init__(self) -> None:
        """Begin with no calls."""
        self.calls = Calls(self.editor, self.session.directory)

    async def retell(self, messages: Sequence[MessageView]) -> None:
        """Tell the conversation's past."""
        await self.editor.tell(*updates_of(messages, self.calls))

    def knows(self, messages: Sequence[MessageView]) -> None:
        """Take note of a past that the editor has: nothing of it is sent again."""
        self.session.run_id = next((each.run_id for each in reversed(messages) if each.run_id is not None), None)
        self.seen_steps |= {(each.run_id, each.step) for each in messages if each.run_id and each.step}

    async def begin(self, client: TurngateClient, text: str) -> RunSummary:
        """Start the run that answers a prompt, or say it to the live one."""
        session = self.session
        if session.run_id is None or self.model.is_new:
            try:
                return await client.start_run(
                    agent=self.agent,
                    text=text,
                    conversation_id=session.conversation_id,
                    workspace=session.directory,
                    model=self.model.chosen,
                )
            except ConflictError as live:
                if session.run_id is None or live.error_code != "run_live":
                    raise
        # Injected: what is queued would be answered by another run, which this turn would not see.
        return await client.send_message(session.run_id, text, while_running="inject")

    async def turn(self, client: TurngateClient, prompted: Prompted) -> Turn:
        """Return what follows a run for a prompt."""
        prompted.gates = Gates(client, self.editor, self.calls, await client.get_me())
        if prompted.is_cancelled:
            prompted.gates.cancel()
        return Turn(client, self.editor, self.calls, prompted.gates, self.seen_steps, self._switched)

    async def _switched(self, model: str) -> None:
        if model != self.model.current:
            self.model.took(model)
            await self.editor.tell(
                ConfigOptionUpdate(session_update="config_option_update", config_options=self.model.options)
            )
